"""The state of trainings, read from their run folders (written by `plait.training.run`): which are running, and their
progress.

Reads only, and without torch. A folder that is being written or is damaged is read as far as possible.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.reporting.summaries import mapping, number

NAME = re.compile(r"train-[0-9a-f]{4,32}")
QUIET = 120.0  # seconds without a write after which a training counts as stopped, unless its lock is held
TAIL, MOST_LOG = 2**14, 2**25  # bytes
MOST_RUNS = 200
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class RunState:
    name: str
    spec: str
    data: str
    key: str
    steps: int | None
    step: int
    loss: float | None
    validation: float | None
    tokens_per_second: float | None
    seen: float  # Unix time of the last write
    running: bool
    ended: bool
    diverged: bool
    tokens_per_step: float | None

    @property
    def share(self) -> float | None:
        return min(1.0, self.step / self.steps) if self.steps else None

    @property
    def seconds_left(self) -> float | None:
        if not (self.running and self.steps and self.tokens_per_second and self.tokens_per_step):
            return None
        return max(0, self.steps - self.step) * self.tokens_per_step / self.tokens_per_second

    @property
    def words(self) -> str:
        if self.ended:
            return "ended"
        return "diverged" if self.diverged else "running" if self.running else "stopped"


def run_states(root: Path) -> list[RunState]:
    """Running ones first, then the most recently written."""
    states = []
    locked = _locked()
    for folder in _folders(root):
        state = read_run(root, folder, locked)
        if state is not None:
            states.append(state)
    return sorted(states, key=lambda state: (-state.running, -state.seen))


def _folders(root: Path) -> list[str]:
    try:
        with os.scandir(root) as entries:
            there = [
                (entry.stat().st_mtime, entry.name)
                for entry in entries
                if NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
            ]
    except OSError:
        return []
    return [name for _, name in sorted(there, reverse=True)[:MOST_RUNS]]


def read_run(root: Path, name: str, locked: frozenset[int] | None = None) -> RunState | None:
    """None if there is no such run. Names that are not valid run names are never used as a path."""
    folder = root / name
    if not NAME.fullmatch(name) or folder.is_symlink():
        return None
    about = _object(folder / "run.json")
    config = mapping(about.get("config"))
    if not isinstance(config.get("spec"), str):
        return None
    last = _last(folder / "log.jsonl")
    recipe = mapping(config.get("recipe"))
    steps = number(about.get("steps")) or number(mapping(config.get("length")).get("steps"))
    batch, seq_len = number(recipe.get("batch")), number(recipe.get("seq_len"))
    ended, diverged = (folder / "result.json").exists(), (folder / "diverged.json").exists()
    seen = max(_written(folder / "log.jsonl"), _written(folder / "run.json"))
    held = _is_locked(folder / ".lock", _locked() if locked is None else locked)
    return RunState(
        name=name,
        spec=str(config["spec"]),
        data=str(about.get("data") or ""),
        key=str(about.get("key") or ""),
        steps=int(steps) if steps else None,
        step=int(last.get("step") or 0),
        loss=last.get("loss"),
        validation=last.get("validation"),
        tokens_per_second=last.get("tokens_per_second"),
        seen=seen,
        running=not ended and not diverged and (held or time.time() - seen < QUIET),
        ended=ended,
        diverged=diverged,
        tokens_per_step=batch * seq_len if batch and seq_len else None,
    )


def run_curves(root: Path, name: str) -> tuple[Points, Points]:
    """Training and validation losses over steps."""
    training: Points = []
    validation: Points = []
    for row in _rows(_text(root / name / "log.jsonl", MOST_LOG)):
        step = number(row.get("step"))
        for points, value in ((training, number(row.get("loss"))), (validation, number(row.get("validation")))):
            if step is not None and value is not None:
                points.append((step, value))
    return training, validation


def _last(path: Path) -> dict[str, Any]:
    """The latest value of each number in the log."""
    latest: dict[str, Any] = {}
    for row in _rows(_text(path, TAIL)):
        latest |= {name: value for name, value in row.items() if number(value) is not None}
    return latest


def _rows(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:  # a partial line: the first of a tail, or one being written
            continue
        if isinstance(row, dict):
            yield row


def _text(path: Path, most: int) -> str:
    """At most the last `most` bytes of a file as text; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - most))
            return file.read(most).decode("utf-8", "replace")
    except OSError:
        return ""


def _object(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(_text(path, MOST_LOG))
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _locked() -> frozenset[int]:
    """Inodes of all locked files, from /proc/locks if it exists. Testing by taking a lock could make a training that
    starts at that moment fail."""
    try:
        text = Path("/proc/locks").read_text(encoding="ascii", errors="replace")
    except OSError:
        return frozenset()
    return frozenset(int(inode) for inode in re.findall(r"[0-9a-f]+:[0-9a-f]+:(\d+) ", text))


def _is_locked(path: Path, locked: frozenset[int]) -> bool:
    try:
        return path.stat().st_ino in locked
    except OSError:
        return False
