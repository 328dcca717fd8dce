"""The trained models of LiteTransformerSearch, if available."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

BESIDE_THE_CHECKOUT = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture
def seed_data() -> Callable[[str], Path]:
    """`seed_data("lts_trained_random.json")`: its path; the test is skipped, saying why, where it is absent."""

    def find(name: str) -> Path:
        path = Path(os.environ.get("PLAIT_SEED_DATA") or BESIDE_THE_CHECKOUT) / name
        if not path.exists():
            pytest.skip(f"{name} is in neither $PLAIT_SEED_DATA nor ../shared/data")
        return path

    return find
