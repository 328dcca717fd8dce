"""Named random streams: the numbers depend only on the name, not on who draws them or in which order."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np


def stream(*name: Any) -> np.random.Generator:
    """The generator of this name, whose parts are plain (JSON) data."""
    words = json.dumps(name, sort_keys=True).encode()
    entropy = int.from_bytes(hashlib.sha256(words).digest(), "big")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))
