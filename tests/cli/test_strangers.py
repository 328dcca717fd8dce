"""Files in the working folder, and side effects of users' files, through the real program."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

TEMPLATE = files("plait").joinpath("model/mixer_template.txt").read_text()
SHADOW = "open('{name}-ran', 'w').close()\nraise SystemExit('{name}.py of the working folder was run')\n"
PAIR = ("d=16 vocab=64 | attn[heads=2] mlp", "d=16 vocab=64 | gla[heads=2] mlp")


@pytest.fixture
def installed(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`plait` as an installed script: Python puts the script's folder on the path, not the working folder."""
    script = tmp_path_factory.mktemp("bin") / "script.py"
    script.write_text("from plait.cli.main import main\nif __name__ == '__main__':\n    main()\n")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(script), *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    return run


@pytest.fixture
def shadows(tmp_path: Path) -> None:
    """Files of the names of modules that plait's processes import."""
    for name in ("numpy", "json", "torch", "selectors", "random", "multiprocessing", "safetensors"):
        (tmp_path / f"{name}.py").write_text(SHADOW.format(name=name))


@pytest.mark.usefixtures("shadows")
@pytest.mark.parametrize(
    "arguments",
    [
        ("measure", "d=32 vocab=50 | attn[heads=2]", "--seq", "16"),
        ("probe", "d=16 | attn[heads=2] swiglu", "--no-match", "--tasks", "compression", "--no-baselines",
         "--workers", "1", "--plan"),
        pytest.param(("scale", "run", "plan.json", "--workers", "2"), marks=pytest.mark.slow),
    ],
    ids=lambda arguments: arguments[0],
)  # fmt: skip
def test_modules_of_the_working_folder_are_not_imported(
    installed: Any, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    if arguments[0] == "scale":
        small = ("--arch", f"ours={PAIR[0]}", "--budgets", "1e9,2e9", "--sizes", "3", "--seq-len", "16",
                 "--batch", "512")  # fmt: skip
        planned = installed("scale", "plan", *small, "--out", "plan.json")
        assert planned.returncode == 0, planned.stderr
    ran = installed(*arguments)
    assert not list(tmp_path.glob("*-ran")), ran.stderr
    assert ran.returncode == 0, ran.stderr


@pytest.mark.usefixtures("shadows")
def test_a_script_needs_no_guard_for_workers_and_they_import_nothing_of_the_working_folder(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    script = tmp_path_factory.mktemp("bin") / "mine.py"  # Python itself imports from a script's own folder
    given = "data='builtin:language', tokens=2000, seq_len=16, seeds=1, held_out=160, search_rates=False, workers=2"
    script.write_text(f"import plait\nprint('once')\nprint(plait.compare({PAIR!r}, {given}).verdict)\n")
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert not list(tmp_path.glob("*-ran")), ran.stderr
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[0] == "once"
    assert len(ran.stdout.splitlines()) == 2


@pytest.mark.parametrize("where", ["at import", "when run"])
def test_a_mixer_cannot_end_the_program_with_success(plait: Any, tmp_path: Path, where: str) -> None:
    text = "import sys\nsys.exit(0)\n" + TEMPLATE
    if where == "when run":
        text = TEMPLATE.replace(
            "    def _project(self, x):\n", "    def _project(self, x):\n        raise SystemExit(0)\n"
        )
    (tmp_path / "leaves.py").write_text(text)
    ran = plait("check", "leaves.py", "--no-speed")
    assert ran.returncode == (2 if where == "at import" else 1), ran.stdout
    assert "leaves.py ended the program" in ran.stderr if where == "at import" else "SystemExit" in ran.stdout
    options = "--mixers leaves.py --data builtin:language --steps 1 --batch 1 --seq-len 8"
    trained = plait("train", "d=32 | my-mixer mlp", *options.split())
    assert trained.returncode == 2, trained.stdout
    assert "ended the program" in trained.stderr


def test_a_file_from_elsewhere_is_announced(
    plait: Any, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.core.user_files._announcing", True)  # a test's worker in this process has ended it
    elsewhere = tmp_path_factory.mktemp("theirs") / "theirs.py"
    for path in (elsewhere, tmp_path / "mine.py"):
        path.write_text(TEMPLATE)
    ran = plait("show", "d=32 | my-mixer mlp", "--mixers", str(elsewhere))
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == f"plait: runs the code in {elsewhere}, a file outside the working folder.\n"
    assert plait("show", "d=32 | my-mixer mlp", "--mixers", "mine.py").stderr == ""


def test_a_reader_that_leaves_is_no_users_file(tmp_path: Path) -> None:
    """`plait … --help | head -1`: what ends the program is the pipe."""
    command = f"{sys.executable} -m plait new mixer --help | head -1"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert "user's file" not in ran.stderr
