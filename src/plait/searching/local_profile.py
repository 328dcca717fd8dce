"""This machine's stored profile: loaded, created, or extended to cover a space."""

from __future__ import annotations

import hashlib
import json
import math
from importlib import import_module
from pathlib import Path

from plait.device.features import Components
from plait.device.predictor import Predictor
from plait.device.profile import SAME, OnPoint, Point, Profile
from plait.device.quantities import Setting
from plait.space.space import Space
from plait.spec import parse

NEW, MORE = 150.0, 75.0  # seconds for a new profile and for an extension
CHECKS = 4  # whole models of the space that a profile must contain
SAVE_EVERY = 20  # points


def profile_path(folder: Path, setting: Setting) -> Path:
    """The file of the profile: one per machine, device, dtype and number of threads."""
    empty = Profile.here(_with_device(setting))
    # The GPU is known only once torch is imported, and does not matter for a CPU profile.
    machine = {name: empty.device[name] for name in SAME if name != "gpu" or not setting.on_cpu}
    text = json.dumps([machine, empty.common], sort_keys=True)
    return folder / "profiles" / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"


def local_profile(
    space: Space,
    setting: Setting,
    folder: Path,
    *,
    seconds: float | None = None,
    most: float = math.inf,
    on_progress: OnPoint | None = None,
) -> Profile:
    """This machine's profile with every kind of layer of the space and some of its whole models.

    What is missing is measured, for about `seconds`, and for `most` if the machine is slow. If interrupted, it keeps
    the points measured so far.
    """
    path = profile_path(folder, setting)
    profile = Profile.load(path) if path.exists() else Profile.here(_with_device(setting))
    if covers(profile, space, setting):
        return profile
    from plait.device.profiling import extend_profile

    def save_some(point: Point, over: float) -> None:
        if on_progress is not None:
            on_progress(point, over)
        if len(profile.points) % SAVE_EVERY == 0:
            profile.save(path)

    budget = seconds if seconds is not None else MORE if profile.points else NEW
    try:
        parts = list(setting.parts)
        extend_profile(profile, Components.of(space), parts, seconds=budget, most=most, on_progress=save_some)
    finally:
        if profile.points:
            profile.save(path)
    return profile


def is_covered(space: Space, setting: Setting, folder: Path) -> bool:
    """Whether the stored profile covers the space, so that nothing has to be measured."""
    path = profile_path(folder, setting)
    return path.exists() and covers(Profile.load(path), space, setting)


def covers(profile: Profile, space: Space, setting: Setting) -> bool:
    """Whether a profile has the space's kinds of layers, and whole models like the space's in this setting.

    Such models have the same embedding and norms, which regression on layers cannot predict. They are measured last, so
    if they are there, profiling was not interrupted.
    """
    if len(setting.parts) > 1:
        return all(covers(profile, space, part) for part in setting.parts)
    component_sets = Components.of(space)
    kinds = {options.name for components in component_sets for _, options in components.layers()}
    if not kinds <= set(Predictor(profile, setting).kinds):
        return False
    current = {source.hash for source in space.mixer_sources.values()}
    models = [point for point in profile.of("model") if current.issuperset(point.source.split())]
    return sum(any(_like(point, components, setting) for components in component_sets) for point in models) >= CHECKS


def _like(point: Point, components: Components, setting: Setting) -> bool:
    if (point.mode, point.seq, point.batch) != (setting.mode, setting.seq, setting.batch):
        return False
    header = parse(point.spec).header
    return (
        min(components.widths) <= header.d <= max(components.widths)
        and header.replace({"d": components.header.d}) == components.header
    )


def _with_device(setting: Setting) -> Setting:
    if not setting.on_cpu:
        import_module("torch")  # the GPU's name, which is part of the profile, comes from torch
    return setting
