"""Checks a mixer's kernels on this GPU: its op is compared with float64 in the cases where kernels tend to fail.

Outputs and the gradients of all inputs are compared with the definition (one token at a time in float64; long sequences
with the chunked form in float64, which tests compare with the definition) at lengths that are not multiples of a chunk,
with decays from none to extreme, with uninitialised memory filled with NaN, and twice, for bitwise equality. Replicas
of a fleet, stacked by vmap, and narrow heads (SwiGLU: models), alone and in a fleet, are checked in the same way.
Kernels are compiled on the machine they run on, and some combinations of compiler and GPU produce wrong code, so the
check has to be repeated on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from plait.core.errors import UserError
from plait.device.kernel_bench import CASES, TOLERANCES, Inputs, KernelCase, Run
from plait.ops.paths import plain_ops, watched_paths

#: A mixer's name → the case of `plait.device.kernel_bench` that has its op.
OPS = {name: name for name in CASES if name not in ("short-conv", "attn-few")} | {
    "mamba3": "mamba2", "deltaproduct": "deltanet", "hyena": "short-conv", "mh-hyena": "short-conv",
}  # fmt: skip
DECAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "weak": lambda u: torch.full_like(u, -1e-6),
    "strong": lambda u: torch.full_like(u, -13.8),
    "mixed": lambda u: -torch.exp(16.4 * u - 13.8),
    "extreme": lambda u: torch.where(u < 0.3, -100.0, 0.0),
}
SHORT, LONG = (1, 2, 63, 64, 65, 200), (1000, 16384)
DTYPES = (torch.bfloat16, torch.float32)
REPLICAS = 3  # of a stacked fleet
TORCHS = {"sdpa", "cudnn"}  # torch's own kernels, which need not be deterministic


class Setting(NamedTuple):
    dtype: torch.dtype
    tokens: int
    decays: str  # a key of `DECAYS`; "" if the op has none
    replicas: int = 1  # models stacked by vmap
    width: int = 0  # of narrow heads or models; 0: the op's usual shape


@dataclass(frozen=True)
class Guarded:
    """One setting. `error`: the largest of output and gradients, relative to the largest value of the same tensor;
    `path`: what ran, a kernel or the op's plain form."""

    op: str
    dtype: str
    tokens: int
    decays: str  # "" if the op has none
    path: str
    error: float
    worst: str  # which of output and gradients
    same: bool  # bitwise equal in two runs
    limit: float
    members: int = 1  # replicas stacked by vmap; the name is that of the JSON
    width: int = 0  # of narrow heads or models; 0: the op's usual shape

    @property
    def right(self) -> bool:
        return (self.same or self.path in TORCHS) and self.error <= self.limit

    @property
    def setting(self) -> str:
        """In words: 65 tokens, mixed decays, width 8."""
        parts = [f"{self.tokens:,} tokens"]
        parts += [f"{self.decays} decays"] if self.decays else []
        parts += [f"width {self.width}"] if self.width else []
        parts += [f"{self.members} members stacked"] if self.members > 1 else []
        return ", ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "right": self.right}


def case_of(mixer: str) -> KernelCase:
    if mixer not in OPS:
        raise UserError(f"{mixer} has no kernels to check; these have: {', '.join(sorted(OPS))}.")
    return CASES[OPS[mixer]]


def settings(case: KernelCase, *, longest: int = LONG[-1]) -> list[Setting]:
    """All settings at which an op is checked, short sequences first."""
    stream = torch.Generator().manual_seed(0)
    decays = list(DECAYS) if "g" in case.draw(1, 1, stream) else [""]
    usual = "mixed" if decays[0] else ""
    wanted = [(tokens, usual, 1, 0) for tokens in (*SHORT, *LONG) if tokens <= longest]
    wanted += [(65, decay, 1, 0) for decay in decays if decay not in ("mixed", "")]
    wanted += [(tokens, "strong", 1, 0) for tokens in LONG if tokens <= longest and "strong" in decays]
    wanted += [(65, usual, REPLICAS, 0)]
    wanted += [(min(200, longest), usual, replicas, width) for width in case.narrow for replicas in (1, REPLICAS)]
    wanted += [(tokens, usual, 1, min(case.narrow)) for tokens in LONG if tokens <= longest and case.narrow]
    return [Setting(dtype, *rest) for rest in wanted for dtype in DTYPES]


def guard(case: KernelCase, setting: Setting, device: torch.device) -> Guarded:
    dtype, tokens, decays, replicas, width = setting
    case = case.narrow[width] if width else case
    stream = torch.Generator(device).manual_seed(tokens)
    by_replica = [_drawn(case, setting, stream) for _ in range(replicas)]
    with watched_paths() as taken, unwritten_memory_is_nan():
        first, again = (_results(case.ours, by_replica) for _ in range(2))
    names = ("output", *(f"gradient of {name}" for name in by_replica[0]))
    errors = dict.fromkeys(names, 0.0)
    for ours, inputs in zip(first, by_replica, strict=True):
        wanted = _exact(case, inputs)
        sizes = [float(exact.abs().max()) for exact in wanted]
        for name, x, exact, size in zip(names, ours, wanted, sizes, strict=True):
            # A tensor that cancels to zero is measured relative to the others.
            size = size if size > 1e-12 * max(sizes) else max(sizes)
            error = float((x.double() - exact).abs().max()) / max(size, 1e-30)
            errors[name] = max(errors[name], error if error == error else math.inf)
    worst = max(errors, key=lambda name: errors[name])
    same = all(torch.equal(a, b) for x, y in zip(first, again, strict=True) for a, b in zip(x, y, strict=True))
    path = ", ".join(dict.fromkeys(taken.values())) or "plain"
    kind = str(dtype).removeprefix("torch.")
    return Guarded(
        case.name, kind, tokens, decays, path, errors[worst], worst, same, TOLERANCES[dtype], replicas, width
    )  # fmt: skip


def _drawn(case: KernelCase, setting: Setting, stream: torch.Generator) -> Inputs:
    drawn = case.draw(1, setting.tokens, stream)
    if setting.decays:
        drawn["g"] = DECAYS[setting.decays](torch.rand(drawn["g"].shape, generator=stream, device=stream.device))
    return {name: x.to(torch.float32 if name in case.wide else setting.dtype) for name, x in drawn.items()}


def _exact(case: KernelCase, inputs: Inputs) -> list[Tensor]:
    wide = {name: x.double() for name, x in inputs.items()}
    if next(iter(inputs.values())).shape[1] <= SHORT[-1]:
        return _results(case.definition, [wide])[0]
    if case.exact_when_long is not None:
        return _results(case.exact_when_long, [wide])[0]
    with plain_ops():
        return _results(case.ours, [wide])[0]


def _results(run: Run, by_replica: list[Inputs]) -> list[list[Tensor]]:
    """Of every replica: the output and the gradients of all inputs. Several replicas run stacked."""
    if len(by_replica) == 1:
        leaves = {name: x.detach().clone().requires_grad_() for name, x in by_replica[0].items()}
        o = run(leaves)
        return [
            [o.detach(), *torch.autograd.grad((o * _weights(o)).sum(), list(leaves.values()), materialize_grads=True)]
        ]

    def loss(inputs: Inputs) -> tuple[Tensor, Tensor]:
        o = run(inputs)
        return (o * _weights(o)).sum(), o

    stacked = {name: torch.stack([replica[name] for replica in by_replica]) for name in by_replica[0]}
    grads, o = torch.func.vmap(torch.func.grad(loss, has_aux=True), randomness="same")(stacked)
    return [[o[m], *(grad[m] for grad in grads.values())] for m in range(len(by_replica))]


def _weights(o: Tensor) -> Tensor:
    """Random weights of the outputs in the loss whose gradients are compared."""
    return torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).to(o)


@contextmanager
def unwritten_memory_is_nan() -> Iterator[None]:
    """Fill what `new_empty` and `empty_like` return with NaN, so that a kernel which reads memory it has not written
    gives NaN."""
    kept = torch.Tensor.new_empty, torch.empty_like, torch.empty

    def poisoned(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def run(*args: Any, **options: Any) -> Tensor:
            tensor = make(*args, **options)
            return tensor.fill_(math.nan) if tensor.is_floating_point() else tensor

        return run

    torch.Tensor.new_empty, torch.empty_like, torch.empty = map(poisoned, kept)  # type: ignore
    try:
        yield
    finally:
        torch.Tensor.new_empty, torch.empty_like, torch.empty = kept  # type: ignore
