"""What is said of a mix is said of the mixers that are known now."""

from __future__ import annotations

import numpy as np

from plait.mixers.table import load, register
from plait.space.compositions import features


def test_a_mixer_registered_anew_is_looked_at_anew() -> None:
    found = []
    for like in ("attn", "gla", "mlp"):

        class Mine(load(like)):  # type: ignore[misc]
            name = "mine"

        register(Mine)
        _, channel, grows, *_ = features(["mine"], np.zeros((1, 2), np.int64), np.zeros(1))[0]
        found.append((channel, grows))
    assert found == [(0, 1), (0, 0), (1, 0)]
