"""A training's state on disk: a folder a checkpoint, a safetensors file a process, nothing executed when it is read.

Every process writes the pieces it holds; a piece is a tensor's rows from some row on. So a run may go on with another
number of processes: each reads the rows it needs from whichever files have them. A folder gets its final name only when
all of it is on the disk, and each file's checksum is kept beside it, with one over that list: what a crash or a bad
disk left behind is noticed, not loaded.

    step-00000500/checkpoint.json            step, plain data, files with their checksums
    step-00000500/shard-0-of-2.safetensors   pieces, and in the header where each belongs
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from plait.core.errors import UserError
from plait.core.json_files import parse_json, read_object, sealed, unsealed
from plait.training.distributed import Processes

_WHERE = "where"
_INDEX = "checkpoint.json"
_UNFINISHED = ".unfinished-"
KEPT = 2


@dataclass(frozen=True)
class Piece:
    """Rows of a tensor that has `rows` in all, from `start` on; for a tensor without rows both are 0."""

    data: Tensor
    start: int
    rows: int

    @classmethod
    def whole(cls, data: Tensor) -> Piece:
        return cls(data, 0, data.shape[0] if data.dim() else 0)


def save(folder: Path, step: int, pieces: dict[str, Piece], plain: dict[str, Any], dist: Processes) -> None:
    """Write one checkpoint, all processes together, and drop the oldest beyond `KEPT`."""
    final = folder / _name(step)
    unfinished = folder / f"{_UNFINISHED}{step:08d}"
    name = f"shard-{dist.rank}-of-{dist.world}.safetensors"
    checksum = 0.0
    with _agreed(dist, unfinished):
        if dist.first:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
    with _agreed(dist, unfinished):
        checksum = float(_write(unfinished / name, pieces))
    checksums = torch.zeros(dist.world, dtype=torch.float64, device=dist.device)
    checksums[dist.rank] = checksum  # 32 bits, exact in a double
    files = {
        f"shard-{rank}-of-{dist.world}.safetensors": int(value)
        for rank, value in enumerate(dist.sum(checksums).tolist())
    }
    with _agreed(dist, unfinished):
        if dist.first:
            _write_text(unfinished / _INDEX, json.dumps(sealed({"step": step, "files": files, "plain": plain})))
            shutil.rmtree(final, ignore_errors=True)
            unfinished.rename(final)
            for old in _finished(folder)[:-KEPT]:
                shutil.rmtree(old, ignore_errors=True)


def _name(step: int) -> str:
    return f"step-{step:08d}"


@contextmanager
def _agreed(dist: Processes, unfinished: Path) -> Iterator[None]:
    """What goes wrong in one process goes wrong in all: none waits for another that has given up."""
    failure = ""
    try:
        yield
    except (OSError, SafetensorError) as wrong:
        failure = getattr(wrong, "strerror", None) or str(wrong)
    if dist.any(bool(failure)):
        if dist.first:
            shutil.rmtree(unfinished, ignore_errors=True)
        raise UserError(f"cannot save a checkpoint: {failure or 'another process could not write its part'}.")


class Checkpoint:
    """One that is complete and undamaged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            index = unsealed(read_object(folder / _INDEX, constants=True), f"{folder.name}/{_INDEX}")
            self.step, self.plain = int(index["step"]), dict(index["plain"])
            if folder.name != _name(self.step):
                raise UserError(f"{folder.name}/{_INDEX} is damaged: it says step {self.step}.")
            for name, checksum in index["files"].items():
                if _checksum(folder / name) != checksum:
                    raise UserError(f"{folder.name}/{name} is damaged: its checksum is not the one written down.")
            self._files = [safe_open(folder / name, framework="pt") for name in index["files"]]
            self._where = [parse_json(opened.metadata()[_WHERE], folder.name) for opened in self._files]
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, AttributeError) as wrong:
            if isinstance(wrong, UserError):
                raise
            raise UserError(f"{folder.name} cannot be read: {wrong}") from wrong

    def names(self) -> set[str]:
        return {name for where in self._where for name in where}

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Rows of a tensor, gathered from the files that have them."""
        pieces = []
        for opened, where in zip(self._files, self._where, strict=True):
            if name not in where:
                continue
            first, rows = where[name]
            if rows == 0:
                return opened.get_tensor(name)  # type: ignore[no-any-return]
            part = opened.get_slice(name)
            here = range(first, first + part.get_shape()[0])
            low, high = max(here.start, start), min(here.stop, rows if stop is None else stop)
            if low < high:
                pieces.append((low, part[low - first : high - first]))
        if not pieces:
            raise UserError(f"{self.folder.name} has no tensor '{name}'.")
        return torch.cat([piece for _, piece in sorted(pieces, key=lambda pair: pair[0])])

    def shape(self, name: str) -> tuple[int, ...]:
        """Of the whole tensor."""
        for opened, where in zip(self._files, self._where, strict=True):
            if name in where:
                here = opened.get_slice(name).get_shape()
                return (where[name][1], *here[1:]) if here else ()
        raise UserError(f"{self.folder.name} has no tensor '{name}'.")

    def keys_of(self, prefix: str, name: str) -> list[str]:
        """KEY of every tensor `prefix/KEY/name`."""
        return sorted(
            found.removeprefix(f"{prefix}/").removesuffix(f"/{name}")
            for found in self.names()
            if found.startswith(f"{prefix}/") and found.partition("/")[2].partition("/")[2] == name
        )


def is_sharded(tensor: Tensor) -> bool:
    """Whether FSDP keeps a part of it in each process."""
    return hasattr(tensor, "to_local")


def piece_of(tensor: Tensor, dist: Processes) -> Piece:
    """What this process holds of a tensor."""
    local = getattr(tensor, "to_local", None)
    if local is None:
        return Piece.whole(tensor)
    return Piece(local(), _rows_here(tensor.shape[0], dist).start, tensor.shape[0])


def read_into(saved: Checkpoint, name: str, into: Tensor, dist: Processes) -> None:
    """Copy what this process holds of a tensor from a checkpoint."""
    local = getattr(into, "to_local", None)
    target = into if local is None else local()
    rows = _rows_here(into.shape[0], dist) if local is not None else range(into.shape[0] if into.dim() else 0)
    if target.numel():
        target.copy_(saved.rows(name, rows.start, rows.stop))


def _rows_here(rows: int, dist: Processes) -> range:
    """The rows of a tensor that FSDP keeps in this process: equal shares, the last ones shorter."""
    each = -(-rows // dist.world)
    start = min(rows, dist.rank * each)
    return range(start, min(rows, start + each))


def newest(folder: Path) -> Checkpoint | None:
    """The last undamaged checkpoint. None where there was never one; damaged ones only are an error."""
    wrong: UserError | None = None
    for candidate in reversed(_finished(folder)):
        try:
            return Checkpoint(candidate)
        except UserError as error:  # noqa: PERF203
            wrong = wrong or error
    if wrong is not None:
        raise UserError(f"{wrong} No undamaged checkpoint is left in {folder}; remove the folder to start again.")
    return None


def remove_all(folder: Path) -> None:
    for old in [*_finished(folder), *folder.glob(f"{_UNFINISHED}*")]:
        shutil.rmtree(old, ignore_errors=True)


def _finished(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"))


def _write(path: Path, pieces: dict[str, Piece]) -> int:
    where = {name: [piece.start, piece.rows] for name, piece in pieces.items()}
    tensors = {name: piece.data.detach().cpu().contiguous() for name, piece in pieces.items()}
    save_file(tensors, path, metadata={_WHERE: json.dumps(where)})
    with open(path, "rb") as written:
        os.fsync(written.fileno())
    return _checksum(path)


def _write_text(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())


def _checksum(path: Path) -> int:
    total = 0
    with open(path, "rb") as opened:
        for block in _blocks(opened):
            total = zlib.crc32(block, total)
    return total


def _blocks(opened: Any, size: int = 1 << 22) -> Iterable[bytes]:
    while block := opened.read(size):
        yield block
