"""An in-memory index with one line per record, so that a list of 100,000 can be filtered, sorted and paged quickly on
SQLite and PostgreSQL alike. A line is about a fortieth of the record.

A background thread reads the newest records first, so the first page is right long before the last record is read.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select

from plait.core.errors import UserError
from plait.records.database import records
from plait.records.record import INTERNAL, Record
from plait.records.store import Store
from plait.reporting.summaries import number, summary

AT_ONCE = 500
NEWEST = 5000  # lines searched for recently finished records
FRESH = 1.0  # seconds before the store is read again
COLUMNS = ("id", "key", "kind", "name", "spec", "source", "value", "unit", "words", "started", "seconds", "text")
FOR_USERS = f"kind NOT IN ({', '.join(map(repr, INTERNAL))})"
#: Sort keys of lists.
SORTS = {"newest": "id", "kind": "kind", "name": "name", "source": "source", "value": "value", "started": "started",
         "seconds": "seconds"}  # fmt: skip


@dataclass(frozen=True)
class Line:
    key: str
    kind: str
    name: str
    spec: str
    source: str
    value: float | None
    unit: str
    words: str
    started: str
    seconds: float | None


@dataclass(frozen=True)
class Matches:
    """One page of the `total` matching lines; `read` of the `there` records of the store have been read so far."""

    lines: Sequence[Line]
    total: int
    kinds: dict[str, int]
    read: int
    there: int


class RecordIndex:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._lines = sqlite3.connect(":memory:", check_same_thread=False)
        kinds = {"id": "INTEGER PRIMARY KEY", "value": "REAL", "seconds": "REAL"}
        columns = ", ".join(f"{name} {kinds.get(name, 'TEXT')}" for name in COLUMNS)
        self._lines.execute(f"CREATE TABLE lines ({columns})")
        for name in ("kind", "started", "seconds"):
            self._lines.execute(f"CREATE INDEX by_{name} ON lines ({name})")
        self._low: int | None = None  # lowest id read so far; None: nothing yet
        self._high = 0
        self._whole = False
        self._when = 0.0
        self._pages_being_made = 0

    # ---- reading

    def follow(self) -> None:
        """Read all records, newest first, in a background thread. It waits while a page is rendered, which would
        otherwise take twice as long."""
        while not self._whole:
            while self._pages_being_made:
                time.sleep(0.005)
            with suppress(UserError):  # a store that is temporarily unavailable
                self._back()
                continue
            time.sleep(FRESH)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Pause the background reading inside the block."""
        with self._lock:
            self._pages_being_made += 1
        try:
            yield
        finally:
            with self._lock:
                self._pages_being_made -= 1

    def refresh(self) -> None:
        """Add records that are new since the last call and drop those that were deleted."""
        if time.monotonic() - self._when < FRESH or not self._reading.acquire(blocking=False):
            return
        try:
            self._ahead()
            if self._whole and self.there() != self.read():
                self._reconcile()
            self._when = time.monotonic()
        finally:
            self._reading.release()

    def _back(self) -> None:
        with self._reading:
            asked = select(*_ROW).order_by(records.c.id.desc()).limit(AT_ONCE)
            rows = self._store.raw_rows(asked if self._low is None else asked.where(records.c.id < self._low))
            if not rows:
                self._whole = True
                return
            self._add(rows)
            self._high = max(self._high, rows[0].id)
            self._low = rows[-1].id

    def _ahead(self) -> None:
        if self._low is None:
            return
        asked = select(*_ROW).order_by(records.c.id).limit(AT_ONCE)
        while rows := self._store.raw_rows(asked.where(records.c.id > self._high)):
            self._add(rows)
            self._high = rows[-1].id

    def _reconcile(self) -> None:
        """Drop lines of deleted records, and add records that were committed late under an id below the newest."""
        left = {row.id for row in self._store.raw_rows(select(records.c.id))}
        with self._lock:
            known = {id for (id,) in self._lines.execute("SELECT id FROM lines")}
            self._lines.executemany("DELETE FROM lines WHERE id = ?", [(id,) for id in known - left])
        late = sorted(id for id in left - known if id <= self._high)
        for i in range(0, len(late), AT_ONCE):
            self._add(self._store.raw_rows(select(*_ROW).where(records.c.id.in_(late[i : i + AT_ONCE]))))

    def _add(self, rows: Iterable[Any]) -> None:
        lines = [_line(row) for row in rows]
        holes = ", ".join("?" * len(COLUMNS))
        with self._lock:
            self._lines.executemany(f"INSERT OR REPLACE INTO lines VALUES ({holes})", lines)

    def finished_since(self, when: float) -> dict[str, int]:
        """The number of records of each kind that finished after `when` (a Unix time), among the newest."""
        self.refresh()
        newest = f"SELECT kind, started, seconds FROM lines WHERE {FOR_USERS} ORDER BY id DESC LIMIT {NEWEST}"
        ended = "CAST(strftime('%s', started) AS REAL) + coalesce(seconds, 0) > ?"
        with self._lock:
            return dict(
                self._lines.execute(f"SELECT kind, count(*) FROM ({newest}) WHERE {ended} GROUP BY kind", [when])
            )

    def read(self) -> int:
        with self._lock:
            return int(self._lines.execute("SELECT count(*) FROM lines").fetchone()[0])

    def there(self) -> int:
        rows = self._store.raw_rows(select(func.count().label("number")).select_from(records))
        return int(rows[0].number) if rows else 0

    # ---- finding

    def find(
        self, kind: str = "", words: str = "", sort: str = "newest", down: bool = True, offset: int = 0, limit: int = 50
    ) -> Matches:
        """A page of the lines of a kind (empty: all) that contain all the words, sorted."""
        self.refresh()
        conditions, patterns = _conditions(words)
        if kind not in INTERNAL:
            conditions = f"{conditions} AND {FOR_USERS}"
        column = SORTS.get(sort, "id")
        order = f"{column} IS NULL, {column} {'DESC' if down else 'ASC'}, id DESC"
        only, and_kind = (f"{conditions} AND kind = ?", [*patterns, kind]) if kind else (conditions, patterns)
        shown = ", ".join(COLUMNS[1:-1])
        with self._lock:
            counted = f"SELECT kind, count(*) FROM lines WHERE {conditions} GROUP BY kind ORDER BY kind"
            kinds = dict(self._lines.execute(counted, patterns))
            lines = self._lines.execute(
                f"SELECT {shown} FROM lines WHERE {only} ORDER BY {order} LIMIT ? OFFSET ?", [*and_kind, limit, offset]
            ).fetchall()
        total = kinds.get(kind, 0) if kind else sum(kinds.values())
        read = self.read()
        there = read if self._whole else self.there()
        return Matches([Line(*line) for line in lines], total, kinds, read, there)


_ROW = (records.c.id, records.c.key, records.c.kind, records.c.config, records.c.result, records.c.about)


def _conditions(words: str) -> tuple[str, list[str]]:
    patterns = [f"%{_escaped(word)}%" for word in words.lower().split()[:16]]
    return " AND ".join(["1", *(["text LIKE ? ESCAPE '\\'"] * len(patterns))]), patterns


def _escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _line(row: Any) -> tuple[Any, ...]:
    """The line of a row; a damaged record is listed by its key and kind alone."""
    try:
        parts = [json.loads(text) for text in (row.config, row.result, row.about)]
        config, result, about = (part if isinstance(part, dict) else {} for part in parts)
        record = Record(str(row.key), str(row.kind), config, result, about)
        fields = summary(record)
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError):
        return (
            row.id,
            str(row.key),
            str(row.kind),
            "damaged",
            "",
            "",
            None,
            "",
            "",
            "",
            None,
            f"{row.key} {row.kind}".lower(),
        )
    started, seconds = str(about.get("started", ""))[:19], number(about.get("seconds"))
    text = " ".join((record.key, record.kind, fields.name, fields.spec, fields.source, fields.words)).lower()
    return (row.id, record.key, record.kind, fields.name, fields.spec, fields.source, fields.value, fields.unit,
            fields.words, started, seconds, text)  # fmt: skip
