"""Legs in processes give what they give here; what is stored is not trained, copies are trained once."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plait.core.errors import UserError
from plait.model.architecture import architecture
from plait.probing.run import Machine
from plait.racing import workers
from plait.racing.leg import Course, Leg
from plait.racing.workers import Workers, open_text
from plait.records import Record, Store, open_store
from plait.training.track import Replica, Track
from plait.workers.pool import Place

SPECS = ("d=16 vocab=32 | attn[heads=2] swiglu", "d=16 vocab=32 | gla[heads=2] swiglu")


def legs(course: Course, runs: Path) -> list[Leg]:
    return [Leg(course, architecture(spec), (Replica(4e-3, seed),), (8, 16), runs) for spec in SPECS for seed in (0, 1)]


def windows(found: list[list[list[Record]]]) -> list[list[float]]:
    return [record.result["windows"] for leg in found for at in leg for record in at]


def test_processes_give_what_this_one_gives(course: Course, store: Store, tmp_path: Path) -> None:
    with Workers(course, store) as here:
        alone = here.run(legs(course, tmp_path))
    with open_store(f"sqlite:///{tmp_path}/other.db") as other, Workers(course, other, Place(workers=2)) as pool:
        assert all(seconds > 0 for seconds in pool.step_seconds([leg.arch for leg in legs(course, tmp_path)[::2]]))
        told: list[tuple[float, float]] = []
        assert windows(pool.run(legs(course, tmp_path / "other"), lambda *at: told.append(at))) == windows(alone)
    assert told
    assert told[-1][0] <= told[-1][1]


def test_only_what_is_missing_is_trained(course: Course, store: Store, tmp_path: Path, monkeypatch) -> None:
    trained: list[tuple[str, tuple[int, ...]]] = []
    run = Leg.run
    monkeypatch.setattr(
        Leg, "run", lambda leg, *given: (trained.append((leg.arch.text, leg.budgets)), run(leg, *given))
    )
    one, *_ = legs(course, tmp_path)
    with Workers(course, store) as pool:
        pool.run([replace(one, budgets=(8,))])
        first, copy = pool.run([one, one])  # two copies of one architecture
    assert trained == [(one.arch.text, (8,)), (one.arch.text, (16,))]
    assert windows([first]) == windows([copy])


def test_progress_counts_what_is_left_to_train_and_never_goes_back(course: Course, tmp_path: Path) -> None:
    """Two legs that resume after 8 steps; at step 14 of 16 the first has ended a branch and is back at the trunk's
    12."""
    few = [Leg(course, architecture(spec), (Replica(4e-3, 0),), (14, 16), tmp_path, after=8) for spec in SPECS]
    shares: list[float] = []
    meter = workers._Meter(dict(zip("ab", few, strict=True)), lambda done, total: shares.append(done / total))
    for key, step in (("a", 8), ("a", 14), ("a", 12), ("a", 16), ("b", 10), ("b", 16)):
        meter._last = -math.inf
        meter.at(key, step)
    assert shares == [0.0, 0.375, 0.375, 0.5, 0.625, 1.0]


def test_a_text_that_has_changed_is_refused(course: Course) -> None:
    with pytest.raises(UserError, match="has changed"):
        open_text(replace(course, fingerprint="another"))


def test_a_gpu_has_one_worker() -> None:
    assert Place(workers=8, device="cuda").local_workers() == 1
    assert Place(workers=8).local_workers() == 8


def test_a_gap_in_a_stack_is_filled(course: Course, store: Store, tmp_path: Path) -> None:
    """The first replica's record is gone, the last one's is there: it is trained, not waited for."""
    leg = Leg(course, architecture(SPECS[0]), (Replica(4e-3, 0), Replica(4e-3, 1)), (8,), tmp_path)
    with Workers(course, store) as pool:
        before = windows(pool.run([leg]))
        store.delete([leg.keys[0][0]])
        assert windows(pool.run([leg])) == before


def test_trainings_that_share_gpus_are_as_many_as_fit(monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    place = Place(workers=16, device="cuda", gpus_per_training=0.5)
    assert place.local_workers() == Machine(place).processes == 2


def test_a_step_is_timed_no_longer_than_it_may_be(course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine one step after the warm-up has to do."""
    taken: list[Track] = []

    class Seen(Track):
        def __init__(self, *given: Any, **others: Any) -> None:
            super().__init__(*given, **others)
            taken.append(self)

    monkeypatch.setattr(workers, "Track", Seen)
    worker = SimpleNamespace(kept={})
    spec = "d=16 vocab=32 | attn[heads=2] swiglu"
    for most, steps in ((0.0, 2), (math.inf, 1 + workers.TIMED)):
        assert workers.time_step(worker, spec, course, most) > 0  # type: ignore[arg-type]
        assert taken[-1].step == steps
