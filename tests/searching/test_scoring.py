"""Proxies as objectives, computed by workers: the same front, from records, and nothing twice."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import numpy as np
import pytest

import plait
from plait.algorithms.objectives import ProxyObjective
from plait.core.errors import UserError
from plait.searching.scoring import KIND, Scoring, scored_by_workers
from plait.workers.local_processes import InProcess
from plait.workers.pool import Place, Task

GIVEN = {
    "objectives": ["snip", "min:flops"], "method": "random", "iterations": 1, "population": 4,
    "data": "builtin:language", "fix": {"layers": "2", "d": "64"}, "validate": False,
}  # fmt: skip


def run(folder: Path, name: str, **more: object) -> plait.FrontResult:
    given = {**GIVEN, "store": f"sqlite:///{folder}/{name}.db", "runs": folder / name, **more}
    return plait.search("small-hybrid", **given)  # type: ignore[arg-type]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """Workers stand in this process, whatever place is asked for; the tasks that they were given."""
    tasks: list[Task] = []

    class Noted(InProcess):
        def start(self, task: Task) -> None:
            tasks.append(task)
            super().start(task)

    monkeypatch.setattr(Place, "backend", lambda self, setup, store, **_: Noted(store))
    return tasks


def test_workers_give_the_front_of_one_process_and_keep_every_score(tmp_path: Path, started: list[Task]) -> None:
    alone = run(tmp_path, "alone")
    assert not started
    together = run(tmp_path, "together", workers=2)
    assert [row["spec"] for row in together.rows()] == [row["spec"] for row in alone.rows()]
    assert [row["snip"] for row in together.rows()] == pytest.approx([row["snip"] for row in alone.rows()])
    assert len(started) == 4
    with plait.open_store(f"sqlite:///{tmp_path}/together.db") as store:
        assert len(store.find(KIND)) == 4


def test_after_the_search_proxies_are_computed_here_again(tmp_path: Path, started: list[Task]) -> None:
    """Also where it was interrupted: the workers are gone then."""
    proxy = ProxyObjective("snip", np.arange(4096) % 64, batch=2, seq=16)
    search = SimpleNamespace(
        evaluator=SimpleNamespace(objectives=[proxy]), space=SimpleNamespace(mixer_sources={})
    )  # what is asked of it
    scoring = Scoring(Place(workers=1), "builtin:language")
    with plait.open_store(f"sqlite:///{tmp_path}/plait.db") as store:
        for wrong in (None, KeyboardInterrupt):
            with suppress(KeyboardInterrupt), scored_by_workers(search, scoring, store, Event()):  # type: ignore[arg-type]
                assert proxy.score_many is not None
                if wrong:
                    raise wrong
            assert proxy.score_many is None


def test_a_worker_with_another_text_says_so(
    tmp_path: Path, started: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_another_text(self: InProcess, task: Task) -> None:
        start(self, replace(task, args=(*task.args[:-1], "of another")))

    start = InProcess.start
    monkeypatch.setattr(InProcess, "start", with_another_text)
    with pytest.raises(UserError, match=r"builtin:language on .* differs from the text"):
        run(tmp_path, "elsewhere", workers=2)


def test_interrupted_in_the_middle_it_goes_on_and_scores_nothing_twice(
    tmp_path: Path, started: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_after_two(self: InProcess, on_event: object, seconds: float) -> None:
        poll(self, on_event, seconds)  # type: ignore[arg-type]
        if len(started) == 2:
            self.asked.set()

    poll = InProcess.poll_events
    monkeypatch.setattr(InProcess, "poll_events", stop_after_two)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "together", workers=2)
    monkeypatch.setattr(InProcess, "poll_events", poll)
    assert len(started) == 2
    found = run(tmp_path, "together", workers=2)
    assert len(started) == 4
    assert len({task.name for task in started}) == 4
    assert [row["spec"] for row in found.rows()] == [row["spec"] for row in run(tmp_path, "alone").rows()]


@pytest.mark.parametrize("more", [{"cluster": "auto"}, {"workers": 2}])
def test_workers_without_anything_to_score_are_refused(more: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="workers compute proxies, and none of the objectives is one"):
        run(tmp_path, "none", objectives=["decoder_params", "min:flops"], data=None, **more)


def test_a_cluster_of_no_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="known: ray://HOST:PORT, auto, slurm"):
        run(tmp_path, "none", cluster="nowhere")


@pytest.mark.slow
def test_processes_of_this_machine(tmp_path: Path) -> None:
    alone, together = run(tmp_path, "alone"), run(tmp_path, "together", workers=2)
    assert [row["spec"] for row in together.rows()] == [row["spec"] for row in alone.rows()]
