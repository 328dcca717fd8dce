"""Checking a store, and repairing a damaged one: every record is read, and the undamaged ones are saved.

`verify` reads all records, and lets SQLite check its own pages. `repair` writes the intact records to a new file and
keeps the damaged one under another name; on a server it removes damaged rows and keeps them in a file. Removed records
are computed again when they are next needed. No other process should use the store meanwhile.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sqlalchemy import delete, select

from plait.core.errors import UserError
from plait.core.result import Result
from plait.records import database as schema
from plait.records.database import records
from plait.records.record import damage
from plait.records.store import Store

MAGIC = b"SQLite format 3\x00"  # the first bytes of a file
FIELDS = ("key", "kind", "config", "result", "about")
AT_ONCE = 500
MOST_UNREADABLE = 2000  # consecutive rows, after which the rest is abandoned


@dataclass(frozen=True)
class Damaged:
    key: str
    kind: str
    wrong: str


@dataclass(frozen=True)
class Verified(Result):
    ROWS = "damaged"
    store: str
    records: int  # intact
    damaged: tuple[Damaged, ...]
    unreadable: int  # rows whose key cannot be read
    file: tuple[str, ...] = ()  # SQLite's messages about the file itself

    @property
    def whole(self) -> bool:
        return not (self.damaged or self.unreadable or self.file)


@dataclass(frozen=True)
class Repaired(Result):
    store: str
    records: int  # kept
    damaged: tuple[Damaged, ...]  # removed
    unreadable: int
    backup: str  # where the original store, or what was removed from it, is kept; empty if nothing was wrong


@dataclass
class _Tally:
    whole: int = 0
    damaged: list[Damaged] = field(default_factory=list)
    unreadable: int = 0


def verify(store: Store) -> Verified:
    """Check every record, and the database file."""
    tally = _Tally()
    if store.file is None:
        for _ in _server_rows(store, tally):
            pass
        return Verified(store.name, tally.whole, tuple(tally.damaged), 0)
    if schema.is_missing(store.file):
        return Verified(store.name, 0, (), 0)
    with _copy_of(store.file) as connection:
        begins = "" if _begins_well(store.file) else "the file does not begin as a SQLite file does"
        problems = tuple(problem for problem in (begins, *_problems(connection)) if problem)
        for _ in _file_rows(connection, tally):
            pass
    return Verified(store.name, tally.whole, tuple(tally.damaged), tally.unreadable, problems)


def repair(store: Store) -> Repaired:
    """Save the undamaged records to a new store, and keep the damaged one under another name. An undamaged store is not
    changed."""
    seen = verify(store)
    if seen.whole:
        return Repaired(store.name, seen.records, (), 0, "")
    backup = _take_out(store, seen) if store.file is None else _rewrite(store.file, store.name, seen)
    return Repaired(store.name, seen.records, seen.damaged, seen.unreadable, str(backup))


# ---- a file


def _rewrite(path: Path, name: str, seen: Verified) -> Path:
    draft, backup = path.with_name(f".{path.name}.repaired"), _free_name(path)
    if not seen.records:
        raise UserError(f"nothing in {name} can be read; it was left unchanged: put a backup in its place.")
    draft.unlink(missing_ok=True)
    try:
        with Store(f"sqlite:///{draft}") as fresh, _copy_of(path) as connection:
            for rows in _file_rows(connection, _Tally()):
                fresh.restore(rows)
        # The write-ahead log belongs to its file, so both are moved.
        for ending in ("-wal", "-shm"):
            beside = path.with_name(path.name + ending)
            if beside.exists():
                beside.rename(backup.with_name(backup.name + ending))
        path.rename(backup)
        draft.rename(path)
    except OSError as wrong:
        raise UserError(f"cannot repair {name}: {wrong.strerror or wrong}. {backup.name} is what it was.") from wrong
    return backup


def _free_name(path: Path) -> Path:
    names = (path.with_name(f"{path.name}.damaged-{n}") for n in range(1, 10**6))
    return next(name for name in names if not name.exists())


class _copy_of:
    """A connection to a copy of the file with a valid header, because reading must not change the original."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> sqlite3.Connection:
        try:
            self.folder = tempfile.TemporaryDirectory(prefix=f".{self.path.name}.", dir=self.path.parent)
            copy = Path(self.folder.name) / "copy.db"
            shutil.copyfile(self.path, copy)
            log = self.path.with_name(f"{self.path.name}-wal")
            if log.exists():
                shutil.copyfile(log, copy.with_name("copy.db-wal"))
            with copy.open("r+b") as opened:
                opened.write(MAGIC)
        except OSError as wrong:
            raise UserError(f"{self.path} cannot be read: {wrong.strerror or wrong}.") from wrong
        self.connection = sqlite3.connect(copy)
        self.connection.text_factory = lambda text: text.decode("utf-8", "replace")
        return self.connection

    def __exit__(self, *_: object) -> None:
        self.connection.close()
        self.folder.cleanup()


def _begins_well(path: Path) -> bool:
    with path.open("rb") as opened:
        return opened.read(len(MAGIC)) == MAGIC


def _problems(connection: sqlite3.Connection) -> list[str]:
    try:
        lines = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(20)")]
    except sqlite3.Error as wrong:
        return [str(wrong)]
    return [line for text in lines for line in text.splitlines() if text != "ok"]


def _file_rows(connection: sqlite3.Connection, tally: _Tally) -> Iterator[list[dict[str, object]]]:
    """The intact rows, in batches, read from the table without an index, which may be damaged. Problems are added to
    `tally`."""
    asked = f"SELECT id, {', '.join(FIELDS)} FROM {records.name} NOT INDEXED WHERE id > ? ORDER BY id LIMIT ?"
    last, size, failed = -1, AT_ONCE, 0
    end = _last_id(connection)
    while failed < MOST_UNREADABLE:
        try:
            rows = connection.execute(asked, (last, size)).fetchall()
            in_order = [row[0] for row in rows] == sorted({row[0] for row in rows if row[0] > last})
        except (sqlite3.Error, TypeError):
            in_order = False
        if in_order:
            if not rows:
                return
            yield _whole([SimpleNamespace(**dict(zip(("id", *FIELDS), row, strict=True))) for row in rows], tally)
            last, failed = rows[-1][0], 0
        elif size > 1:
            size = 1  # one by one, up to the row that cannot be read
        else:
            tally.unreadable += last >= 0
            last, failed = last + 1, failed + 1
            if last >= end:
                return


def _last_id(connection: sqlite3.Connection) -> int:
    for asked in ("SELECT seq FROM sqlite_sequence", f"SELECT max(id) FROM {records.name}"):
        try:
            row = connection.execute(asked).fetchone()
        except sqlite3.Error:
            continue
        if row and isinstance(row[0], int):
            return min(row[0], 10**7)
    return 0


# ---- a server


def _server_rows(store: Store, tally: _Tally) -> Iterator[list[dict[str, object]]]:
    asked, last = select(records).order_by(records.c.id).limit(AT_ONCE), -1
    while rows := store.raw_rows(asked.where(records.c.id > last)):
        yield _whole(rows, tally)
        last = rows[-1].id


def _take_out(store: Store, seen: Verified) -> Path:
    backup = _free_name(Path("plait-records"))
    keys = [record.key for record in seen.damaged]
    rows = store.raw_rows(select(records).where(records.c.key.in_(keys)))
    try:
        with backup.open("w", encoding="utf-8") as opened:
            for row in rows:
                opened.write(json.dumps({name: getattr(row, name) for name in FIELDS}) + "\n")
    except OSError as wrong:
        raise UserError(f"cannot keep what is damaged in {backup}: {wrong.strerror}. Nothing was changed.") from wrong
    store.remove_rows(delete(records).where(records.c.key.in_(keys)))
    return backup


def _whole(rows: Any, tally: _Tally) -> list[dict[str, object]]:
    kept = []
    for row in rows:
        if wrong := damage(row):
            tally.damaged.append(Damaged(str(row.key), str(row.kind), wrong))
        else:
            tally.whole += 1
            kept.append({"id": row.id, **{name: getattr(row, name) for name in FIELDS}})
    return kept
