"""The plan: the paper's numbers, and a budget that is kept."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from plait.core.errors import UserError
from plait.probing import plan
from plait.probing.plan import makespan
from plait.probing.protocol import QUICK, candidates, full, quick
from plait.probing.trial import MOST_TOKENS, Speed, Trial, to_time, tokens
from plait.records import open_store, record_key
from plait.tasks import SUITES

from .conftest import tiny_candidates


def test_the_papers_protocol_has_396_runs_and_5_384_400_steps():
    protocol = full()
    assert (len(protocol.settings), protocol.runs, protocol.steps) == (66, 396, 3_679_340)
    whole = [replace(x, training=replace(x.training, halving=())) for x in protocol.settings]
    assert replace(protocol, settings=tuple(whole)).steps == 5_384_400
    training = protocol.settings[0].training
    assert training.grid == ((1e-4, 0.0), (1e-4, 0.1), (5e-4, 0.0), (5e-4, 0.1), (1e-3, 0.0), (1e-3, 0.1))
    assert (training.batch, training.evaluation, training.steps) == (128, 1280, 200 * 100)


def test_tasks_and_variants_can_be_chosen():
    some = full(["compression", "memorization"], "mad-lab")
    assert some.task_names == ["compression", "memorization"]
    assert {setting.task.variant for setting in some.settings} == {"mad-lab"}
    assert sorted(QUICK) == sorted(SUITES["mad"])
    assert quick(["memorization"]).task_names == ["memorization"]


def test_patience_is_counted_in_epochs_and_is_part_of_the_key():
    plain, patient = full(), full(patience=20)
    assert {setting.training.patience * 10 - setting.training.steps for setting in patient.settings} == {0}
    assert all("patience" not in setting.training.as_dict() for setting in plain.settings)
    (attn,) = candidates(["attn"], plain, baselines=False)
    trials = [Trial.of(attn, setting, (0,), "cpu") for setting in (plain.settings[0], patient.settings[0])]
    assert trials[0].key != trials[1].key
    assert patient.name == "full (patience 20)"


@pytest.mark.parametrize(
    ("costs", "workers", "expected"), [([3, 2, 1], 1, 6), ([3, 2, 1], 2, 3), ([1, 1, 5], 2, 6), ([2], 4, 2)]
)
def test_makespan(costs, workers, expected):
    assert makespan(costs, workers) == expected


class SameSpeed:
    """A trial takes so long for each of its seeds, in proportion to its steps."""

    def __init__(self, a_seed: float) -> None:
        self.a_seed = a_seed
        self.lines = {"attn": (a_seed, 0.0), "hyena[state=4]": (a_seed, 0.0)}

    def trial(self, trial: Trial) -> float:
        return self.a_seed * len(trial.seeds) * trial.training.steps / 30


def planned(protocol, store_url, left, seeds=None, a_seed=1.0):
    found = tiny_candidates(protocol)
    config = plan.plan_config(found, protocol, 60.0, 2, seeds, "cpu")
    with open_store(store_url) as store:
        return plan.fitting(store, config, found, protocol, SameSpeed(a_seed), left).work, config


def test_a_budget_holds_as_many_seeds_as_fit(protocol, store_url):
    # Two architectures on two workers: a seed of a task takes a second, and a little more to be sure.
    work, _ = planned(protocol, store_url, left=plan.FINISH_SECONDS + 9.4 * plan.SAFETY)
    longer = 31 / 30  # what is left of the time lengthens every training
    assert work.expected_seconds == pytest.approx(9 * longer * plan.SAFETY)
    assert 30.5 < 30 * work.scale < 31.5
    assert [trial.seeds for trial in work.trials] == [(0, 1, 2, 3, 4)] * 2 + [(0, 1, 2, 3)] * 2, (
        "the first task gets more"
    )
    assert {trial.training.steps for trial in work.trials} == {31}
    assert (work.runs, work.steps) == (2 * 9 * 2, 2 * 9 * 2 * 31)


def test_time_that_is_left_lengthens_trainings_only_so_far(protocol, store_url):
    work, _ = planned(protocol, store_url, left=1000.0, a_seed=1.0)
    assert {len(trial.seeds) for trial in work.trials} == {plan.MOST_SEEDS}
    assert {trial.training.steps for trial in work.trials} == {round(30 * plan.LONGEST)}


def test_seeds_can_be_limited(protocol, store_url):
    work, _ = planned(protocol, store_url, left=60.0, seeds=2)
    assert {trial.seeds for trial in work.trials} == {(0, 1)}


def test_too_small_a_budget_shortens_trainings_the_first_tasks_last(protocol, store_url):
    # One seed of both tasks takes two seconds in full.
    work, _ = planned(protocol, store_url, left=plan.FINISH_SECONDS + 1.5 * plan.SAFETY)
    assert {trial.seeds for trial in work.trials} == {(0,)}
    assert [trial.training.steps for trial in work.trials] == [30, 30, 15, 15]


def test_a_very_small_budget_shortens_the_first_task_too(protocol, store_url):
    work, _ = planned(protocol, store_url, left=plan.FINISH_SECONDS + 0.7 * plan.SAFETY)
    assert [trial.training.steps for trial in work.trials] == [15, 15, 6, 6]


def test_what_does_not_fit_at_all_is_refused_with_what_would(protocol, store_url):
    # A tenth of both tasks, and a quarter of the first one's: 0.1 + 0.25 s; what was left of 60 s is less.
    room = 0.34 * plan.SAFETY
    with pytest.raises(UserError, match=r"2 architectures do not fit into 60s here.*Give --time 65s or more"):
        planned(protocol, store_url, left=plan.FINISH_SECONDS + room)
    with pytest.raises(UserError, match="Give --time 9m or more"):  # 60 s and 400 more, and a little
        planned(protocol, store_url, left=plan.FINISH_SECONDS, a_seed=400 / 0.35 / plan.SAFETY)
    with open_store(store_url) as store:
        assert not store.find(plan.KIND)


def test_a_plan_is_kept_whatever_the_speed_is_later(protocol, store_url):
    work, config = planned(protocol, store_url, left=12.0)
    again, _ = planned(protocol, store_url, left=12.0, a_seed=5.0)
    assert again.trials == work.trials
    found = tiny_candidates(protocol)
    with open_store(store_url) as store:
        kept = plan.stored(store, config, found, protocol)
        assert kept.work == work
        assert kept.speed.lines == SameSpeed(1.0).lines
        renamed = [replace(one, name=f"my {one.name}") for one in found]
        assert list(plan.stored(store, config, renamed, protocol).speed.lines) == ["my attn", "my hyena[state=4]"]
        other = plan.plan_config(found, protocol, 61.0, 2, None, "cpu")
        assert plan.stored(store, other, found, protocol) is None


def test_a_cells_key_is_what_decides_its_result(protocol):
    found = tiny_candidates(protocol)
    one, more = (plan.with_seeds(found, protocol, seeds, "cpu").trials for seeds in ([1, 1], [2, 2]))
    assert len({trial.key for trial in (*one, *more)}) == 8
    renamed = candidates(["d=16 vocab=4 init=0.1 | (attn[heads=2] swiglu[inner=16])x2"], protocol, baselines=False)
    (same, *_) = plan.with_seeds(renamed, protocol, [1, 1], "cpu").trials
    assert same.candidate != one[0].candidate
    assert same.key == one[0].key, "the name and the spec's own vocabulary do not matter"


def test_speed_is_a_line_through_what_was_timed(protocol):
    found = tiny_candidates(protocol)
    timed = to_time(found, protocol, "cpu")
    fixed, per_token = 0.02, 1e-5
    speed = Speed.measured(timed, {trial.key: fixed + per_token * tokens(trial) for trial in timed})
    for trial in plan.with_seeds(found, protocol, [1, 5], "cpu").trials:
        assert speed.step(trial) == pytest.approx(fixed + per_token * tokens(trial))
        # 30 steps, and four evaluations of 32 sequences in batches of 16 at a third of a step each.
        assert speed.trial(trial) == pytest.approx(speed.step(trial) * (30 + 4 * 2 / 3))
        halved = replace(trial, training=replace(trial.training, halving=((0.3, 1),)))
        # One of two runs goes on after the evaluation at step 10.
        assert speed.trial(halved) == pytest.approx(speed.step(trial) * (10 + 20 / 2 + 4 * 2 / 3))


def test_the_papers_protocol_is_timed_in_steps_that_fit_a_laptop():
    found = candidates(["attn"], full(), baselines=False)
    short, long = to_time(found, full(), "cpu")
    assert tokens(short) < tokens(long) <= MOST_TOKENS
    assert (short.task.input_length, long.task.input_length) == (32, 1024)
    on_a_gpu = to_time(found, full(), "cuda")
    assert {trial.training.batch for trial in on_a_gpu} == {128}


@pytest.mark.parametrize("seconds", [[3.0, 2.0, 1.0], [1.0, 1.0, 1.0], [0.1, 1.0, 50.0]])
def test_noise_never_predicts_a_negative_time(protocol, seconds):
    found = tiny_candidates(protocol)[:1]
    timed = to_time(found, protocol, "cpu")
    speed = Speed.measured(timed, dict(zip([trial.key for trial in timed], seconds, strict=False)))
    for trial in plan.with_seeds(found, protocol, [1, 9], "cpu").trials:
        assert speed.step(trial) > 0


def test_an_edited_mixer_is_planned_anew(protocol):
    """The speed of another text under the same name tells nothing."""
    few = tiny_candidates(protocol)
    edited = [SimpleNamespace(arch=few[0].arch, source="of another text"), *few[1:]]
    one, other = (plan.plan_config(those, protocol, 60.0, 2, None, "cpu") for those in (few, edited))
    assert one["specs"] == other["specs"]
    assert record_key(plan.KIND, one) != record_key(plan.KIND, other)
