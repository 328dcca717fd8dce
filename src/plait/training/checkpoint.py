"""A state as one file: tensors in the safetensors format, everything else as JSON in its header, and a checksum over
all of it: names, shapes, numbers, what is written beside. A file of before has none and is taken as it is.

The file appears whole or not at all, so a process killed while saving leaves the state before it. The one before is
kept: where the newest is damaged, work resumes from there. Nothing in it is executed when it is read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from plait.core.atomic_write import atomic_write
from plait.core.errors import UserError
from plait.core.json_files import CHECKSUM, parse_json

_PLAIN = "state"  # the header's field that holds what is no tensor
#: How systems say that there is no room; safetensors hands on their words alone.
FULL = ("No space left", "File too large", "quota exceeded")


def save_tensors(path: Path, tensors: Mapping[str, Tensor], beside: Mapping[str, str]) -> None:
    """Raises what writing raises: OSError, SafetensorError."""
    whole = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    save_file(whole, path, metadata={**beside, CHECKSUM: _digest(whole, beside)})


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors, and what is written beside them; a UserError where the file is damaged or cannot be read."""
    try:
        with safe_open(path, framework="pt") as opened:
            beside = dict(opened.metadata() or {})
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, RuntimeError, ValueError, TypeError, MemoryError) as wrong:
        raise UserError(f"{path} cannot be read: {getattr(wrong, 'strerror', None) or wrong}.") from wrong
    written = beside.pop(CHECKSUM, None)
    if written is not None and written != _digest(tensors, beside):
        raise UserError(f"{path} is damaged: its checksum is not the one written down.")
    return tensors, beside


def _digest(tensors: Mapping[str, Tensor], beside: Mapping[str, str]) -> str:
    total = hashlib.sha256(json.dumps(dict(beside), sort_keys=True).encode())
    for name, value in sorted(tensors.items()):
        total.update(f"\n{name} {value.dtype} {tuple(value.shape)}\n".encode())
        total.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


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
        if any(sign in reason for sign in FULL):
            reason = f"the disk is full ({reason})"
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
