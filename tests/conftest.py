"""Shared by all tests: uninitialised memory is poisoned, so that reading it shows."""

from __future__ import annotations

import os

import pytest

# Before torch is imported anywhere: two test processes share two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _poison_uninitialised_memory(request: pytest.FixtureRequest):
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
