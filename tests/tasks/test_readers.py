"""What can be known of RegBench: the posterior over automata against all of them, and the accuracies it gives."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from plait.tasks import baseline
from plait.tasks.automaton_posterior import EDGES, FEWEST, Law, Posterior
from plait.tasks.regbench import MEASURED, knowable, read
from plait.tasks.task import stream


def ways_out(states, alphabet, state):
    """Every way in which a state may be left, with its probability."""
    others = [other for other in range(states) if other != state]
    found = []
    for edges in range(1, EDGES + 1):
        ways = [
            dict(zip(by, to, strict=True))
            for by in itertools.combinations(alphabet, edges)
            for to in itertools.permutations(others, edges)
        ]
        found += [(1 / EDGES / len(ways), way) for way in ways]
    return found


def by_all_automata(vocab, nodes, tokens):
    """The probability of every symbol that it is allowed now: over all automata, each state drawn when it is met."""
    allowed_V, total = np.zeros(vocab), 0.0

    def follow(at, state, automaton, probability, ways):
        nonlocal total
        ended = at == len(tokens)
        if not ended and tokens[at] >= vocab:
            follow(at + 1, 0, automaton, probability, ways)
        elif state not in automaton:
            for chance, way in ways[state]:
                follow(at, state, {**automaton, state: way}, probability * chance, ways)
        elif ended:
            total += probability
            allowed_V[list(automaton[state])] += probability
        elif tokens[at] in (edges := automaton[state]):
            follow(at + 1, edges[tokens[at]], automaton, probability / len(edges), ways)

    for states, size in itertools.product(range(FEWEST, nodes + 1), range(FEWEST, vocab + 1)):
        for alphabet in itertools.combinations(range(vocab), size):
            ways = [ways_out(states, alphabet, state) for state in range(states)]
            follow(0, 0, {}, 1 / (vocab - FEWEST + 1) / math.comb(vocab, size), ways)
    return allowed_V / total


@pytest.mark.parametrize(
    ("vocab", "nodes", "tokens"),
    [
        (4, 4, [0, 1]),
        (4, 4, [0, 0]),
        (5, 4, [0]),
        (4, 5, [0]),
        (4, 4, [0, 1, 4, 0]),
        (5, 4, [0, 5]),
        (4, 5, [1, 4, 1, 4]),
        (4, 4, [2, 4, 1, 4, 2]),
    ],
)
def test_the_posterior_is_that_of_all_automata(vocab, nodes, tokens):
    held = Posterior(Law(vocab, nodes, len(tokens)), 10**6, np.random.default_rng(0))
    for token in tokens:
        held.take(token) if token < vocab else held.begin()
    np.testing.assert_allclose(held.allowed(), by_all_automata(vocab, nodes, tokens), rtol=1e-9)


def test_few_hypotheses_stand_for_all():
    """Kept by lot, they give the same probabilities on average."""
    law, text = Law(6, 6, 8), [0, 1, 2, 3, 6, 4, 2]

    def allowed(most, seed=0):
        held = Posterior(law, most, np.random.default_rng(seed))
        for token in text:
            held.take(token) if token < 6 else held.begin()
        return held.allowed(), len(held.at_P)

    exact_V, hypotheses = allowed(10**6)
    assert hypotheses > 80
    drawn = [allowed(20, seed) for seed in range(300)]
    assert max(kept for _, kept in drawn) <= 21
    drawn_NV = np.array([one_V for one_V, _ in drawn])
    assert drawn_NV.std(axis=0).max() > 0.02  # lots were drawn
    np.testing.assert_allclose(drawn_NV.mean(axis=0), exact_V, atol=0.02)


def small(**settings):
    return baseline("regbench").with_settings({"vocab": "5", "nodes": "4", "string": "8", **settings})


def test_probabilities_are_how_often_the_answers_are_right():
    found = read(small(length="48"), 60, 300)
    assert found.accuracy_T[-1] == pytest.approx(found.probability_T[-1], abs=0.02)
    assert 0.85 < found.accuracy_T[-1] < 0.97
    assert (np.diff(found.accuracy_T[10:]) > -0.01).all()  # the longer the sequence, the better it is known
    assert 0.002 < found.error_T[-1] < 0.02


def test_the_automaton_at_hand_is_never_lost():
    """Of five hypotheses, where without knowing it none is left in most sequences; its weight is not raised for it."""
    task, law, draw = small(length="60"), Law(5, 4, 60), stream("lost")
    lost = 0
    for _ in range(20):
        automaton = task.automaton(draw)
        tokens, _ = task.text(draw, automaton)
        kept = Posterior(law, 5, np.random.default_rng(0), automaton)
        by_lot = Posterior(law, 5, np.random.default_rng(0))
        state = 0
        for token in tokens:
            state = automaton[state][token] if token < 5 else 0
            kept.take(token) if token < 5 else kept.begin()
            assert kept.at_P[kept.own] == kept.numbers[state]
            assert kept.kept_P[kept.own] == 0
            if len(by_lot.at_P):
                try:
                    by_lot.take(token) if token < 5 else by_lot.begin()
                except ValueError:  # nothing left
                    by_lot.at_P = by_lot.at_P[:0]
        lost += not len(by_lot.at_P)
        edges = {(kept.numbers[s], v): kept.numbers[to] for s, row in enumerate(automaton) if s in kept.numbers
                 for v, to in row.items() if to in kept.numbers}  # fmt: skip
        taken = zip(*np.nonzero(kept.to_PSV[kept.own] >= 0), strict=True)
        assert all(kept.to_PSV[kept.own][at] == edges[int(at[0]), int(at[1])] for at in taken)
    assert lost > 5


def test_what_was_measured_is_measured_again():
    """At lengths of 16 and 32, within three standard errors of so few sequences."""
    task = baseline("regbench").with_settings({"vocab": "8", "nodes": "6", "string": "12", "length": "32"})
    found = read(task, 60, 300)
    for length in (16, 32):
        error = found.error_T[length - 1]
        assert found.accuracy_T[length - 1] == pytest.approx(MEASURED[8, 6, 12][length], abs=3 * error)


def test_between_and_beyond_the_lengths_measured():
    for law, by_length in MEASURED.items():
        lengths, shares = list(by_length), list(by_length.values())
        assert shares == sorted(shares)
        assert [knowable(*law, length) for length in lengths] == pytest.approx(shares)
        assert shares[0] < knowable(*law, lengths[0] + 5) < shares[1]
        assert shares[-1] < knowable(*law, 2 * lengths[-1]) < 1
    assert knowable(40, 12, 49, 256) == 1.0  # too large to be read
    assert 0.85 < knowable(5, 4, 8, 48) < 0.97  # read now


def test_baseline_and_quick_settings_are_measured():
    from plait.probing.protocol import quick

    (setting,) = quick(["regbench"]).settings
    settings = [*baseline("regbench").grid(), setting.task, *(setting.task.longer(n) for n in setting.training.lengths)]
    assert {(task.vocab, task.nodes, task.string) for task in settings} <= set(MEASURED)
    assert max(task.length for task in settings) <= max(max(by_length) for by_length in MEASURED.values())
