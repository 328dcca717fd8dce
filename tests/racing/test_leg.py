"""A leg gives the same losses however often it is stopped, and a record for every budget and replica."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from plait.model.architecture import architecture
from plait.model.user_mixers import load_mixer
from plait.racing.leg import Course, Leg, Stopped, loss_of
from plait.records import Record
from plait.training.track import Replica, Text

SPEC = "d=16 vocab=32 | attn[heads=2] swiglu"


def leg(course: Course, runs: Path, *budgets: int, lr: float = 4e-3) -> Leg:
    return Leg(course, architecture(SPEC), (Replica(lr, 0),), budgets or (12, 30), runs)


def run(one: Leg, text: Text, stop_after: int | None = None) -> list[Record]:
    """The records, stopped when the training has reached a step."""
    found: list[Record] = []
    at = [0]
    one.run(
        text, found.append, lambda step: at.__setitem__(0, step), lambda: stop_after is not None and at[0] >= stop_after
    )
    return found


def windows(records: list[Record]) -> list[list[float]]:
    return [record.result["windows"] for record in records]


@pytest.mark.parametrize("stop_after", [8, 16, 24, 28])
def test_a_stopped_leg_goes_on_to_the_same_losses(course: Course, text: Text, tmp_path: Path, stop_after: int) -> None:
    whole = run(leg(course, tmp_path / "whole"), text)
    stopped = leg(course, tmp_path / "stopped")
    with pytest.raises(Stopped):
        run(stopped, text, stop_after)
    assert stopped.course.trunk(stopped.arch, stopped.replicas[0], stopped.runs).exists()
    assert windows(run(stopped, text)) == windows(whole)


def test_a_leg_stops_during_the_decay(course: Course, text: Text, tmp_path: Path) -> None:
    slow = replace(course, recipe=replace(course.recipe, decay=1.0))  # all of it is decay
    with pytest.raises(Stopped):
        run(leg(slow, tmp_path, 40), text, stop_after=8)


def test_a_leg_whose_steps_are_slow_looks_after_each_of_them(
    course: Course, text: Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.racing.leg.SLICE_SECONDS", 0.0)  # every step takes longer than that
    steps: list[int] = []
    with pytest.raises(Stopped):
        leg(course, tmp_path, 40).run(text, lambda record: None, steps.append, lambda: len(steps) == 3)
    assert steps == [1, 2, 3]


def test_a_leg_stops_while_it_is_scored(course: Course, text: Text, tmp_path: Path) -> None:
    seen: list[int] = []
    with pytest.raises(Stopped):
        leg(course, tmp_path, 12).run(text, lambda record: None, seen.append, lambda: seen[-2:] == [12, 12])
    assert seen[-2:] == [12, 12]  # the end of the decay, and the first batch of the scoring


def test_a_longer_budget_goes_on_from_the_shorter(course: Course, text: Text, tmp_path: Path) -> None:
    run(leg(course, tmp_path, 12), text)
    (on,) = run(leg(course, tmp_path, 30), text)
    (anew,) = run(leg(course, tmp_path / "anew", 30), text)
    assert windows([on]) == windows([anew])
    assert on.result["tokens_trained"] < anew.result["tokens_trained"]


def test_a_shorter_budget_leaves_the_longer_training_as_it_is(course: Course, text: Text, tmp_path: Path) -> None:
    """So that a race that asks for a late rung again need not train all of it again."""
    long, short = leg(course, tmp_path, 30), leg(course, tmp_path, 12)
    run(long, text)
    trunk = long.course.trunk(long.arch, long.replicas[0], long.runs)
    before = trunk.read_bytes()
    (found,) = run(short, text)
    assert trunk.read_bytes() == before
    assert windows([found]) == windows(run(leg(course, tmp_path / "anew", 12), text))


def test_all_that_decides_a_loss_is_in_its_key_and_what_only_names_it_is_not(course: Course) -> None:
    arch, replica = architecture(SPEC), Replica(4e-3, 0)
    key = course.key(arch, replica, 30)
    others = [
        replace(course, fingerprint="another"), replace(course, held_out=2 * course.held_out),
        replace(course, device="cuda"), replace(course, recipe=replace(course.recipe, batch=4)),
    ]  # fmt: skip
    keys = {other.key(arch, replica, 30) for other in others}
    keys |= {course.key(arch, Replica(*given), 30) for given in ((2e-3, 0), (4e-3, 1))}
    keys |= {course.key(arch, replica, 31), course.key(architecture(f"{SPEC}[inner=32]"), replica, 30)}
    assert len(keys - {key}) == 8
    assert replace(course, data="elsewhere/text.txt", device="cpu:0").key(arch, replica, 30) == key


def test_a_diverged_training_has_no_loss(course: Course, text: Text, tmp_path: Path) -> None:
    (record,) = run(leg(course, tmp_path, 12, lr=1e30), text)
    assert record.result["loss"] is None
    assert loss_of(record) == float("inf")


def test_an_edited_mixer_is_another_leg(course: Course, tmp_path: Path) -> None:
    from importlib.resources import files

    file = tmp_path / "mine.py"
    file.write_text(files("plait").joinpath("model/mixer_template.txt").read_text())
    keys = []
    for _ in range(2):
        name = load_mixer(str(file)).name
        one = replace(leg(course, tmp_path), arch=architecture(f"d=16 vocab=32 | {name} swiglu"))
        keys.append((one.keys, course.trunk(one.arch, one.replicas[0], tmp_path)))
        file.write_text(file.read_text() + "\n# edited\n")
    assert keys[0] != keys[1]
    assert keys[0][1] != keys[1][1]
