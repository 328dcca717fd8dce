"""MFU is at most one: FLOPs that are counted are executed, for every mixer; a device that is not known has none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from plait.mixers.attn import AttnOptions
from plait.mixers.options import seen_pairs
from plait.mixers.table import MIXERS
from plait.model import build, model_cost
from plait.ops.paths import plain_ops
from plait.training.speed import PEAKS, peak_flops

T = 48
SMALL = {"hgrn2": "head_dim=8", "deltanet": "head_dim=8", "kda": "head_dim=8", "gated-deltanet": "head_dim=8",
         "rwkv6": "head_dim=8", "rwkv7": "head_dim=8", "mamba2": "state=4,head_dim=8", "deltaproduct": "head_dim=8",
         "mamba3": "state=4,head_dim=8", "attn": "heads=2", "fox": "heads=2", "mla": "heads=2", "xl-attn": "heads=2",
         "retnet": "heads=2", "zamba2": "state=4,head_dim=8,heads=2"}  # fmt: skip
BEFORE = {"cross-attn": "attn", "gmu": "mamba"}  # what they read of
WIDE = ("parallel", "sparse-attn")  # as wide as their heads are by default


class Executed(TorchDispatchMode):
    """Counts what is computed: two for each multiply-add of a product, one for each number that any other operation
    writes or a sum reads."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in flop_registry:
            self.flops += flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=out)
        elif not func.is_view:
            sizes = [x.numel() for x in (*args, out) if isinstance(x, torch.Tensor) and x.is_floating_point()]
            self.flops += max(sizes, default=0)
        return out


@pytest.mark.parametrize("name", sorted(MIXERS.names()))
def test_training_executes_at_least_what_is_counted(name: str) -> None:
    options = f"[{SMALL[name]}]" if name in SMALL else ""
    spec = f"d={128 if name in WIDE else 32} vocab=50 | {BEFORE.get(name, '')} {name}{options} swiglu[inner=16]"
    model = build(spec)
    tokens = torch.randint(50, (1, T), generator=torch.Generator().manual_seed(0))
    with plain_ops(), Executed() as executed:
        model.loss(tokens, tokens.roll(1, 1)).backward()
    counted = 3 * model_cost(spec, seq=T).unmasked_flops
    assert 0 < counted <= executed.flops


@pytest.mark.parametrize(
    ("seq", "memory", "window"), [(1, 0, 0), (7, 0, 0), (7, 5, 0), (9, 0, 4), (9, 3, 4), (3, 9, 4)]
)
def test_pairs_that_see_each_other_are_counted_one_by_one(seq: int, memory: int, window: int) -> None:
    seen = sum(
        1
        for query in range(memory, memory + seq)
        for key in range(memory + seq)
        if key <= query and (not window or query - key < window)
    )
    assert seen_pairs(seq, memory, window) == seen


def test_causal_attention_counts_what_it_sees_and_an_encoders_everything() -> None:
    causal, both = (AttnOptions(heads=2, causal=causal).cost(16, T) for causal in (True, False))
    assert causal.total_flops == both.total_flops == both.unmasked_flops
    assert causal.total_flops - causal.unmasked_flops == 4 * 16 * (T * T - T * (T + 1) // 2)


def test_devices_are_known_by_what_their_names_contain() -> None:
    assert peak_flops("NVIDIA H200", "bf16") == 989.4e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", "bf16") == 312e12
    assert peak_flops("NVIDIA L4", "bf16") == 121e12
    assert peak_flops("NVIDIA L40S", "bf16") == 362e12
    assert peak_flops("NVIDIA A10", "bf16") == 125e12
    assert peak_flops("NVIDIA H20", "bf16") == 148e12
    assert peak_flops("A new device", "bf16") is None
    assert all(0 < fp32 < bf16 for _, bf16, fp32 in PEAKS)
