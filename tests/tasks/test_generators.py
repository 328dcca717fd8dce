"""Every task in both variants against slow solvers that know only the paper's text, and the numbers of its tables."""

from __future__ import annotations

import numpy as np
import oracles
import pytest

from plait.core.errors import UserError
from plait.tasks import IGNORE, SUITES, baseline, make_data
from plait.tasks.recall import first_seen, motifs
from plait.tasks.task import stream

# What a model reads, by task and variant: ids of each kind, tokens read, positions scored in evaluation and training.
RECALL, NOISY = {"key": (0, 7), "value": (8, 15)}, {"key": (0, 7), "value": (8, 15), "noise": (16, 31)}
TABLE = {
    ("in-context-recall", "paper"): (RECALL, 128, 56, 127),
    ("in-context-recall", "mad-lab"): (RECALL, 127, 56, 127),
    ("noisy-in-context-recall", "paper"): (NOISY, 128, 43, 127),
    ("noisy-in-context-recall", "mad-lab"): (NOISY, 127, 43.5, 127),
    ("fuzzy-in-context-recall", "paper"): ({"key": (0, 7), "value": (8, 15), "pad": (16, 16)}, 128, 2.35, 127),
    ("fuzzy-in-context-recall", "mad-lab"): ({"key": (0, 6), "value": (7, 14), "pad": (15, 15)}, 128, 4.5, 128),
    ("selective-copying", "paper"): ({"token": (0, 15), "blank": (16, 16), "insert": (17, 17)}, 256, 16, 16),
    ("selective-copying", "mad-lab"): ({"token": (0, 13), "blank": (14, 14), "copy": (15, 15)}, 256, 16, 16),
    ("compression", "paper"): ({"token": (0, 15), "compress": (16, 16)}, 32, 31, 31),
    ("compression", "mad-lab"): ({"token": (0, 14), "compress": (15, 15)}, 32, 32, 32),
    ("memorization", "paper"): ({"key": (0, 127), "value": (128, 255), "insert": (256, 256)}, 32, 16, 16),
    ("memorization", "mad-lab"): ({"key": (0, 126), "value": (127, 254), "insert": (255, 255)}, 32, 16, 16),
}  # fmt: skip
CASES = pytest.mark.parametrize(("name", "variant"), TABLE, ids=lambda part: str(part))
# Small settings on which rare cases are common.
TIGHT = {
    "in-context-recall": {"vocab": 4, "length": 8},
    "noisy-in-context-recall": {"vocab": 4, "length": 10, "noise": 0.6, "noise_vocab": 1},
    "fuzzy-in-context-recall": {"vocab": 8, "length": 24, "motif": 2},
    "selective-copying": {"vocab": 4, "length": 13, "to_copy": 6},
    "compression": {"vocab": 3, "length": 8},
    "memorization": {"vocab": 8, "length": 12},
}


def setting(name, variant, **change):
    return baseline(name).with_settings({"variant": variant, **{k: str(v) for k, v in change.items()}}).seeded(0)


def drawn(task, name, count):
    sample = task.generate(stream(name), count, training=False)
    return zip(sample.inputs_NT.tolist(), sample.targets_NT.tolist(), strict=True)


def solved(task, inputs):
    ids = {kind: set(task.ids(kind)) for kind in task.layout}
    lab = task.variant == "mad-lab"
    match task.name:
        case "in-context-recall" | "noisy-in-context-recall":
            return oracles.recall(inputs, keys=ids["key"], values=ids["value"])
        case "fuzzy-in-context-recall":
            return oracles.fuzzy(inputs, keys=ids["key"], values=ids["value"], full=task.motif)
        case "selective-copying" if lab:
            return oracles.copying_after(inputs, tokens=ids["token"], copy=max(ids["copy"]))
        case "selective-copying":
            return oracles.copying(inputs, tokens=ids["token"], insert=max(ids["insert"]))
        case "compression":
            return oracles.compression(inputs, asks_last=lab)
        case "memorization":
            facts = dict(enumerate(task.values_K.tolist()))
            return oracles.memorization(inputs, facts=facts, insert=max(ids["insert"]))


@CASES
def test_ids_lengths_and_scored_positions_are_the_tables(name, variant):
    task = setting(name, variant)
    layout, length, scored, in_training = TABLE[name, variant]
    assert {kind: (task.ids(kind)[0], task.ids(kind)[-1]) for kind in task.layout} == layout
    assert task.model_vocab == max(last for _, last in layout.values()) + 1
    evaluation, training = (task.generate(stream("t", training), 8000, training=training) for training in (False, True))
    for sample in (evaluation, training):
        assert sample.inputs_NT.shape == sample.targets_NT.shape == (8000, length) == (8000, task.input_length)
        assert sample.inputs_NT.dtype == sample.targets_NT.dtype == np.int16
        assert set(np.unique(sample.inputs_NT)) <= set(range(task.model_vocab))
    # Every id of every kind is drawn, but for the values that memorization never lets a model read.
    unread = set(task.ids("value")) if name == "memorization" else set()
    assert set(np.unique(evaluation.inputs_NT)) == set(range(task.model_vocab)) - unread
    assert evaluation.scored / 8000 == pytest.approx(scored, rel=0.02)
    assert training.scored / 8000 == in_training


@CASES
@pytest.mark.parametrize("size", ["baseline", "tight"])
def test_a_slow_solver_agrees_on_every_scored_position(name, variant, size):
    task = setting(name, variant, **(TIGHT[name] if size == "tight" else {}))
    for inputs, targets in drawn(task, "solve", 400):
        assert any(target != IGNORE for target in targets)
        expected = solved(task, inputs)
        if targets[-1] == IGNORE and variant == "paper":
            expected[-1] = IGNORE  # nothing follows the last token
        assert expected == targets
        assert task.valid(inputs, targets)


@CASES
def test_a_sequence_spoilt_anywhere_is_not_valid(name, variant):
    task = setting(name, variant, **TIGHT[name])
    for inputs, targets in drawn(task, "spoil", 20):
        for at, target in enumerate(targets):
            other = IGNORE if target != IGNORE else 0
            assert not task.valid(inputs, [*targets[:at], other, *targets[at + 1 :]])
        assert not task.valid(inputs[:-1], targets[:-1])
    task = setting(name, variant)
    for inputs, targets in drawn(task, "spoil", 20):
        assert not task.valid([*inputs[1:], inputs[0]], targets)


@pytest.mark.parametrize("name", ["in-context-recall", "noisy-in-context-recall", "fuzzy-in-context-recall"])
@pytest.mark.parametrize("variant", ["paper", "mad-lab"])
def test_recall_trains_on_every_next_token(name, variant):
    sample = setting(name, variant).generate(stream("next"), 100, training=True)
    assert (sample.targets_NT[:, :-1] == sample.inputs_NT[:, 1:]).all()
    assert ((sample.targets_NT[:, -1] == IGNORE) == (variant == "paper")).all()


def test_noise_is_a_fixed_share_between_pairs_or_whole_places():
    for noise in (0.2, 0.4, 0.6, 0.8):
        task = setting("noisy-in-context-recall", "paper", noise=noise)
        is_noise = task.generate(stream("noise"), 300, training=False).inputs_NT >= 16
        assert set(is_noise.sum(axis=1)) == {task.noise_tokens}
        assert abs(task.noise_tokens / 128 - noise) < 0.008
        assert len(np.unique(is_noise, axis=0)) > 290  # in a pattern of its own each
    aligned = (
        setting("noisy-in-context-recall", "mad-lab").generate(stream("noise"), 300, training=False).inputs_NT >= 16
    )
    assert (aligned[:, 0:126:2] == aligned[:, 1:127:2]).all()
    assert aligned.mean() == pytest.approx(0.2 * 62 / 63.5, abs=0.005)


def test_fuzzy_lengths():
    """Of keys: all three everywhere, but for mad-lab's evaluation."""

    def key_lengths(variant, training):
        task = setting("fuzzy-in-context-recall", variant)
        inputs = task.generate(stream("motifs"), 300, training=training).inputs_NT
        is_key = np.pad(inputs < task.ids("value").start, ((0, 0), (1, 1))).astype(int)
        runs = np.flatnonzero(np.diff(is_key.ravel()) == -1) - np.flatnonzero(np.diff(is_key.ravel()) == 1)
        return set(runs.tolist())

    assert key_lengths("paper", True) == key_lengths("paper", False) == key_lengths("mad-lab", True) == {1, 2, 3}
    assert key_lengths("mad-lab", False) == {3}


def test_copying_places():
    task = setting("selective-copying", "paper", length=32, to_copy=4)
    inputs = task.generate(stream("places"), 4000, training=False).inputs_NT
    assert ((inputs < 16).sum(axis=1) == 4).all()
    used = (inputs != task.ids("blank")[0]).mean(axis=0)
    assert used == pytest.approx(np.full(32, 8 / 32), abs=0.04)  # any place as likely as any other
    lab = setting("selective-copying", "mad-lab", length=32, to_copy=4).generate(stream("places"), 500, training=False)
    assert (lab.inputs_NT[:, 27] == 15).all()
    assert (lab.inputs_NT[:, 28:] == 14).all()
    assert (lab.targets_NT[:, 28:] != IGNORE).all()


def test_memorizations_facts_belong_to_the_seed_and_each_key_has_a_value_of_its_own():
    for variant in ("paper", "mad-lab"):
        one, other = (setting("memorization", variant).seeded(seed) for seed in (1, 2))
        assert len(set(one.values_K.tolist())) == len(one.ids("key"))
        assert set(one.values_K.tolist()) <= set(one.ids("value"))
        assert one.values_K.tolist() != other.values_K.tolist()
        assert one.key() == other.key()


def test_regbenchs_ceiling():
    """What can be known (tests/tasks/test_readers.py), which grows with the length."""
    small = baseline("regbench").with_settings({"vocab": "8", "length": "64", "nodes": "6", "string": "12"})
    data = make_data(small, 0, evaluation=8)
    assert 0.90 < data.ceiling < 0.93
    assert data.ceiling < small.longer(2).ceiling(data.train, data.test) < 0.97


def test_memorizations_ceiling():
    """The share of test facts that training has shown: about 1 − e^(−exposure); the facts' table within noise."""
    ceilings = [make_data(task, 0).ceiling for task in baseline("memorization").grid()]
    assert ceilings == pytest.approx([1, 1, 1, 0.985, 0.868, 0.636], abs=0.02)
    data = make_data(baseline("memorization").with_settings({"vocab": "8192"}), 3)
    taught = set(data.train.inputs_NT[:, 0::2].ravel().tolist())
    asked = data.test.inputs_NT[:, 0::2].ravel().tolist()
    seen = sum(key in taught for key in asked) / len(asked)
    assert data.ceiling == pytest.approx(seen + (1 - seen) / (4096 - len(taught)))
    # A single unseen fact is no guess: its value is the one that is left.
    tiny = setting("memorization", "paper", vocab=6, train_size=1, length=4)
    train = tiny.generate(stream("few"), 50, training=True)
    two = np.flatnonzero(np.ptp(train.inputs_NT[:, 0::2], axis=1) > 0)[:1]
    assert tiny.ceiling(type(train)(train.inputs_NT[two], train.targets_NT[two]), train) == 1.0


def test_first_seen_and_motifs():
    codes = stream("codes").integers(5, size=(50, 20))
    expected = [[row.index(code) for code in row] for row in codes.tolist()]
    assert first_seen(codes).tolist() == expected
    found = motifs(stream("motif"), (200, 60), 4, 3).reshape(-1, 3)
    found, times = np.unique(found, axis=0, return_counts=True)
    assert len(found) == 4 * 3 * 2  # every motif without a repeated token, and no other
    assert times == pytest.approx(np.full(24, 500), rel=0.2)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("in-context-recall", {"vocab": 15}, "vocab=15 given, but it must be even"),
        ("in-context-recall", {"vocab": 2}, "at least 4"),
        ("in-context-recall", {"length": 127}, "length=127 given, but it must be even"),
        ("in-context-recall", {"length": 2}, "at least 4"),
        ("in-context-recall", {"train_size": 0}, "train_size=0"),
        ("in-context-recall", {"vocab": -4}, "whole number, 0 or more"),
        ("in-context-recall", {"lenght": 4}, "Did you mean 'length'"),
        ("in-context-recall", {"length": "long"}, "is a whole number"),
        ("in-context-recall", {"variant": "madlab"}, "Did you mean 'mad-lab'"),
        ("in-context-recall", {"variant": "seed"}, "Did you mean 'paper'"),
        ("noisy-in-context-recall", {"noise": 1.0}, "at least 0 and below 1"),
        ("noisy-in-context-recall", {"noise": "much"}, "is a number"),
        ("noisy-in-context-recall", {"noise": 0.99}, "leave two pairs"),
        ("fuzzy-in-context-recall", {"vocab": 4}, "at least 6 for motifs of 3"),
        ("fuzzy-in-context-recall", {"vocab": 6, "variant": "mad-lab"}, "at least 8"),
        ("fuzzy-in-context-recall", {"length": 11}, "at least 12 for motifs of 3"),
        ("selective-copying", {"to_copy": 129}, "at least 258 to copy 129 tokens"),
        ("selective-copying", {"to_copy": 128, "variant": "mad-lab"}, "at least 257"),
        ("compression", {"length": 1}, "at least 2"),
        ("memorization", {"length": 31}, "even"),
    ],
)  # fmt: skip
def test_impossible_settings_are_refused(name, change, message):
    with pytest.raises(UserError, match=message):
        baseline(name).with_settings({key: str(value) for key, value in change.items()})


@pytest.mark.parametrize("name", SUITES["mad"])
@pytest.mark.parametrize("variant", ["paper", "mad-lab"])
def test_the_smallest_settings_work(name, variant):
    least = {
        "in-context-recall": {"vocab": 4, "length": 4},
        "noisy-in-context-recall": {"vocab": 4, "length": 4, "noise": 0.0, "noise_vocab": 1},
        "fuzzy-in-context-recall": {"vocab": 6 + 2 * (variant == "mad-lab"), "length": 12},
        "selective-copying": {"vocab": 4, "length": 3, "to_copy": 1},
        "compression": {"vocab": 3, "length": 2},
        "memorization": {"vocab": 4, "length": 2},
    }[name]
    task = setting(name, variant, **least)
    assert all(task.valid(*item) for item in drawn(task, "least", 200))
