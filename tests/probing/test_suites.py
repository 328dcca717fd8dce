"""Suites of tasks beside MAD's: what they hold, scores at longer lengths, and MAD's own trials as they were."""

from __future__ import annotations

import itertools
import pickle

import pytest
import torch

from plait.api.probe import plan_probe
from plait.core.errors import UserError
from plait.probing.protocol import CONTROLS, Setting, Training, candidates, full, quick, suite_tasks
from plait.probing.trial import Trial, result
from plait.tasks import SUITES, baseline


def test_suites_name_their_tasks() -> None:
    assert suite_tasks("tracking") == list(SUITES["tracking"])
    assert suite_tasks("all") == [name for suite, found in SUITES.items() if suite != "mad" for name in found]
    assert suite_tasks("mad21") == suite_tasks("mad") == suite_tasks("") == []
    with pytest.raises(UserError, match="Did you mean 'tracking'"):
        plan_probe("gla", suite="trackin")


def test_every_task_of_a_suite_is_scored_at_longer_lengths() -> None:
    for setting in quick(suite_tasks("all")).settings:
        assert setting.training.lengths == (2, 4, 8)
        assert setting.task.longer(8).length == 8 * setting.task.length


@pytest.mark.parametrize("protocol", [quick(), full()], ids=["quick", "full"])
def test_what_decides_a_trial_of_the_paper_has_no_lengths(protocol) -> None:
    for setting in protocol.settings:
        stops = {"first_ends", "eval_most", "halving"} if protocol.name == "full" else set()
        assert set(setting.training.as_dict()) - stops == {
            "steps",
            "batch",
            "grid",
            "evaluation",
            "eval_every",
            "solved",
        }


def test_a_trial_with_lengths() -> None:
    task = baseline("parity").with_settings({"length": "4", "train_size": "8"})
    training = Training(2, 4, ((1e-3, 0.0), (2e-3, 0.0)), 4, 1, None, lengths=(2, 4))
    (one,) = candidates(["attn"], quick(["parity"]), baselines=False)
    trial = Trial.of(one, Setting("parity", task, training), (0, 1))
    assert trial.config["training"]["lengths"] == [2, 4]
    fleet = trial.fleet()
    assert fleet.splits["4"].inputs_DNT.shape == (2, 4, 16)
    found = result(trial, fleet.run())
    for seed, row in zip(found["seeds"], (0, 1), strict=True):
        assert set(seed["lengths"]) == {"2", "4"}
        chosen = fleet.records[seed["chosen"]]
        assert (chosen.replica.data, seed["lengths"]) == (row, chosen.others)
        assert 0.5 <= seed["chance"] <= 1
        assert set(seed["exact"]) == {"1", "2", "4"}
        assert seed["exact"] == {"1": chosen.exact["test"], **{f: chosen.exact[f] for f in ("2", "4")}}
        assert all(seed["exact"][f] <= seed["lengths"][f] for f in ("2", "4"))


def test_a_sequence_counts_as_exact_where_every_answer_is_right() -> None:
    """A replica that always says 1, on sequences of which the first asks for ones alone, the second for a 0,
    and the third allows 0 or 1 in one place."""
    from plait.model.architecture import architecture
    from plait.training.ensemble import Fleet, Split
    from plait.training.ensemble_plan import Plan, Replica

    inputs = torch.zeros(1, 3, 4, dtype=torch.long)
    targets = torch.tensor([[[1, 1, 1, -100], [1, 0, 1, 1], [-100, 0, 1, -100]]])
    allowed = torch.full((1, 3, 4, 2), -100)
    allowed[..., 0] = targets
    allowed[0, 2, 1, 1] = 1
    plain, several = Split(inputs, targets), Split(inputs, targets, allowed)
    fleet = Fleet(architecture("d=8 vocab=3 | mlp"), [Replica(0.0, 0.0, 0, 0)], Plan(1, 3), plain, plain, several)
    fleet._forward = lambda params, tokens: torch.nn.functional.one_hot(torch.ones_like(tokens), 3).float()
    accuracy, _, exact = fleet.score("validation")
    assert (accuracy.item(), exact.item()) == (pytest.approx(7 / 9), pytest.approx(1 / 3))
    accuracy, _, exact = fleet.score("test")
    assert (accuracy.item(), exact.item()) == (pytest.approx(8 / 9), pytest.approx(2 / 3))


def test_several_right_answers_reach_the_fleet() -> None:
    task = baseline("regbench").with_settings({"length": "12", "train_size": "8", "nodes": "4", "vocab": "5"})
    training = Training(1, 4, ((1e-3, 0.0),), 6, 1, None, lengths=(2,))
    (one,) = candidates(["attn"], quick(["regbench"]), baselines=False)
    fleet = Trial.of(one, Setting("regbench", task, training), (0, 1)).fleet()
    assert fleet.splits["train"].allowed_DNTK is None
    assert fleet.splits["test"].allowed_DNTK.shape == (2, 6, 12, 3)
    assert fleet.splits["2"].allowed_DNTK.shape == (2, 6, 24, 3)


def test_controls_run_beside_a_single_candidate() -> None:
    found = candidates(["kda"], quick(suite_tasks("tracking")), controls=CONTROLS)
    assert [one.name for one in found] == ["kda", *CONTROLS]
    assert {one.state for one in found[1:] if one.name != "attn"} == {found[2].state}


OWN = """
from plait.tasks.tracking import Parity


class Mine(Parity):
    name = "mine"

    def check(self):
        super().check()
        self.require(self.length <= 128, "length", "at most 128")
"""


def test_a_task_of_ones_own_is_scored_at_the_lengths_that_it_has(tmp_path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    (setting,) = quick([str(tmp_path / "mine.py")], longer=True).settings
    assert setting.training.lengths == (2, 4)
    (setting,) = quick([str(tmp_path / "mine.py")]).settings
    assert setting.training.lengths == ()


def test_trials_of_a_task_of_ones_own_travel(tmp_path) -> None:
    """The file is run for every trial, so that the classes of two trials differ; neither goes along."""
    (tmp_path / "mine.py").write_text(OWN)
    protocol = quick([str(tmp_path / "mine.py")], longer=True)
    found = candidates(["attn", "gla"], protocol, baselines=False)
    trials = [Trial.of(one, protocol.settings[0], (0,)) for one in found]
    assert [trial.task.length for trial in trials] == [32, 32]
    again = pickle.loads(pickle.dumps(trials))
    assert again == trials
    assert [trial.key for trial in again] == [trial.key for trial in trials]


def test_tasks_whose_prefixes_are_sequences_are_learnt_from_short_ones_first():
    by_task = {setting.task.name: setting.training for setting in quick(["parity", "word-problem", "mqar"]).settings}
    assert by_task["parity"].curriculum == ((0.15, 4), (0.3, 8), (0.5, 16))
    assert by_task["word-problem"].curriculum == ((0.15, 2), (0.3, 4), (0.5, 8))
    assert by_task["mqar"].curriculum == ()
    assert "curriculum" not in by_task["mqar"].as_dict()
    assert not any(setting.training.curriculum for setting in quick().settings)


def test_the_paper_s_protocol_looks_often_at_first_and_every_ten_epochs_in_the_end() -> None:
    from plait.training.ensemble_plan import Plan

    training = max((setting.training for setting in full().settings), key=lambda one: one.steps)
    looks = training.evaluations
    assert looks[:12] == (100, 200, 300, 400, 500, 600, 700, 800, 900, 1000, 1100, 1300)
    assert looks[-3:] == (18400, 19400, 20000)
    assert all(b - a <= max(100, a / 10 + 100) for a, b in itertools.pairwise(looks))
    plan = Plan(training.steps, eval_at=looks)
    assert [plan.next_evaluation(step) for step in (0, 99, 100, 1100, 19399, 19999)] == [
        100,
        100,
        200,
        1300,
        19400,
        20000,
    ]
    regular = Training(10, 1, ((1e-3, 0.0),), 1, 4, None)
    assert regular.evaluations == (4, 8, 10)
    assert [Plan(10, eval_every=4).next_evaluation(step) for step in (0, 4, 8, 9)] == [4, 8, 10, 10]
