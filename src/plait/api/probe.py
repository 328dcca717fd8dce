"""Accuracy of architectures on synthetic tasks, with baselines, intervals and a verdict: `plait.probe`."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plait.core import defaults
from plait.core.errors import UserError
from plait.core.registry import require_known, require_one_of
from plait.core.result import Result
from plait.core.units import parse_duration
from plait.model.architecture import Architecture, load_mixers, require_sound
from plait.workers.pool import Place

if TYPE_CHECKING:
    from plait.probing.protocol import Candidate, Protocol
    from plait.probing.report import ProbeResult
    from plait.probing.run import Machine, Progress
    from plait.records import Store


@dataclass(frozen=True)
class PlannedArchitecture:
    name: str
    runs: int
    steps: int
    core_hours: float
    hours: float  # here, with all workers


@dataclass(frozen=True)
class ProbePlan(Result):
    """What a probe would run. These are upper bounds: a training that has solved its task stops early."""

    ROWS = "architectures"
    protocol: str
    budget_seconds: float | None
    seeds: int
    device: str
    workers: int
    architectures: tuple[PlannedArchitecture, ...]
    total: dict[str, float]
    settings: int  # task settings on which each architecture is trained


def probe(
    architectures: str | Path | Architecture | Sequence[str | Path | Architecture] = (),
    *,
    suite: str = "",
    full: bool = False,
    patience: int | None = None,
    time: str | float | None = None,
    seeds: int | None = None,
    tasks: Sequence[str] = (),
    variant: str = "paper",
    baselines: bool = True,
    match: bool = True,
    device: str = "cpu",
    workers: int | None = None,
    cluster: str = "",
    gpus_per_training: float | None = None,
    mixers: Sequence[str | Path] = (),
    store: str | Store | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> ProbeResult:
    """Train architectures on synthetic tasks and compare them, with intervals and a verdict. If interrupted, the same
    call resumes.

    architectures  mixers (gla, gla[heads=8]), files (my_mixer.py), presets or specs
    suite          a set of architectures, mad21; or of tasks, scored at more lengths: tracking, recall, language,
                   all
    full           the paper's protocol: 396 runs per architecture; default: as much of the quick one as fits
    patience       with full: from 30 % of the steps on, stop runs whose validation accuracy has not risen for so many
                   epochs
    time           total time: "90s", "10m", "2h", or seconds; default ten minutes
    seeds          default: with a time as many as fit, else 1
    tasks          only these tasks or task files
    variant        tasks as in the paper (paper) or in its code (mad-lab)
    baselines      also run attn, gla, mamba and hyena with a single candidate
    match          match state and parameters where possible
    cluster        where trainings run: ray://HOST:PORT, auto (from a machine of the cluster) or slurm; default here
    workers        concurrent trainings: one per core, or as many as the cluster has room for
    gpus_per_training  with device "cuda": default 1, or a fraction such as 0.25
    """
    from plait.probing.plan import with_seeds
    from plait.probing.report import Asked, report
    from plait.probing.run import run_all, run_budget
    from plait.records.jobs import keep_answer, published
    from plait.records.store import writable_store

    started = clock.perf_counter()
    load_mixers(mixers)
    budget = _budget(time, full)
    protocol, candidates, machine = _prepared(
        architectures, suite, full, patience, tasks, variant, baselines, match,
        Place.of(cluster, workers, device, gpus_per_training),
    )  # fmt: skip
    require_sound(candidate.arch for candidate in candidates)
    names = ", ".join(candidate.name for candidate in candidates)
    with writable_store(store) as records, published(records, "probe", names) as job:

        def watch(progress: Progress) -> None:
            trials = progress.work.trials if progress.work is not None else []
            if trials:  # a plan that does not fit the time is refused before anything is stored
                counted = f"{len(progress.done):,} of {len({trial.key for trial in trials}):,} trials"
                job.update(progress.phase, progress.share(trials), counted)
            if on_progress is not None:
                on_progress(progress)

        if budget is None:
            work = with_seeds(candidates, protocol, [seeds or 1] * len(protocol.settings), machine.device)
            outcome = run_all(work, records, machine, watch, longest_first=machine.processes > 1)
        else:
            outcome = run_budget(
                candidates, protocol, budget, records, machine, watch, seeds=seeds, started=started, overrun=False
            )
        took = clock.perf_counter() - started
        result = report(outcome, machine, took, Asked(seeds, budget), suite)
        trainings: dict[str, list[list[str]]] = {}  # of each candidate, in the format of a comparison
        for trial in sorted(outcome.work.trials, key=lambda trial: trial.key):
            trainings.setdefault(trial.candidate, [[]])[0].append(trial.key)
        keep_answer(records, "probe-verdict", {"trainings": trainings}, result.as_dict(), clock.time() - took, took)
    return result


def plan_probe(
    architectures: str | Path | Architecture | Sequence[str | Path | Architecture] = (),
    *,
    suite: str = "",
    full: bool = False,
    patience: int | None = None,
    time: str | float | None = None,
    seeds: int | None = None,
    tasks: Sequence[str] = (),
    variant: str = "paper",
    baselines: bool = True,
    match: bool = True,
    device: str = "cpu",
    workers: int | None = None,
    cluster: str = "",
    gpus_per_training: float | None = None,
    mixers: Sequence[str | Path] = (),
    store: str | Store | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> ProbePlan:
    """The runs of `plait.probe` with the same arguments and their duration here; only the speed is measured."""
    from plait.probing.run import expected
    from plait.records.store import opened_store

    load_mixers(mixers)
    budget = _budget(time, full)
    protocol, candidates, machine = _prepared(
        architectures, suite, full, patience, tasks, variant, baselines, match,
        Place.of(cluster, workers, device, gpus_per_training),
    )  # fmt: skip
    repeats = seeds or 1
    with opened_store(store) as records:
        core_seconds = expected(candidates, protocol, records, machine, on_progress or (lambda progress: None), repeats)
    planned = tuple(
        PlannedArchitecture(
            candidate.name,
            protocol.runs * repeats,
            protocol.steps * repeats,
            core_seconds[candidate.name] / 3600,
            core_seconds[candidate.name] / 3600 / machine.processes,
        )
        for candidate in candidates
    )
    total = {
        key: sum(getattr(architecture, key) for architecture in planned)
        for key in ("runs", "steps", "core_hours", "hours")
    }
    return ProbePlan(
        protocol.name, budget, repeats, machine.device, machine.processes, planned, total, len(protocol.settings)
    )


def _budget(time: str | float | None, full: bool) -> float | None:
    if full and time is not None:
        raise UserError("--full runs the whole protocol: give --full or --time, not both.")
    return None if full else parse_duration(defaults.TIME if time is None else time)


def _prepared(
    architectures: str | Path | Architecture | Sequence[str | Path | Architecture],
    suite: str,
    full: bool,
    patience: int | None,
    tasks: Sequence[str],
    variant: str,
    baselines: bool,
    match: bool,
    place: Place,
) -> tuple[Protocol, list[Candidate], Machine]:
    """Check all arguments before anything is trained; returns the protocol, the candidates and the machine."""
    if patience is not None and not full:
        raise UserError("--patience belongs to the paper's protocol: give --full with it.")
    if patience is not None and (not isinstance(patience, int) or patience < 1):
        raise UserError(f"--patience {patience!r}: a whole number of epochs, 1 or more.")
    from plait.probing import protocol as protocols
    from plait.probing.run import Machine
    from plait.spec import presets
    from plait.tasks import SUITES

    several = [architectures] if isinstance(architectures, (str, Path, Architecture)) else architectures
    specs = [_text(architecture) for architecture in several]
    suite_tasks = protocols.suite_tasks(suite)
    if suite and not suite_tasks and suite.lower() not in presets.SUITES:
        known = [*presets.SUITES, *(name for name in SUITES if name != "mad"), "all"]
        require_known(suite, known, "there is no suite")
    controls = protocols.CONTROLS if suite_tasks else protocols.BASELINES
    if suite_tasks and not specs:
        specs, baselines = list(controls), False
    specs += presets.suite(suite) if suite and not suite_tasks else []
    if not specs:
        raise UserError("nothing to probe: give a mixer, a spec, a file, or --suite mad21.")
    named = list(tasks) or suite_tasks
    if full:
        protocol = protocols.full(named, variant, patience or 0)
    else:
        protocol = protocols.quick(named, variant, longer=bool(suite_tasks))
    machine = Machine(place)
    if not place.cluster:
        _usable(place.device)
    beside = baselines and bool(suite_tasks or not suite)
    candidates = protocols.candidates(specs, protocol, baselines=beside, matched=match, controls=controls)
    return protocol, candidates, machine


def _text(arch: str | Path | Architecture) -> str:
    return arch.text if isinstance(arch, Architecture) else str(arch)


def _usable(device: str) -> None:
    require_one_of(device, ("cpu", "cuda"), f"--device {device}")
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise UserError("--device cuda: this machine has no CUDA device that torch can use.")
