"""Every check of the contract can fail: a mixer broken in one way fails the corresponding check."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import ClassVar

import pytest
import torch
from torch import nn

from plait.mixers.mixer import Mixer
from plait.mixers.options import MIXING, Cost, MixerOptions
from plait.mixers.table import names
from plait.model.contract import CHECKS, compiles, run_checks
from plait.model.mixer_runs import fitting_width, timings
from plait.model.user_mixers import load_mixer


class Sum(Mixer):
    """A sound mixer to break: y_t = W Σ_{s ≤ t} x_s."""

    def __init__(self, d, options):
        super().__init__(d, options)
        self.output = nn.Linear(d, d, bias=False)

    def forward(self, x_BTD):
        return self.output(x_BTD.cumsum(1))

    def init_state(self, batch, *, rollback=0):
        return {"sum": self.zeros(batch, self.d)}

    def step(self, x_BD, state):
        total = state["sum"] + x_BD
        return self.output(total), {"sum": total}


@dataclass(frozen=True)
class SumOptions(MixerOptions):
    name: ClassVar[str] = "sum"
    kind: ClassVar[str] = "sequence"

    def cost(self, d, seq, memory=0):
        return Cost(params={"output": d * d}, flops={"output": 2 * seq * d * d, MIXING: seq * d}, fixed_state=d)


class WrongShape(Sum):
    def forward(self, x_BTD):
        return super().forward(x_BTD)[..., :-1]


class LeaksTheFuture(Sum):
    def forward(self, x_BTD):
        return self.output(x_BTD.cumsum(1) + 1e-6 * x_BTD.mean(1, keepdim=True))


class StepsApart(Sum):
    def step(self, x_BD, state):
        return super().step(x_BD, {"sum": 0.999 * state["sum"]})


class ForgetsBetweenChunks(Sum):
    def extend(self, x_BTD, state):
        return self.forward(x_BTD), {"sum": x_BTD.sum(1)}


class ChangesItsState(Sum):
    def step(self, x_BD, state):
        state["sum"] += x_BD
        return self.output(state["sum"]), state


class WrongGradient(Sum):
    def forward(self, x_BTD):
        return self.output(x_BTD.cumsum(1).detach() + (x_BTD - x_BTD.detach()))


class MixesRows(Sum):
    def forward(self, x_BTD):
        y = super().forward(x_BTD)
        return y + 1e-3 * y.mean(0, keepdim=True)


class HasMoreParameters(Sum):
    def __init__(self, d, options):
        super().__init__(d, options)
        self.extra = nn.Parameter(torch.zeros(3))


class MakesMoreProducts(Sum):
    def forward(self, x_BTD):
        return super().forward(x_BTD) + 0 * self.output(x_BTD)


class HoldsMoreState(Sum):
    def init_state(self, batch, *, rollback=0):
        return super().init_state(batch) | {"spare": self.zeros(batch, 2)}

    def step(self, x_BD, state):
        y, new = super().step(x_BD, state)
        return y, state | new


class Overflows(Sum):
    def forward(self, x_BTD):
        return self.output(x_BTD.exp().cumsum(1).log())


class LooksAtItsData(Sum):
    def forward(self, x_BTD):
        return super().forward(x_BTD) * (2 if x_BTD.sum() > 1e9 else 1)


BROKEN = {
    "shape and dtype": WrongShape,
    "causality": LeaksTheFuture,
    "forward = steps": StepsApart,
    "chunked prefill": ForgetsBetweenChunks,
    "states are values": ChangesItsState,
    "gradients (float64)": WrongGradient,
    "batch and order": MixesRows,
    "declared parameters": HasMoreParameters,
    "declared FLOPs": MakesMoreProducts,
    "declared state": HoldsMoreState,
    "finite": Overflows,
    "vmap": LooksAtItsData,
    "torch.compile": LooksAtItsData,
}


def verdicts(mixer, checks=CHECKS):
    """Run clauses on a mixer class of this file."""
    options = type("Options", (SumOptions,), {"module": f"{__name__}:{mixer.__name__}"})
    return {verdict.check: verdict for verdict in run_checks(options(), d=16, checks=checks)}


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    """Mixers are imported by name; this file is, under its own."""
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or __import__("types").ModuleType(__name__))
    for mixer in (Sum, *BROKEN.values()):
        monkeypatch.setattr(sys.modules[__name__], mixer.__name__, mixer, raising=False)


def test_a_sound_mixer_passes_every_clause():
    assert {v.status for v in verdicts(Sum).values()} == {"pass"}


def test_every_clause_is_broken_here():
    assert set(BROKEN) == set(CHECKS)


@pytest.mark.parametrize("check", CHECKS)
def test_the_clause_notices(check):
    found = verdicts(BROKEN[check], {check: CHECKS[check]})
    assert found[check].status == "fail", found[check].detail


def test_a_break_of_the_graph_shows_without_tracing_the_backward():
    (found,) = verdicts(LooksAtItsData, {"graph": partial(compiles, backend="eager")}).values()
    assert found.status == "fail", found.detail


def test_a_mixer_that_raises_is_a_verdict_not_a_crash():
    found = verdicts(LooksAtItsData, {"vmap": CHECKS["vmap"]})
    assert "Error" in found["vmap"].detail
    assert "\n" not in found["vmap"].detail


def test_speed_reports_ratios_against_attention():
    options = type("Options", (SumOptions,), {"module": f"{__name__}:Sum"})()
    (row,) = timings(options, d=16, lengths=(32,))
    assert row.ratio == pytest.approx(row.ms / row.attention_ms)


@pytest.mark.parametrize("name", names())
def test_every_mixer_is_checked_as_typed(name):
    """At a width that its heads fit into, and timed."""
    options = load_mixer(name)
    options.check(fitting_width(options))
    (row,) = timings(options, d=64, lengths=(16,), times=1)
    assert row.ms > 0


def test_a_typo_is_told_once_and_with_its_line(tmp_path):
    template = files("plait").joinpath("model/mixer_template.txt").read_text()
    broken = tmp_path / "slip.py"
    broken.write_text(template.replace("my-mixer", "slip").replace("F.silu(gate)", "F.sillu(gate)"))
    line = next(n for n, text in enumerate(broken.read_text().splitlines(), 1) if "F.sillu" in text)
    checks = {name: check for name, check in CHECKS.items() if name != "torch.compile"}  # which has words of its own
    found = run_checks(load_mixer(broken), checks=checks)
    failed = [verdict.detail for verdict in found if verdict.status == "fail"]
    assert f"(slip.py, line {line}: return value, F.sillu(gate)" in failed[0]
    assert sum("sillu" in detail for detail in failed) == 1
    assert set(failed[1:]) == {"as above"}
