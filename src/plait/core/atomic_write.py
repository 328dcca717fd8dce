"""Atomic writes: a file is written under a temporary name in the same folder and then renamed, so that it appears whole
or not at all. `filled_file` and `filled_folder` do the same for outputs whose place the user has chosen, and overwrite
nothing without `--force`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from plait.core.errors import UserError


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """An empty temporary file to write; at the end of the block it replaces `path`, on any error it is removed.

    It is called `.{path.name}.…`, in the same folder. Only a process that is killed leaves one behind.
    """
    remove_leftovers(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=_draft_prefix(path))
    os.close(handle)
    draft = Path(name)
    try:
        yield draft
        with draft.open("r+b") as written:
            with suppress(PermissionError):  # some file systems have no modes to change
                draft.chmod(_mode_of_a_new_file())  # mkstemp's files are for their owner alone
            os.fsync(written.fileno())  # or a power failure could leave the new name on an empty file
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _draft_prefix(path: Path) -> str:
    """Holds the number of the writing process, so that leftovers of a dead one can be recognised."""
    return f".{path.name[:100]}.{os.getpid()}."


def remove_leftovers(path: Path) -> None:
    """Delete temporary files of `path` that a killed process left behind."""
    begin = f".{path.name[:100]}."
    with suppress(OSError):
        for name in os.listdir(path.parent):
            number, dot, _ = name.removeprefix(begin).partition(".")
            if name.startswith(begin) and dot and number.isdecimal() and process_has_ended(int(number)):
                draft = path.parent / name
                shutil.rmtree(draft) if draft.is_dir() and not draft.is_symlink() else draft.unlink()


def process_has_ended(process: int) -> bool:
    """Whether no process of this machine has this number any more; False where that cannot be told."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _mode_of_a_new_file() -> int:
    # The mask can only be read by setting it. A file that another thread makes meanwhile is too private, not too open.
    umask = os.umask(0o077)
    os.umask(umask)
    return 0o666 & ~umask


def check_free(target: Path, *, force: bool) -> None:
    """Raise a `UserError` if the file exists, or the folder is not empty, unless `force`."""
    taken = any(target.iterdir()) if target.is_dir() else target.exists()
    if taken and not force:
        raise UserError(f"{target} exists and is not empty: choose another place, or overwrite it with --force.")


@contextmanager
def filled_folder(target: Path, *, force: bool) -> Iterator[Path]:
    """A temporary folder whose files move to `target` at the end of the block. Other files in `target` stay."""
    check_free(target, force=force)
    if target.exists() and not target.is_dir():
        raise UserError(f"{target} is a file; a folder is wanted.")
    with _clear_message(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target)
        scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=_draft_prefix(target)))
        try:
            yield scratch
            with suppress(PermissionError):
                scratch.chmod(_mode_of_a_new_file() | 0o111)  # mkdtemp's folders are for their owner alone
            if target.is_symlink() or (target.is_dir() and any(target.iterdir())):
                for file in sorted(scratch.iterdir()):
                    os.replace(file, target / file.name)
            else:
                os.replace(scratch, target)  # all at once: interrupted before, there is nothing
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def filled_file(target: Path, *, force: bool) -> Iterator[Path]:
    """The same for one file, and for further files that its writer may put beside it."""
    check_free(target, force=force)
    if target.is_dir():
        raise UserError(f"{target} is a folder; a file is wanted.")
    with _clear_message(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target)
        scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=_draft_prefix(target)))
        try:
            yield scratch / target.name
            # The file itself last: whoever finds it finds the rest, too.
            for file in sorted(scratch.iterdir(), key=lambda file: file.name == target.name):
                os.replace(file, target.parent / file.name)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _clear_message(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as wrong:
        raise UserError(f"cannot write {target}: {wrong.strerror or wrong}.") from wrong
