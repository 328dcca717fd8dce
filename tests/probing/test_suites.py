"""Suites of tasks beside MAD's: what they hold, scores at longer lengths, and MAD's own trials as they were."""

from __future__ import annotations

import pytest

from plait.api.probe import plan_probe
from plait.core.errors import UserError
from plait.probing.candidates import candidates
from plait.probing.protocol import CONTROLS, Setting, Training, full, quick, suite_tasks
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
        assert set(setting.training.as_dict()) == {"steps", "batch", "grid", "evaluation", "eval_every", "solved"}


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
        assert (chosen.member.data, seed["lengths"]) == (row, chosen.others)
        assert 0.5 <= seed["chance"] <= 1


def test_controls_run_beside_a_single_candidate() -> None:
    found = candidates(["kda"], quick(suite_tasks("tracking")), controls=CONTROLS)
    assert [one.name for one in found] == ["kda", *CONTROLS]
    assert {one.state for one in found[1:] if one.name != "attn"} == {found[2].state}
