"""Tasks of the other suites: sequences worked out by hand, solvers that know no generator, lengths and chance."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from plait.core.errors import UserError
from plait.tasks import IGNORE, SUITES, baseline, chance, load_task, make_data
from plait.tasks.task import stream
from plait.tasks.tracking import elements, products

_ = IGNORE
SMALL = {
    "parity": {"length": 6},
    "word-problem": {"length": 6},
    "modular-arithmetic": {"length": 10},
    "mqar": {"vocab": 32, "length": 24, "pairs": 3, "updates": 2},
    "palindrome": {"vocab": 3, "length": 8},
    "phonebook": {"vocab": 8, "length": 12, "digits": 2},
    "stack": {"vocab": 3, "length": 12, "stacks": 2},
    "forgetting-mqar": {"vocab": 32, "length": 24, "pairs": 3, "updates": 1},
    "compositional-mqar": {"vocab": 33, "length": 36, "side": 2},
    "copy": {"vocab": 3, "length": 8},
    "markov": {"vocab": 3, "length": 16},
    "regbench": {"vocab": 5, "length": 40, "nodes": 4, "string": 5},
    "depo": {"vocab": 6, "length": 34, "hops": 3, "word": 2, "queries": 3},
    "mano": {"vocab": 5, "length": 8},
    "ngram-lookup": {"vocab": 7, "length": 14, "n": 2, "before": 1},
}
OTHERS = [name for suite, found in SUITES.items() if suite != "mad" for name in found]


def setting(name, **change):
    return baseline(name).with_settings({key: str(value) for key, value in change.items()})


@pytest.mark.parametrize(
    ("task", "inputs", "targets"),
    [
        (setting("parity", length=6), [1, 1, 0, 1, 0, 0], [_, _, _, 1, 1, 1]),
        # Z3 by its rotations: 1 + 2 + 2 + 1
        (setting("word-problem", group="Z3", length=4), [1, 2, 2, 1], [_, _, 2, 0]),
        # 3 + 4 * 2 - 1 = 10, modulo 5
        (setting("modular-arithmetic", length=8), [3, 5, 4, 7, 2, 6, 1, 8], [_] * 7 + [0]),
        # ((3 + 4) * 2) = 14, modulo 5
        (setting("modular-arithmetic", length=10, brackets=1), [9, 9, 3, 5, 4, 10, 7, 2, 10, 8], [_] * 9 + [4]),
        (setting("palindrome", vocab=3, length=6), [0, 2, 1, 3, 1, 2], [_, _, _, _, 2, 0]),
        # push 1 to stack A, push 0 to B, pop A
        (setting("stack", vocab=3, stacks=2, length=9), [5, 3, 1, 5, 4, 0, 6, 3, 1], [_] * 7 + [1, _]),
        # name 10 has 4 2, name 11 has 9 9; 11 is asked for
        (setting("phonebook", vocab=4, length=9, digits=2), [10, 4, 2, 11, 9, 9, 14, 11, 9], [_] * 7 + [9, 9]),
        # (1, 11) → 21 and (2, 11) → 22 and (1, 12) → 23 and (2, 12) → 24; then asked in another order, noise between
        (
            setting("compositional-mqar", vocab=30, side=2, length=24),
            [1, 11, 21, 2, 12, 24, 2, 11, 22, 1, 12, 23, 2, 11, 0, 1, 11, 5, 2, 12, 9, 1, 12, 3],
            [_] * 13 + [22, _, _, 21, _, _, 24, _, _, 23, _],
        ),
        (setting("copy", vocab=3, length=6), [0, 2, 1, 3, 0, 2], [_, _, _, 0, 2, 1]),
        # b a occurs once, and c follows: a b a c c | b a
        (setting("ngram-lookup", vocab=8, length=8, n=2), [0, 1, 0, 2, 2, 8, 1, 0], [_] * 7 + [2]),
        (setting("ngram-lookup", vocab=8, length=9, n=2, before=1), [1, 0, 8, 0, 1, 0, 2, 2, 8], [_] * 8 + [2]),
        # after 0 came 1, 1, 2, 0 and 1; after 1 came 0, 0 and 1; after 2 came 2, known as soon as it has come
        (
            setting("markov", vocab=3, length=12),
            [0, 1, 0, 1, 0, 2, 2, 0, 0, 1, 1, 0],
            [_, _, 1, 0, 1, _, 2, 1, 1, 0, 0, 1],
        ),
        # ring 7 8 9 10 told as 8 9, 10 7, 7 8, 9 10 (names are ids 6 to 11); 1 step after 9: 10; 2 after 10: 8
        (
            setting("depo", vocab=6, length=16, hops=2, queries=2),
            [8, 9, 10, 7, 7, 8, 9, 10, 12, 9, 14, 10, 13, 10, 14, 8],
            [_] * 10 + [10, _, _, _, 8, _],
        ),
        # + * 3 4 - 1 2 = 12 - 1, modulo 5
        (setting("mano", vocab=5, length=8), [5, 7, 3, 4, 6, 1, 2, 8], [_] * 7 + [1]),
    ],
)
def test_by_hand(task, inputs, targets):
    assert task.answers(inputs) == targets
    assert task.valid(inputs, targets)


def test_mqar_by_hand():
    task = setting("mqar", vocab=16, length=12, pairs=2, updates=1)
    # key 3 has 9, key 5 has 10, key 3 is changed to 15; then 5 and 3 are asked for, with noise between
    inputs = [3, 9, 5, 10, 3, 15, 5, 1, 0, 0, 3, 7]
    assert task.answers(inputs) == [_] * 6 + [10, _, _, _, 15, _]
    assert not task.valid(inputs, [_] * 6 + [10, _, _, _, 9, _])


def test_updated_and_kept_keys_are_scored_apart():
    inputs = [3, 9, 5, 10, 3, 15, 5, 1, 0, 0, 3, 7]  # key 3 is changed from 9 to 15
    asked = {"updated": [_] * 10 + [15, _], "kept": [_] * 6 + [10, _, _, _, _, _]}
    for scored, targets in asked.items():
        task = setting("forgetting-mqar", vocab=16, length=12, pairs=2, updates=1, scored=scored)
        assert task.answers(inputs) == targets
        drawn = task.generate(stream(scored), 30, training=False)
        assert all(task.valid(*row) for row in zip(drawn.inputs_NT, drawn.targets_NT, strict=True))
        assert (task.generate(stream(scored), 9, training=True).targets_NT != IGNORE).sum() == 9 * 2
    assert not task.valid(inputs, asked["updated"])


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("training", [False, True])
def test_drawn_sequences_are_what_the_solver_says(name, training):
    for change in ({}, SMALL[name], {"brackets": 1} if name == "modular-arithmetic" else {}):
        task = setting(name, **change)
        sample = task.generate(stream(name), 40, training=training)
        assert sample.inputs_NT.shape == (40, task.length)
        assert sample.inputs_NT.min() >= 0
        assert sample.inputs_NT.max() < task.model_vocab
        for inputs, targets in zip(sample.inputs_NT.tolist(), sample.targets_NT.tolist(), strict=True):
            assert any(target != IGNORE for target in targets)
            if training and name in ("markov", "regbench"):  # every next token
                assert targets[:-1] == inputs[1:]
                continue
            if training and name in ("parity", "word-problem"):  # asked for everywhere
                assert IGNORE not in targets
                half = -(-task.length // 2)
                targets = [IGNORE] * half + targets[half:]
            assert task.valid(inputs, targets)


def by_powers_of_the_ring(task, inputs):
    """Depo by a permutation matrix: the links' k-th power."""
    names = [token - task.vocab for token in inputs if token in task.ids("end")]
    links = names[: len(names) - 2 * task.queries]
    ring = np.zeros((task.vocab, task.vocab), dtype=int)
    ring[links[::2], links[1::2]] = 1
    hop = task.ids("hop").start
    asked = [
        (token - hop + 1, inputs[at + 1] - task.vocab) for at, token in enumerate(inputs) if token in task.ids("hop")
    ]
    return [int(np.linalg.matrix_power(ring, k)[start].argmax()) + task.vocab for k, start in asked]


def by_pythons_own_arithmetic(task, inputs):
    """Mano, rewritten with brackets."""
    signs = {task.vocab: "+", task.vocab + 1: "-", task.vocab + 2: "*"}
    tokens = iter([token for token in inputs[:-1] if token < task.vocab + 3])

    def infix():
        token = next(tokens)
        if token not in signs:
            return str(token)
        first, second = infix(), infix()
        return f"({first} {signs[token]} {second})"

    return [eval(infix()) % task.vocab]


def by_counting_pairs(task, inputs):
    """Markov: the largest entry of the bigram counts up to each token, where there is one."""
    found = []
    for t, token in enumerate(inputs):
        pairs = Counter(pairwise(inputs[: t + 1]))
        row = [pairs[token, other] for other in range(task.vocab)]
        if max(row) and row.count(max(row)) == 1:
            found.append(row.index(max(row)))
    return found


def by_searching_text(task, inputs):
    text = "".join(chr(65 + token) for token in inputs)
    string, piece = text.split(chr(65 + task.vocab))[:2] if not task.before else text.split(chr(65 + task.vocab))[1::-1]
    assert string.count(piece) == 1
    return [ord(string[string.find(piece) + task.n]) - 65]


@pytest.mark.parametrize(
    ("task", "solver"),
    [
        (setting("depo", vocab=32, length=40, hops=4, queries=3), by_powers_of_the_ring),
        (setting("mano", vocab=23, length=20), by_pythons_own_arithmetic),
        (setting("markov", vocab=4, length=40), by_counting_pairs),
        (setting("ngram-lookup", vocab=12, length=30, n=2), by_searching_text),
        (setting("ngram-lookup", vocab=12, length=30, n=2, before=1), by_searching_text),
    ],
)
def test_solvers_by_other_means_agree(task, solver):
    drawn = task.generate(stream("other means", task.name), 30, training=False)
    for inputs, targets in zip(drawn.inputs_NT.tolist(), drawn.targets_NT.tolist(), strict=True):
        assert [target for target in targets if target != IGNORE] == solver(task, inputs)


@pytest.mark.parametrize("name", OTHERS)
def test_longer_sequences_are_of_the_same_task(name):
    task = baseline(name).longer(4)
    assert task.length == 4 * baseline(name).length
    assert task.model_vocab == baseline(name).model_vocab
    sample = task.generate(stream(name), 5, training=False)
    assert all(task.valid(*item) for item in zip(sample.inputs_NT, sample.targets_NT, strict=True))


@pytest.mark.parametrize("name", OTHERS)
def test_every_setting_of_the_grid_can_be_drawn(name):
    for task in baseline(name).grid():
        assert task.generate(stream(name), 2, training=False).inputs_NT.shape == (2, task.length)


def test_groups():
    assert {group: len(elements(group)) for group in ("S3", "A4", "A5", "S5", "Z60")} == {
        "S3": 6, "A4": 12, "A5": 60, "S5": 120, "Z60": 60,
    }  # fmt: skip
    for group in ("S3", "A4", "Z5"):
        table = products(group)
        assert (table[0] == np.arange(len(table))).all()  # the identity comes first
        assert (table[table[1, 2], 3 % len(table)] == table[1, table[2, 3 % len(table)]]).all()  # associative
        assert all(sorted(row) == list(range(len(table))) for row in table.tolist())
    assert (products("Z5") == products("Z5").T).all()
    assert not (products("S3") == products("S3").T).all()
    with pytest.raises(UserError, match="no group 'S9'"):
        setting("word-problem", group="S9")


def strings_of(task, row):
    """The strings of a sequence of `regbench`, each with the answers allowed at its symbols and before its first."""
    bar, tokens, allowed = task.vocab, row[0].tolist(), [sorted(set(k) - {IGNORE}) for k in row[1].tolist()]
    start = 0
    for at in [*(i for i, token in enumerate(tokens) if token == bar), len(tokens)]:
        yield tokens[start:at], allowed[max(start - 1, 0) : at] if start else [None, *allowed[:at]]
        start = at + 1


@pytest.mark.parametrize("change", [{}, {"vocab": 5, "length": 60, "nodes": 4, "string": 6}])
def test_what_an_automaton_allows_is_the_same_wherever_its_string_begins_alike(change):
    """A deterministic automaton: equal beginnings of strings allow the same symbols, and what came is among them."""
    task = setting("regbench", **change)
    drawn = task.generate(stream("automata"), 30, training=False)
    sizes = set()
    for row in zip(drawn.inputs_NT, drawn.allowed_NTK, strict=True):
        after: dict[tuple[int, ...], list[int]] = {}
        for symbols, allowed in strings_of(task, row):
            assert len(symbols) <= task.string
            for i, (symbol, choices) in enumerate(zip(symbols, allowed, strict=False)):
                if choices:
                    assert symbol in choices
                    assert after.setdefault(tuple(symbols[:i]), choices) == choices
                    sizes.add(len(choices))
    assert sizes == {1, 2, 3}


def test_no_two_states_of_an_automaton_accept_the_same_strings():
    """By trying: for every pair of states some string of at most 12 symbols is accepted from one only."""
    task = setting("regbench", vocab=6, nodes=6)

    def accepted(automaton, state, length):
        strings = {(): state}
        for _step in range(length):
            strings |= {(*s, a): to for s, at in strings.items() if len(s) == _step for a, to in automaton[at].items()}
        return set(strings)

    for i in range(20):
        automaton = task.automaton(stream("minimal", i))
        assert 4 <= len(automaton) <= 6
        assert all(1 <= len(edges) <= 3 and state not in edges.values() for state, edges in enumerate(automaton))
        assert all(len(set(edges.values())) == len(edges) for edges in automaton)
        languages = [frozenset(accepted(automaton, state, 6)) for state in range(len(automaton))]
        assert len(set(languages)) == len(automaton)


def test_who_remembers_how_strings_went_on_names_an_allowed_symbol():
    """The control of `regbench`: the symbol that came after this beginning of a string before is always allowed."""
    task = setting("regbench", vocab=5, length=120, nodes=4, string=6)
    drawn = task.generate(stream("control"), 20, training=False)
    known = 0
    for row in zip(drawn.inputs_NT, drawn.allowed_NTK, strict=True):
        came: dict[tuple[int, ...], int] = {}
        for symbols, allowed in strings_of(task, row):
            for i, (symbol, choices) in enumerate(zip(symbols, allowed, strict=False)):
                if choices and tuple(symbols[:i]) in came:
                    known += 1
                    assert came[tuple(symbols[:i])] in choices
                came[tuple(symbols[:i])] = symbol
    assert known > 500


def test_depo_asks_for_the_largest_ring_and_powers_of_two():
    task = setting("depo", vocab=64, length=60, hops=4, queries=5)
    hop = task.ids("hop").start
    for training, steps in ((True, {1, 2, 3, 4}), (False, {1, 2, 4})):
        drawn = task.generate(stream("depo"), 200, training=training)
        asked = drawn.inputs_NT[(drawn.inputs_NT >= hop) & (drawn.inputs_NT < hop + 4)] - hop + 1
        assert set(asked.tolist()) == steps
        names = (drawn.inputs_NT < hop).sum(axis=1) - 10
        assert (len(set(names.tolist())) > 5) == training
        assert names.max() == 2 * task.ring == 40


@pytest.mark.parametrize(("change", "lengths"), [({}, {3, 5, 7, 9, 11}), ({"brackets": 1}, {5, 9})])
def test_arithmetic_trains_on_expressions_of_every_length_and_asks_for_the_longest(change, lengths):
    task = setting("modular-arithmetic", length=12, **change)
    for training, expected in ((True, lengths), (False, {max(lengths)})):
        inputs_NT = task.generate(stream("lengths"), 200, training=training).inputs_NT
        assert set((inputs_NT[:, :-1] != task.ids("pad").start).sum(axis=1).tolist()) == expected


def test_chance_is_the_most_frequent_answer():
    data = make_data(setting("word-problem", length=16, train_size=100), 0, evaluation=400)
    assert chance(data.test) == pytest.approx(1 / 6, abs=0.02)
    assert chance(make_data(setting("parity", train_size=100), 0, evaluation=400).test) == pytest.approx(0.5, abs=0.03)


def test_mqar_queries_come_soon_after_the_pairs():
    """The power law with exponent 0.01 - 1: the nearest slot is far likelier than the farthest."""
    task = setting("mqar", vocab=64, length=128, pairs=1)
    where = (task.generate(stream("where"), 4000, training=False).targets_NT != IGNORE).argmax(axis=1)
    assert (where % 2 == 0).all()
    share = float((where == 2).mean())
    assert share == pytest.approx(1 / sum(1 / i**0.99 for i in range(1, 64)), abs=0.03)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("parity", {"vocab": 3}, "vocab=3 given, but it must be 2"),
        ("modular-arithmetic", {"length": 7}, "even and at least 6"),
        ("mqar", {"length": 12, "pairs": 4}, "even and at least 16"),
        ("palindrome", {"length": 9}, "even"),
        ("stack", {"length": 10}, "multiple of 3"),
        ("phonebook", {"length": 61}, "multiple of digits"),
        ("forgetting-mqar", {"scored": "updates"}, "all, updated, kept"),
        ("forgetting-mqar", {"pairs": 2, "scored": "kept"}, "must be all, updated"),
        ("compositional-mqar", {"length": 50}, "multiple of 3 and at least 54"),
        ("ngram-lookup", {"vocab": 2}, "pieces that occur once"),
        ("copy", {"length": 7}, "even"),
        ("markov", {"length": 20}, "at least four times"),
        ("regbench", {"nodes": 3}, "nodes=3 given"),
        ("depo", {"vocab": 8}, "enough for 16 names"),
        ("depo", {"length": 40}, "length=40 given, but it must be at least 46"),
        ("mano", {"length": 9}, "even"),
    ],
)
def test_impossible_settings(name, change, message):
    with pytest.raises(UserError, match=message):
        setting(name, **change)


def test_the_papers_protocol_does_not_grow_with_the_table():
    from plait.probing.protocol import full

    assert full().runs == 396
    assert "parity" not in full().task_names
    assert load_task("parity").name == "parity"
