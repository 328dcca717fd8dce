"""Users' own mixers and tasks: a Python file is executed and the class in it returned.

`MixerSource` is the source text of a user's mixer. Results are keyed by the hash of that text and not by the mixer's
name. It is plain data, so that it can be sent to worker processes and stored in records and run folders; a file that is
edited later does not affect earlier results.
"""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from plait.core.errors import UserError, did_you_mean
from plait.core.files import read_text

Found = TypeVar("Found")
MODULE = "plait_user_"  # prefix of the module names of users' files

_announcing = True
_announced: set[Path] = set()


@dataclass(frozen=True)
class MixerSource:
    """The source of a mixer at the time it was executed."""

    file: str  # the path it was read from
    attribute: str  # the class, if the file has several; otherwise ""
    text: str
    package: str = ""  # "name version" of the installed package that has it; its file cannot run alone

    @classmethod
    def read(cls, path: Path, attribute: str = "", package: str = "") -> MixerSource:
        return cls(str(path.resolve()), attribute, _read(path), package)

    @cached_property
    def hash(self) -> str:
        what = f"{self.text}\n:{self.attribute}" if self.attribute else self.text
        return hashlib.sha256(what.encode()).hexdigest()[:16]

    def as_dict(self) -> dict[str, str]:
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> MixerSource:
        return cls(document["file"], document["attribute"], document["text"], document.get("package", ""))


def class_from_file(path: Path, base: type[Found], attribute: str = "", text: str | None = None) -> type[Found]:
    """Execute the file (or the `text` it had) and return the subclass of `base` that it defines: the only one, or the
    one called `attribute`."""
    module = _run(path, attribute, _read(path) if text is None else text)
    kind = base.__name__.lower()
    classes = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
    }
    if attribute:
        if attribute not in classes:
            raise UserError(f"{path} has no {kind} class '{attribute}'.{did_you_mean(attribute, classes)}")
        return classes[attribute]
    if len(classes) != 1:
        remedy = f"{', '.join(classes)}. Name one as {path}:Class." if classes else "none. Define one."
        raise UserError(f"{path} should hold one subclass of {base.__name__}, found: {remedy}")
    return next(iter(classes.values()))


def users_fault(wrong: BaseException) -> str:
    """Where in a user's file an exception was raised, and its message; empty if no user's file was involved."""
    place = ""
    for frame, line in traceback.walk_tb(wrong.__traceback__):
        if str(frame.f_globals.get("__name__", "")).startswith(MODULE):
            path = Path(frame.f_code.co_filename)
            shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
            place = f"{shown}, line {line}, in {frame.f_code.co_name}"
    said = str(wrong).strip().splitlines()[:1]
    return place and ": ".join([place, type(wrong).__name__, *said])


def _read(path: Path) -> str:
    if not os.path.isfile(path):
        raise UserError(f"there is no file {path}.")
    return read_text(path)


def announce_nothing() -> None:
    """For worker processes: their parent has already printed the notice."""
    global _announcing
    _announcing = False


def _announce(path: Path) -> None:
    """Print a notice, once per file, before code outside the working folder is executed."""
    if _announcing and path not in _announced and not path.is_relative_to(Path.cwd().resolve()):
        print(f"plait: runs the code in {path}, a file outside the working folder.", file=sys.stderr)
    _announced.add(path)


def _run(path: Path, attribute: str, text: str) -> ModuleType:
    # The module's name contains a hash of the text, so that an edited file is another module: models built before the
    # edit keep their classes, and pickle finds the right ones.
    _announce(path.resolve())
    what = f"{path.resolve()}:{attribute}\n{text}"
    name = f"{MODULE}{path.stem}_{hashlib.sha256(what.encode()).hexdigest()[:16]}"
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    try:
        exec(compile(text, str(path), "exec"), vars(module))
    except (Exception, SystemExit) as wrong:
        del sys.modules[name]
        if isinstance(wrong, SystemExit):
            raise UserError(f"{path} ended the program ({type(wrong).__name__}) when it was run.") from None
        if isinstance(wrong, UserError):
            raise
        raise UserError(f"{path} does not run: {type(wrong).__name__}: {wrong}") from wrong
    return module
