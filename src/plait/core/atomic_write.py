"""A file that appears whole or not at all: written beside its place under another name, then moved there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """An empty draft to write; it takes the place of `path` at the end of the block, and is removed on any error.

    The draft is `.{path.name}.…` in the same folder: only a process that is killed leaves one behind.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
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


def _mode_of_a_new_file() -> int:
    # The mask can only be read by setting it. A file that another thread makes meanwhile is too private, not too open.
    umask = os.umask(0o077)
    os.umask(umask)
    return 0o666 & ~umask
