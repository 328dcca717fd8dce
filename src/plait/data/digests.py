"""Hashes of files' contents. Large files are hashed once: what is known is kept beside the cache, by size and time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plait.core.atomic_write import atomic_write
from plait.core.errors import UserError
from plait.data.corpus import Progress

BLOCK = 1 << 22
REMEMBERED = 1 << 24  # files of fewer bytes in all are hashed again each time


def file_digests(files: Mapping[str, Path], memory: Path, progress: Progress | None = None) -> dict[str, str]:
    """SHA-256 of each file, under its name; `memory` is a folder for what has been hashed before."""
    try:
        marks = {name: _mark(path) for name, path in files.items()}
        total = sum(size for _, size, _ in marks.values())
        kept = memory / f"{_hash_of(sorted(mark[0] for mark in marks.values()))}.json"
        known = _read(kept) if total >= REMEMBERED else {}
        found, done = {}, 0
        for name, path in files.items():
            before = known.get(name)
            found[name] = str(before[-1]) if before and before[:-1] == list(marks[name]) else _digest(path)
            done += marks[name][1]
            if progress is not None:
                progress("hashing", done, total)
    except OSError as wrong:
        raise UserError(f"cannot read {wrong.filename}: {wrong.strerror or wrong}.") from wrong
    now = {name: [*marks[name], found[name]] for name in files}
    if total >= REMEMBERED and now != known:
        _write(kept, now)
    return found


def _mark(path: Path) -> tuple[str, int, int]:
    """What changes when a file does: where it is, its size, when it was written."""
    stat = path.stat()
    return str(path.resolve()), stat.st_size, stat.st_mtime_ns


def _hash_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _read(path: Path) -> dict[str, list[Any]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, list) for value in found.values()):
        return {}  # it is only a memory: what it lost is hashed again
    return found


def _write(path: Path, known: dict[str, list[Any]]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft:
            draft.write_text(json.dumps(known), encoding="utf-8")
    except OSError:
        return  # a memory that cannot be kept costs time, nothing else
