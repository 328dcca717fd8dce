"""The likeliest paths first, all of them, none twice."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from plait.supernet.loss import likeliest


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 10**6))
def test_as_sorting_all_of_them_would_have_it(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    probabilities = [rng.dirichlet(np.ones(size)) for size in sizes]
    found = list(likeliest(probabilities))
    assert len(found) == len({path for path, _ in found}) == math.prod(sizes)
    for path, log in found:
        assert math.isclose(log, sum(math.log(p[k]) for p, k in zip(probabilities, path, strict=True)), abs_tol=1e-9)
    logs = [log for _, log in found]
    assert all(a >= b - 1e-9 for a, b in itertools.pairwise(logs))


def test_the_first_hundred_of_very_many() -> None:
    probabilities = [np.array([0.6, 0.3, 0.1])] * 32
    first = list(itertools.islice(likeliest(probabilities), 100))
    assert first[0][0] == (0,) * 32
    assert all(sum(k == 1 for k in path) == 1 for path, _ in first[1:33])


def test_what_cannot_be_is_left_out() -> None:
    assert [path for path, _ in likeliest([np.array([0.0, 1.0]), np.array([0.5, 0.5])])] == [(1, 0), (1, 1)]
