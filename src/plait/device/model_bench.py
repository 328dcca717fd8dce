"""Benchmarks of whole models: generation at a position in a long text (`plait bench decode`), and a fleet of small
models in one stacked step, compared with the plain loop (`plait bench fleet`).

Generation is in tokens per second, compared with Hugging Face's `generate`. The preceding text is read in chunks; then
tokens are generated greedily, one after the other: on a GPU from buffers, by replaying a graph
(`plait.model.decoding`), elsewhere step by step, as `plait generate` does. The peer is transformers' Llama of the same
sizes, which only attention has.

A fleet has the probe's models (two blocks of mixer and SwiGLU 512, four Mamba layers; width 128) on in-context recall's
shape. For each: milliseconds per step of one model in the plain loop (eager, fused AdamW), milliseconds per
replica-step of the fleet, and the difference between the fleet's first loss and the plain loop's after 20 steps.

Letters: B batch.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plait.core.errors import UserError
from plait.core.registry import require_known
from plait.mixers.attn import AttnOptions
from plait.mixers.mlp import SwigluOptions
from plait.model import build
from plait.model.architecture import architecture
from plait.model.decoding import Decoder, decodes
from plait.model.language_model import LanguageModel
from plait.ops.paths import autocast_on
from plait.training.ensemble import Fleet, Split, data_order
from plait.training.ensemble_plan import Plan, Replica
from plait.training.optimizer import decayed_parameters
from plait.training.recipe import Recipe, rate

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


@torch.no_grad()
def decode_speed(
    spec: str, *, batch: int, position: int, tokens: int, vocab: int, device: torch.device, dtype: torch.dtype
) -> DecodeTiming:
    """The mean time of a token, `position` tokens into the text."""
    model = build(architecture(spec).with_vocabulary(vocab), device=device, dtype=dtype).eval()
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
    arch = architecture(spec).with_vocabulary(vocab)
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


BODIES = {
    "attn": "(attn[heads=16] swiglu[inner=512])x2",
    "hyena": "(hyena swiglu[inner=512])x2",
    "gla": "(gla[heads=8] swiglu[inner=512])x2",
    "mamba": "(mamba[state=4,conv_bias=false])x4",
    "mh-hyena": "(mh-hyena[heads=16] swiglu[inner=512])x2",
    "moe": "(attn[heads=16] moe[inner=16])x2",
}
TOKENS, VOCAB, BATCH = 128, 16, 128
STEPS = 10_000  # of the schedule
EPOCH = 100  # steps
EARLY = 20  # steps after which losses are compared


@dataclass(frozen=True)
class FleetTiming:
    """`ratio`: how many times as many replica-steps per second the fleet makes as the plain loop."""

    model: str
    replicas: int
    batch: int
    tokens: int
    plain_ms: float
    replica_step_ms: float
    ratio: float
    first_step_seconds: float  # includes compiling, if it compiles
    loss_gap: float


def fleet_body(name: str) -> str:
    require_known(name, BODIES, "no fleet of")
    return BODIES[name]


def fleet_data(device: torch.device, batch: int, tokens: int) -> Split:
    """One epoch of batches. The compared steps must stay within it: the plain loop does not reproduce the fleet's order
    of the next epoch."""
    x = torch.randint(VOCAB, (1, EPOCH * batch, tokens), generator=torch.Generator().manual_seed(0), dtype=torch.int16)
    return Split(x.to(device), x.roll(-1, dims=2).to(device))


def made_fleet(name: str, replicas: int, split: Split, batch: int, device: torch.device) -> Fleet:
    arch = architecture(f"d=128 vocab={VOCAB} | {fleet_body(name)}")
    small = Split(split.inputs_DNT[:, :batch], split.targets_DNT[:, :batch])
    grid = [Replica(lr=1e-3, weight_decay=0.1, seed=seed) for seed in range(replicas)]
    return Fleet(arch, grid, Plan(steps=STEPS, batch=batch), split, small, small, device=str(device))


def plain_loop(name: str, split: Split, steps: int, batch: int, device: torch.device) -> tuple[float, float]:
    """(milliseconds per step, loss after `EARLY` steps) of one model, trained in a plain loop."""
    replica, cuda = Replica(lr=1e-3, weight_decay=0.1, seed=0), device.type == "cuda"
    recipe = Recipe(lr=replica.lr, warmup=0)
    model = build(f"d=128 vocab={VOCAB} | {fleet_body(name)}", seed=0, device=device)
    decayed = decayed_parameters(model)
    groups = [
        {"params": [p for n, p in model.named_parameters() if (n in decayed) == wanted], "weight_decay": decay}
        for wanted, decay in ((True, replica.weight_decay), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, lr=replica.lr, betas=(0.9, 0.98), fused=cuda)
    examples = split.inputs_DNT.shape[1]
    order = data_order(0, 0, examples).to(device)

    def step(i: int) -> Tensor:
        rows = order[(i * batch) % examples :][:batch]
        for group in optimizer.param_groups:
            group["lr"] = replica.lr * rate(recipe, i, STEPS)
        with autocast_on(device):
            loss: Tensor = model.loss(split.inputs_DNT[0, rows].long(), split.targets_DNT[0, rows].long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    loss = torch.zeros(())
    for i in range(EARLY):
        loss = step(i)
    early = float(loss.detach())
    _wait(device)
    begun = time.perf_counter()
    for i in range(steps):
        step(EARLY + i)
    _wait(device)
    return 1e3 * (time.perf_counter() - begun) / steps, early


def fleet_timing(name: str, *, replicas: int, steps: int, batch: int, tokens: int, device: torch.device) -> FleetTiming:
    split = fleet_data(device, batch, tokens)
    fleet = made_fleet(name, replicas, split, batch, device)
    begun = time.perf_counter()
    fleet.advance(1)
    _wait(device)
    first = time.perf_counter() - begun
    loss = float(fleet.advance(EARLY - 1)[0])
    begun = time.perf_counter()
    fleet.advance(steps)
    _wait(device)
    ms = 1e3 * (time.perf_counter() - begun) / steps / replicas
    plain_ms, plain_loss = plain_loop(name, split, steps, batch, device)
    return FleetTiming(name, replicas, batch, tokens, plain_ms, ms, plain_ms / ms, first, abs(loss - plain_loss))
