"""The checks of the mixer contract (`plait check`): causality, forward = repeated steps, declared cost = counted cost …

Each check builds a fresh, seeded, small instance and reports what it measured.

Letters: B batch, T time, D width.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from plait.core.errors import UserError
from plait.mixers.mixer import Mixer
from plait.mixers.options import MIXING, SHORT_CONV, Cost, MixerOptions
from plait.mixers.reading_module import standing_alone
from plait.model.language_model import seed_mixer


@dataclass(frozen=True)
class Verdict:
    check: str
    status: str  # "pass", "fail", or "skip" where a check does not apply
    detail: str


@dataclass(frozen=True)
class Subject:
    """The mixer under test."""

    options: MixerOptions
    d: int = 64

    def build(self, dtype: torch.dtype = torch.float64) -> Mixer:
        """Build the mixer with larger weights than at initialisation, so that gates, decays and softmaxes are far from
        linear."""
        mixer = standing_alone(self.options, self.d)
        seed_mixer(mixer, seed=0, std=0.2)
        return mixer.to(dtype)

    def costs(self, seq: int) -> list[Cost]:
        """The cost of the mixer and, if it reads another layer's tensors, of that layer."""
        lender = self.options.lender()
        return [options.cost(self.d, seq) for options in (self.options, lender) if options is not None]

    def inputs(self, batch: int, tokens: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
        return torch.randn(batch, tokens, self.d, generator=torch.Generator().manual_seed(seed)).to(dtype)

    @property
    def steps(self) -> bool:
        """Whether the mixer has a state to step from (an encoder's mixer has none)."""
        return not self.options.bidirectional


Outcome = tuple[bool | None, str]  # None: the check does not apply
Check = Callable[[Subject], Outcome]


def shapes(subject: Subject) -> Outcome:
    """(B, T, D) in, (B, T, D) out, in the same dtype, for one token and for odd lengths."""
    seen = []
    for dtype in (torch.float32, torch.float64):
        mixer = subject.build(dtype)
        for tokens in (1, 2, 63, 65):
            x = subject.inputs(2, tokens, dtype)
            y = mixer(x)
            seen.append(y.shape == x.shape and y.dtype == dtype)
    return all(seen), "float32, float64; 1, 2, 63, 65 tokens"


def usable_output(subject: Subject) -> str:
    """What is wrong with the output for a normal input: its type, its shape or NaN; empty if nothing is."""
    x = subject.inputs(2, 67)
    y = subject.build()(x)
    if not isinstance(y, Tensor):
        return f"returns a {type(y).__name__} from `forward`, not a tensor"
    if y.shape != x.shape:
        return f"returns {tuple(y.shape)} for an input of {tuple(x.shape)}; these must be equal"
    return "" if y.isfinite().all() else "returns NaN or infinity for a normal input"


def causality(subject: Subject) -> Outcome:
    """No output depends on a later input."""
    if not subject.steps:
        return None, "looks both ways by design"
    mixer = subject.build()
    x = subject.inputs(2, 67)
    y = mixer(x)
    leak = 0.0
    for at in (1, 5, 32, 64, 66):
        changed = x.clone()
        changed[:, at:] = subject.inputs(2, 67 - at, seed=2)
        leak = max(leak, _gap(mixer(changed)[:, :at], y[:, :at]))
    return leak < 1e-9, f"future changed at 5 places: earlier outputs moved {leak:.1g}"


def forward_equals_steps(subject: Subject) -> Outcome:
    """The parallel form equals the recurrent form."""
    if not subject.steps:
        return None, "has no steps"
    mixer = subject.build()
    x = subject.inputs(2, 37)
    state, stepped = mixer.init_state(2), []
    for x_BD in x.unbind(1):
        y_BD, state = mixer.step(x_BD, state)
        stepped.append(y_BD)
    gap = _gap(torch.stack(stepped, dim=1), mixer(x))
    return gap < 1e-8, f"37 steps: gap {gap:.1g}"


def chunked_prefill(subject: Subject) -> Outcome:
    """Prefill in chunks of any size gives the same outputs and the same state as single steps."""
    if not subject.steps:
        return None, "has no state"
    mixer = subject.build()
    x = subject.inputs(2, 83)
    state, parts = mixer.init_state(2), []
    for chunk in x.split([1, 16, 2, 63, 1], dim=1):
        part, state = mixer.extend(chunk, state)
        parts.append(part)
    gap = _gap(torch.cat(parts, dim=1), mixer(x))
    return gap < 1e-8, f"chunks of 1, 16, 2, 63, 1: gap {gap:.1g}"


def states_are_values(subject: Subject) -> Outcome:
    """A call does not change the state it is given, so a kept state can be used again."""
    if not subject.steps:
        return None, "has no state"
    mixer = subject.build()
    _, state = mixer.extend(subject.inputs(2, 5), mixer.init_state(2))
    before = {key: value.clone() for key, value in state.items()}
    first, _ = mixer.step(subject.inputs(2, 1)[:, 0], state)
    again, _ = mixer.step(subject.inputs(2, 1)[:, 0], state)
    same = all(torch.equal(before[key], state[key]) for key in before) and torch.equal(first, again)
    return same, "a state used twice gives the same twice"


def gradients(subject: Subject) -> Outcome:
    """Gradients agree with finite differences in float64, for the input and every parameter."""
    mixer = subject.build()
    x = subject.inputs(1, 7).requires_grad_()
    leaves = [x, *mixer.parameters()]
    weight = subject.inputs(1, 7, seed=3)

    def objective() -> Tensor:
        y: Tensor = mixer(x)
        return (y * weight).sum()

    exact = _gradients(objective(), leaves)
    worst, step, stream = 0.0, 1e-6, torch.Generator().manual_seed(4)
    for leaf, gradient in zip(leaves, exact, strict=True):
        direction = torch.randn(leaf.shape, generator=stream, dtype=leaf.dtype)
        slope = float((gradient * direction).sum())
        with torch.no_grad():
            leaf += step * direction
            high = float(objective())
            leaf -= 2 * step * direction
            low = float(objective())
            leaf += step * direction
        worst = max(worst, abs(slope - (high - low) / (2 * step)) / (1 + abs(slope)))
    return worst < 1e-5, f"{len(leaves)} tensors: largest relative error {worst:.1g}"


def rows_are_independent(subject: Subject) -> Outcome:
    """A sequence has the same output alone, in a batch, and in any order of the batch."""
    mixer = subject.build()
    x = subject.inputs(3, 19)
    y = mixer(x)
    alone = torch.cat([mixer(row[None]) for row in x])
    turned = mixer(x.flip(0)).flip(0)
    gap = max(_gap(alone, y), _gap(turned, y))
    return gap < 1e-9, f"alone and reordered: gap {gap:.1g}"


def declared_parameters(subject: Subject) -> Outcome:
    """`cost` counts the parameters that the module has."""
    counted = sum(p.numel() for p in subject.build().parameters())
    total = int(sum(cost.total_params + sum(cost.shared.values()) for cost in subject.costs(16)))
    return total == counted, f"declared {total:,}, counted {counted:,}"


def declared_flops(subject: Subject) -> Outcome:
    """`cost` counts the matrix products with weights that are computed. (Mixing is counted as the recurrence's
    arithmetic; a chunked fast path may need more.)"""
    mixer = subject.build(torch.float32)
    with torch.no_grad(), WeightProducts(mixer) as counted:
        mixer(subject.inputs(1, 48, torch.float32))
    terms = [term for cost in subject.costs(48) for term in cost.flops.items()]
    named = int(sum(n for term, n in terms if term not in (MIXING, SHORT_CONV)))
    return named == counted.flops, f"products with weights: declared {named:,}, counted {counted.flops:,}"


class WeightProducts(TorchDispatchMode):
    """Counts the FLOPs of matrix products of which one side is a parameter, or a view of one."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.flops = 0
        self._weights = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        if func.overloadpacket in flop_registry and any(
            tensor.untyped_storage().data_ptr() in self._weights for tensor in tensors
        ):
            self.flops += flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=out)
        return out


def declared_state(subject: Subject) -> Outcome:
    """`cost` counts the numbers in a state after 16 tokens."""
    if not subject.steps:
        return None, "has no state"
    mixer = subject.build()
    _, state = mixer.extend(subject.inputs(1, 16), mixer.init_state(1))
    counted = sum(value.numel() for value in state.values() if value.is_floating_point())
    declared = int(sum(cost.fixed_state + cost.conv_state + cost.kv_cache for cost in subject.costs(16)))
    return declared == counted, f"declared {declared:,}, counted {counted:,}"


def finite(subject: Subject) -> Outcome:
    """Outputs and gradients stay finite on long, huge, tiny and constant inputs (fp32)."""
    mixer = subject.build(torch.float32)
    base = subject.inputs(1, 700, torch.float32)
    cases = {
        "700 tokens": base,
        "× 1000": 1000 * base[:, :200],
        "× 1e-20": 1e-20 * base[:, :200],
        "zeros": torch.zeros_like(base[:, :200]),
        "constant": torch.ones_like(base[:, :200]),
    }
    bad = []
    for name, values in cases.items():
        x = values.clone().requires_grad_()
        y = mixer(x)
        grads = _gradients(y.sum(), [x, *mixer.parameters()])
        if not all(t.isfinite().all() for t in (y, *grads)):
            bad.append(name)
    return not bad, f"not finite: {', '.join(bad)}" if bad else ", ".join(cases)


def stacks(subject: Subject) -> Outcome:
    """Many replicas at once: `vmap` over stacked parameters and their gradients equals a loop."""
    replicas = [subject.build() for _ in range(2)]
    if not list(replicas[0].parameters()):
        return None, "has no parameters to stack"
    seed_mixer(replicas[1], seed=1, std=0.2)
    params, buffers = torch.func.stack_module_state(replicas)
    template = replicas[0]
    x = torch.stack([subject.inputs(2, 21, seed=s) for s in (5, 6)])

    def loss(p: dict[str, Tensor], b: dict[str, Tensor], x_BTD: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(template, (p, b), (x_BTD,))
        return y.square().mean()

    stacked, values = torch.func.vmap(torch.func.grad_and_value(loss))(params, buffers, x)
    gap = 0.0
    for i, replica in enumerate(replicas):
        alone = replica(x[i]).square().mean()
        grads = _gradients(alone, list(replica.parameters()))
        gap = max(gap, _gap(values[i], alone))
        for (name, _), gradient in zip(replica.named_parameters(), grads, strict=True):
            gap = max(gap, _gap(stacked[name][i], gradient))
    return gap < 1e-8, f"2 replicas, gradients: gap {gap:.1g}"


def compiles(subject: Subject, backend: str = "aot_eager") -> Outcome:
    """One graph without breaks under `torch.compile`, with the same output and gradient."""
    # The default backend also traces the backward pass; "eager" only captures the graph, in a fifth of the time.
    mixer = subject.build()
    x = subject.inputs(2, 21).requires_grad_()
    torch._dynamo.reset()
    compiled = torch.compile(mixer, fullgraph=True, backend=backend)
    y, expected = compiled(x), mixer(x)
    ours, theirs = (_gradients(out.square().sum(), [x])[0] for out in (y, expected))
    gap = max(_gap(y, expected), _gap(ours, theirs))
    return gap < 1e-8, f"fullgraph, backward: gap {gap:.1g}"


CHECKS: dict[str, Check] = {
    "shape and dtype": shapes,
    "causality": causality,
    "forward = steps": forward_equals_steps,
    "chunked prefill": chunked_prefill,
    "states are values": states_are_values,
    "gradients (float64)": gradients,
    "batch and order": rows_are_independent,
    "declared parameters": declared_parameters,
    "declared FLOPs": declared_flops,
    "declared state": declared_state,
    "finite": finite,
    "vmap": stacks,
    "torch.compile": compiles,
}


def run_checks(options: MixerOptions, *, d: int = 64, checks: dict[str, Check] = CHECKS) -> Iterator[Verdict]:
    """Yield each check's verdict; an exception inside a mixer is a failed check, not a crash."""
    options.check(d)
    subject = Subject(options, d)
    before = ""
    for name, check in checks.items():
        try:
            holds, detail = check(subject)
        except UserError as wrong:
            holds, detail = False, str(wrong)
        except (Exception, SystemExit) as wrong:  # a mixer may call sys.exit
            line = _error_line(wrong, options)
            holds, detail, before = False, "as above" if line == before else line, line
        yield Verdict(name, "skip" if holds is None else "pass" if holds else "fail", detail)


def _error_line(wrong: BaseException, options: MixerOptions) -> str:
    """The exception in one line, with the line of the mixer's own file that raised it."""
    words = f"{type(wrong).__name__}: {str(wrong).strip().splitlines()[0] if str(wrong) else ''}"
    module = sys.modules.get(type(options).__module__)
    frames = traceback.extract_tb(wrong.__traceback__)
    own = [frame for frame in frames if module is not None and frame.filename == getattr(module, "__file__", "")]
    return f"{words} ({Path(own[-1].filename).name}, line {own[-1].lineno}: {own[-1].line})" if own else words


def _gradients(value: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    """Gradients of a scalar; zero for leaves that it does not depend on."""
    if not value.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    grads = torch.autograd.grad(value, leaves, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True)]


@torch.no_grad()
def _gap(a: Tensor, b: Tensor) -> float:
    """Largest difference relative to the scale of `b`; infinite if either is not finite."""
    if not (a.isfinite().all() and b.isfinite().all()):
        return float("inf")
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) if b.numel() else 0.0
