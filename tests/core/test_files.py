"""Atomic writes: complete or absent, with the usual permissions."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from plait.core.files import atomic_write


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_mode_is_that_of_any_new_file(tmp_path: Path, mask: int, mode: int) -> None:
    path = tmp_path / "a.json"
    with umask(mask):
        with atomic_write(path) as draft:
            draft.write_text("new")
        assert os.umask(mask) == mask, "the process has another mask now"
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_writer_that_replaces_the_draft_itself_gets_the_same_mode(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with umask(0o022), atomic_write(path) as draft:
        draft.unlink()
        draft.write_text("new")
        draft.chmod(0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_until_the_end_the_old_file_is_there_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("a long old text")
    with atomic_write(path) as draft:
        assert draft.parent == tmp_path
        assert draft.name.startswith(".a.json.")
        draft.write_text("new")
        assert path.read_text() == "a long old text"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("bad"), KeyboardInterrupt()])
def test_an_error_leaves_the_old_file_and_no_draft(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")

    def write_half() -> None:
        with atomic_write(path) as draft:
            draft.write_text("half of the n")
            raise error

    with pytest.raises(type(error)) as caught:
        write_half()
    assert caught.value is error
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_an_error_after_the_writing_leaves_no_draft_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fails(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, step, fails)
    with pytest.raises(OSError, match="Input/output error"), atomic_write(tmp_path / "a.json") as draft:
        draft.write_text("new")
    assert os.listdir(tmp_path) == []


def test_all_of_it_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, synced, real = tmp_path / "a.json", [], os.fsync

    def watched(handle: int) -> None:
        synced.append((os.fstat(handle).st_size, path.exists()))
        real(handle)

    monkeypatch.setattr(os, "fsync", watched)
    with atomic_write(path) as draft:
        draft.write_text("new")
    assert synced == [(3, False)]


def test_a_file_system_without_modes_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refused)
    with atomic_write(tmp_path / "a.json") as draft:
        draft.write_text("new")
    assert (tmp_path / "a.json").read_text() == "new"


def test_a_folder_that_is_not_there_is_the_callers_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "nowhere" / "a.json"):
        pytest.fail("there is nothing to write to")


def test_an_interrupted_folder_leaves_nothing_and_its_leftovers_go(tmp_path: Path) -> None:
    """Killed at any point, the same command again is not refused."""
    import subprocess
    import sys

    program = """
import os, sys
from pathlib import Path
from plait.core.files import filled_folder
real, calls = os.replace, 0
def dying(*given):
    global calls
    calls += 1
    if calls == int(sys.argv[2]): os._exit(9)
    real(*given)
os.replace = dying
with filled_folder(Path(sys.argv[1]), force=False) as scratch:
    for name in "abc":
        (scratch / name).write_text(name)
    if sys.argv[2] == "0": os._exit(9)
"""
    target = tmp_path / "out"
    for point in ("0", "1"):
        assert subprocess.run([sys.executable, "-c", program, str(target), point], check=False).returncode == 9
        assert not target.exists()
        assert len(list(tmp_path.iterdir())) == 1
    done = subprocess.run([sys.executable, "-c", program, str(target), "99"], check=False)
    assert done.returncode == 0
    assert sorted(path.name for path in target.iterdir()) == ["a", "b", "c"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """Nor a device: as root, a draft in /dev would take its place."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with atomic_write(pipe) as draft:
        draft.write_text("through it")
    assert os.read(reader, 100) == b"through it"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    with atomic_write(Path("/dev/null")) as draft:
        assert draft.parent != Path("/dev")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
