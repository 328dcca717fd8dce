"""A small space, an objective that says what it was asked, a store, and the steps of all training."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from plait.algorithms.objectives import Batch
from plait.records import Store
from plait.space.declaration import Declaration
from plait.space.space import Space

sys.path.insert(0, str(Path(__file__).parent))  # the made-up machine stands beside the tests that use it


class Stopwatch:
    """A predictor: latency grows with FLOPs, and it remembers every candidate it was asked about."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []

    def predict(self, quantity: str, batch: Batch) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        self.asked += [row.tobytes() for row in batch.genes_NG]
        mean_N = 1e-12 * batch.columns["flops"] + 1e-4 * batch.genes_NG[:, 0]
        return mean_N, 0.1 * mean_N

    def as_dict(self) -> dict[str, Any]:
        return {"stopwatch": 1}


@pytest.fixture
def stopwatch() -> Stopwatch:
    return Stopwatch()


@pytest.fixture(scope="session")
def small() -> Space:
    """3 depths × 4 widths × …: a few thousand candidates."""
    return Space(
        Declaration(
            name="small",
            layers="1..3",
            d="32..128 step 32",
            slots=[["attn[heads=2|4]", "gla[heads=2]"], ["mlp[inner=64|128]", "none"]],
            header="vocab=64 tie=true",
            constraints=["count(attn) >= 1"],
            seq=32,
        )
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"sqlite:///{tmp_path}/plait.db")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps that trainers take."""
    from plait.training.trainer import Trainer

    taken: list[int] = []
    launch = Trainer.launch

    def counted(self: Trainer) -> Any:
        found = launch(self)
        taken.append(found.step)
        return found

    monkeypatch.setattr(Trainer, "launch", counted)
    return taken
