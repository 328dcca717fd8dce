"""`plait probe` from the outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from plait.cli.probe import duration, parse_duration
from plait.errors import UserError

PROGRAM = (sys.executable, "-c", "from plait.cli.main import main; main()", "probe")
LEAKY = Path(__file__).parent.parent / "probe" / "leaky_mixer.py"


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=240,
    )


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1h30m", 5400), ("45", 45), ("0.5h", 1800), (" 2M ", 120)]
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "0s", "-5m", "5 parsecs"])
def test_what_is_no_duration(text):
    with pytest.raises(UserError, match="90s, 10m"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(12.3, "12 s"), (75, "1 m 15 s"), (7260, "2 h 1 m"), (200_000, "2 d 7 h")]
)
def test_durations_in_words(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to probe"),
        (("gal",), "Did you mean 'gla'"),
        (("attn", "--tasks", "in-context-recal"), "Did you mean 'in-context-recall'"),
        (("attn", "--full", "--time", "5m"), "not both"),
        (("attn", "--suite", "mad12"), "Did you mean 'mad21'"),
        (("attn", "--device", "tpu"), "cpu and cuda"),
        (("attn", "--variant", "mad"), "unknown variant"),
        ((str(LEAKY),), "leaky leaks the future"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_mistakes_are_told_and_nothing_is_written(tmp_path, arguments, message):
    found = run(*arguments, folder=tmp_path)
    assert found.returncode == 2, found.stderr
    assert message in found.stderr
    assert "Traceback" not in found.stderr
    assert not list(tmp_path.iterdir())


def test_a_short_probe_and_its_document(tmp_path):
    arguments = ("attn", "hyena", "--tasks", "memorization", "--time", "15s", "--json")
    found = run(*arguments, folder=tmp_path)
    assert found.returncode == 0, found.stderr
    shown = json.loads(found.stdout)
    assert {"architectures", "verdict", "cost"} <= set(shown)
    assert {row["name"] for row in shown["architectures"]} == {"attn", "hyena"}
    for row in shown["architectures"]:
        task = row["tasks"]["memorization"]
        low, high = task["interval"]
        assert 0 <= low <= task["accuracy"] <= high <= 1
        assert task["loss"] > 0
        assert row["mean"]["accuracy"] == task["accuracy"]
        assert row["spec"].startswith("d=")
    assert shown["cost"]["trained_now"] == shown["cost"]["cells"] > 0
    again = json.loads(run(*arguments, folder=tmp_path).stdout)
    assert again["cost"]["trained_now"] == 0
    assert [again[key] for key in ("architectures", "verdict")] == [shown[key] for key in ("architectures", "verdict")]


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    program = subprocess.Popen(
        [*PROGRAM, "attn", "hyena", "--tasks", "compression", "--full", "--workers", "1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (tmp_path / "runs" / "plait.db").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(3)
    os.killpg(program.pid, signal.SIGINT)
    out, err = program.communicate(timeout=60)
    assert program.returncode == 130, err
    assert "The same command goes on from here" in out
    assert list((tmp_path / "runs" / "checkpoints").rglob("*.safetensors"))
