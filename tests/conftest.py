"""Shared by all tests: uninitialised memory is poisoned, so that reading it shows; no test sees another's mixers or
random numbers, the store and terminal of whoever runs it, or how busy the machine is."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Iterator
from functools import cache

import hypothesis
import numpy as np
import pytest
import typer.main
import typer.testing
import unsynced  # noqa: F401 (nothing waits for the disk)
from forked_workers import ForkedContext

from plait.mixers import table
from plait.workers import local_processes

# Before torch is imported anywhere: two test processes share two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Kernels for a GPU run in Triton's interpreter where there is none. Triton must know before it is imported.
if not any(map(os.path.exists, ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg"))):
    os.environ.setdefault("TRITON_INTERPRET", "1")
# Nor may it matter who runs the tests, and in what terminal.
for theirs in ("PLAIT_STORE", "PLAIT_CACHE", "COLUMNS", "FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TTY_COMPATIBLE"):
    os.environ.pop(theirs, None)

# typer builds the whole command line anew for every command, which takes ten times as long as most of them.
typer.main.get_command = typer.testing._get_command = cache(typer.main.get_command)

# A shell's background jobs ignore Ctrl-C, and so would every program that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Modules and tests stay to the end: to look for garbage among them again and again takes a tenth of the time.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


# The same examples on every machine, however slow; `--hypothesis-profile=default` draws new ones.
hypothesis.settings.register_profile(
    "same-everywhere", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("same-everywhere")


def _seed() -> Iterator[None]:
    """Random numbers depend on the test alone, not on those that ran before it in the same process."""
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
    yield


_seed_a_file = pytest.fixture(autouse=True, scope="module")(_seed)  # for fixtures that a file's tests share
_seed_a_test = pytest.fixture(autouse=True)(_seed)


@pytest.fixture(autouse=True)
def _poison_uninitialised_memory() -> Iterator[None]:
    """`torch.empty` and its kin give NaN while a test runs, so that nothing depends on what memory held."""
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


@pytest.fixture(autouse=True)
def _no_progress_in_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a command takes here is no part of what it prints."""
    if "plait.cli.output" in sys.modules:
        monkeypatch.setattr(sys.modules["plait.cli.output"], "FIRST_LINE", float("inf"))


def _forget_mixers_registered_since() -> Iterator[None]:
    before = dict(table.MIXERS._registered)
    yield
    table.MIXERS._registered.clear()
    table.MIXERS._registered.update(before)


# A file of tests may register a mixer once for all its tests, and a single test one for itself.
_forget_a_files_mixers = pytest.fixture(autouse=True, scope="module")(_forget_mixers_registered_since)
_forget_a_tests_mixers = pytest.fixture(autouse=True)(_forget_mixers_registered_since)


_forked = ForkedContext()


@pytest.fixture(autouse=True, scope="module")
def _workers_start_at_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_processes, "get_context", lambda method: _forked)
        yield


@pytest.fixture
def new_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are started as plait starts them: each a new Python."""
    monkeypatch.setattr(local_processes, "get_context", multiprocessing.get_context)
