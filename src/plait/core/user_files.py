"""A user's own mixer or task: one Python file, run, and the class in it found."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from plait.core.errors import UserError, did_you_mean

Found = TypeVar("Found")


def split_path(given: str) -> tuple[Path, str] | None:
    """`my_file.py` or `my_file.py:Class` as path and class name; None where a name of plait's own was given."""
    path, _, attribute = given.partition(":")
    return (Path(path), attribute) if path.endswith(".py") else None


def class_from_file(path: Path, base: type[Found], attribute: str = "") -> type[Found]:
    """Run the file and return the subclass of `base` that it defines: the only one, or the one called `attribute`."""
    module = _run(path)
    kind = base.__name__.lower()
    found = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
    }
    if attribute:
        if attribute not in found:
            raise UserError(f"{path} has no {kind} class '{attribute}'.{did_you_mean(attribute, found)}")
        return found[attribute]
    if len(found) != 1:
        listing = ", ".join(found) or "none"
        raise UserError(
            f"{path} should hold one subclass of {base.__name__}, found: {listing}. Name one as {path}:Class."
        )
    return next(iter(found.values()))


def _run(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"there is no file {path}.")
    # A module name of its own, so that what the file defines can be imported again by name.
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
