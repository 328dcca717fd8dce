"""Find a mixer: by its name in the table, or in a user's file."""

from __future__ import annotations

from pathlib import Path

from plait import arch
from plait.arch import MixerOptions
from plait.arch.table import options_of
from plait.core.errors import UserError
from plait.core.user_files import class_from_file, split_path
from plait.mixers.mixer import Mixer
from plait.spec import parse


def load_mixer(given: str) -> MixerOptions:
    """Options of `name`, `name[options]`, `my_mixer.py` or `my_mixer.py:Class`."""
    if file := split_path(given):
        return from_file(*file)
    layers = parse(given).layers
    if len(layers) != 1:
        raise UserError(f"'{given}' has {len(layers)} layers; give one mixer, such as attn or gla[heads=8].")
    return options_of(layers[0])


def from_file(path: Path, attribute: str = "") -> MixerOptions:
    """Run a user's file, register its mixer under its own name, and return its default options. Once is enough."""
    file = f"{path.resolve()}:{attribute}" if attribute else str(path.resolve())
    for known in map(arch.load, arch.names()):
        if known.file == file:
            return known()
    mixer = class_from_file(path, Mixer, attribute)  # type: ignore[type-abstract]
    options = getattr(mixer, "Options", None)
    if not (isinstance(options, type) and issubclass(options, MixerOptions)):
        raise UserError(f"{path}: {mixer.__name__} has no `Options` (a subclass of plait.arch.MixerOptions).")
    options.module = f"{mixer.__module__}:{mixer.__name__}"
    for wanted in ("name", "kind"):
        if not hasattr(options, wanted):
            raise UserError(f"{path}: {mixer.__name__}.Options has no `{wanted}`; add it as a class attribute.")
    if options.name in arch.names() and arch.load(options.name) is not options:
        owner = arch.load(options.name).file or "a built-in mixer"
        raise UserError(f"{path}: the name '{options.name}' is taken by {owner}; choose another.")
    options.file = file
    arch.register(options)
    return options()
