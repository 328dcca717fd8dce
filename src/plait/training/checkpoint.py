"""A fleet's state as one file: tensors in the safetensors format, everything else as JSON in its header.

The file appears whole or not at all, so a process killed while saving leaves the state before it. Nothing in it is
executed when it is read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from plait.core.atomic_write import atomic_write
from plait.core.errors import UserError

_PLAIN = "state"  # the header's field that holds what is no tensor


def save(path: Path, state: dict[str, Any]) -> None:
    """Write `Fleet.state()`; whatever stood there before is replaced."""
    plain = {name: value for name, value in state.items() if name != "tensors"}
    tensors = {name: value.detach().cpu().contiguous() for name, value in state["tensors"].items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft:
            save_file(tensors, draft, metadata={_PLAIN: json.dumps(plain)})
    except (OSError, SafetensorError) as wrong:
        reason = getattr(wrong, "strerror", None) or str(wrong)
        raise UserError(
            f"cannot save a checkpoint: {reason}. Finished results are stored; run again to go on."
        ) from wrong


def load(path: Path) -> dict[str, Any] | None:
    """What `save` wrote; None where there is no checkpoint, or none that can be read."""
    try:
        with safe_open(path, framework="pt") as opened:
            plain = json.loads(opened.metadata()[_PLAIN])
            return {**plain, "tensors": {name: opened.get_tensor(name) for name in opened.keys()}}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None


def remove(path: Path) -> None:
    """Forget a checkpoint, and its folder once that is empty."""
    path.unlink(missing_ok=True)
    for leftover in path.parent.glob(f".{path.name}.*"):
        leftover.unlink(missing_ok=True)
    if path.parent.is_dir() and not any(path.parent.iterdir()):
        path.parent.rmdir()
