"""Find a mixer: by its name in the table, or in a user's file."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from plait import arch
from plait.arch import MixerOptions
from plait.arch.table import MIXERS, options_of
from plait.errors import UserError, did_you_mean
from plait.mixers.mixer import Mixer
from plait.spec import parse


def load_mixer(given: str) -> MixerOptions:
    """Options of `name`, `name[options]`, `my_mixer.py` or `my_mixer.py:Class`."""
    path, _, attribute = given.partition(":")
    if path.endswith(".py"):
        return from_file(Path(path), attribute)
    layers = parse(given).layers
    if len(layers) != 1:
        raise UserError(f"'{given}' has {len(layers)} layers; give one mixer, such as attn or gla[heads=8].")
    return options_of(layers[0])


def from_file(path: Path, attribute: str = "") -> MixerOptions:
    """Run a user's file, register its mixer under its own name, and return its default options."""
    mixer = _mixer_class(_run(path), path, attribute)
    options = getattr(mixer, "Options", None)
    if not (isinstance(options, type) and issubclass(options, MixerOptions)):
        raise UserError(f"{path}: {mixer.__name__} has no `Options` (a subclass of plait.arch.MixerOptions).")
    options.module = f"{mixer.__module__}:{mixer.__name__}"
    for wanted in ("name", "kind"):
        if not hasattr(options, wanted):
            raise UserError(f"{path}: {mixer.__name__}.Options has no `{wanted}`; add it as a class attribute.")
    if options.name in MIXERS:
        raise UserError(f"{path}: the name '{options.name}' is taken by a built-in mixer; choose another.")
    arch.register(options)
    return options()


def _run(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"there is no file {path}.")
    # A module name of its own, importable later by the name that `Options.module` carries.
    name = f"plait_user_{path.stem}_{abs(hash(path.resolve())):x}"
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except UserError:
        raise
    except Exception as wrong:
        del sys.modules[name]
        raise UserError(f"{path} does not run: {type(wrong).__name__}: {wrong}") from wrong
    return module


def _mixer_class(module: ModuleType, path: Path, attribute: str) -> type[Mixer]:
    found = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Mixer) and value.__module__ == module.__name__
    }
    if attribute:
        if attribute not in found:
            raise UserError(f"{path} has no mixer class '{attribute}'.{did_you_mean(attribute, found)}")
        return found[attribute]
    if len(found) != 1:
        listing = ", ".join(found) or "none"
        raise UserError(f"{path} should hold one subclass of Mixer, found: {listing}. Name one as {path}:Class.")
    return next(iter(found.values()))
