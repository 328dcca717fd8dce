"""Profiling this machine once, so that the speed of any architecture on it can be predicted: `plait.profile`."""

from __future__ import annotations

import time as clock
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.core.errors import UserError
from plait.core.progress import OnProgress, ignore
from plait.core.result import Result
from plait.core.units import parse_duration
from plait.model.architecture import load_mixers
from plait.records.store import opened_store

if TYPE_CHECKING:
    from plait.device.predictor import Ratio
    from plait.device.profile import Point, Profile
    from plait.device.quantities import Setting

SPACES = ("lts-gpt2", "hybrid")
SAVE_EVERY = 20  # points
AT_MOST, GRACE = 2.0, 30.0  # times the given time, and seconds, after which an unfinished minimum is refused
SHARES = 1000  # progress is reported in thousandths of the time


@dataclass(frozen=True)
class ProfileResult(Result):
    path: str
    profile: Profile

    def as_dict(self) -> dict[str, Any]:
        return {"path": self.path, **self.profile.describe()}


@dataclass(frozen=True)
class ProfileComparison(Result):
    ROWS = "ratios"
    first: Profile
    second: Profile
    ratios: tuple[Ratio, ...]  # seconds on the second machine over seconds on the first

    def as_dict(self) -> dict[str, Any]:
        return {
            "first": self.first.describe(),
            "second": self.second.describe(),
            "ratios": [ratio.as_dict() for ratio in self.ratios],
        }


def profile(
    out: str | Path = "box.json",
    *,
    time: str | float = "3m",
    spaces: Sequence[str | Path] = SPACES,
    seq_lens: Sequence[int] = (192,),
    batch: int = 1,
    modes: Sequence[str] = ("prefill",),
    device: str = "cpu",
    dtype: str = "float32",
    threads: int = 1,
    mixers: Sequence[str | Path] = (),
    on_progress: OnProgress = ignore,
) -> ProfileResult:
    """Measure layers of every kind in these `spaces` on this machine for the given time, choosing those with the most
    uncertain predictions, and write them to `out`; an existing profile is extended. Where the minimum that predictions
    need takes over twice the time (and over 30 s), what was measured is kept and the rest refused."""
    from plait.device.features import Components
    from plait.device.quantities import Setting
    from plait.records.jobs import published
    from plait.space.table import load_space

    started = clock.perf_counter()
    load_mixers(mixers)
    seconds, path = parse_duration(time), Path(out)
    settings = [
        Setting(mode=mode, seq=seq_len, batch=batch, device=device, dtype=dtype, threads=threads).here()
        for mode in modes
        for seq_len in seq_lens
    ]
    if not settings[0].on_cpu:
        import_module("torch")  # a GPU is detected only after importing torch
    component_sets = [components for name in spaces for components in Components.of(load_space(str(name)))]
    begun = _begun(path, settings[0])
    # A profile is a file and needs no store; if there is one, `plait serve` shows the progress.
    with ExitStack() as stack:
        report = on_progress
        with suppress(UserError, OSError):
            store = stack.enter_context(opened_store(None))
            if store.file is None or store.file.exists():
                report = stack.enter_context(published(store, "profile", str(path))).alongside(on_progress)
        _extend(begun, component_sets, settings, started, seconds, path, report)
    return ProfileResult(str(path), begun)


def open_profile(path: str | Path) -> ProfileResult:
    """Open a profile written by `plait.profile` on any machine."""
    from plait.device.profile import Profile

    return ProfileResult(str(path), Profile.load(Path(path), anywhere=True))


def compare_profiles(first: str | Path, second: str | Path) -> ProfileComparison:
    """The time of each kind of layer on the second machine, relative to the first."""
    from plait.device.predictor import compare

    base, other = (open_profile(path).profile for path in (first, second))
    ratios = tuple(compare(base, other))
    if not ratios:
        raise UserError(f"{first} and {second} have no kind of layer in common.")
    return ProfileComparison(base, other, ratios)


def _begun(path: Path, setting: Setting) -> Profile:
    """The profile at `path` to extend, or an empty one."""
    from plait.device.profile import Profile

    fresh = Profile.here(setting)
    if not path.exists():
        fresh.save(path)  # fail now if it cannot be written, not after minutes of measuring
        path.unlink()
        return fresh
    known = Profile.load(path)
    if known.common != fresh.common:
        different = ", ".join(f"{key} {value}" for key, value in known.common.items() if fresh.common[key] != value)
        raise UserError(f"{path} is a profile of {different}; name another file.")
    return known


def _extend(
    growing: Profile,
    component_sets: Any,
    settings: list[Setting],
    started: float,
    seconds: float,
    path: Path,
    on_progress: OnProgress,
) -> None:
    from plait.device.profiling import extend_profile

    before = len(growing.points)
    least = 0

    def begin(needed: int) -> None:
        nonlocal least
        least = needed
        on_progress(f"at least {needed} measurements", 0, SHARES)

    def report(point: Point, over: float) -> None:
        done = len(growing.points) - before
        count = f"{done} of at least {least}, " if done <= least else ""
        on_progress(f"{count}{point.heading}", round(SHARES * min(1.0, over)), SHARES)
        if len(growing.points) % SAVE_EVERY == 0:
            growing.save(path)

    on_progress("starting", 0, SHARES)
    try:
        spent = clock.perf_counter() - started  # importing torch and opening spaces is part of the time
        extend_profile(
            growing,
            component_sets,
            settings,
            seconds=max(1.0, seconds - spent),
            most=max(AT_MOST * seconds, GRACE) - spent,
            on_start=begin,
            on_progress=report,
        )
    finally:
        if growing.points:
            growing.save(path)
