"""Running a probe: nothing is computed twice, nothing is lost, and interruptions change no number."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plait.probing.plan import with_seeds
from plait.probing.protocol import candidates
from plait.probing.run import Machine, Progress, run_all
from plait.records import open_store
from plait.workers.pool import Place

PROGRAM = Path(__file__).parent / "tiny_probe.py"
CELLS = 2 * 2  # architectures, tasks

# A PostgreSQL server that lives as long as the tests is a fixture of the records'.
_found = importlib.util.spec_from_file_location(
    "records_fixtures", Path(__file__).parent.parent / "records" / "conftest.py"
)
_records = importlib.util.module_from_spec(_found)
_found.loader.exec_module(_records)
postgresql_server, postgresql_url = _records.postgresql_server, _records.postgresql_url


def start(url: str, workers: int = 1, steps: int = 30, folder: Path | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), url, str(workers), str(steps)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        start_new_session=True,  # so that it and its workers can be killed as one
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finish(program: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = program.communicate(timeout=900)
    assert program.returncode == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> dict[str, Any]:
    return finish(start(f"sqlite:///{tmp_path_factory.mktemp('whole') / 'plait.db'}", workers=2, steps=STEPS))


STEPS = 150


def kill_and_finish(url: str, times: int, seed: int) -> tuple[dict[str, Any], int]:
    """Kill the probe and all its workers at random moments, then let it end; how often it was really killed."""
    moments, killed = random.Random(seed), 0
    for _ in range(times):
        program = start(url, steps=STEPS)
        time.sleep(moments.uniform(1.5, 6.0))
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
            killed += 1
        program.communicate()
    return finish(start(url, workers=2, steps=STEPS)), killed


def same_table(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return bool(one["table"] == other["table"] and one["results"] == other["results"])


@pytest.mark.slow
def test_killed_and_run_again_it_gives_the_same_table(uninterrupted, store_url):
    found, killed = kill_and_finish(store_url, 4, seed=1)
    assert killed >= 2, "it was too quick to be killed"
    assert same_table(found, uninterrupted)
    folder = Path(store_url.removeprefix("sqlite:///")).parent / "checkpoints"
    assert not folder.exists() or not any(folder.iterdir()), "checkpoints of finished trials are left"


@pytest.mark.slow
def test_killed_twenty_times(uninterrupted, store_url):
    found, killed = kill_and_finish(store_url, 20, seed=2)
    assert killed >= 5
    assert same_table(found, uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["store_url", pytest.param("postgresql_url", marks=pytest.mark.slow)])
def test_two_probes_on_one_store_share_the_work(uninterrupted, request, kind, tmp_path):
    url = request.getfixturevalue(kind)
    both = [start(url, steps=STEPS, folder=tmp_path) for _ in range(2)]
    first, second = (finish(program) for program in both)
    assert same_table(first, uninterrupted)
    assert same_table(second, uninterrupted)
    with open_store(url) as store:
        assert store.kinds() == {"probe": CELLS}
    again = finish(start(url, steps=STEPS, folder=tmp_path))
    assert again["fresh"] == 0
    assert same_table(again, uninterrupted)


def test_the_longest_trainings_begin_first_and_progress_counts_tokens(protocol, store_url) -> None:
    short, long = (
        replace(setting, training=replace(setting.training, steps=steps))
        for setting, steps in zip(protocol.settings, (10, 30), strict=True)
    )
    several = replace(protocol, settings=(short, long))
    work = with_seeds(candidates(["attn"], several, baselines=False, matched=False), several, [1, 1], "cpu")
    begun: list[str] = []
    half = Progress(work, done={work.trials[1].key: 1.0}, running={work.trials[0].key: {"step": 5}})
    assert half.share(work.trials) == pytest.approx(35 / 40)
    longer = replace(work.trials[0], settings=tuple({**dict(work.trials[0].settings), "length": 24}.items()))
    assert Progress(done={longer.key: 1.0}).share([longer, work.trials[1]]) == pytest.approx(0.5)

    def watch(progress: Progress) -> None:
        begun.extend(key for key in (*progress.running, *progress.done) if key not in begun)

    with open_store(store_url) as store:
        run_all(work, store, Machine(Place(workers=1)), watch, longest_first=True)
    assert begun == [work.trials[1].key, work.trials[0].key]
