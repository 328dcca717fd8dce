"""The scheduler on a simulated machine: the budget is kept, nothing is lost, all processes agree."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

from plait.probing import plan
from plait.probing import plan as on_the_way
from plait.probing.plan import FINISH_SECONDS, Plan, Scheduler, Spent, decide
from plait.probing.protocol import Protocol, quick
from plait.probing.report import changes
from plait.probing.run import Machine, run_budget
from plait.probing.trial import KIND, Speed, Trial
from plait.records import Record, Store, open_store
from plait.workers.pool import Place

from . import made_up
from .conftest import tiny_candidates
from .made_up import Killed

BUDGET = 200.0
MEASURING = 10.0  # seconds of the budget before the plan
SPEED = Speed({"attn": (0.02, 1e-5), "hyena[state=4]": (0.03, 3e-5)})


@pytest.fixture(scope="module")
def six_tasks() -> Protocol:
    return quick()


@pytest.fixture
def store(store_url) -> Store:
    with open_store(store_url) as opened:
        yield opened


def planned(protocol: Protocol, store: Store, seeds: int | None = None, budget: float = BUDGET) -> Plan:
    found = tiny_candidates(protocol)
    config = plan.plan_config(found, protocol, budget, 2, seeds, "cpu")
    return plan.fitting(store, config, found, protocol, SPEED, budget - MEASURING)


def followed(protocol, store, slowness, seeds=None) -> tuple[Plan, Scheduler, float]:
    """The plan, what became of it, and when all was done."""
    made, machine = planned(protocol, store, seeds), made_up.Machine(slowness)
    scheduler = machine.follow(made, store)
    assert Counter(machine.trained) == Counter(scheduler.plan.work.trials), "each trial is trained once"
    assert machine.idle <= made_up.TICK
    return made, scheduler, MEASURING + machine.now + FINISH_SECONDS


def test_a_steady_machine_keeps_the_plan(six_tasks, store):
    made, scheduler, end = followed(six_tasks, store, lambda _: 1.0)
    assert scheduler.plan == made
    assert changes(scheduler.replans) == ""
    assert end == pytest.approx(BUDGET, rel=0.04)


@pytest.mark.parametrize("since", [0.0, 40.0, 80.0])
def test_on_a_slower_machine_later_tasks_get_fewer_seeds(six_tasks, store, since):
    made, scheduler, end = followed(six_tasks, store, lambda now: 1.3 if now >= since else 1.0)
    assert end == pytest.approx(BUDGET, rel=0.05)
    assert scheduler.plan.seeds[0] == made.seeds[0], "what is begun stays"
    assert sum(scheduler.plan.seeds) < sum(made.seeds)
    assert all(new <= old for new, old in zip(scheduler.plan.seeds, made.seeds, strict=True))
    assert min(scheduler.plan.scales) >= 1, "seeds go first"


@pytest.mark.parametrize("since", [0.0, 40.0, 80.0])
def test_on_a_faster_machine_later_tasks_get_more_seeds(six_tasks, store, since):
    made, scheduler, end = followed(six_tasks, store, lambda now: 0.7 if now >= since else 1.0)
    assert end == pytest.approx(BUDGET, rel=0.05)
    assert sum(scheduler.plan.seeds) > sum(made.seeds)
    assert all(new >= old for new, old in zip(scheduler.plan.seeds, made.seeds, strict=True))


def test_where_one_seed_does_not_fit_trainings_are_shortened(six_tasks, store):
    made, scheduler, end = followed(six_tasks, store, lambda _: 2.0)
    assert end == pytest.approx(BUDGET, rel=0.05)
    assert scheduler.plan.seeds == (made.seeds[0], 1, 1, 1, 1, 1)
    assert scheduler.plan.scales[0] == made.scales[0]
    assert max(scheduler.plan.scales[1:]) < 0.9


def test_a_machine_that_recovers_gets_later_tasks_back(six_tasks, store):
    _, scheduler, end = followed(six_tasks, store, lambda now: 2.2 if now < 90 else 1.0)
    assert end == pytest.approx(BUDGET, rel=0.05)
    assert scheduler.plan.scales[1] < 0.8 < 1 <= scheduler.plan.scales[-1]
    said = changes(scheduler.replans)
    assert re.match(r"trainings took 1\.\d\d to 2\.2\d times as long as measured at the start: ", said), said
    assert said.count("compression") == 1, "what came of it, not each change"


def test_a_machine_that_goes_up_and_down_keeps_its_budget(six_tasks, store):
    _, _, end = followed(six_tasks, store, lambda now: 1.6 if now // 15 % 2 else 0.8)
    assert end == pytest.approx(BUDGET, rel=0.1)


def test_every_architecture_gets_the_same_on_a_task(six_tasks, store):
    _, scheduler, _ = followed(six_tasks, store, lambda now: 1.5 if now >= 40 else 1.0)
    by_task: dict[str, set] = {}
    for trial in scheduler.plan.work.trials:
        by_task.setdefault(trial.task.name, set()).add((trial.seeds, trial.training))
    assert {len(ways) for ways in by_task.values()} == {1}
    assert len({way for ways in by_task.values() for way in ways}) > 1


@pytest.mark.parametrize("slowness", [0.6, 1.6])
def test_seeds_that_were_asked_for_are_kept(six_tasks, store, slowness):
    made, scheduler, end = followed(six_tasks, store, lambda _: slowness, seeds=2)
    assert scheduler.plan.seeds == made.seeds == (2,) * 6
    if slowness > 1:
        assert max(scheduler.plan.scales[1:]) < 1
        assert end == pytest.approx(BUDGET, rel=0.05)
    else:
        assert scheduler.plan == made


def test_what_another_probe_trained_before_costs_nothing(six_tasks, store):
    made = planned(six_tasks, store)
    scheduler = Scheduler(replace(made, made="2001-01-01T00:00:00+00:00"), store)
    for trial in scheduler.begun:
        about = {"started": "2000-01-01T00:00:00+00:00", "seconds": 1e6}
        store.put(Record.of(KIND, trial.config, {"accuracy": 0.5}, about))
    scheduler.begin_next({})
    assert scheduler.replans[0].slowdown == 1.0
    assert sum(scheduler.plan.seeds) > sum(made.seeds), "its time is left"


def test_too_little_tells_no_pace(six_tasks, store):
    made = planned(six_tasks, store)
    others = [SPEED.trial(trial) for trial in Scheduler(made, store).begun[1:]]
    spent = [Spent(expected, 0.0, 0.0) for expected in others]
    said = decide(made, 1, [Spent(SPEED.trial(made.work.trials[0]), 0.001, 3.0), *spent])
    assert said["slowdown"] == 1.0
    said = decide(made, 1, [Spent(SPEED.trial(made.work.trials[0]), 0.001, 30.0), *spent])
    assert said["slowdown"] > 100
    said = decide(made, 1, [Spent(SPEED.trial(made.work.trials[0]), 0.0, 30.0), *spent])
    assert said["slowdown"] == 1.0, "no step is done"


@pytest.mark.parametrize("left", [-5.0, 0.0, 0.5])
def test_a_plan_made_when_nothing_is_left_runs_as_short_as_it_may(six_tasks, store, left):
    found = tiny_candidates(six_tasks)
    config = plan.plan_config(found, six_tasks, 1.0, 2, None, "cpu")
    made = plan.fitting(store, config, found, six_tasks, SPEED, left, overrun=True)
    scheduler = made_up.Machine(lambda _: 1.0).follow(made, store)
    assert scheduler.plan == made
    assert made.seeds == (1,) * len(six_tasks.settings)
    assert min(made.scales) == plan.SHORTEST


# ---- interruptions


def slow_then_fast(now: float) -> float:
    return 1.5 if now < 100 else 0.8


@pytest.fixture(scope="module")
def whole(six_tasks, tmp_path_factory) -> tuple[Plan, list[Trial]]:
    """Without interruption: the plan as it was in the end, and the trials in the order in which they were finished."""
    with open_store(f"sqlite:///{tmp_path_factory.mktemp('whole') / 'plait.db'}") as store:
        machine = made_up.Machine(slow_then_fast)
        return machine.follow(planned(six_tasks, store), store).plan, machine.trained


@pytest.mark.parametrize("at", range(0, 190, 15))
def test_killed_at_any_time_it_goes_on_with_the_same_cells(six_tasks, store, whole, at):
    made, machine = planned(six_tasks, store), made_up.Machine(slow_then_fast)
    with pytest.raises(Killed):
        machine.follow(made, store, killed_at=at)
    scheduler = machine.follow(planned(six_tasks, store), store)
    assert (scheduler.plan.seeds, scheduler.plan.scales) == (whole[0].seeds, whole[0].scales)
    assert machine.trained == whole[1]
    again = Scheduler(planned(six_tasks, store), store)
    assert again.all_begun
    assert again.plan == scheduler.plan


@pytest.mark.parametrize("task", range(1, 6))
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_beside_a_decision(six_tasks, store, whole, monkeypatch, task, moment):
    """Between the decision and its record, or between the record and the first trial."""
    made, machine = planned(six_tasks, store), made_up.Machine(slow_then_fast)
    put = store.put

    def dies(record: Record) -> bool:
        last = record.kind == on_the_way.REPLAN_KIND and record.config["first"] == task
        if last and moment == "before":
            raise Killed
        stored = put(record)
        if last:
            raise Killed
        return stored

    monkeypatch.setattr(store, "put", dies)
    with pytest.raises(Killed):
        machine.follow(made, store)
    monkeypatch.undo()
    scheduler = machine.follow(made, store)
    assert (scheduler.plan.seeds, scheduler.plan.scales) == (whole[0].seeds, whole[0].scales)
    assert Counter(machine.trained) == Counter(whole[1])


def test_what_was_decided_before_a_kill_stays_whatever_the_speed_is_later(six_tasks, store):
    made, machine = planned(six_tasks, store), made_up.Machine(lambda _: 1.6)
    with pytest.raises(Killed):
        machine.follow(made, store, killed_at=100.0)
    before = Scheduler(made, store)
    assert 1 < len(before.replans) < 5
    machine.slowness, machine.running = lambda _: 0.5, {}  # its checkpoints are lost, too
    after = machine.follow(made, store)
    assert after.begun[: len(before.begun)] == before.begun
    assert Counter(machine.trained) == Counter(after.plan.work.trials)
    assert after.plan.seeds[-1] > before.plan.seeds[-1]


def test_of_two_on_one_store_the_first_decides(six_tasks, store, monkeypatch):
    made = planned(six_tasks, store)
    first, second = Scheduler(made, store), Scheduler(made, store)
    slow = {trial.key: {"step": 1, "seconds": 60.0} for trial in first.begun}

    def meanwhile(*given):
        """The other one decides between our look into the store and our own decision."""
        monkeypatch.setattr(on_the_way, "decide", decide)
        first.begin_next({})
        return decide(*given)

    monkeypatch.setattr(on_the_way, "decide", meanwhile)
    trials = second.begin_next(slow)
    assert second.plan == first.plan == made
    assert trials == first.begun[len(trials) :]
    # Nor does it decide again what it finds decided.
    second.begin_next({})
    assert first.begin_next(slow) == second.begun[-len(trials) :]
    assert len(store.find(on_the_way.REPLAN_KIND)) == 2


# ---- for real


def test_a_probe_corrects_its_plan_and_finds_it_again(protocol, store):
    """The plan believes in a machine that is far too fast: the first task spends everything, the second is cut."""
    found, fast = tiny_candidates(protocol), Speed(dict.fromkeys(SPEED.lines, (1e-6, 0.0)))
    config = plan.plan_config(found, protocol, 60.0, 1, None, "cpu")
    made = plan.fitting(store, config, found, protocol, fast, FINISH_SECONDS + 0.1)
    assert made.seeds == (plan.MOST_SEEDS,) * 2

    def run():
        return run_budget(found, protocol, 60.0, store, Machine(Place(workers=1)), lambda _: None)

    outcome = run()
    first, second = outcome.work.trials[:2], outcome.work.trials[2:]
    assert {len(trial.seeds) for trial in first} == {plan.MOST_SEEDS}
    assert {(len(trial.seeds), trial.training.steps) for trial in second} == {(1, 3)}
    assert outcome.fresh == 4
    (replan,) = outcome.replans
    assert changes([replan]) == (
        f"trainings took {replan.slowdown:.2f} times as long as measured at the start: "
        "1 instead of 20 seeds and 10 % instead of 125 % of the steps for compression"
    )
    again = run()
    assert (again.work, again.fresh) == (outcome.work, 0)
    assert again.replans == outcome.replans
