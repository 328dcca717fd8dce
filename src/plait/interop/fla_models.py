"""flash-linear-attention's model of the same kind and size as an architecture, and its training speed on this machine.

A baseline for speed: its own modules, kernels and fused losses with its defaults, under the same autocast, clipping and
fused AdamW as plait's. If the `flash_attn` package is not installed, its Transformer uses torch's flash attention, the
same algorithm.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.core.errors import UserError
from plait.model.architecture import Architecture, architecture

Sizes = dict[str, Any]

#: Mixer → module and class of the configuration, and the function from options to its sizes.
PEERS: dict[str, tuple[str, str, Callable[[Any, int], Sizes]]] = {
    "attn": (
        "transformer",
        "TransformerConfig",
        lambda o, d: {"num_heads": o.heads, "num_kv_heads": o.kv_heads or None, "rope_theta": o.theta},
    ),
    "fox": (
        "forgetting_transformer",
        "ForgettingTransformerConfig",
        lambda o, d: {
            "num_heads": o.heads,
            "qk_norm": o.qk_norm != "none",
            "use_output_gate": o.out_gate,
        },
    ),
    "gla": (
        "gla",
        "GLAConfig",
        lambda o, d: {"num_heads": o.heads, "expand_k": o.expand_k, "expand_v": o.expand_v},
    ),
    "hgrn2": ("hgrn2", "HGRN2Config", lambda o, d: {"expand_ratio": o.head_dim}),
    "deltanet": ("delta_net", "DeltaNetConfig", lambda o, d: {"num_heads": d // o.head_dim, "conv_size": o.conv}),
    "gated-deltanet": (
        "gated_deltanet",
        "GatedDeltaNetConfig",
        lambda o, d: {
            "num_heads": d // o.head_dim,
            "head_dim": o.head_dim,
            "expand_v": o.expand_v,
            "conv_size": o.conv,
        },
    ),
    "kda": (
        "kda",
        "KDAConfig",
        lambda o, d: {"num_heads": o.heads or d // o.head_dim, "head_dim": o.head_dim, "conv_size": o.conv},
    ),
    "retnet": ("retnet", "RetNetConfig", lambda o, d: {"num_heads": o.heads, "expand_v": o.expand_v}),
    "rwkv6": (
        "rwkv6",
        "RWKV6Config",
        lambda o, d: {
            "num_heads": d // o.head_dim,
            "expand_k": 1.0,
            "expand_v": 1.0,
            "proj_low_rank_dim": o.mix_rank,
            "gate_low_rank_dim": o.decay_rank,
        },
    ),
    "mamba2": (
        "mamba2",
        "Mamba2Config",
        lambda o, d: {"state_size": o.state, "expand": o.expand, "head_dim": o.head_dim, "conv_kernel": o.conv},
    ),
}


def peer_config(arch: Architecture) -> Any:
    """flash-linear-attention's configuration; a `UserError` if it has no such model or is not installed."""
    header = arch.header
    sequence = {options for options in arch.layers if options.kind == "sequence"}
    channel = [options for options in arch.layers if options.kind == "channel"]
    kinds = {options.name for options in sequence}
    if len(sequence) != 1 or not kinds <= set(PEERS) or {o.name for o in channel} - {"swiglu"}:
        raise UserError(f"flash-linear-attention has no model like {arch.text}.")
    options = sequence.pop()
    folder, name, sizes = PEERS[options.name]
    config: Sizes = {
        "hidden_size": header.d,
        "num_hidden_layers": len(arch.layers) - len(channel),
        "vocab_size": header.vocab,
        "max_position_embeddings": 16384,
        "tie_word_embeddings": header.tie,
        "use_cache": False,
        **sizes(options, header.d),
    }
    if channel:
        inner = channel[0].inner_width(header.d)
        # RWKV-6's channel mixing has two matrices of the inner width and one of d × d where SwiGLU has three of the
        # inner width: as wide as gives it as many parameters.
        config["intermediate_size"] = (3 * inner - header.d) // 2 if options.name == "rwkv6" else inner
    try:
        module = importlib.import_module(f"fla.models.{folder}")
    except ImportError as wrong:
        raise UserError(f"flash-linear-attention cannot be imported here: {wrong}.") from None
    return getattr(module, name)(**config)


def peer_model(spec: str, vocab: int, layers: int | None = None) -> nn.Module:
    """Its model for causal language modelling, with its own initialisation, in fp32."""
    config = peer_config(architecture(spec).with_vocabulary(vocab))
    config.num_hidden_layers = layers or config.num_hidden_layers
    _provide_flash_attention()
    from transformers import AutoModelForCausalLM

    model: nn.Module = AutoModelForCausalLM.from_config(config)
    return model


def _provide_flash_attention() -> None:
    attn: Any = importlib.import_module("fla.layers.attn")
    if attn.flash_attn_func is None:

        def flash(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, **_: Any) -> Tensor:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
                o = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])
            return o.transpose(1, 2)

        attn.flash_attn_func = flash


class PeerTraining:
    """A training of its model on random tokens, after `warm_up` steps; `time` runs further steps. `layers`: only so
    many layers, with the shapes of the whole model."""

    def __init__(
        self,
        spec: str,
        *,
        batch: int = 8,
        seq_len: int = 4096,
        vocab: int = 50257,
        warm_up: int = 3,
        layers: int | None = None,
        device: str = "cuda",
    ) -> None:
        self.device, self.shape, self.vocab = torch.device(device), (batch, seq_len), vocab
        with self.device:
            model = peer_model(spec, vocab, layers)
        self.model = model.to(self.device).train()
        on_gpu = self.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=on_gpu or None
        )
        self.stream = torch.Generator(self.device).manual_seed(0)
        for _ in range(warm_up):
            self._step()

    def _step(self) -> Tensor:
        tokens_BT = torch.randint(self.vocab, self.shape, generator=self.stream, device=self.device)
        with torch.autocast(self.device.type, torch.bfloat16):
            loss: Tensor = self.model(input_ids=tokens_BT, labels=tokens_BT).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def time(self, steps: int) -> dict[str, float]:
        """Tokens per second, peak bytes so far and the loss after the last step."""
        self._wait()
        begun, loss = time.perf_counter(), torch.zeros(())
        for _ in range(steps):
            loss = self._step()
        self._wait()
        seconds = (time.perf_counter() - begun) / steps
        on_gpu = self.device.type == "cuda"
        return {
            "tokens_per_second": self.shape[0] * self.shape[1] / seconds,
            "peak_bytes": float(torch.cuda.max_memory_allocated()) if on_gpu else 0.0,
            "params": float(sum(p.numel() for p in self.model.parameters())),
            "loss": float(loss),
        }

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
