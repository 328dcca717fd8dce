"""Check a mixer against the contract (`plait.check`), and the papers' own numbers (`plait.verify`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from plait import __version__
from plait.core.progress import OnProgress, ignore
from plait.core.result import Result
from plait.model.architecture import load_mixers
from plait.papers.verify import FactResult

if TYPE_CHECKING:
    from plait.device.kernel_guard import Guarded
    from plait.model.contract import Verdict
    from plait.model.mixer_runs import Timing


@dataclass(frozen=True)
class CheckResult(Result):
    ROWS = "checks"
    mixer: str
    layer: str  # with its options, as in a spec
    d: int
    plait: str  # version
    passed: bool
    checks: tuple[Verdict, ...]
    speed: tuple[Timing, ...]  # compared with attention; empty if not timed
    kernels: tuple[Guarded, ...] = ()  # GPU kernels compared with float64; empty unless requested

    @property
    def failed(self) -> tuple[Verdict, ...]:
        return tuple(verdict for verdict in self.checks if verdict.status == "fail")

    def headline(self) -> str:
        failed = len(self.failed) + sum(not guarded.right for guarded in self.kernels)
        ran = sum(verdict.status != "skip" for verdict in self.checks) + len(self.kernels)
        return f"{failed} of {ran} checks failed" if failed else "the contract holds"


def check(
    mixer: str | Path,
    *,
    d: int | None = None,
    speed: bool = True,
    device: str = "cpu",
    mixers: Sequence[str | Path] = (),
    on_progress: OnProgress = ignore,
) -> CheckResult:
    """Check a mixer against the contract that every mixer must satisfy: causality, forward = steps, exact costs …

    mixer   a known one (gla, gla[heads=8]) or your file (my_mixer.py, my_mixer.py:Class)
    d       model width for the checks; default: 64, or the next that fits the mixer's heads
    speed   also time it against attention
    device  "cuda": also compare the kernels of its op with float64 on this GPU
    mixers  files with mixers of your own that `mixer` may name

    >>> plait.check("identity", speed=False).passed
    True
    """
    from plait.model.contract import CHECKS, run_checks
    from plait.model.mixer_runs import fitting_width, timings
    from plait.model.user_mixers import load_mixer

    load_mixers(mixers)
    options = load_mixer(mixer)
    wanted = _guarded_settings(options.name, device)
    d = fitting_width(options) if d is None else d
    verdicts, total = [], len(CHECKS) + speed + len(wanted)
    on_progress(f"checking {options.name}", 0, total)
    for verdict in run_checks(options, d=d):
        verdicts.append(verdict)
        on_progress(f"checking {options.name}", len(verdicts), total)
    kernels: list[Guarded] = []
    for run in wanted:
        kernels.append(run())
        on_progress(f"guarding the kernels of {options.name}", len(verdicts) + len(kernels), total)
    return CheckResult(
        mixer=options.name,
        layer=str(options.to_layer()),
        d=d,
        plait=__version__,
        passed=all(verdict.status != "fail" for verdict in verdicts) and all(kernel.right for kernel in kernels),
        checks=tuple(verdicts),
        speed=tuple(timings(options)) if speed else (),
        kernels=tuple(kernels),
    )


def _guarded_settings(mixer: str, device: str) -> list[Callable[[], Guarded]]:
    """One call per setting in which a kernel is compared; none on a CPU, which has no kernels."""
    from plait.device.kernel_guard import case_of, guard, settings
    from plait.device.workload import bench_device

    place = bench_device(device)
    if place.type == "cpu":
        return []
    case = case_of(mixer)
    return [partial(guard, case, setting, place) for setting in settings(case)]


@dataclass(frozen=True)
class VerifyResult(Result):
    ROWS = "facts"
    facts: tuple[FactResult, ...]

    @property
    def failed(self) -> tuple[FactResult, ...]:
        return tuple(fact for fact in self.facts if fact.status == "fail")

    def headline(self) -> str:
        counted = Counter(fact.status for fact in self.facts)
        return ", ".join(f"{count} {status}" for status, count in counted.items())


def verify(*ids: str, on_progress: OnProgress = ignore) -> VerifyResult:
    """Check facts of the papers by id, such as `L03`, or by prefix, such as `F`; by default all.

    >>> plait.verify("P16").headline()
    '1 pass'
    """
    from plait.papers.verify import select

    facts = select(list(ids))
    results: list[FactResult] = []
    for fact in facts:
        on_progress(f"checking {fact.id}", len(results), len(facts))
        results.append(fact.result())
    return VerifyResult(tuple(results))
