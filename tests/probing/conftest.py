"""A probe so small that it trains in seconds."""

from __future__ import annotations

import pytest

from plait import tasks
from plait.probing.protocol import Candidate, Protocol, Setting, Training, candidates
from plait.spec import Header

GRID = ((1e-3, 0.0), (5e-3, 0.1))


def tiny(steps: int = 30) -> Protocol:
    found = []
    for name, change in (
        ("memorization", {"vocab": "16", "length": "8", "train_size": "64"}),
        ("compression", {"vocab": "4", "length": "8", "train_size": "128"}),
    ):
        task = tasks.load_task(name).with_settings(change)
        found.append(Setting(name, task, Training(steps, 16, GRID, 32, 10, solved=None)))
    return Protocol("tiny", Header(d=16, vocab=4, init=0.1), 8, 16, 128, tuple(found))


def tiny_candidates(protocol: Protocol) -> list[Candidate]:
    return candidates(["attn", "hyena[state=4]"], protocol, matched=False)


@pytest.fixture
def protocol() -> Protocol:
    return tiny()


@pytest.fixture
def store_url(tmp_path) -> str:
    return f"sqlite:///{tmp_path / 'runs' / 'plait.db'}"
