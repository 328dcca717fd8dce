"""What benchmarks on a GPU share: turns on it, the search among a peer's configurations, rows and their table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


TAKES_TURNS = """
import os, sys, time
from gpu_turn import TURN, choosing

def exclusively(name, seconds):
    os.close(os.open(name, os.O_CREAT | os.O_EXCL))  # fails where another one is inside
    time.sleep(seconds)
    os.remove(name)

for _ in range(15):
    with TURN.shared():
        with TURN.aside():
            time.sleep(0.001)
        with choosing():
            assert not os.path.exists("alone")
            exclusively("choosing", 0.001)
        with TURN.alone():
            exclusively("alone", 0.002)
"""


def test_who_is_alone_on_the_gpu_is_alone(tmp_path: Path) -> None:
    environment = {"PLAIT_TURN": str(tmp_path / "turn"), "PYTHONPATH": str(BENCHMARKS)}
    command = [sys.executable, "-c", TAKES_TURNS]
    processes = [subprocess.Popen(command, cwd=tmp_path, env=environment) for _ in range(3)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]


def configurations() -> list[SimpleNamespace]:
    class Config(SimpleNamespace):
        def __hash__(self) -> int:
            return id(self)

    return [
        Config(kwargs={"BK": keys, "BV": values}, num_warps=warps, num_stages=stages)
        for keys in (32, 64) for values in (32, 64, 128) for warps in (1, 2, 4, 8) for stages in (2, 3, 4)
    ]  # fmt: skip


def test_the_search_by_coordinates_finds_the_best_of_a_separable_kernel_with_a_fifth_of_the_looks() -> None:
    from peer_tuning import search

    def cost(config: SimpleNamespace) -> float:
        tile = abs(config.kwargs["BK"] - 64) + abs(config.kwargs["BV"] - 128)
        return tile + 3 * abs(config.num_warps - 2) + abs(config.num_stages - 4)

    looked: list[SimpleNamespace] = []

    def measure(some: list[SimpleNamespace]) -> dict[SimpleNamespace, float]:
        looked.extend(some)
        return {config: cost(config) for config in some}

    every = configurations()
    timings = search(every, measure)
    assert min(timings.values()) == min(map(cost, every)) == 0
    assert len(looked) == len(set(map(id, looked))) <= len(every) // 5


def test_the_table_has_ratios_where_both_were_measured() -> None:
    from linear_training import table

    rows = [
        {"model": "gla", "size": "125m", "trainer": "ours", "speed": 3e5, "gib": 15.9, "mfu": 0.293, "first": 38.0},
        {"model": "gla", "size": "125m", "trainer": "peer", "speed": 2e5, "gib": 22.1, "first": 3.0},
        {"model": "kda", "size": "125m", "trainer": "ours", "failure": "no result in time"},
        {"model": "kda", "size": "125m", "trainer": "peer", "speed": 1e5, "gib": 23.1, "first": 3.0},
    ]
    gla, kda = table(rows).splitlines()[2:]
    assert gla == "| gla | 125m | 300k | 15.9 | 29.3 % | 200k | 22.1 | 1.50 | 38 s |"
    assert kda == "| kda | 125m | no result in time |  |  | 100k | 23.1 |  |  |"


def test_models_that_are_built_at_once_fit_into_memory() -> None:
    from training_jobs import ALL_MEMORY, MEMORY, Job, _wave

    jobs = [Job(trainer, f"m{i}", "360m") for i in range(6) for trainer in ("ours", "peer")]
    wave = _wave(jobs, set())
    assert wave == jobs[: len(wave)]
    assert 1 < len(wave) == ALL_MEMORY // MEMORY["ours", "360m"]
    assert _wave(jobs, {jobs[0]}) == jobs[:1]


def test_a_scaling_run_that_failed_late_is_compiled_again_and_one_that_failed_soon_is_not() -> None:
    """Late means that something else on the GPU died; soon, that its compiled blocks are at fault."""
    import scaling_runs

    options = SimpleNamespace(budgets=[], shrink=1.0, runs=["FoX@1152@3e16@2@65536"], compiled=["FoX"])
    for seconds, compiled in ((scaling_runs.LATE + 1, True), (scaling_runs.LATE - 1, False)):
        sitting = scaling_runs.Sitting(options, [])
        ((job, factor),) = sitting.waiting
        assert (job.batch * scaling_runs.SEQ_LEN, factor) == (65536, 2.0)
        assert sitting.compiled(job)
        sitting.waiting.clear()
        sitting.after_failure(job, factor, seconds)
        assert sitting.waiting == [(job, factor)]
        assert sitting.compiled(job) == compiled
        sitting.waiting.clear()
        sitting.after_failure(job, factor, seconds)
        assert not sitting.waiting  # once more, not for ever
