"""`plait new`: a working file, and existing files are never overwritten."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def test_a_new_mixer_keeps_the_contract(plait: Any, tmp_path: Path) -> None:
    made = plait("new", "mixer", "slow_fade.py")
    assert made.returncode == 0, made.stderr
    assert "plait check slow_fade.py" in made.stdout
    assert "my-mixer" not in (tmp_path / "slow_fade.py").read_text()
    checked = plait("check", "slow_fade.py", "--d", "16", "--no-speed", "--json")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    document = json.loads(checked.stdout)
    assert (document["mixer"], document["passed"]) == ("slow-fade", True)


def test_a_new_task_answers_as_it_asks(plait: Any) -> None:
    made = plait("new", "task", "running_sum.py")
    assert (made.returncode, made.stderr) == (0, "")
    assert "plait task show running_sum.py" in made.stdout
    shown = plait("task", "show", "running_sum.py", "--set", "first=8", "--json")
    assert shown.returncode == 0, shown.stderr
    document = json.loads(shown.stdout)
    assert (document["task"], document["label"]) == ("running-sum", "first=8")
    assert document["scored_per_sequence"]["test"] == 56


def test_what_was_written_as_json(plait: Any) -> None:
    made = plait("new", "task", "running_sum.py", "--json")
    assert json.loads(made.stdout) == {
        "file": "running_sum.py", "kind": "task", "name": "running-sum", "next": "plait task show running_sum.py",
    }  # fmt: skip
    package = json.loads(plait("new", "plugin", "theirs", "--json").stdout)
    assert (package["folder"], "src/theirs/mixer.py" in package["files"]) == ("theirs", True)


def test_a_file_that_is_there_stays(plait: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("precious")
    ran = plait("new", "mixer", "mine.py")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "mine.py exists already" in ran.stderr
    assert (tmp_path / "mine.py").read_text() == "precious"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mixr", "mine.py"), "cannot make a new 'mixr'. Did you mean 'mixer'?"),
        (("mixer", "mine.txt"), "mine.txt is not the name of a Python file"),
        (
            ("mixer", "my_mixer"),
            "my_mixer is not the name of a Python file: letters, digits and underscores, and .py at",
        ),
        (("mixer", "attn.py"), "there is a mixer 'attn' already"),
        (("task", "selective_copying.py"), "there is a task 'selective-copying' already"),
        (("mixer", "2-fast.py"), "2-fast.py is not the name of a Python file"),
        (("mixer", "nowhere/mine.py"), "cannot write nowhere/mine.py: No such file or directory"),
    ],
)
def test_what_cannot_be_made_is_refused(plait: Any, tmp_path: Path, arguments: tuple[str, str], message: str) -> None:
    ran = plait("new", *arguments)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr
    assert not list(tmp_path.iterdir())


def test_a_plugin_works_as_it_is_written(plait: Any, tmp_path: Path) -> None:
    ran = plait("new", "plugin", "my-things")
    assert ran.returncode == 0, ran.stderr
    folder = tmp_path / "my-things"
    lines = (folder / "pyproject.toml").read_text().splitlines()
    points = [
        line.replace('.entry-points."', " ").replace("project ", "").replace('"]', "]").replace('"', "")
        for line in lines
        if line.startswith(("[project.entry", "my-things-"))
    ]
    about = folder / "src" / "my_things-0.1.0.dist-info"  # as pip would make it
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-things\nVersion: 0.1.0\n")
    (about / "entry_points.txt").write_text("\n".join(points))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "src"), *sys.path])}
    command = [sys.executable, "-m", "pytest", "-q", str(folder)]
    tested = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert tested.returncode == 0, tested.stdout
    assert "3 passed" in tested.stdout
    again = plait("new", "plugin", "my-things")
    assert (again.returncode, "exists already" in again.stderr) == (2, True)


@pytest.mark.slow
def test_a_plugin_is_installed_by_pip_and_its_own_tests_pass(plait: Any, tmp_path: Path) -> None:
    assert plait("new", "plugin", "my-things").returncode == 0
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", "site"]
    installed = subprocess.run([*install, "./my-things"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert installed.returncode == 0, installed.stderr
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), *sys.path])}
    listed = subprocess.run(
        [sys.executable, "-m", "plait", "list", "mixers", "--json"],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert {row["from"] for row in json.loads(listed.stdout) if row["name"] == "my-things-mixer"} == {"my-things 0.1.0"}
    tests = [sys.executable, "-m", "pytest", "-q", "my-things/tests"]
    tested = subprocess.run(tests, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert "3 passed" in tested.stdout, tested.stdout


@pytest.mark.parametrize("name", ["1st", "My-Things", "a b"])
def test_what_is_no_packages_name_is_refused(plait: Any, name: str) -> None:
    ran = plait("new", "plugin", name)
    assert (ran.returncode, "is not a valid package name" in ran.stderr) == (2, True)
