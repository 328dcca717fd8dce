"""A failed export leaves nothing behind, and nobody's files are touched."""

from __future__ import annotations

import pytest

from plait.core.errors import UserError
from plait.core.files import filled_file, filled_folder


@pytest.mark.parametrize("fill", [filled_folder, filled_file])
def test_a_failure_leaves_nothing(fill, tmp_path):
    def fails():
        with fill(tmp_path / "deep" / "out", force=False) as scratch:
            (scratch / "part" if fill is filled_folder else scratch).write_text("half")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fails()
    assert not list((tmp_path / "deep").iterdir())


def test_an_empty_folder_is_free_and_a_wrong_kind_is_not(tmp_path):
    (tmp_path / "empty").mkdir()
    with filled_folder(tmp_path / "empty", force=False) as scratch:
        (scratch / "a").write_text("1")
    assert (tmp_path / "empty" / "a").read_text() == "1"
    with pytest.raises(UserError, match="is a file"), filled_folder(tmp_path / "empty" / "a", force=True):
        pass
    with pytest.raises(UserError, match="is a folder"), filled_file(tmp_path / "empty", force=True):
        pass


def test_a_full_disk_is_said(tmp_path):
    with pytest.raises(UserError, match=r"cannot write .*No space"), filled_file(tmp_path / "out", force=False):
        raise OSError(28, "No space left on device")


def test_a_folder_with_a_folder_in_it_is_overwritten_and_other_files_stay(tmp_path):
    for text in ("old", "new"):
        with filled_folder(tmp_path / "out", force=True) as scratch:
            (scratch / "tokenizer").mkdir()
            (scratch / "tokenizer" / "a").write_text(text)
            (scratch / "run").write_text(text)
        (tmp_path / "out" / "tokenizer" / "own").touch()
    assert {path.name: path.read_text() for path in (tmp_path / "out").rglob("*") if path.is_file()} == {
        "a": "new",
        "run": "new",
        "own": "",
    }
