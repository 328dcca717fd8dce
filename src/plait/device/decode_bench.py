"""Generation speed at a position in a long text, in tokens per second, compared with Hugging Face's `generate`.

The preceding text is read in chunks; then tokens are generated greedily, one after the other: on a GPU from buffers, by
replaying a graph (`plait.model.decoding`), elsewhere step by step, as `plait generate` does. The peer is transformers'
Llama of the same sizes, which only attention has.

Letters: B batch.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plait.core.errors import UserError
from plait.mixers.attn import AttnOptions
from plait.mixers.mlp import SwigluOptions
from plait.model import build
from plait.model.architecture import Architecture, architecture
from plait.model.decoding import Decoder, decodes
from plait.model.language_model import LanguageModel

CHUNK = 4096  # tokens read at once
WARM_UP = 4


@dataclass(frozen=True)
class DecodeTiming:
    """The time of one generated token for `batch` rows together, each `position` tokens into its text."""

    spec: str
    generator: str
    batch: int
    position: int
    tokens_per_second: float
    milliseconds: float  # of one token of every row
    state_bytes: int | None = None


def with_vocabulary(spec: str, vocab: int) -> Architecture:
    arch = architecture(spec)
    return Architecture(arch.header.with_vocabulary(vocab), arch.layers)


@torch.no_grad()
def decode_speed(
    spec: str, *, batch: int, position: int, tokens: int, vocab: int, device: torch.device, dtype: torch.dtype
) -> DecodeTiming:
    """The mean time of a token, `position` tokens into the text."""
    model = build(with_vocabulary(spec, vocab), device=device, dtype=dtype).eval()
    if not isinstance(model, LanguageModel) or not decodes(model):
        raise UserError(f"{spec} does not generate from buffers.")
    stream = torch.Generator().manual_seed(0)
    state = model.init_state(batch)
    for begin in range(0, position, CHUNK):
        size = min(CHUNK, position - begin)
        chunk_BT = torch.randint(vocab, (batch, size), generator=stream).to(device)
        _, state = model.backbone.extend(chunk_BT, state)
    newest_B = torch.zeros(batch, dtype=torch.long, device=device)
    decoder: Decoder | None = None
    if device.type == "cuda":
        decoder = Decoder(model, state, capacity=position + WARM_UP + tokens + 1)
    begun = 0.0
    for i in range(WARM_UP + tokens):
        if i == WARM_UP:
            _wait(device)
            begun = time.perf_counter()
        if decoder is not None:
            newest_B = decoder.step(newest_B).argmax(-1)
        else:
            logits_BV, state = model.step(newest_B, state)
            newest_B = logits_BV.argmax(-1)
    _wait(device)
    seconds = (time.perf_counter() - begun) / tokens
    held = state.nbytes if decoder is None else decoder.nbytes
    return DecodeTiming(spec, "plait", batch, position, batch / seconds, 1e3 * seconds, held)


@torch.no_grad()
def hugging_face_speed(
    spec: str, *, batch: int, position: int, tokens: int, vocab: int, device: torch.device, dtype: torch.dtype
) -> DecodeTiming:
    """transformers' Llama of the same sizes, generating eagerly with its cache."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        raise UserError("transformers is not installed: pip install 'plait[hf]'.") from None
    arch = with_vocabulary(spec, vocab)
    attn, mlp, d = arch.layers[0], arch.layers[-1], arch.header.d
    if not isinstance(attn, AttnOptions) or not isinstance(mlp, SwigluOptions) or set(arch.layers) != {attn, mlp}:
        raise UserError(f"transformers' Llama is not like {spec}.")
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=d,
        intermediate_size=mlp.inner_width(d),
        num_hidden_layers=len(arch.layers) // 2,
        num_attention_heads=attn.heads,
        num_key_value_heads=int(attn.groups()),
        max_position_embeddings=position + tokens + 8,
    )
    with device:
        model: Any = LlamaForCausalLM(config).eval()
    model.to(dtype)
    prompt_BT: Tensor = torch.randint(vocab, (batch, position), device=device)

    def run(count: int) -> float:
        _wait(device)
        begun = time.perf_counter()
        model.generate(
            prompt_BT, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0, eos_token_id=None
        )
        _wait(device)
        return time.perf_counter() - begun

    run(2)
    # The prompt takes the same time in both calls, so it cancels.
    seconds = (run(tokens + 1) - run(1)) / tokens
    return DecodeTiming(spec, "Hugging Face", batch, position, batch / seconds, 1e3 * seconds)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
