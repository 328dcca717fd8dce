"""Candidates that were met are known again."""

from __future__ import annotations

import numpy as np

from plait.algorithms.search import Seen, keys_of
from plait.space.table import load_space


def test_new_rows_come_once_and_in_order() -> None:
    rows = np.array([[3, 1], [1, 2], [3, 1], [0, 0], [1, 2]], dtype=np.int16)
    seen = Seen()
    assert seen.new(rows).tolist() == [0, 1, 3]
    seen.add(rows[[0]])
    assert seen.new(rows).tolist() == [1, 3]
    seen.add(rows[[1, 3]])
    assert seen.new(rows).tolist() == []
    assert len(seen) == 3
    assert (np.diff(seen.keys.astype(object)) > 0).all()


def test_different_candidates_have_different_keys() -> None:
    s = load_space("lts-gpt2")
    genes = np.unique(s.sample(np.random.default_rng(0), 50_000), axis=0)
    near = genes.copy()
    near[:, -1] += 1
    both = np.concatenate([genes, near])
    both = np.unique(both, axis=0)
    assert len(np.unique(keys_of(both))) == len(both)


def test_the_place_of_a_gene_matters() -> None:
    a, b = keys_of(np.array([[1, 2], [2, 1]], dtype=np.int16))
    assert a != b
