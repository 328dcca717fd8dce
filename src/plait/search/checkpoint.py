"""A search's state as one .npz file of plain arrays, and its settings as JSON inside; the file appears whole or not."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plait.core.atomic_write import atomic_write
from plait.core.errors import UserError

_SETTINGS = "settings"


def save(path: Path, arrays: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]) -> None:
    everything: dict[str, Any] = {_SETTINGS: np.array(json.dumps(settings, sort_keys=True)), **arrays}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft, draft.open("wb") as file:  # given a name, NumPy would add .npz to it
            np.savez(file, **everything)
    except OSError as wrong:
        raise UserError(f"cannot save the search to {path}: {wrong.strerror}.") from wrong


def load(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
    """Arrays and settings; None where there is no such file, or none that `save` wrote."""
    try:
        with np.load(path, allow_pickle=False) as opened:
            arrays = {name: opened[name] for name in opened.files}
        return arrays, json.loads(str(arrays.pop(_SETTINGS)))
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile):
        return None
