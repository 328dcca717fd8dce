"""Generation: tokens from a model as they come, as text if wanted, with a cache that may forget what cannot matter."""

from __future__ import annotations

from plait.generate.forget import Dropped, drop_forgotten
from plait.generate.generation import Generation, Token
from plait.generate.sampling import GREEDY, Sampling
from plait.generate.text import TextStream

__all__ = ["GREEDY", "Dropped", "Generation", "Sampling", "TextStream", "Token", "drop_forgotten"]
