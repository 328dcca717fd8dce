"""Screening: when it is done, what it costs, and that a race uses it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import plait.racing.race as racing
from plait.analysis.curve_library import Known, library
from plait.analysis.curve_table import simulate_table
from plait.model.architecture import architecture
from plait.racing.contenders import Contender
from plait.racing.document import race_document
from plait.racing.leg import KIND, Course, Leg
from plait.racing.screening import RATE, SHARE, SMALLER, can_screen, plan_screening, small_batch_course
from plait.records import Record
from plait.training.recipe import Recipe
from plait.training.track import track_recipe

COURSE = Course("text", None, "print", track_recipe(Recipe(batch=8, seq_len=256), 10), held_out=256)
NAMES = [f"new {place}" for place in range(4)]
TARGET = 2.0**25


def known(screenings: bool = True) -> Known:
    """A library of simulated curves, whose screenings foretell the end with an error of 1 %."""
    table = simulate_table(np.random.default_rng(0), architectures=20)
    rng = np.random.default_rng(1)
    end_A1 = table.loss_ASB[:, :, -1].mean(axis=1, keepdims=True)
    table = replace(table, screen_budgets=[TARGET / 16], screen_AP=1.4 * end_A1 * np.exp(rng.normal(0, 0.01, (20, 1))))
    if not screenings:
        table = replace(table, screen_budgets=())
    traits = {name: [float(place % 3)] for place, name in enumerate(table.names)}
    return Known(library([table], traits), {name: [1.0] for name in NAMES}, {})


class Pool:
    """The last candidate has the best screening, and the same learning curve as the others."""

    course, workers = COURSE, 2

    def __init__(self) -> None:
        self.legs: list[Leg] = []

    def run(self, legs: list[Leg], on_tokens: Any = None) -> list[list[list[Record]]]:
        found = []
        for leg in legs:
            self.legs.append(leg)
            (replica,), (steps,) = leg.replicas, leg.budgets
            tokens = steps * leg.course.tokens_per_step
            place = int(leg.arch.text.split("inner=")[1].split("]")[0]) // 32
            loss = 0.9 + 100 * tokens**-0.4
            if leg.course.recipe.batch < COURSE.recipe.batch:
                loss = 1.4 * (1.1 - 0.03 * place)
            config = leg.course.config(leg.arch, replica, steps)
            found.append(
                [[Record.of(KIND, config, {"loss": loss, "windows": [], "tokens": tokens, "seconds": 1.0}, {})]]
            )
        return found


def contenders() -> list[Contender]:
    specs = [f"d=16 vocab=32 | attn[heads=2] swiglu[inner={32 * place}]" for place in range(1, 5)]
    return [Contender(name, architecture(spec)) for name, spec in zip(NAMES, specs, strict=True)]


def hold_race(monkeypatch: pytest.MonkeyPatch, told: Known, limit: float) -> tuple[Any, Pool]:
    monkeypatch.setattr(racing, "reference_known", lambda archs: told)
    pool = Pool()
    rates = dict.fromkeys(NAMES, 2e-3)
    speed = dict.fromkeys(NAMES, 1.0)
    return racing.race(contenders(), TARGET, pool, Path("none"), speed=speed, limit=limit, rates=rates), pool  # type: ignore[arg-type]


def test_the_race_is_decided_by_screenings_where_curves_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    raced, pool = hold_race(monkeypatch, known(), 0.1)
    small = [leg for leg in pool.legs if leg.course.recipe.batch == COURSE.recipe.batch // SMALLER]
    assert [leg.arch.text for leg in small] == [each.arch.text for each in contenders()]
    assert {leg.replicas[0].lr for leg in small} == {RATE * 2e-3}
    assert {leg.tokens for leg in small} == {TARGET * SHARE}
    assert pool.legs[: len(small)] == small  # before anything else
    assert SHARE < raced.cost <= 0.1 * (1 + 1e-9)
    tokens = dict.fromkeys(NAMES, float(raced.target))
    prediction = raced.prediction_at(tokens)
    assert prediction.ranking == NAMES[::-1]
    document = race_document(raced, prediction, tokens)
    assert document["screening"] == {"tokens": TARGET * SHARE, "batch": 2}
    assert all(row["screening"] is not None for row in document["architectures"])


def test_no_screening_without_one_in_the_library_nor_where_it_costs_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    for told, limit in ((known(screenings=False), 0.1), (known(), 0.07)):
        raced, pool = hold_race(monkeypatch, told, limit)
        assert raced.screening is None
        assert {leg.course for leg in pool.legs} == {COURSE}
        tokens = dict.fromkeys(NAMES, float(raced.target))
        assert race_document(raced, raced.prediction_at(tokens), tokens)["screening"] is None


def test_a_diverged_screening_is_no_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    result = {"loss": None, "windows": [], "tokens": 1000}
    record = Record.of(KIND, {"seed": 0}, result, {})
    monkeypatch.setattr(racing, "reference_known", lambda archs: known())
    assert racing.known_of(contenders(), {NAMES[0]: record}).screened == {}


def test_screenings_are_of_lengths_and_batches_that_the_library_knows() -> None:
    told = known()
    assert can_screen(told, NAMES, TARGET)
    assert not can_screen(told, NAMES, TARGET / 4)
    assert not can_screen(told, NAMES[:1], TARGET)
    assert small_batch_course(replace(COURSE, recipe=replace(COURSE.recipe, batch=6))) is None
    small = small_batch_course(COURSE)
    assert small is not None
    speed, slow = dict.fromkeys(NAMES, 1.0), dict.fromkeys(NAMES, 1.5)
    planned = plan_screening(small, TARGET, speed, slow, 0.2)
    assert planned is not None
    assert math.isclose(planned.cost, 1.5 * SHARE)
    assert plan_screening(small, TARGET, speed, slow, 0.1) is None
