"""Imported by the process that tests fork workers from: what every training worker would otherwise do anew."""

from __future__ import annotations

import torch._dynamo  # noqa: F401 (at the first step of any of torch's optimizers)
import unsynced  # noqa: F401

from plait.data import open_corpus

open_corpus("builtin:language")
