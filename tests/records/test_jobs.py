"""Progress of running commands in the store, from real processes: one ends, one is killed."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plait.core.errors import UserError
from plait.core.units import TimeLeft
from plait.records import Record, Store, open_store
from plait.records import jobs as jobs_module
from plait.records.jobs import FORGOTTEN, SILENT, Job, Publisher, published, read_jobs

#: A command that is a quarter done and goes on until a line reaches it.
COMMAND = """
import sys
from plait.records import open_store
from plait.records.jobs import published

with open_store(sys.argv[1]) as store, published(store, "probe", "gla, <script>") as job:
    job.update("training", 0.0, "0 of 12 trials")
    job.update("training", 0.25, "3 of 12 trials")
    sys.stdin.readline()
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/plait.db") as opened:
        yield opened


@pytest.fixture
def begin(store: Store) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    begun: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        begun.append(
            subprocess.Popen([sys.executable, "-c", COMMAND, store.url], stdin=subprocess.PIPE, text=True)
        )  # fmt: skip
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.wait()


def jobs_when(store: Store, fit: Callable[[list[Job]], bool]) -> list[Job]:
    deadline = time.monotonic() + 60
    while not fit(found := read_jobs(store)):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def test_a_command_is_seen_running_and_is_gone_at_its_end(
    store: Store, begin: Callable[[], subprocess.Popen[str]]
) -> None:
    process = begin()
    (job,) = jobs_when(store, lambda found: bool(found) and found[0].state.share == 0.25)
    assert (job.running, job.local, job.state.process) == (True, True, process.pid)
    assert (job.state.verb, job.state.stage, job.state.detail) == ("probe", "training", "3 of 12 trials")
    assert job.state.seconds_left is None  # a share that was told once has no pace
    process.communicate("\n", timeout=60)
    assert process.returncode == 0
    assert read_jobs(store) == []


def test_a_killed_command_is_stopped_at_once_and_taken_up_by_the_next(
    store: Store, begin: Callable[[], subprocess.Popen[str]]
) -> None:
    killed = begin()
    jobs_when(store, bool)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    (job,) = read_jobs(store)
    assert not job.running
    assert job.state.process == killed.pid
    again = begin()
    (job,) = jobs_when(store, lambda found: [one.state.process for one in found] == [again.pid])
    assert job.running


def test_a_process_of_another_machine_is_stopped_when_it_is_silent(store: Store) -> None:
    Publisher(store, "search", "small-hybrid").write_if_due()
    with sqlite3.connect(str(store.file)) as raw:
        raw.execute("UPDATE plait_jobs SET owner = 'elsewhere:1:x', updated = updated - ?", (SILENT / 2,))
    (job,) = read_jobs(store)
    assert (job.running, job.local) == (True, False)
    with sqlite3.connect(str(store.file)) as raw:
        raw.execute("UPDATE plait_jobs SET updated = updated - ?", (SILENT,))
    assert not read_jobs(store)[0].running
    with sqlite3.connect(str(store.file)) as raw:
        raw.execute("UPDATE plait_jobs SET updated = updated - ?", (FORGOTTEN,))
    assert read_jobs(store) == []
    Publisher(store, "design", "another").write_if_due()  # which removes what nobody asks for
    assert [row.id for row in store.job_rows()] == [job.id for job in read_jobs(store)]


def test_what_is_unchanged_is_not_written_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = Publisher(store, "compare", "a, b on text")
    publisher.write_if_due()
    writes: list[str] = []
    monkeypatch.setattr(store, "put_job", lambda id, owner, state: writes.append(state))
    publisher.write_if_due()
    assert writes == []
    publisher.update("training", 0.5)
    publisher.write_if_due()
    publisher.write_if_due()
    assert len(writes) == 1
    monkeypatch.setattr(jobs_module, "HEARTBEAT", 0.0)  # nothing is new, but it is time to say that one is alive
    publisher.write_if_due()
    assert len(writes) == 2


def test_a_store_of_an_earlier_version_gets_the_table(store: Store) -> None:
    store.put(Record.of("x", {"protocol": 1}, {"b": 2}, {"c": 3}))
    with sqlite3.connect(str(store.file)) as raw:
        raw.execute("DROP TABLE plait_jobs")
    assert read_jobs(store) == []
    store.remove_jobs(["nothing"])
    Publisher(store, "probe", "gla").write_if_due()
    assert len(read_jobs(store)) == 1


@pytest.mark.parametrize(
    "wrong",
    [{"share": "abc"}, {"title": None}, {"title": 7}, {"seconds": "x"}, {"seconds": None}, {"share": float("nan")},
     {"seconds_left": float("inf")}],
)  # fmt: skip
def test_rows_that_cannot_be_shown_are_left_out(store: Store, wrong: dict[str, Any]) -> None:
    whole = {"verb": "probe", "title": "gla", "host": "here", "process": 1, "seconds": 1.0}
    store.put_job("one", "elsewhere:1:x", json.dumps({**whole, **wrong}))
    assert read_jobs(store) == []


def test_odd_numbers_and_names_are_shown_as_what_a_page_can_hold(store: Store) -> None:
    Publisher(store, "design", os.fsdecode(b"caf\xe9.txt")).write_if_due()
    row = store.job_rows()[0]
    store.put_job(row.id, row.owner, json.dumps({**json.loads(row.state), "share": 1.3, "seconds_left": -7}))
    (job,) = read_jobs(store)
    assert (job.state.title, job.state.share, job.state.seconds_left) == ("caf?.txt", 1.0, 0.0)


def test_a_store_that_does_not_answer_does_not_keep_a_command_from_ending(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "UPDATE", 0.01)
    monkeypatch.setattr(jobs_module, "END", 0.1)
    asked, answered = threading.Event(), threading.Event()

    def never_answer(*_: object) -> None:
        asked.set()
        answered.wait(60)

    monkeypatch.setattr(store, "put_job", never_answer)
    with published(store, "probe", "gla") as job:
        job.update("training", 0.5)
        assert asked.wait(60)
    assert not answered.is_set()  # it ended while the store was still silent
    answered.set()


def test_short_work_and_a_store_that_refuses_cost_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with published(store, "probe", "gla") as job:
        job.update("training", 0.5)
    assert store.file is not None
    assert not store.file.exists()

    def refuse(*_: object) -> None:
        raise UserError("the store is away")

    monkeypatch.setattr(jobs_module, "UPDATE", 0.001)
    monkeypatch.setattr(store, "put_job", refuse)
    with published(store, "probe", "gla") as job:
        job.update("training", 0.5)
        time.sleep(0.05)
    assert read_jobs(store) == []


def test_progress_reaches_the_store_and_the_caller(store: Store) -> None:
    heard: list[tuple[str, float, float | None]] = []
    publisher = Publisher(store, "search", "small-hybrid")
    report = publisher.alongside(lambda *now: heard.append(now))
    for now, detail, share in [
        (("profiling", 0, None), "", None),
        (("searching", 1000, 4000), "1,000 of 4,000", 0.25),
        (("training", 1.5, 3), "1.5 of 3", 0.5),
        (("race", 0.75, 1.0), "", 0.75),
    ]:
        report(*now)
        publisher.write_if_due()
        (job,) = read_jobs(store)
        assert (job.state.stage, job.state.detail, job.state.share) == (now[0], detail, share)
    assert len(heard) == 4


def test_the_time_left_is_that_of_the_stage(store: Store) -> None:
    now = 1000.0
    publisher = Publisher(store, "search", "mine")
    publisher._left = TimeLeft(lambda: now)

    def published_left() -> float | None:
        publisher.write_if_due()
        (job,) = read_jobs(store)
        return job.state.seconds_left

    publisher.update("profile", 0.5)
    for passed, share in ((100, 0.2), (50, 0.3)):
        now += passed
        publisher.update("search", share)
        assert published_left() is None  # the first advance ends the start, which has no pace
    now += 12
    publisher.update("search", 0.6)
    assert published_left() == pytest.approx(16.0)  # 0.3 took 12 s, 0.4 are left
