"""Writing where the user said: nothing of theirs is overwritten unasked, nothing half-written is left behind."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plait.core.errors import UserError


def check_free(target: Path, *, force: bool) -> None:
    """Refuse a file that exists or a folder that is not empty."""
    taken = any(target.iterdir()) if target.is_dir() else target.exists()
    if taken and not force:
        raise UserError(f"{target} exists and is not empty: choose another place, or overwrite it with --force.")


@contextmanager
def filled_folder(target: Path, *, force: bool) -> Iterator[Path]:
    """A scratch folder whose files move to `target` when all are written. Others that lie there stay."""
    check_free(target, force=force)
    if target.exists() and not target.is_dir():
        raise UserError(f"{target} is a file; a folder is wanted.")
    with _clear_message(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
        try:
            yield scratch
            target.mkdir(exist_ok=True)
            for file in sorted(scratch.iterdir()):
                os.replace(file, target / file.name)
        finally:
            shutil.rmtree(scratch)


@contextmanager
def filled_file(target: Path, *, force: bool) -> Iterator[Path]:
    """The same for one file, and for what its writer may put beside it."""
    check_free(target, force=force)
    if target.is_dir():
        raise UserError(f"{target} is a folder; a file is wanted.")
    with _clear_message(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
        try:
            yield scratch / target.name
            for file in sorted(scratch.iterdir()):
                os.replace(file, target.parent / file.name)
        finally:
            shutil.rmtree(scratch)


@contextmanager
def _clear_message(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as wrong:
        raise UserError(f"cannot write {target}: {wrong.strerror or wrong}.") from wrong
