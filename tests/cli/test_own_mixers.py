"""A mixer from a user's file in the commands that measure, through the real program; and what a `kill -9` leaves."""

from __future__ import annotations

import json
import signal
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from plait.device.quantities import Setting
from plait.records import open_store
from plait.space.table import load_space

sys.path.insert(0, str(Path(__file__).parents[1] / "searching"))
from made_up import profile_of

TEMPLATE = files("plait").joinpath("model/mixer_template.txt").read_text()
#: Ends the command that measures it, once.
DEADLY = TEMPLATE.replace(
    "    def _project(self, x):\n",
    """    def _project(self, x):
        import os, pathlib, signal, sys
        if sys.argv[1:] and pathlib.Path("kill").exists():
            pathlib.Path("kill").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
""",
)
SPACE = """
layers: 1..2
d: 32|64
header: vocab=50
mixers: [attn[heads=2], my-mixer[memory=4|16]]
channel: [mlp[inner=64|128]]
seq: 16
files: [mine.py]
"""


@pytest.mark.slow
def test_measure_is_killed_and_goes_on(plait: Any, program: Any, tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text(DEADLY)
    (tmp_path / "kill").touch()
    plain, mine = "d=32 vocab=50 | attn[heads=2]", "d=32 vocab=50 | my-mixer[memory=4.0] mlp"
    arguments = ("measure", "deadly.py", plain, mine, "--seq", "16", "--json")
    assert program(*arguments).returncode == -signal.SIGKILL
    with open_store(f"sqlite:///{tmp_path}/runs/plait.db") as store:
        (kept,) = store.find("measure")
    assert kept.config["spec"] == plain
    went_on = plait(*arguments)
    assert went_on.returncode == 0, went_on.stderr
    first, second = json.loads(went_on.stdout)["models"]
    assert (first["spec"], second["spec"]) == (plain, mine)
    assert first["memory"] == kept.result["memory"] or kept.result["latency"]["noisy"]
    assert second["memory"]["peak"] > second["memory"]["weights"] > 0


def test_search_and_front(plait: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TEMPLATE)
    (tmp_path / "mine.txt").write_text(SPACE)
    profile_of(load_space(str(tmp_path / "mine.txt")), Setting(seq=16)).save(tmp_path / "mine.json")
    searched = plait("search", "--space", "mine.txt", "--profile", "mine.json", "--front", "1", "--json",
                     "--rule", "count(my-mixer) >= 1")  # fmt: skip
    assert searched.returncode == 0, searched.stderr
    found = json.loads(searched.stdout)
    assert found["measured"] == 1
    assert all("my-mixer" in row["spec"] for row in found["front"])
    shown = plait("front", "show", "--front", "1", "--json")  # knows the mixer from the record
    assert json.loads(shown.stdout)["front"] == found["front"]
