"""The training of the selected model has the requested length and is not repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plait.core.defaults import HELD_OUT
from plait.core.errors import UserError
from plait.data import open_corpus
from plait.designing.config import DesignConfig
from plait.designing.racing import LEAST_STEPS, race_loss, train
from plait.device.quantities import Setting
from plait.records import open_store
from plait.space.constraints import Limits
from plait.space.table import load_space
from plait.training.recipe import Recipe
from plait.training.run import open_run
from plait.training.track import Replica, Text, Track, track_recipe

SPEC = "d=16 | attn[heads=2] swiglu[inner=16]"


def config(runs: Path) -> DesignConfig:
    limits = Limits.read(latency="20ms", memory="100MB")
    return DesignConfig(load_space("small-hybrid"), Setting(seq=16), limits, "builtin:language", 20, runs=runs)


def test_trained_for_the_budget_and_found_again(tmp_path: Path) -> None:
    recipe = Recipe(batch=2, seq_len=16, lr=5e-3, schedule="wsd", warmup=4.0)
    corpus = open_corpus("builtin:language")

    def trained(tokens: float) -> dict[str, Any]:
        with open_store(f"sqlite:///{tmp_path}/plait.db") as store:
            return train(config(tmp_path), SPEC, corpus, recipe, tokens, store, lambda *_: None)

    first, again = trained(32 * 30), trained(32 * 30)
    assert (first["trained_now"], again["trained_now"]) == (True, False)
    assert (first["steps"], first["recipe"]["lr"], first["recipe"]["schedule"]) == (30, 5e-3, "wsd")
    assert first["curve"] == again["curve"]
    assert trained(1)["steps"] == LEAST_STEPS


def test_the_pick_is_scored_as_the_race_scores(tmp_path: Path) -> None:
    """On the race's windows, spread over the validation split: a track with the same weights has that loss."""
    recipe = track_recipe(Recipe(batch=2, seq_len=16, lr=5e-3), 4)
    corpus = open_corpus("builtin:language")
    with open_store(f"sqlite:///{tmp_path}/plait.db") as store:
        trained = train(config(tmp_path), SPEC, corpus, recipe, 32 * 30, store, lambda *_: None)
    run = open_run(trained["folder"])
    track = Track(run.arch, [Replica(5e-3, 0)], [Text.of(corpus, 16, HELD_OUT)], recipe)
    for name, weight in run.weights().items():
        track.params[f"model.{name}"].copy_(weight[None])
    assert trained["race_loss"] == pytest.approx(float(track.score().mean()), rel=1e-6)
    assert trained["race_loss"] != trained["loss"]  # of the beginning of the split
    assert race_loss(tmp_path / "gone", corpus, recipe, "cpu") is None


def test_what_else_is_wrong_is_told(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    given = config(tmp_path / "runs")
    with (
        open_store(f"sqlite:///{tmp_path}/plait.db") as store,
        pytest.raises(UserError, match="cannot write the run"),
    ):
        train(given, SPEC, open_corpus(given.data), Recipe(seq_len=16), 1e3, store, lambda *_: None)
