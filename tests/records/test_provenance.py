"""A result's surroundings are written down; where it ran is not."""

from __future__ import annotations

import getpass
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import plait
from plait.records import code_hash, provenance_of

KEYS = {"started", "seconds", "plait", "code", "python", "torch", "system", "cpu", "threads", "cores", "gpu"}


def test_what_surrounds_a_result() -> None:
    found = provenance_of(started=86400.0, seconds=1.23456)
    assert set(found) == KEYS
    assert found["started"] == "1970-01-02T00:00:00+00:00"
    assert found["seconds"] == 1.235
    assert found["plait"] == plait.__version__
    assert found["python"] == platform.python_version()
    assert 1 <= found["cores"] <= (os.cpu_count() or 1)
    assert json.loads(json.dumps(found)) == found


def test_nothing_tells_where_it_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of-somebody")
    monkeypatch.setenv("LOGNAME", "somebody")  # not everybody has a name
    assert (Path.home(), getpass.getuser()) == (Path("/home/of-somebody"), "somebody")
    text = " ".join(map(str, provenance_of(0.0, 0.0).values()))
    assert "somebody" not in text
    assert str(Path(plait.__file__).parent) not in text
    assert platform.node() not in text.split()  # as a word: the name may be a single letter


def test_torch_is_named_but_not_imported() -> None:
    program = (
        "import sys\nfrom plait.records import provenance_of\n"
        "print(provenance_of(0.0, 0.0)['torch'], 'torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    named, imported = ran.stdout.split()
    assert named[0].isdigit()
    assert imported == "False"


def test_the_gpu_is_named_where_torch_has_one(monkeypatch) -> None:
    class Cuda:
        is_available = staticmethod(lambda: True)
        get_device_name = staticmethod(lambda: "H200")

    class Torch:
        cuda = Cuda
        get_num_threads = staticmethod(lambda: 3)

    assert provenance_of(0.0, 0.0)["gpu"] is None
    with monkeypatch.context() as patch:  # over before fixtures that use the real one end
        patch.setitem(sys.modules, "torch", Torch)
        found = provenance_of(0.0, 0.0)
    assert found["gpu"] == "H200"
    assert found["threads"] == 3  # results depend on it, in the last digits


def test_the_code_hash_sees_every_change(tmp_path: Path, monkeypatch) -> None:
    source = Path(plait.__file__).parent / "records"
    copy = shutil.copytree(source, tmp_path / "plait")
    monkeypatch.setattr(plait, "__file__", str(copy / "__init__.py"))
    fresh = code_hash.__wrapped__  # without its cache
    before = fresh()
    assert fresh() == before
    (copy / "notes.md").write_text("no code")
    assert fresh() == before
    with (copy / "about.py").open("a") as file:
        file.write("#")
    changed = fresh()
    assert changed != before
    (copy / "about.py").rename(copy / "moved.py")
    moved = fresh()
    assert moved not in (before, changed)
    (copy / "curves.json").write_text("{}")  # as the library of curves, from which forecasts are made
    assert fresh() not in (before, changed, moved)
