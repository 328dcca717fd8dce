"""Shared by all tests: uninitialised memory is poisoned, so that reading it shows; no test sees another's mixers."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from plait.arch import table

# Before torch is imported anywhere: two test processes share two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _poison_uninitialised_memory() -> Iterator[None]:
    """`torch.empty` and its kin give NaN while a test runs, so that nothing depends on what memory held."""
    import sys

    if "torch" not in sys.modules:
        yield
        return
    import torch

    was = torch.utils.deterministic.fill_uninitialized_memory
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = was


def _forget_mixers_registered_since() -> Iterator[None]:
    before = dict(table._registered)
    yield
    table._registered.clear()
    table._registered.update(before)


# A file of tests may register a mixer once for all its tests, and a single test one for itself.
_forget_a_files_mixers = pytest.fixture(autouse=True, scope="module")(_forget_mixers_registered_since)
_forget_a_tests_mixers = pytest.fixture(autouse=True)(_forget_mixers_registered_since)
