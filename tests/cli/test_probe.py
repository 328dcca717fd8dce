"""`plait probe` from the outside."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plait.core.errors import UserError
from plait.core.units import duration, parse_duration
from plait.probing.protocol import QUICK

PROGRAM = (sys.executable, "-c", "from plait.cli.main import main; main()", "probe")
MIXERS = Path(__file__).parent.parent / "probing"
LEAKY, EXPLODING = MIXERS / "leaky_mixer.py", MIXERS / "exploding_mixer.py"
ENOUGH = ("--time", "10m", "--seeds", "1", "--workers", "1")  # on a busy machine, too; it takes a few seconds
SMALL = ("d=16 | attn[heads=2] swiglu", "d=16 | hyena swiglu")
SHORT = (*SMALL, "--no-match", "--tasks", "memorization", *ENOUGH, "--json")


def run_on_a_full_disk(*arguments: str, folder: Path, largest_file: int) -> subprocess.CompletedProcess[str]:
    """The program where no file may grow beyond so many bytes."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

    return subprocess.run(
        [*PROGRAM, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=900,
        preexec_fn=limit,
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
        (("attn", "--patience", "20"), "give --full with it"),
        (("attn", "--full", "--patience", "0"), "1 or more"),
        (("attn", "--suite", "mad12"), "Did you mean 'mad21'"),
        (("attn", "--device", "tpu"), "must be one of cpu, cuda"),
        (("attn", "--variant", "mad"), "unknown variant"),
        ((str(LEAKY),), "See `plait check leaky_mixer.py`"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_mistakes_are_told_and_nothing_is_written(plait, tmp_path, arguments, message):
    found = plait("probe", *arguments)
    assert found.returncode == 2, found.stderr
    assert message in found.stderr
    assert "Traceback" not in found.stderr
    assert not list(tmp_path.iterdir())


@contextmanager
def few_steps() -> Iterator[None]:
    """Trainings of which nothing is asked but that they are made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(QUICK, "memorization", replace(QUICK["memorization"], steps=48))
        yield


@pytest.fixture(scope="module")
def probed(plait_in, tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    """A folder with a store in it, and what the probe said."""
    folder = tmp_path_factory.mktemp("probed")
    with few_steps():
        found = plait_in(folder, "probe", *SHORT)
    assert found.returncode == 0, found.stderr
    return folder, json.loads(found.stdout)


def test_a_short_probe_and_its_document(plait_in, probed):
    folder, shown = probed
    assert {"architectures", "verdict", "cost"} <= set(shown)
    assert {row["name"] for row in shown["architectures"]} == set(SMALL)
    for row in shown["architectures"]:
        task = row["tasks"]["memorization"]
        low, high = task["interval"] or (task["accuracy"],) * 2
        assert (task["interval"] is None) == (task["seeds"] == 1)
        assert 0 <= low <= task["accuracy"] <= high <= 1
        assert task["loss"] > 0
        assert row["mean"]["accuracy"] == task["accuracy"]
        assert row["spec"].startswith("d=")
    assert shown["cost"]["trained_now"] == shown["cost"]["trials"] > 0
    with few_steps():
        again = json.loads(plait_in(folder, "probe", *SHORT).stdout)
    assert again["cost"]["trained_now"] == 0
    assert [again[key] for key in ("architectures", "verdict")] == [shown[key] for key in ("architectures", "verdict")]


def test_a_time_in_which_nothing_fits_is_refused(plait, tmp_path):
    found = plait("probe", "attn", "--no-baselines", "--tasks", "memorization", "--time", "1s", "--workers", "1")
    assert found.returncode == 2, found.stdout
    assert re.search(r"one architecture does not fit into 1s here, .* Give --time \d+[sm] or more", found.stderr)
    assert not list(tmp_path.iterdir())


def test_a_loss_that_is_no_number_is_told_in_the_table(plait):
    arguments = ("probe", str(EXPLODING), "--no-baselines", "--tasks", "memorization", *ENOUGH)
    found = plait(*arguments)
    assert found.returncode == 0, found.stderr
    row = next(line for line in found.stdout.splitlines() if "exploding" in line)
    assert "diverged" in row
    assert "no longer finite" in found.stdout
    assert "Traceback" not in found.stderr
    shown = json.loads(plait(*arguments, "--json").stdout)
    task = shown["architectures"][0]["tasks"]["memorization"]
    assert (task["accuracy"], task["loss"], task["diverged"]) == (0.0, None, True)


# Something new; a day holds it on any machine, and it ends before anything is trained.
UNKNOWN = (SMALL[0], "--no-match", "--no-baselines", "--tasks", "compression", "--time", "24h")
UNKNOWN += ("--seeds", "1", "--workers", "1")


def refused(found: subprocess.CompletedProcess[str], message: str) -> None:
    """It ended with this message and no stack of calls."""
    assert found.returncode == 2, found.stdout + found.stderr
    assert message in found.stderr
    assert "Traceback" not in found.stderr


def records(store: Path) -> list[tuple[object, ...]]:
    with sqlite3.connect(store) as connection:
        return connection.execute("select * from plait_records order by key").fetchall()


def claims(store: Path) -> int:
    """Trials that are being trained."""
    if not store.exists():
        return 0
    try:
        with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as connection:
            return int(connection.execute("select count(*) from plait_claims").fetchone()[0])
    except sqlite3.OperationalError:  # its tables are being made
        return 0


@pytest.fixture
def store(probed, tmp_path) -> Path:
    """A store with records in it, in the test's own folder."""
    (tmp_path / "runs").mkdir()
    path = tmp_path / "runs" / "plait.db"
    with sqlite3.connect(probed[0] / "runs" / "plait.db") as source, sqlite3.connect(path) as target:
        source.backup(target)
    return path


def test_a_full_disk_loses_nothing(store, tmp_path):
    before = records(store)
    refused(run_on_a_full_disk(*UNKNOWN, folder=tmp_path, largest_file=store.stat().st_size), "full")
    assert set(before) <= set(records(store))


def test_a_store_of_a_newer_plait_is_left_alone(plait, store):
    with sqlite3.connect(store) as connection:
        connection.execute("update plait_schema set version = 7")
    before = records(store)
    refused(plait("probe", *UNKNOWN), "has schema 7")
    assert records(store) == before


def test_a_damaged_store_is_left_alone(plait, store):
    store.write_bytes(b"no database" + store.read_bytes()[11:])
    before = store.read_bytes()
    refused(plait("probe", *UNKNOWN), "It was left unchanged")
    assert store.read_bytes() == before


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    program = subprocess.Popen(
        [*PROGRAM, "attn", "hyena", "--tasks", "compression", "--full", "--workers", "1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    while not claims(tmp_path / "runs" / "plait.db"):
        assert program.poll() is None, program.communicate()
        time.sleep(0.1)
    os.killpg(program.pid, signal.SIGINT)
    out, err = program.communicate(timeout=300)
    assert program.returncode == 130, err
    assert "The same command resumes" in err
    assert out == ""  # a pipe gets results alone
    assert list((tmp_path / "runs" / "checkpoints").rglob("*.safetensors"))
