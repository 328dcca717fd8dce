"""Two stages in turns; stopped anywhere it goes on to the same numbers; a planted answer is found."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from plait.core.errors import UserError
from plait.model.architecture import architecture
from plait.supernet.loss import cost_shares
from plait.supernet.network import Supernet
from plait.supernet.settings import ARCHITECTURE, WEIGHTS, Settings
from plait.supernet.training import Source, SupernetTraining
from plait.training.recipe import Recipe
from plait.training.trainer import Batch

KEYS, TIME, VALUES, FILLER = 32, 16, 16, 32
HEADER = f"d=32 vocab={KEYS + 1} pos=learned max_len={TIME}"


def planted(tag: int) -> Source:
    """A random table G: the first token is a key k, all others say nothing, and position t must answer G[k, t].

    Every position has to fetch the key before it can do anything, so attention belongs into the first layer; what is
    left is a table of (key, position), which feed-forward layers hold.
    """
    table = torch.from_numpy(np.random.default_rng(5).integers(VALUES, size=(KEYS, TIME)))

    def batch(n: int) -> Batch:
        key_B = torch.from_numpy(np.random.default_rng([tag, n]).integers(KEYS, size=32))
        tokens_BT = torch.full((32, TIME), FILLER)
        tokens_BT[:, 0] = key_B
        targets_BT = table[key_B].clone()
        targets_BT[:, 0] = -100
        return Batch(tokens_BT, targets_BT)

    return batch


SOURCES = {WEIGHTS: planted(1), ARCHITECTURE: planted(2)}


def training(
    seed: int = 0,
    layers: int = 4,
    choices: tuple[str | None, ...] = ("attn[heads=1,head_dim=8,pos=none]", "mlp[inner=64]"),
    recipe: Recipe = Recipe(lr=1e-2, weight_decay=0.01),  # noqa: B008 (a frozen value)
    header_text: str = HEADER,
    **settings: object,
) -> SupernetTraining:
    wanted = Settings().with_values(settings)
    options = [None if text is None else architecture(f"{header_text} | {text}").layers[0] for text in choices]
    header = architecture(f"{header_text} | identity").header
    net = Supernet(header, [options] * layers, seed=seed)
    shares_LK = cost_shares(wanted.penalty, header, net.choices, seq=TIME) if wanted.penalty else None
    costs_LK = None if shares_LK is None else torch.from_numpy(shares_LK).float()
    return SupernetTraining(net, SOURCES, recipe, wanted, seed=seed, costs_LK=costs_LK)


def find(seed: int, steps: int = 1000) -> str:
    """With a price on state, so that attention has to be worth its cache."""
    made = training(seed, steps=steps, penalty="state", strength=0.4, architecture="soft", lr=0.05)
    while not made.finished:
        made.advance()
    return "".join("af"[k] for k in made.net.best)


def test_the_planted_answer_is_found() -> None:
    assert find(0, steps=500) == "afff"


@pytest.mark.slow
def test_the_planted_answer_is_found_by_nine_seeds_of_ten() -> None:
    found = [find(seed) for seed in range(1, 11)]
    assert found.count("afff") >= 9, found


def test_weights_and_logits_take_turns() -> None:
    made = training(steps=40, warmup=0.25, cycle=10, share=0.3)
    weights, scores = snapshot(made)
    for step in range(40):
        taken = made.advance()
        moved = [torch.equal(a, b) for a, b in zip((weights, scores), snapshot(made), strict=True)]
        first = step < 10 or (step - 10) % 10 < 7
        assert taken.stage == (WEIGHTS if first else ARCHITECTURE)
        # The first step has learning rate zero.
        assert moved == ([step == 0, True] if first else [True, False])
        weights, scores = snapshot(made)


def snapshot(made: SupernetTraining) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        torch.cat([p.detach().flatten() for p in made.net.model.parameters()]),
        made.net.scores_LK.detach().clone(),
    )


def test_nothing_is_not_drawn_while_only_weights_are_trained() -> None:
    """It has none, and layers that are often not there learn to be superfluous."""
    made = training(0, 6, ("attn[heads=2]", "mlp[inner=8]", None), steps=80, warmup=0.5, lr=1e-6)
    stages = (made.advance().stage for _ in range(80))
    drawn = [{layer.path for layer in made.net.mixtures} for stage in stages if stage == WEIGHTS]
    warmup, later = set().union(*drawn[:40]), set().union(*drawn[40:])
    assert (warmup, later) == ({0, 1}, {0, 1, 2})
    # Where there is nothing else, nothing is what there is.
    alone = training(0, 1, (None,), steps=4)
    alone.advance()
    assert alone.net.mixtures[0].path == 0


@pytest.mark.parametrize(("temperature", "least", "most"), [(0.2, 0.95, 1.0), (5.0, 0.4, 0.7)])
def test_networks_are_drawn_by_the_logits_over_the_temperature(temperature: float, least: float, most: float) -> None:
    """One nat between two choices: drawn 73 % of the time as it is, 99 % in the cold, 55 % in the heat."""
    made = training(
        steps=100, warmup=0.0, cycle=2, share=0.5, start_temperature=temperature, end_temperature=temperature, lr=1e-9
    )
    with torch.no_grad():
        made.net.scores_LK[:, 0] += 1.0
    drawn: dict[str, list[int]] = {WEIGHTS: [], ARCHITECTURE: []}
    comparing = made.net.comparing
    made.net.comparing = lambda path: (drawn[ARCHITECTURE].extend(path), comparing(path))[1]  # type: ignore[method-assign]
    for _ in range(100):
        if made.advance().stage == WEIGHTS:
            drawn[WEIGHTS] += [int(layer.path) for layer in made.net.mixtures if layer.path is not None]
    for stage in drawn:
        assert len(drawn[stage]) == 200
        assert least < drawn[stage].count(0) / 200 <= most, stage


def test_a_comparison_changes_no_weights_and_ignores_dropout() -> None:
    made = training(recipe=Recipe(lr=1e-2, dropout=0.5), steps=20, warmup=0.0, cycle=2, share=0.5)
    made.advance()
    weights, scores = snapshot(made)
    taken = made.advance()
    assert taken.stage == ARCHITECTURE
    assert torch.equal(snapshot(made)[0], weights)
    assert not torch.equal(snapshot(made)[1], scores)
    assert made.objective.training
    # The loss that is told is that of the drawn network without dropout.
    made.objective.eval()
    made.step -= 1
    path = (scores / made.temperature + made._noise()).argmax(dim=1).tolist()
    made.net.walk(path)
    with torch.no_grad():
        assert float(made._run(ARCHITECTURE, SOURCES[ARCHITECTURE](0))[0]) == taken.loss


@pytest.mark.parametrize(
    ("weights", "architecture"),
    [("soft", "soft"), ("straight-through", "straight-through"), ("path", "path"), ("path", "swap"), ("soft", "swap")],
)
def test_stopped_anywhere_it_goes_on_to_the_same_numbers(weights: str, architecture: str) -> None:
    wanted = {"steps": 30, "weights": weights, "architecture": architecture, "cycle": 5, "swaps": 3}
    whole, losses, saved = training(1, **wanted), [], {}
    for step in range(30):
        if step in (1, 9, 17, 29):
            saved[step] = {name: np.copy(array) for name, array in whole.arrays().items()}
        losses.append(whole.advance().loss)
    for stop, arrays in saved.items():
        second = training(1, **wanted)
        second.restore(arrays)
        assert [second.advance().loss for _ in range(30 - stop)] == losses[stop:]
        assert torch.equal(second.net.scores_LK, whole.net.scores_LK)


def test_segment_memory_is_kept_too() -> None:
    recipe = Recipe(lr=1e-2, memory=4)
    choices = ("xl-attn[heads=2]", "mlp[inner=16]", None)
    whole, first, second = (
        training(0, 2, choices, recipe, f"d=16 vocab={KEYS + 1}", steps=12, cycle=3) for _ in range(3)
    )
    losses = [whole.advance().loss for _ in range(12)]
    for _ in range(7):
        first.advance()
    second.restore(first.arrays())
    assert [second.advance().loss for _ in range(5)] == losses[7:]


def test_comparing_goes_on_with_the_memory_of_the_drawn_network() -> None:
    choices = ("xl-attn[heads=2]", "mlp[inner=16]", None)
    made = training(0, 3, choices, Recipe(lr=1e-2, memory=4), f"d=16 vocab={KEYS + 1}", steps=9, warmup=0.0, cycle=3)
    for _ in range(2):
        assert made.advance().stage == WEIGHTS
    path = (made.net.logits_LK.detach() / made.temperature + made._noise()).argmax(dim=1).tolist()
    assert made.advance().stage == ARCHITECTURE
    kept = made.memory[ARCHITECTURE]
    made.net.walk(path)
    del made.memory[ARCHITECTURE]
    with torch.no_grad():
        _, wanted = made._run(ARCHITECTURE, SOURCES[ARCHITECTURE](0))
    assert wanted is not None
    for mine, theirs in zip(kept.layers, wanted.layers, strict=True):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_a_price_moves_the_search_away_from_what_is_dear() -> None:
    choices = ("attn[heads=2]", "mlp[inner=8]", None)
    dear = training(0, 4, choices, steps=200, warmup=0.0, penalty="flops", strength=50.0)
    while not dear.finished:
        dear.advance()
    assert set(dear.net.best) == {2}


def test_it_stops_when_the_architecture_stays() -> None:
    """Unchanged for three quarters of the logits' stage: with nothing to decide, as early as can be."""
    made = training(0, 1, ("mlp[inner=8]", "mlp[inner=8,act=relu]"), steps=400, warmup=0.5, patience=0.5, lr=1e-4)
    made.optimizers[ARCHITECTURE].param_groups[0]["lr"] = 0.0
    while not made.finished:
        made.advance()
    assert made.converged
    assert made.settled == pytest.approx(0.5, abs=0.05)
    assert 280 <= made.step < 320
    assert not training(steps=10, patience=1.0).converged


def test_the_temperature_falls_over_the_logits_stage() -> None:
    made = training(steps=20, warmup=0.5, cycle=2, share=0.5, start_temperature=4.0, end_temperature=1.0)
    seen = []
    for _ in range(20):
        seen.append(made.temperature)
        made.advance()
    assert seen[:11] == [4.0] * 11
    assert seen == sorted(seen, reverse=True)
    assert made.temperature == pytest.approx(1.0)


def test_a_loss_that_is_not_finite_ends_with_a_message() -> None:
    made = training(recipe=Recipe(lr=1e30, clip=0.0), steps=100)

    def run() -> None:
        while not made.finished:
            made.advance()

    with pytest.raises(UserError, match="lower learning rate"):
        run()


def test_costs_are_shares_of_the_whole_network() -> None:
    header = architecture(f"{HEADER} | identity").header
    options = [architecture(f"{HEADER} | {text}").layers[0] for text in ("attn[heads=2]", "mlp[inner=64]")]
    choices = [[*options, None]] * 4
    for quantity in ("flops", "state"):
        shares_LK = cost_shares(quantity, header, choices, seq=TIME)
        assert shares_LK.mean(axis=1).sum() == pytest.approx(1.0)
        assert (shares_LK[:, 2] == 0).all()
    state_LK = cost_shares("state", header, choices, seq=TIME)
    assert (state_LK[:, 1] == 0).all()
    attn, mlp = (float(one.cost(32, TIME).total_flops) for one in options)
    flops_LK = cost_shares("flops", header, choices, seq=TIME)
    assert flops_LK[0, 0] / flops_LK[0, 1] == pytest.approx(attn / mlp)
    with pytest.raises(UserError, match="profile of the device"):
        cost_shares("latency", header, choices, seq=TIME)
    with pytest.raises(UserError, match="cannot distinguish them"):
        cost_shares("state", header, [[options[1], None]], seq=TIME)


def test_steps_that_are_not_finite_are_counted_by_stage_and_over_sittings() -> None:
    """Good steps of the weights must not hide a stage of the logits that never works."""

    def sitting(before: SupernetTraining | None) -> SupernetTraining:
        made = training(steps=200, warmup=0.0, cycle=2, share=0.5)
        made.costs_LK = torch.full((4, 2), torch.nan)
        if before is not None:
            made.restore(before.arrays())
        return made

    made = sitting(None)
    for _ in range(39):
        made.advance()
        made = sitting(made)
    with pytest.raises(UserError, match="of its architecture"):
        made.advance()
