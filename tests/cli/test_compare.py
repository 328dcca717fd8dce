"""`plait compare` through the real program: table, files, messages, and the same answer whenever it is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

ATTN, GLA = "d=16 | attn[heads=2] swiglu", "d=16 | gla[heads=2] swiglu"
QUICK = ("--data", "builtin:language", "--tokens", "1024", "--batch", "2", "--seq-len", "16", "--seeds", "2")
QUICK += ("--held-out", "128", "--workers", "1")
TEMPLATE = files("plait").joinpath("model/mixer_template.txt").read_text()


def told(document: dict[str, Any]) -> dict[str, Any]:
    """Without how long things took."""
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in document["architectures"]]
    return {**document, "architectures": rows, "cost": {"tokens": document["cost"]["tokens"]}}


def test_table_picture_verdict_and_files(plait: Any, tmp_path: Path) -> None:
    outputs = ("--svg", "c.svg", "--out", "page.html", "--csv", "t.csv", "--parquet", "t.parquet")
    ran = plait("compare", ATTN, GLA, *QUICK, *outputs)
    assert ran.returncode == 0, ran.stderr
    assert "standard deviation between seeds 0." in ran.stdout
    assert "a attn swiglu   b gla swiglu" in ran.stdout
    assert "After 1.02 k tokens " in ran.stdout
    assert "At other budgets: " in ran.stdout
    assert "wrote t.csv\nwrote t.parquet\nwrote c.svg\nwrote page.html" in ran.stdout
    assert (tmp_path / "c.svg").read_text().startswith("<svg")
    page = (tmp_path / "page.html").read_text()
    assert "P(best) against tokens" in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert (tmp_path / "t.csv").read_text().startswith("name,loss,loss_low,loss_high,p_best,lr,tokens,params")
    from plait.analysis.table import read_table

    assert read_table(str(tmp_path / "t.parquet")).column("name") == read_table(str(tmp_path / "t.csv")).column("name")
    stored = trained(tmp_path)
    again = json.loads(plait("compare", ATTN, GLA, *QUICK, "--json").stdout)
    assert trained(tmp_path) == stored > 0
    names = [row["name"] for row in again["architectures"]]
    assert names == ["attn swiglu", "gla swiglu"]
    assert again["verdict"] in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to compare"),
        (("attn", "--at", "flop", "--tokens", "9"), "--at flop: must be one of tokens, flops, time."),
        (("attn", "--match", "size", "--tokens", "9"), "--match size: must be one of params, state, none."),
        (
            ("attn", "--tokens", "9", "--time", "1m"),
            "--time and --tokens are given; a comparison takes only one budget.",
        ),
        (("attn", "--tokens", "-9"), "--tokens -9: must be greater than 0."),
        (
            ("attn", "--tokens", "2M", "--time", "1m"),
            "--time and --tokens are given; a comparison takes only one budget.",
        ),
        (("attn", "--tokens", "2 apples"), "'2 apples' given; write a number above 0 and a unit"),
        (("attn", "--flops", "1e9", "--at", "tokens"), "--flops with --at tokens"),
        (("bert-base", "--tokens", "9"), "not kind=encoder"),
        (("attn", "--tokens", "9", "--held-out", "9"), "--held-out 9: must be at least one sequence of 256"),
        (("attn", "--tokens", "9", "--csv", "t.txt"), "give a file whose name ends with .csv"),
        (("attn", "--tokens", "9", "--data", "short.txt"), "needs more data"),
    ],
)
def test_one_message_and_exit_code_2(plait: Any, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "short.txt").write_text("too short a text. " * 20)
    ran = plait("compare", *arguments)
    assert ran.returncode == 2
    assert message in " ".join(ran.stderr.split())
    assert "Traceback" not in ran.stderr


def test_one_alone_on_a_short_text_is_told(plait: Any, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("some words that are read over and over again. " * 20)
    ran = plait("compare", ATTN, *QUICK, "--data", "short.txt", "--tokens", "2048", "--no-rate-search", "--seeds", "1")
    assert ran.returncode == 0, ran.stderr
    assert "the longest training read it" in ran.stdout
    assert "one architecture: there is nothing to compare it with" in ran.stdout
    assert "one seed: the noise is unknown" in ran.stdout
    assert "attn swiglu has a loss of " in ran.stdout


def test_an_edited_mixer_is_trained_again(plait: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TEMPLATE)
    command = ("compare", "mine.py", *QUICK, "--no-rate-search", "--json")
    first, again = (json.loads(plait(*command).stdout) for _ in range(2))
    assert first["cost"]["trained_seconds"] == again["cost"]["trained_seconds"]  # stored
    (tmp_path / "mine.py").write_text(TEMPLATE + "\n# another text\n")
    edited = json.loads(plait(*command).stdout)
    assert edited["cost"]["trained_seconds"] != first["cost"]["trained_seconds"]
    assert told(edited)["architectures"][0]["loss"] == pytest.approx(told(first)["architectures"][0]["loss"])


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    program = [sys.executable, "-c", "from plait.cli.main import main; main()", *arguments]
    return subprocess.Popen(
        program, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


def trained(folder: Path) -> int:
    """How many trainings are stored."""
    path = folder / "runs" / "plait.db"
    if not path.exists():
        return 0
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            (count,) = connection.execute("select count(*) from plait_records where kind = 'track'").fetchone()
    except sqlite3.OperationalError:  # its tables are being made
        return 0
    return int(count)


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_killed_at_any_moment_it_gives_the_same_answer(plait: Any, tmp_path: Path, workers: str) -> None:
    command = ("compare", ATTN, GLA, *QUICK, "--workers", workers, "--json")
    whole = plait(*command, "--store", "sqlite:///whole.db", "--runs", "whole")
    assert whole.returncode == 0, whole.stderr
    rng, kills = random.Random(int(workers)), 0
    while kills < 2:
        begun, before = started(tmp_path, *command), trained(tmp_path)
        goal = before + rng.randint(1, 4)
        while trained(tmp_path) < goal and begun.poll() is None:
            time.sleep(0.05)
        if begun.poll() is not None:
            break
        time.sleep(rng.uniform(0, 0.2))
        os.kill(begun.pid, signal.SIGKILL)  # not its workers: they notice
        begun.communicate()
        kills += 1
    assert kills
    went_on = plait(*command)
    assert went_on.returncode == 0, went_on.stderr
    assert told(json.loads(went_on.stdout)) == told(json.loads(whole.stdout))


def test_interrupted_it_says_how_to_go_on(tmp_path: Path) -> None:
    begun = started(tmp_path, "compare", ATTN, GLA, *QUICK, "--workers", "2")
    while trained(tmp_path) < 1:
        assert begun.poll() is None
        time.sleep(0.05)
    os.killpg(begun.pid, signal.SIGINT)  # as a terminal does: all processes of the group
    _, errors = begun.communicate(timeout=120)
    assert begun.returncode == 130
    assert "interrupted; finished training is saved. The same command resumes." in errors
    assert "Traceback" not in errors
