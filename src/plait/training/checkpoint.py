"""A fleet's state as one file: tensors in the safetensors format, everything else as JSON in its header.

The file appears whole or not at all, so a process killed while saving leaves the state before it. Its checksum covers
all of it, and the one before is kept: where the newest is damaged, work resumes from there. Nothing in it is executed
when it is read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from plait.core.atomic_write import atomic_write
from plait.core.errors import UserError
from plait.core.json_files import parse_json
from plait.training.tensor_files import load_tensors, save_tensors

_PLAIN = "state"  # the header's field that holds what is no tensor


def save(path: Path, state: dict[str, Any]) -> None:
    """Write `Fleet.state()`; what was there before becomes the previous one."""
    plain = {name: value for name, value in state.items() if name != "tensors"}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft:
            save_tensors(draft, state["tensors"], {_PLAIN: json.dumps(plain)})
            if path.exists():
                path.replace(_previous(path))
    except (OSError, SafetensorError) as wrong:
        reason = getattr(wrong, "strerror", None) or str(wrong)
        raise UserError(
            f"cannot save a checkpoint: {reason}. Finished results are stored; run again to go on."
        ) from wrong


def load(path: Path) -> dict[str, Any] | None:
    """What `save` wrote, or the one before where that is damaged; None where there is none that can be read."""
    for candidate in (path, _previous(path)):
        try:
            tensors, beside = load_tensors(candidate)
            return {**parse_json(beside[_PLAIN], candidate.name, constants=True), "tensors": tensors}
        except (UserError, KeyError, TypeError):  # noqa: PERF203
            continue
    return None


def _previous(path: Path) -> Path:
    return path.with_name(f"{path.name}.previous")


def remove(path: Path) -> None:
    """Forget a checkpoint, and its folder once that is empty."""
    path.unlink(missing_ok=True)
    _previous(path).unlink(missing_ok=True)
    for leftover in path.parent.glob(f".{path.name}.*"):
        leftover.unlink(missing_ok=True)
    if path.parent.is_dir() and not any(path.parent.iterdir()):
        path.parent.rmdir()
