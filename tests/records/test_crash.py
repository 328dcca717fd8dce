"""Killed at any moment, written by many processes: no record is lost or duplicated."""

from __future__ import annotations

import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable

from plait.records import open_store, record_key

Start = Callable[..., "subprocess.Popen[str]"]

RECORD = """
import sys
from plait.records import Record, open_store
store = open_store(sys.argv[1])
def record(seed):
    return Record.of("probe", {"protocol": 1, "seed": seed}, {"curve": [seed / 3] * 200, "by": sys.argv[2]}, {})
"""

# The key is printed once the store has said that it is there.
WRITER = (
    RECORD
    + """
for seed in range(int(sys.argv[3]), int(sys.argv[4])):
    if store.put(record(seed)):
        print(record(seed).key, flush=True)
"""
)

# Claims a key, says so, and works on it for a moment.
WORKER = (
    RECORD
    + """
import random, time
print("ready", flush=True)
sys.stdin.readline()
seeds = list(range(200))
random.Random(sys.argv[2]).shuffle(seeds)
for seed in seeds:
    if store.claim(record(seed).key, sys.argv[2], ttl=60):
        print(seed, flush=True)
        time.sleep(0.005)
        store.put(record(seed))
"""
)

# Keeps its claim alive for as long as it lives itself; once it is told to, no longer than for a moment at a time.
CLAIMER = (
    RECORD
    + """
assert store.claim(record(0).key, "first", ttl=600)
print("claimed", flush=True)
sys.stdin.readline()
while store.heartbeat("first", ttl=1):
    print("alive", flush=True)
"""
)


def printed(process: subprocess.Popen[str]) -> list[str]:
    """The lines until its end that were not read yet; the last may be torn."""
    assert process.stdout is not None
    lines = process.stdout.readlines()  # `communicate` would lose what `readline` has buffered
    process.wait(timeout=60)
    return [line for line in lines if line.endswith("\n")]


def test_killed_ten_times(url: str, start: Start) -> None:
    moments = random.Random(0)
    kept: set[str] = set()
    for attempt in range(10):
        writer = start(WRITER, url, "writer", str(attempt * 100_000), str((attempt + 1) * 100_000))
        assert writer.stdout is not None
        for _ in range(moments.randint(1, 20)):
            kept.add(writer.stdout.readline().strip())
        time.sleep(moments.uniform(0, 0.005))  # somewhere in the middle of things
        writer.kill()
        kept |= {line.strip() for line in printed(writer)}
        assert writer.returncode == -9
        with open_store(url) as store:
            assert store.has(kept) == kept
    with open_store(url) as store:
        found = store.find()
        # A kill between the store's commit and the print leaves one record more than was printed.
        assert len(kept) <= len(found) <= len(kept) + 10
        assert all(record.result["curve"] == [record.config["seed"] / 3] * 200 for record in found)


def test_two_processes_create_and_fill_one_store(url: str, start: Start) -> None:
    writers = [start(WRITER, url, "a", "0", "150"), start(WRITER, url, "b", "100", "250")]
    told = [{line.strip() for line in printed(writer)} for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0]
    assert not told[0] & told[1], "both were told that they had stored the same record"
    with open_store(url) as store:
        found = store.find()
        assert sorted(record.config["seed"] for record in found) == list(range(250))
        assert {record.key for record in found if record.result["by"] == "a"} == told[0]


def test_two_processes_share_200_keys(url: str, start: Start) -> None:
    workers = [start(WORKER, url, name) for name in ("a", "b")]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:  # both at the same time, whichever started first
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
    told = [[line.strip() for line in printed(worker)] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    assert Counter(told[0] + told[1]) == Counter(map(str, range(200))), "computed twice, or not at all"
    assert min(map(len, told)) > 0, "one did all the work, so nothing was tested"
    with open_store(url) as store:
        assert store.count() == 200


def test_the_work_of_a_killed_process_is_taken_over(url: str, start: Start) -> None:
    first = start(CLAIMER, url, "first")
    assert first.stdin is not None
    assert first.stdout is not None
    assert first.stdout.readline() == "claimed\n"
    key = record_key("probe", {"protocol": 1, "seed": 0})
    with open_store(url) as store:
        assert not store.claim(key, "second", ttl=60)
        first.stdin.write("\n")
        first.stdin.flush()
        assert first.stdout.readline() == "alive\n"
        first.kill()
        deadline = time.monotonic() + 60
        while not store.claim(key, "second", ttl=60):
            assert time.monotonic() < deadline, "the claim never expired"
            time.sleep(0.05)
