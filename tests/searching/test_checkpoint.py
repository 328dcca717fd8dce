"""Checkpoints appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from plait.algorithms.search import read_checkpoint, write_checkpoint
from plait.core.errors import UserError


def test_what_was_saved_is_read(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "s.npz"
    write_checkpoint(path, {"a": np.arange(3)}, {"k": [1, "x"]})
    write_checkpoint(path, {"a": np.arange(4)}, {"k": [2, "y"]})
    read = read_checkpoint(path)
    assert read is not None
    assert (read[0]["a"].tolist(), read[1]) == ([0, 1, 2, 3], {"k": [2, "y"]})
    assert [file.name for file in path.parent.iterdir()] == ["s.npz"]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", b"something else entirely"])
def test_what_was_not_saved_is_not_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "s.npz"
    assert read_checkpoint(path) is None
    path.write_bytes(content)
    assert read_checkpoint(path) is None


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the unfinished search"):
        write_checkpoint(tmp_path / "file" / "s.npz", {}, {})


def test_a_search_is_as_readable_as_any_other_file(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "s.npz", {"a": np.arange(3)}, {})
    (tmp_path / "other").touch()
    assert (tmp_path / "s.npz").stat().st_mode == (tmp_path / "other").stat().st_mode
