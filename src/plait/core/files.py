"""Files: atomic writes, and defensive reading of JSON.

`atomic_write` writes under a temporary name in the same folder and then renames. `filled_file` and `filled_folder` do
the same for outputs at a path chosen by the user, and overwrite nothing without `--force`.

JSON may be damaged or hostile: any problem becomes one `UserError` that names the file. `parse_json` and `read_json`
refuse text that is not JSON, is nested too deeply, or contains numbers that cannot be represented (NaN, infinities,
hundreds of digits). `understood` wraps the code that interprets a document: a field that is missing or of the wrong
type becomes the same kind of message instead of a traceback. A document may contain its own checksum in the field
`checksum`: `sealed` adds it, `unsealed` checks and removes it; older documents have none.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from plait.core.errors import UserError


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """An empty temporary file to write; at the end of the block it replaces `path`, on any error it is removed.

    It is named `.{path.name}.…`, in the same folder. Only a killed process leaves one behind. A device or a pipe, such
    as /dev/stdout, is written to and not replaced.
    """
    if _is_stream(path):
        with tempfile.TemporaryDirectory(prefix="plait-") as folder:
            draft = Path(folder) / path.name
            draft.touch()
            yield draft
            with path.open("wb") as stream:
                stream.write(draft.read_bytes())
        return
    remove_leftovers(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=_draft_prefix(path))
    os.close(handle)
    draft = Path(name)
    try:
        yield draft
        with draft.open("r+b") as written:
            with suppress(PermissionError):  # some file systems do not support modes
                draft.chmod(_mode_of_a_new_file())  # mkstemp's files are private to their owner
            os.fsync(written.fileno())  # otherwise a power failure could leave the new name on an empty file
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _is_stream(path: Path) -> bool:
    """Whether a path is a device or a pipe, or a system link to one, such as /dev/stdout."""
    if os.path.dirname(os.path.abspath(path)) == "/dev":
        return path.exists()
    with suppress(OSError):
        return not (stat.S_ISREG(mode := path.lstat().st_mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode))
    return False


def _draft_prefix(path: Path) -> str:
    """Contains the id of the writing process, so that leftovers of a dead one can be recognised."""
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
    """Whether no process of this machine has this id any more; False if unknown."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _mode_of_a_new_file() -> int:
    # The umask can only be read by setting it. A file created meanwhile by another thread is too private, not too open.
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
    with _scratch_folder(target) as scratch:
        yield scratch
        with suppress(PermissionError):
            scratch.chmod(_mode_of_a_new_file() | 0o111)  # mkdtemp's folders are private to their owner
        if target.is_symlink() or (target.is_dir() and any(target.iterdir())):
            for file in sorted(path for path in scratch.rglob("*") if path.is_file()):
                place = target / file.relative_to(scratch)
                place.parent.mkdir(exist_ok=True)
                os.replace(file, place)
        else:
            os.replace(scratch, target)  # atomic: if interrupted before, there is nothing


@contextmanager
def filled_file(target: Path, *, force: bool) -> Iterator[Path]:
    """The same for one file, and for other files that its writer may create next to it."""
    check_free(target, force=force)
    if target.is_dir():
        raise UserError(f"{target} is a folder; a file is wanted.")
    with _scratch_folder(target) as scratch:
        yield scratch / target.name
        # The file itself last, so that its existence implies that of the others.
        for file in sorted(scratch.iterdir(), key=lambda file: file.name == target.name):
            os.replace(file, target.parent / file.name)


@contextmanager
def _scratch_folder(target: Path) -> Iterator[Path]:
    """A temporary folder next to `target`, on the same file system, which is removed after the block."""
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target)
        scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=_draft_prefix(target)))
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def writing(target: Path, what: str = "") -> Iterator[None]:
    """Around code that writes a file or folder: an `OSError` becomes a `UserError` that names it (and says `what`)."""
    try:
        yield
    except OSError as wrong:
        raise UserError(f"cannot write {what}{target}: {wrong.strerror or wrong}.") from wrong


def write_text(path: str | Path, text: str, what: str = "") -> None:
    """Write a file atomically, and its folder if it is missing. A symbolic link is replaced, not followed."""
    target = Path(path)
    with writing(target, what):
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(target) as draft:
            draft.write_text(text, encoding="utf-8")


CHECKSUM = "checksum"
DIGITS = 16  # hex digits of a checksum
MOST_DIGITS = 300  # most digits of a number


def loads(text: str | bytes, *, constants: bool = False) -> Any:
    """Like `json.loads`, but every problem is a `JSONDecodeError`, including deep nesting and refused numbers. With
    `constants`, NaN and infinities are accepted."""
    try:
        if constants:
            return json.loads(text, parse_int=_int)
        return json.loads(text, parse_int=_int, parse_float=_float, parse_constant=_refuse_constant)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise json.JSONDecodeError("it is nested too deeply", "", 0) from None
    except ValueError as wrong:
        raise json.JSONDecodeError(str(wrong), "", 0) from None


def parse_json(text: str | bytes, name: str, *, constants: bool = False) -> Any:
    """The document in this text. `name` is the source of the text, for messages."""
    try:
        return loads(text, constants=constants)
    except json.JSONDecodeError as wrong:
        raise UserError(f"{name} cannot be read: invalid JSON in line {wrong.lineno}: {wrong.msg}.") from None


def json_lines(text: str, name: str, *, constants: bool = False) -> Iterator[tuple[int, Any]]:
    """The number and the document of every line that is not blank."""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                yield number, loads(line, constants=constants)
            except json.JSONDecodeError as wrong:
                raise UserError(f"{name}:{number}: not JSON: {wrong.msg} at column {wrong.colno}.") from None


def read_json(path: Path, *, constants: bool = False) -> Any:
    """The document in a file; a `UserError` if it cannot be read."""
    return parse_json(read_text(path), str(path), constants=constants)


def read_object(path: Path, *, constants: bool = False) -> dict[str, Any]:
    """The object in a file that must contain one JSON object."""
    document = read_json(path, constants=constants)
    if not isinstance(document, dict):
        raise UserError(f"{path} cannot be read: it should hold an object, not a {type(document).__name__}.")
    return document


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # some editors begin a file with a byte-order mark
    except UnicodeDecodeError:
        raise UserError(f"{path} cannot be read: it is not UTF-8 text.") from None
    except (OSError, MemoryError, ValueError) as wrong:
        raise UserError(f"{path} cannot be read: {getattr(wrong, 'strerror', None) or wrong}.") from None


@contextmanager
def understood(name: str, then: str = "") -> Iterator[None]:
    """Around code that interprets a document: a missing field or a value of the wrong type becomes a `UserError` that
    calls `name` damaged. `then` tells the user what to do about it."""
    try:
        yield
    except UserError:
        raise
    except KeyError as missing:
        raise UserError(f"{name} is damaged: it has no {missing}. {then}".rstrip()) from missing
    except (TypeError, ValueError, AttributeError, IndexError, ArithmeticError, RecursionError) as wrong:
        raise UserError(f"{name} is damaged: {wrong}. {then}".rstrip()) from wrong


# ---- checksums


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with its checksum."""
    return {**document, CHECKSUM: _checksum_of(document)}


def unsealed(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The document without its checksum, which must be correct if present."""
    rest = {field: value for field, value in document.items() if field != CHECKSUM}
    if CHECKSUM in document and document[CHECKSUM] != _checksum_of(rest):
        raise UserError(f"{name} is damaged: its checksum is not the one written down.")
    return rest


def _checksum_of(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


# ---- numbers


def finite(value: Any) -> Any:
    """The value with NaN and infinities replaced by None, since JSON has neither."""
    if isinstance(value, dict):
        return {name: finite(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _int(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:20]} is too large")
    return value


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number in JSON")
