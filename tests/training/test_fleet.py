"""The fleet: each replica trains as if it were alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from plait.model import build
from plait.model.language_model import IGNORE
from plait.training import ensemble
from plait.training.ensemble import Fleet, data_order, scored_positions
from plait.training.ensemble_plan import Plan, Replica, ReplicaRecord
from plait.training.optimizer import decayed_parameters

REPLICAS = [Replica(1e-3, 0.0, 0), Replica(3e-3, 0.1, 0), Replica(1e-2, 0.1, 1)]


def plain_losses(fleet: Fleet, replica: Replica, steps: int) -> list[float]:
    """The same training, written the ordinary way: one model, torch's own AdamW."""
    train, plan = fleet.splits["train"], fleet.plan
    model = build(fleet.arch, seed=replica.seed)
    decayed = decayed_parameters(model)
    groups = [
        {"params": [p for n, p in model.named_parameters() if (n in decayed) is wanted], "weight_decay": decay}
        for wanted, decay in ((True, replica.weight_decay), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, lr=replica.lr, betas=(0.9, 0.98))
    size = train.inputs_DNT.shape[1]
    losses = []
    for step in range(steps):
        epoch, place = divmod(step, math.ceil(size / plan.batch))
        order = data_order(replica.seed, epoch, size)
        rows = torch.cat([order, order])[place * plan.batch : (place + 1) * plan.batch]
        for group in optimizer.param_groups:
            group["lr"] = replica.lr * 0.5 * (1 + math.cos(math.pi * step / plan.steps))
        loss = model.loss(train.inputs_DNT[replica.data, rows], train.targets_DNT[replica.data, rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def near(record: ReplicaRecord, expected: ReplicaRecord) -> bool:
    """Equal but for rounding: a product over fewer replicas may add up in another order."""
    ours, theirs = (torch.tensor([loss for _, loss in r.losses]) for r in (record, expected))
    return ours.shape == theirs.shape and bool((ours - theirs).abs().max() < 1e-4)


@pytest.mark.parametrize("body", ["attn", "gla", "mamba", "hyena"])
@pytest.mark.parametrize("most", [1, 4])
def test_what_is_not_scored_is_not_computed_and_nothing_else_changes(make_fleet, monkeypatch, body, most):
    """Few positions count, a different number in every sequence: the ensemble's losses are those of whole sequences."""
    monkeypatch.setattr("plait.training.ensemble.SCORED_MULTIPLE", 2)
    whole = make_fleet(REPLICAS, Plan(steps=10, batch=20, eval_every=1000), body)
    targets = whole.splits["train"].targets_DNT
    stream = torch.Generator().manual_seed(5)
    order = torch.rand(targets.shape, generator=stream).argsort(-1)
    targets[order >= torch.randint(most, (*targets.shape[:2], 1), generator=stream) + 1] = IGNORE
    assert len(whole.batch(whole._batch_rows(0))) == 2
    few = make_fleet(REPLICAS, Plan(steps=10, batch=20, eval_every=1000), body)
    few.splits["train"] = whole.splits["train"]
    few._scored = scored_positions(targets)
    tokens, wanted, at = few.batch(few._batch_rows(0))
    assert wanted.shape == at.shape == (*tokens.shape[:2], max(2, most))
    ours, theirs = (torch.stack([fleet.advance(1) for _ in range(8)]) for fleet in (few, whole))
    torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=1e-4)


def test_positions_are_left_out_where_that_pays():
    targets = torch.full((1, 2, 40), IGNORE)
    targets[0, 0, [3, 7, 39]] = 1
    positions = scored_positions(targets)
    assert positions[0, 0, :3].tolist() == [3, 7, 39]
    assert positions.shape == (1, 2, 16)
    assert len({*positions[0, 0].tolist()}) == 16  # none twice: its gradient would be added twice
    targets[0, 1, :17] = 1
    assert scored_positions(targets) is None


@pytest.mark.parametrize("body", ["attn", "gla", "mamba", "hyena"])
def test_a_replica_trains_as_a_model_alone_does(make_fleet, body):
    steps, replicas = 24, [Replica(1e-4, 0.0, 0), Replica(5e-4, 0.1, 1), Replica(1e-3, 0.1, 2)]
    fleet = make_fleet(
        replicas, Plan(steps=40, batch=20, eval_every=1000), body
    )  # 64 examples: the last batch is short
    stacked = torch.stack([fleet.advance(1) for _ in range(steps)], dim=1)
    for place, replica in enumerate(replicas):
        gaps = (stacked[place] - torch.tensor(plain_losses(fleet, replica, steps))).abs()
        assert gaps.max() < 1e-4, (replica, gaps.max())
    assert stacked[:, -5:].mean() < stacked[:, :5].mean()


def test_members_differ_by_rate_decay_seed_and_data(make_fleet):
    base = Replica(3e-3, 0.0, 0, 0)
    others = [Replica(1e-3, 0.0, 0, 0), Replica(3e-3, 0.5, 0, 0), Replica(3e-3, 0.0, 1, 0), Replica(3e-3, 0.0, 0, 1)]
    fleet = make_fleet([base, *others, base], Plan(steps=20, batch=16), sets=2)
    last = fleet.advance(10)
    assert torch.equal(last[0], last[-1])
    assert len(set(last.tolist())) == 5
    assert (last[1:5] != last[0]).all()


def test_a_run_in_slices_is_the_run_at_once(make_fleet):
    plan = Plan(steps=30, batch=16, eval_every=7)
    whole, sliced = make_fleet(REPLICAS, plan), make_fleet(REPLICAS, plan)
    whole.run()
    for until in (1, 2, 9, 14, 15, 29):
        sliced.run(until=until)
        assert sliced.step == until
        assert all(record.test is None for record in sliced.records)
    sliced.run()
    assert whole.records == sliced.records
    assert [record.stopped for record in whole.records] == ["done"] * 3
    assert [step for step, *_ in whole.records[0].validation] == [7, 14, 21, 28, 30]


def test_a_solved_member_stops_and_leaves_the_others_as_they_are(make_fleet):
    replicas = [Replica(1e-4, 0.0, 0), Replica(2e-4, 0.1, 0), Replica(1e-2, 0.1, 1)]
    free = make_fleet(replicas, Plan(steps=30, batch=32, eval_every=10))
    free.run()
    reached = free.records[2].validation[0][1]
    assert all(a < reached for record in free.records[:2] for _, a, _ in record.validation), "no replica leads clearly"
    stopping = make_fleet(replicas, Plan(steps=30, batch=32, eval_every=10, solved=reached))
    stopping.run()
    solved, others = stopping.records[2], stopping.records[:2]
    assert (solved.stopped, solved.steps) == ("solved", 10)
    assert solved.test is not None
    assert stopping.alive == [0, 1]
    assert next(iter(stopping.params.values())).shape[0] == 2
    for record, expected in zip(others, free.records, strict=False):
        assert record.stopped == "done"
        assert near(record, expected)
        assert record.test == pytest.approx(expected.test, abs=1e-3)


def test_the_first_to_solve_a_data_set_ends_the_others_on_it(make_fleet):
    slow, fast = Replica(1e-4, 0.0, 0), Replica(1e-2, 0.1, 1)
    replicas = [slow, fast, replace(slow, data=1), replace(fast, data=1, lr=2e-4)]
    free = make_fleet(replicas, Plan(steps=20, batch=32, eval_every=10), sets=2)
    free.run()
    reached = free.records[1].validation[0][1]
    others = [accuracy for i in (0, 2, 3) for _, accuracy, _ in free.records[i].validation]
    assert max(others) < reached, "no replica leads clearly"
    plan = Plan(steps=20, batch=32, eval_every=10, solved=reached, first_ends=True)
    ending = make_fleet(replicas, plan, sets=2)
    ending.run()
    assert [(r.stopped, r.steps) for r in ending.records] == [
        ("outdone", 10),
        ("solved", 10),
        ("done", 20),
        ("done", 20),
    ]
    assert all(record.test is not None for record in ending.records)
    assert near(ending.records[2], free.records[2])


@pytest.fixture(scope="module")
def whole(make_fleet):
    """A run in which a replica stops before the others."""
    fleet = make_fleet(REPLICAS, Plan(steps=50, batch=16, eval_every=10, solved=0.6))
    fleet.run()
    assert any(record.stopped == "solved" and record.steps < 50 for record in fleet.records), "compaction is not tested"
    return fleet


def test_what_is_trained_on_after_it_has_stopped_is_not_recorded(make_fleet, whole, monkeypatch):
    """A captured graph keeps its replicas until recording another repays."""
    keeping = make_fleet(REPLICAS, whole.plan)
    monkeypatch.setattr(Fleet, "_compact", lambda fleet: None)
    keeping.run()
    early = [i for i, record in enumerate(whole.records) if record.stopped == "solved" and record.steps < 50]
    for i in early:
        assert (keeping.records[i].steps, keeping.records[i].stopped) == (whole.records[i].steps, "solved")
        assert len(keeping.records[i].validation) == len(whole.records[i].validation)


def test_a_captured_graph_is_replaced_when_that_repays(make_fleet, monkeypatch):
    """Two of three replicas stop at a fifth of the steps: what they would still train is compared with a recording."""
    plan = Plan(steps=50, batch=16, eval_every=10)
    trained = 2 * 40 * 16 * make_fleet(REPLICAS, plan).splits["train"].inputs_DNT.shape[2]
    for shift, left in ((0, 1), (1, 3)):
        fleet = make_fleet(REPLICAS[:3], plan)
        fleet.run(until=10)
        parameters = sum(p.numel() for p in fleet.template.parameters())
        monkeypatch.setattr(ensemble, "RECORDED_MEANWHILE", trained * parameters + shift)
        fleet.records[0].stopped = fleet.records[2].stopped = "stalled"
        fleet._stepper.captured = True
        fleet._compact()
        assert len(fleet.alive) == left
        assert not fleet._stepper.captured or left == 3
    for record in fleet.records:
        record.stopped = "done"
    fleet._compact()
    assert fleet.alive == [], "nothing is recorded for none"


def test_of_every_data_set_the_best_replicas_go_on(make_fleet):
    """From half of the steps on; the only one of another data set goes on, however slow it is."""
    slow, fast = Replica(1e-12, 0.0, 0), Replica(1e-2, 0.0, 0)
    replicas = [slow, fast, Replica(1e-12, 0.0, 0, data=1)]
    free = make_fleet(replicas, Plan(steps=40, batch=32, eval_every=10), sets=2)
    free.run()
    assert free.records[1].validation[1][1] > free.records[0].validation[1][1] + 0.02, "no replica leads clearly"
    fleet = make_fleet(replicas, Plan(steps=40, batch=32, eval_every=10, halving=((0.5, 1),)), sets=2)
    fleet.run()
    assert [(r.stopped, r.steps) for r in fleet.records] == [("behind", 20), ("done", 40), ("done", 40)]
    assert fleet.records[0].test is not None
    assert near(fleet.records[1], free.records[1])


def recorded(lr: float, *accuracies: float, stopped: str = "running", loss: float = 2.0, data: int = 0):
    """A record with an evaluation after every ten steps."""
    record = ReplicaRecord(Replica(lr, 0.0, 0, data))
    for i, accuracy in enumerate(accuracies):
        record.add(10 * (i + 1), loss, accuracy, 1.0)
    record.stopped = stopped
    return record


def test_replicas_go_on_by_their_ranks():
    accuracies = (0.3, 0.5, 0.5, 0.2, 0.9)
    records = [recorded(1e-3, 0.1, x) for x in accuracies]
    plan = Plan(steps=100, halving=((0.2, 3), (0.4, 1)))
    assert plan.stops(records) == {0: "behind", 3: "behind"}, "three are better than these"
    assert plan.stops([recorded(1e-3, x) for x in accuracies]) == {}, "a tenth of the steps is too early"
    late = [recorded(1e-3, 0.1, 0.1, 0.1, x) for x in accuracies]
    assert plan.stops(late) == dict.fromkeys(range(4), "behind")
    assert Plan(steps=100).stops(late) == {}
    for record in late[:4]:
        record.stopped = "behind"
    assert plan.stops(late) == {}, "the last one goes on"


def test_at_equal_accuracy_the_lower_loss_goes_on():
    records = [recorded(1e-3, 0.5) for _ in range(3)]
    for record, loss in zip(records, (2.0, 1.0, math.nan), strict=True):
        record.validation[-1] = (10, 0.5, loss)
    plan = Plan(steps=100, halving=((0.0, 1),))
    assert plan.stops(records) == {0: "behind", 2: "behind"}
    records[0].validation[-1] = (10, 0.5, 1.0)
    assert plan.stops(records) == {1: "behind", 2: "behind"}, "then the first"


def test_none_is_behind_one_that_diverged():
    """Its accuracy may be high still, as that of the weights before the step that was too large."""
    records = [recorded(1.0, 0.9, loss=math.nan), recorded(1e-3, 0.5), recorded(1e-4, 0.1)]
    assert Plan(steps=100, halving=((0.0, 1),)).stops(records) == {0: "diverged", 2: "behind"}


def test_without_gain_for_its_patience_a_replica_stops():
    plan = Plan(steps=100, patience=20)
    rising, level, late = (0.1, 0.2, 0.3, 0.4), (0.1, 0.3, 0.3, 0.2), (0.3, 0.1, 0.31, 0.2)
    records = [recorded(1e-3, *accuracies) for accuracies in (rising, level, late)]
    assert [record.steps_without_gain for record in records] == [0, 20, 10]
    assert plan.stops(records) == {1: "stalled"}
    assert Plan(steps=100).stops(records) == {}
    assert Plan(steps=140, patience=20).stops(records) == {}, "models may stand still at first"
    assert plan.stops([recorded(1e-3, *level, stopped="solved"), records[0]]) == {}


def test_what_has_stalled_leads_and_reasons_have_an_order():
    plan = Plan(steps=100, solved=0.99, first_ends=True, halving=((0.3, 1),), patience=20)
    stalled, low = recorded(1e-3, 0.1, 0.8, stopped="stalled"), recorded(1e-4, 0.1, 0.2, 0.3)
    assert plan.stops([stalled, low]) == {1: "behind"}
    assert plan.stops([stalled, recorded(1e-4, 0.1, 0.2, 0.9)]) == {}
    assert plan.stops([stalled, recorded(1e-4, 0.1, 0.2, 0.3, data=1)]) == {}, "on another data set"
    solved = recorded(1e-2, 0.99, 0.99, 0.99)
    assert plan.stops([solved, low, recorded(1e-4, 0.1, data=1)]) == {0: "solved", 1: "outdone"}


def test_patience_stops_a_replica_and_leaves_the_others_as_they_are(make_fleet):
    still, slow = Replica(1e-12, 0.0, 0), Replica(3e-4, 0.0, 1)
    free = make_fleet([still, slow], Plan(steps=40, batch=32, eval_every=10))
    free.run()
    assert free.records[0].steps_without_gain == 30, "it learns something"
    assert free.records[1].steps_without_gain == 0, "it learns nothing in the end"
    fleet = make_fleet([still, slow], Plan(steps=40, batch=32, eval_every=10, patience=20))
    fleet.run(until=25)
    again = make_fleet([still, slow], fleet.plan)
    again.restore(fleet.state())
    again.run()
    assert (again.records[0].stopped, again.records[0].steps) == ("stalled", 30)
    assert again.records[0].test is not None
    assert near(again.records[1], free.records[1])


def test_a_diverged_member_stops_alone(make_fleet):
    plan = Plan(steps=30, batch=16, eval_every=5)
    fleet = make_fleet([REPLICAS[0], Replica(1e30, 0.0, 0), REPLICAS[1]], plan)
    alone = make_fleet([REPLICAS[0], REPLICAS[1]], plan)
    fleet.run()
    alone.run()
    assert [r.stopped for r in fleet.records] == ["done", "diverged", "done"]
    for record, expected in zip((fleet.records[0], fleet.records[2]), alone.records, strict=True):
        assert near(record, expected)


@pytest.mark.parametrize("at", [3, 20, 41])
def test_a_restored_fleet_goes_on_exactly(make_fleet, whole, at):
    before, after = (make_fleet(REPLICAS, whole.plan) for _ in range(2))
    before.run(until=at)
    after.restore(before.state())
    after.run()
    assert whole.records == after.records


def test_a_curriculum_learns_from_the_first_tokens_only(make_fleet):
    plan = Plan(steps=20, batch=16, eval_every=1000, curriculum=((0.2, 2), (0.5, 4)))
    assert [plan.tokens_at(step) for step in (0, 3, 4, 9, 10, 19)] == [2, 2, 4, 4, None, None]
    one, other = make_fleet(REPLICAS, plan), make_fleet(REPLICAS, plan)
    other.splits["train"].inputs_DNT[..., 4:] = 0
    other.splits["train"].targets_DNT[..., 4:] = 1
    for fleet in (one, other):
        fleet.advance(10)
    assert all(torch.equal(one.params[name], other.params[name]) for name in one.params)
    one.advance(1)
    other.advance(1)
    assert not all(torch.equal(one.params[name], other.params[name]) for name in one.params)


def test_of_one_shape_the_later_tokens_are_not_scored(make_fleet):
    """A captured graph has one shape: there the rest is masked, with the same gradients."""
    plan = Plan(steps=20, batch=16, eval_every=1000, curriculum=((0.5, 3),))
    fleet = make_fleet(REPLICAS, plan)
    fleet.advance(1)
    rows = torch.zeros(len(REPLICAS), 2, dtype=torch.long)
    short, _ = fleet.batch(rows)
    fleet._stepper.captured = True
    whole, targets = fleet.batch(rows)
    assert short.shape[-1] == 3 < whole.shape[-1]
    assert bool((targets[..., 3:] == IGNORE).all())
    assert not bool((targets[..., :3] == IGNORE).all())


def test_the_graph_of_a_fleet_reads_rotary_angles(make_fleet):
    """As `Stepper` records it for a GPU: a sine for every channel and token would take a fifth of a step there."""
    import torch.fx.experimental.proxy_tensor as proxies

    from plait.model.compiled_blocks import remember_angles
    from plait.training.ensemble_step import record_gradients

    fleet = make_fleet(REPLICAS, Plan(steps=2, batch=4))
    tokens, targets = fleet.batch(fleet._batch_rows(0))
    graphs = []
    make = proxies.make_fx

    def made(*args, **options):
        def record(*tensors):
            graphs.append(make(*args, **options)(*tensors))
            return graphs[-1]

        return record

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proxies, "make_fx", made)
        record_gradients(fleet._stepper._gradients, fleet.params, (tokens, targets))
        remember_angles(fleet.template, tokens.shape[-1], torch.float32)
        replay = record_gradients(fleet._stepper._gradients, fleet.params, (tokens, targets))
    computed = ["sin" in str(node.target) for node in graphs[1].graph.nodes]
    assert not any(computed)
    grads, loss_M = replay(fleet.params, tokens, targets)
    expected, expected_loss_M = fleet._stepper._gradients(fleet.params, tokens, targets)
    torch.testing.assert_close(loss_M, expected_loss_M)
    torch.testing.assert_close(grads, expected)


def test_a_short_training_is_not_compiled_on_a_gpu():
    """MAD's memorization trains for 400 steps; compiling its six shapes of model would take longer than all of them."""
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert not Plan(steps=400).compiles_on(gpu)
    assert Plan(steps=20_000).compiles_on(gpu)
    assert Plan(steps=400).compiles_on(cpu)  # one step of all replicas
