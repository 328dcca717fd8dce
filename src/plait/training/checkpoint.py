"""The state of a training on disk, in safetensors files with checksums; reading them never executes code.

One file for models trained as a stacked ensemble (`save_state`, `load_state`): tensors, and everything else as JSON in
the header. The file is written atomically, so a process killed while saving leaves the earlier state. The previous file
is kept as a fallback in case the newest is damaged.

For a run of `plait train`, one folder per checkpoint (`save_checkpoint`, `newest_checkpoint`), with one file per
process:

    step-00000500/checkpoint.json            step, plain data, files with their checksums
    step-00000500/shard-0-of-2.safetensors   pieces of tensors, and in the header which rows each has

A process writes the pieces it holds, a piece being consecutive rows of a tensor. So a run may resume with another
number of processes: each reads the rows it needs from whichever files have them. A folder gets its final name only when
all of it is on disk, so that incomplete checkpoints after a crash are never loaded.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from plait.core.errors import UserError
from plait.core.files import atomic_write, parse_json, read_object, sealed, unsealed
from plait.model.language_model import load_tensors, save_tensors
from plait.training.distributed import Processes, is_sharded
from plait.training.tensor_parallel import CutParameter

_PLAIN = "state"  # the header field for everything that is not a tensor
#: Messages of a full disk. Exceptions of safetensors can be recognised only by their text.
FULL = ("No space left", "File too large", "quota exceeded")


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write the `state()` of a `Fleet` or a replica of a `Track`; the existing file is kept as the previous one."""
    plain = {name: value for name, value in state.items() if name != "tensors"}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft:
            save_tensors(draft, state["tensors"], {_PLAIN: json.dumps(plain)})
            if path.exists():
                path.replace(_previous(path))
    except OSError as wrong:
        reason = wrong.strerror or str(wrong)
        if any(sign in reason for sign in FULL):
            reason = f"the disk is full ({reason})"
        raise UserError(
            f"cannot save a checkpoint: {reason}. Finished results are stored; run again to resume."
        ) from wrong


def load_state(path: Path) -> dict[str, Any] | None:
    """Load what `save_state` wrote, or the previous file if it is damaged; None if neither can be read."""
    for candidate in (path, _previous(path)):
        try:
            tensors, beside = load_tensors(candidate)
            return {**parse_json(beside[_PLAIN], candidate.name, constants=True), "tensors": tensors}
        except (UserError, KeyError, TypeError):  # noqa: PERF203
            continue
    return None


def _previous(path: Path) -> Path:
    return path.with_name(f"{path.name}.previous")


def remove_state(path: Path) -> None:
    """Delete a state, and its folder if that is then empty."""
    path.unlink(missing_ok=True)
    _previous(path).unlink(missing_ok=True)
    for leftover in path.parent.glob(f".{path.name}.*"):
        leftover.unlink(missing_ok=True)
    if path.parent.is_dir() and not any(path.parent.iterdir()):
        path.parent.rmdir()


_WHERE = "where"
_INDEX = "checkpoint.json"
KEPT = 2
#: Name prefixes of finished and unfinished checkpoints in a run's folder.
FINISHED, UNFINISHED = "step-", ".unfinished-"


@dataclass(frozen=True)
class Piece:
    """The rows from `start` on of a tensor that has `rows` in all; for a scalar both are 0."""

    data: Tensor
    start: int
    rows: int

    @classmethod
    def whole(cls, data: Tensor) -> Piece:
        return cls(data, 0, data.shape[0] if data.dim() else 0)


def save_checkpoint(
    folder: Path, step: int, pieces: dict[str, Piece], plain: Mapping[str, Any], dist: Processes
) -> None:
    """Write one checkpoint, collectively over all processes, and delete all but the newest `KEPT`."""
    final = folder / _name(step)
    unfinished = folder / f"{UNFINISHED}{step:08d}"
    name = f"shard-{dist.rank}-of-{dist.world}.safetensors"
    checksum = 0.0
    with _failing_together(dist, unfinished):
        if dist.first:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
    with _failing_together(dist, unfinished):
        checksum = float(_write(unfinished / name, pieces))
    files = {
        f"shard-{rank}-of-{dist.world}.safetensors": int(value)
        for rank, value in enumerate(dist.gathered(checksum))  # 32 bits, exact in a double
    }
    with _failing_together(dist, unfinished):
        if dist.first:
            _write_text(unfinished / _INDEX, json.dumps(sealed({"step": step, "files": files, "plain": plain})))
            shutil.rmtree(final, ignore_errors=True)
            unfinished.rename(final)
            for old in _finished(folder)[:-KEPT]:
                shutil.rmtree(old, ignore_errors=True)


def _name(step: int) -> str:
    return f"{FINISHED}{step:08d}"


@contextmanager
def _failing_together(dist: Processes, unfinished: Path) -> Iterator[None]:
    """Raise an error of one process in all of them, so that none waits for a process that has failed."""
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
    """A checkpoint's folder opened for reading; `UserError` where it is incomplete or damaged."""

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
        """The shape of the whole tensor."""
        for opened, where in zip(self._files, self._where, strict=True):
            if name in where:
                here = opened.get_slice(name).get_shape()
                return (where[name][1], *here[1:]) if here else ()
        raise UserError(f"{self.folder.name} has no tensor '{name}'.")

    def keys_of(self, prefix: str, name: str) -> list[str]:
        """KEY of every tensor `prefix/KEY/name`."""
        return sorted(
            path.removeprefix(f"{prefix}/").removesuffix(f"/{name}")
            for path in self.names()
            if path.startswith(f"{prefix}/") and path.partition("/")[2].partition("/")[2] == name
        )


def whole_of(parameter: Tensor, value: Tensor) -> Tensor:
    """The full tensor of a parameter that tensor parallelism may have split, or of its optimizer moments. All processes
    that share it must call this together."""
    if isinstance(parameter, CutParameter) and value.shape == parameter.shape:
        return parameter.whole_of(value)
    return value


def piece_of(tensor: Tensor, dist: Processes) -> Piece:
    """The part of a tensor that this process holds."""
    if not is_sharded(tensor):
        return Piece.whole(tensor)
    return Piece(_local(tensor), _rows_here(tensor.shape[0], dist).start, tensor.shape[0])


def read_into(saved: Checkpoint, name: str, into: Tensor, dist: Processes) -> None:
    """Copy this process's part of a tensor from a checkpoint."""
    if isinstance(into, CutParameter):
        into.copy_(into.part_of(saved.rows(name)))
        return
    if is_sharded(into):
        target, rows = _local(into), _rows_here(into.shape[0], dist)
    else:
        target, rows = into, range(into.shape[0] if into.dim() else 0)
    if target.numel():
        target.copy_(saved.rows(name, rows.start, rows.stop))


def _local(sharded: Tensor) -> Tensor:
    """The part of a sharded tensor that this process holds."""
    return sharded.to_local()  # type: ignore[attr-defined, no-any-return]


def _rows_here(rows: int, dist: Processes) -> range:
    """The rows of a tensor that FSDP keeps in this process: equal shares, the last ones shorter."""
    per_process = -(-rows // dist.world)
    start = min(rows, dist.rank * per_process)
    return range(start, min(rows, start + per_process))


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """The last undamaged checkpoint, None where there is none at all; `UserError` where all are damaged."""
    wrong: UserError | None = None
    for candidate in reversed(_finished(folder)):
        try:
            return Checkpoint(candidate)
        except UserError as error:  # noqa: PERF203
            wrong = wrong or error
    if wrong is not None:
        raise UserError(f"{wrong} No undamaged checkpoint is left in {folder}; remove the folder to start again.")
    return None


def _finished(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{FINISHED}*"))


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
        while block := opened.read(1 << 22):
            total = zlib.crc32(block, total)
    return total
