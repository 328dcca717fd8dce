"""A trial: which run counts, and what is written down of it."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from plait.api.probe import _prepared, plan_probe, probe
from plait.core.errors import UserError
from plait.probing.plan import with_seeds
from plait.probing.trial import Trial, best, result
from plait.records.record import json_text
from plait.tasks import macro_accuracy, token_accuracy
from plait.workers.pool import Place

from .conftest import tiny_candidates


@pytest.fixture
def trial(protocol) -> Trial:
    first, *_ = with_seeds(tiny_candidates(protocol), protocol, [2, 1], "cpu").trials
    return first


@pytest.mark.parametrize(
    ("validation", "chosen"),
    [
        ([(0.5, 0.1), (0.9, 0.3), (0.9, 0.2)], 2),
        ([(0.9, 0.2), (0.9, 0.2)], 0),
        ([None, (0.1, 9.0)], 1),
        ([(0.1, math.nan), (0.1, 9.0), (0.1, math.nan)], 1),
        ([None, None], None),
    ],
)
def test_the_best_by_validation_counts(validation, chosen):
    assert best(validation) == chosen


def test_a_cell_trains_a_run_for_every_seed_and_grid_point(trial):
    fleet = trial.fleet()
    records = fleet.run()
    assert [(r.replica.data, r.replica.lr) for r in records] == [(0, 1e-3), (0, 5e-3), (1, 1e-3), (1, 5e-3)]
    assert len({r.replica.seed for r in records}) == 4
    train = fleet.splits["train"].inputs_DNT
    assert np.array_equal(train[1].numpy(), trial.data[1].train.inputs_NT)
    found = result(trial, records)
    assert json.loads(json_text(found, "result")) == found
    for data, one in enumerate(found["seeds"]):
        chosen = records[one["chosen"]]
        rivals = [r for r in records if r.replica.data == data]
        assert chosen in rivals
        assert chosen.validation[-1][1] == max(r.validation[-1][1] for r in rivals)
        assert (one["accuracy"], one["loss"]) == chosen.test
    assert found["accuracy"] == pytest.approx(np.mean([one["accuracy"] for one in found["seeds"]]))


def test_the_mad_lab_variant_is_selected_and_scored_by_its_macro_accuracy(protocol):
    """What a fleet records of its replicas is what `macro_accuracy` says of their predictions, split by split."""
    setting = protocol.settings[1]
    lab = replace(setting, task=setting.task.with_settings({"variant": "mad-lab"}))
    trial = Trial.of(tiny_candidates(protocol)[0], lab, (0, 1))
    fleet = trial.fleet()
    fleet.run(until=20)
    for split, row in (("validation", trial.data[1].validation), ("test", trial.data[1].test)):
        predicted = _predictions(fleet, place=2, inputs=row.inputs_NT)
        assert fleet.replicas[2].data == 1
        accuracy = fleet.score(split)[0][2].item()
        assert accuracy == pytest.approx(macro_accuracy(predicted, row.targets_NT), abs=1e-6)
        assert accuracy != pytest.approx(token_accuracy(predicted, row.targets_NT), abs=1e-6)
    last = fleet.records[2].validation[-1][1]
    assert last == pytest.approx(fleet.score("validation")[0][2].item(), abs=1e-6)


def _predictions(fleet, place, inputs):
    params = {name.removeprefix("model."): stack[place] for name, stack in fleet.params.items()}
    with torch.no_grad():
        scores = torch.func.functional_call(fleet.template.model, params, (torch.from_numpy(inputs).long(),))
    return scores.argmax(-1).numpy()


def test_a_seed_gives_the_same_alone_and_beside_others(trial):
    both = result(trial, trial.fleet().run())["seeds"]
    alone = replace(trial, seeds=(0,))
    assert alone.key != trial.key
    found = result(alone, alone.fleet().run())["seeds"]
    assert found[0]["accuracy"] == pytest.approx(both[0]["accuracy"], abs=0.02)
    assert found[0]["loss"] == pytest.approx(both[0]["loss"], abs=1e-2)


def test_diverged_runs_count_nothing_and_say_so(trial):
    wild = replace(trial, training=replace(trial.training, grid=((1e30, 0.0), (1e-3, 0.0))))
    found = result(wild, wild.fleet().run())
    assert [one["chosen"] for one in found["seeds"]] == [1, 3]
    assert [m["stopped"] for m in found["replicas"]] == ["diverged", "done"] * 2
    assert json_text(found, "result"), "NaN is written as null"
    lost = replace(trial, training=replace(trial.training, grid=((1e30, 0.0),)))
    found = result(lost, lost.fleet().run())
    assert [(one["accuracy"], one["loss"], one["note"]) for one in found["seeds"]] == [
        (0.0, None, "every replica diverged")
    ] * 2
    assert not math.isnan(found["accuracy"])


def test_the_rules_that_stop_runs_reach_the_fleet(protocol) -> None:
    rules = {"solved": 0.9, "first_ends": True, "halving": ((0.4, 1),), "patience": 10}
    setting = protocol.settings[0]
    strict = replace(setting, training=replace(setting.training, **rules))
    plan = Trial.of(tiny_candidates(protocol)[0], strict, (0,)).fleet().plan
    assert {name: getattr(plan, name) for name in rules} == rules


def test_what_is_asked_for_reaches_the_protocol() -> None:
    place = Place.of("", 1, "cpu", None)
    protocol, _, _ = _prepared(["attn"], "", True, 20, (), "paper", False, True, place)
    assert protocol.name == "full (patience 20)"
    assert protocol.settings[0].training.patience == 20 * 100


@pytest.mark.parametrize("workers", [1, 2])
def test_several_processes_train_the_longest_first(monkeypatch, tmp_path, workers) -> None:
    asked = {}

    def run_all(*_, **options):
        asked.update(options)
        raise KeyboardInterrupt

    monkeypatch.setattr("plait.probing.run.run_all", run_all)
    with pytest.raises(KeyboardInterrupt):
        probe("attn", full=True, workers=workers, store=f"sqlite:///{tmp_path}/plait.db")
    assert asked == {"longest_first": workers == 2}


@pytest.mark.parametrize(("wrong", "told"), [(0, "0"), (2.5, "2.5"), ("20", "'20'")])
def test_a_patience_that_is_no_number_of_epochs_is_refused(wrong, told) -> None:
    with pytest.raises(UserError, match=f"^--patience {told}: a whole number of epochs, 1 or more"):
        plan_probe("attn", full=True, patience=wrong)
