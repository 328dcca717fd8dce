"""The programs that say how much of RegBench can be known (`benchmarks/regbench_reader.py`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from plait.tasks import IGNORE, baseline
from plait.tasks.task import stream

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def readers(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import regbench_reader

    return regbench_reader


def test_who_goes_by_pieces_names_what_followed_the_longest(readers):
    task = baseline("regbench").with_settings({"vocab": "4", "length": "8", "nodes": "4"})
    # 0 1 2 | 0 1 . : after "| 0 1" nothing is known, after "0 1" came 2; after the bar came 0
    assert readers.after_the_same_piece(task, [0, 1, 2, 4, 0, 1, 4, 0])[3:] == [0, 1, 2, 0, 1]


def test_particles_agree_with_all_that_was_read(readers):
    """Where weight is left, every edge that a string took is there, leads elsewhere, and no state has too many."""
    task = baseline("regbench").with_settings({"vocab": "4", "length": "40", "nodes": "4", "string": "8"})
    text = task.generate(stream("particles"), 1, training=False).inputs_NT[0].tolist()
    held = readers.Particles(task, 2000, np.random.default_rng(0))
    for token in text:
        held.begin() if token == task.vocab else held.take(token)
    assert (held.known_PS <= held.edges_PS).all()
    alive = np.flatnonzero(held.weights() > 1e-9)
    assert len(alive) > 100
    for particle in alive[:50]:
        state = 0
        for token in text:
            state = 0 if token == task.vocab else int(held.to_PSV[particle, state, token])
            assert state >= 0
        leaves = held.to_PSV[particle]
        assert all(state not in leaves[state] for state in range(task.nodes))
        assert all(len(set(row[row >= 0].tolist())) == (row >= 0).sum() for row in leaves)


def test_who_knows_the_law_reads_better_than_who_goes_by_pieces(readers):
    task = baseline("regbench").with_settings({"vocab": "5", "length": "48", "nodes": "4", "string": "8"})
    drawn = task.generate(stream("two readers"), 40, training=False)
    scored, draw = drawn.targets_NT != IGNORE, np.random.default_rng(0)

    def accuracy(answers):
        return float((np.array(answers)[..., None] == drawn.allowed_NTK).any(axis=-1)[scored].mean())

    texts = drawn.inputs_NT.tolist()
    pieces = accuracy([readers.after_the_same_piece(task, text) for text in texts])
    law = accuracy([readers.of_the_likely_automata(task, text, 1000, draw) for text in texts])
    assert 0.8 < pieces < law - 0.02 < task.ceiling(drawn, drawn)
