"""Tensors in a safetensors file that carries a checksum over all of it: names, shapes, numbers, what is written beside.
A file of before has none and is taken as it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from plait.core.errors import UserError
from plait.core.json_files import CHECKSUM


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
