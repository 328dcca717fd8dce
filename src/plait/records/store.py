"""The store: records by key, in SQLite or PostgreSQL, written by many processes concurrently; and claims, by which
processes share work.

    with open_store() as store:
        for key in keys:
            if store.claim(key, owner, ttl=60):
                store.put(compute(key))

Nothing is created before the first write: a store that does not exist reads as empty.

A process that computes a record holds a claim on its key (`held`), so that two processes do not compute it twice. The
claim is renewed in the background and released at the end, even after an error. If the process dies, others on the same
machine take the claim over at once, those on other machines when it expires.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Delete, Row, Select, delete, func, inspect, or_, select, update

from plait.core.errors import UserError
from plait.core.files import parse_json, process_has_ended
from plait.records.database import Database, claims, file_of, is_missing, jobs, records
from plait.records.record import (
    REMEDY,
    Record,
    json_text,
    key_of,
    matches,
    provenance_of,
    record_key,
    record_of,
    seal,
    this_machine,
)

AT_ONCE = 500  # keys per statement, because SQLite has a limit
CLAIM_SECONDS = 60.0  # how long a claim outlives a process of another machine


def open_store(url: str | Store | None = None) -> Store:
    """The store at `url`, otherwise at $PLAIT_STORE, otherwise `runs/plait.db` in the working folder. A store that is
    already open is returned unchanged."""
    return url if isinstance(url, Store) else Store(url)


@contextmanager
def opened_store(store: str | Store | None) -> Iterator[Store]:
    """The store at a URL, closed at the end; a store that is already open stays open."""
    if isinstance(store, Store):
        yield store
        return
    with open_store(store) as opened:
        yield opened


@contextmanager
def writable_store(store: str | Store | None) -> Iterator[Store]:
    """The same, for work whose results are stored: raises before the work if the store is not writable."""
    with opened_store(store) as opened:
        opened.require_writable()
        yield opened


class Store(Database):
    """Safe to use from several threads, and after a fork. Another process opens its own with the same `url`."""

    def __repr__(self) -> str:
        return f"<store {self.name}>"

    # ---- records

    def get(self, key: str) -> Record | None:
        rows = self._rows(select(*_RECORD).where(records.c.key == key))
        return record_of(rows[0], self.name) if rows else None

    def has(self, keys: Iterable[str]) -> set[str]:
        """The keys that are in the store."""
        asked = select(records.c.key)
        return {row.key for some in _batches(keys) for row in self._rows(asked.where(records.c.key.in_(some)))}

    def put(self, record: Record) -> bool:
        """Store a record and end any claim on its key. The first writer wins: False if the key was already stored.

        When this returns, the record survives whatever happens to the process or the machine.
        """
        if record.key != record_key(record.kind, record.config):
            raise UserError(f"{record.key} is not the key of the record's kind and config; make it with Record.of.")
        config = json_text(record.config, "config", canonical=True)
        result, about = json_text(record.result, "result"), json_text(record.provenance, "about")
        row = {
            "key": record.key,
            "kind": record.kind,
            "config": config,
            "result": result,
            "about": seal(record.key, record.kind, config, result, about),
        }

        def insert(connection: Connection) -> bool:
            done = connection.execute(self._insert(records).inline().values(row).on_conflict_do_nothing())
            connection.execute(delete(claims).where(claims.c.key == record.key))
            return done.rowcount == 1

        return self._write(insert)

    def computed(self, kind: str, config: Mapping[str, Any], compute: Callable[[], Mapping[str, Any]]) -> Record:
        """The record of this config; if there is none, `compute` gives its result, which is stored. If another process
        has stored it meanwhile, that record is returned."""
        key, started = record_key(kind, config), time.time()
        record = self.get(key)
        if record is None:
            self.put(Record.of(kind, config, compute(), provenance_of(started, time.time() - started)))
            record = self.get(key)
            assert record is not None
        return record

    def find(
        self, kind: str | None = None, where: Mapping[str, Any] | None = None, limit: int | None = None,
        *, without: Sequence[str] = (),
    ) -> list[Record]:  # fmt: skip
        """The newest records first, of one kind or of all `without` some, whose config has these values."""
        return list(self.each(kind, where, limit, without=without))

    def each(
        self, kind: str | None = None, where: Mapping[str, Any] | None = None, limit: int | None = None,
        *, without: Sequence[str] = (),
    ) -> Iterator[Record]:  # fmt: skip
        """Like `find`, but as an iterator that never holds more than a few hundred records in memory.

        Inner fields are named with dots: `{"task.name": "compression"}`. A string also matches the number, boolean or
        null that it spells, so that text from a command line can be passed on.
        """
        name = self.name  # computed once, because it takes as long as reading a record
        if not where:
            asked = select(records.c.id, *_RECORD).where(records.c.kind.not_in(without))
            for row in islice(self._newest_first(asked, kind, limit), limit):
                yield record_of(row, name)
            return
        fields = (records.c.id, records.c.key, records.c.kind, records.c.config)
        rows = self._newest_first(select(*fields).where(records.c.kind.not_in(without)), kind)
        fitting = islice((row.id for row in rows if self._fits(row, where)), limit)
        for some in _batches(fitting):
            for row in self._rows(select(*_RECORD).where(records.c.id.in_(some)).order_by(records.c.id.desc())):
                yield record_of(row, name)

    def _newest_first(self, asked: Select[Any], kind: str | None, limit: int | None = None) -> Iterator[Row[Any]]:
        if kind is not None:
            asked = asked.where(records.c.kind == kind)
        asked, last = asked.order_by(records.c.id.desc()).limit(min(AT_ONCE, limit or AT_ONCE)), None
        while rows := self._rows(asked if last is None else asked.where(records.c.id < last)):
            yield from rows
            last = rows[-1].id

    def _fits(self, row: Row[Any], where: Mapping[str, Any]) -> bool:
        if key_of(row.kind, row.config) != row.key:
            raise UserError(f"the record {row.key} in {self.name} is damaged. {REMEDY}")
        return matches(parse_json(row.config, f"the record {row.key}"), where)

    def delete(self, keys: Iterable[str]) -> int:
        """Delete these records; returns how many there were."""
        doomed = list(_batches(keys))

        def remove(connection: Connection) -> int:
            return sum(connection.execute(delete(records).where(records.c.key.in_(some))).rowcount for some in doomed)

        return self._write(remove)

    def kinds(self) -> dict[str, int]:
        """How many records there are of each kind."""
        asked = select(records.c.kind, func.count().label("number")).group_by(records.c.kind).order_by(records.c.kind)
        return {row.kind: row.number for row in self._rows(asked)}

    def count(self) -> int:
        return sum(self.kinds().values())

    def full_key(self, start: str) -> str:
        """The one key that begins with `start`; a `UserError` if there is none or more than one."""
        rows = self._rows(select(records.c.key).where(records.c.key.startswith(start, autoescape=True)).limit(3))
        if len(rows) == 1:
            return str(rows[0].key)
        if not rows:
            raise UserError(f"no record in {self.name} has a key that begins with '{start}'; see `plait runs list`.")
        some = ", ".join(row.key[: len(start) + 4] + "…" for row in rows)
        raise UserError(f"more than one key begins with '{start}' ({some}); give more of it.")

    # ---- claims: who computes what

    def claim(self, key: str, owner: str, ttl: float) -> bool:
        """Claim `key` for `owner`. False if its record is stored already, or another owner holds an unexpired claim.

        The claim expires after `ttl` seconds unless `heartbeat` renews it, so the work of a dead process is taken over.
        """
        now = self._now()
        wanted = self._insert(claims).values(key=key, owner=owner, expires=now + ttl)
        taken = wanted.on_conflict_do_update(
            index_elements=[claims.c.key],
            set_={"owner": wanted.excluded.owner, "expires": wanted.excluded.expires},
            where=or_(claims.c.expires <= now, claims.c.owner == owner),
        )

        def take(connection: Connection) -> bool:
            if connection.execute(taken).rowcount != 1:
                return False
            # Checked after the claim is ours: an earlier holder would have stored its record by now.
            if connection.execute(select(records.c.id).where(records.c.key == key)).first() is None:
                return True
            connection.execute(delete(claims).where(claims.c.key == key))
            return False

        return self._write(take)

    def heartbeat(self, owner: str, ttl: float) -> set[str]:
        """Renew all claims of `owner` and return the keys it still holds; others were taken over, released or
        stored."""

        def renew(connection: Connection) -> set[str]:
            connection.execute(update(claims).where(claims.c.owner == owner).values(expires=self._now() + ttl))
            return set(connection.scalars(select(claims.c.key).where(claims.c.owner == owner)))

        return self._write(renew)

    def release(self, key: str, owner: str) -> None:
        """Release a claim without a record. Nothing happens if another owner has taken it over."""
        given_up = delete(claims).where(claims.c.key == key, claims.c.owner == owner)
        self._write(lambda connection: connection.execute(given_up))

    def owner_of(self, key: str) -> str | None:
        """The owner of the claim on a key, expired or not."""
        rows = self._rows(select(claims.c.owner).where(claims.c.key == key))
        return str(rows[0].owner) if rows else None

    def is_claimed(self, key: str) -> bool:
        """Whether an unexpired claim on the key is held."""
        return bool(self._rows(select(claims.c.owner).where(claims.c.key == key, claims.c.expires > self._now())))

    # ---- jobs: progress of running commands (published and read by `plait.records.jobs`)

    def put_job(self, id: str, owner: str, state: str) -> None:
        """Insert or replace the state (JSON) of a running command."""
        row = self._insert(jobs).values(id=id, owner=owner, state=state, updated=self._now())
        replaced = {name: row.excluded[name] for name in ("owner", "state", "updated")}
        put = row.on_conflict_do_update(index_elements=[jobs.c.id], set_=replaced)

        def write(connection: Connection) -> None:
            jobs.create(connection, checkfirst=True)  # stores of earlier versions have no such table
            connection.execute(put)

        self._write(write)

    def remove_jobs(self, ids: Iterable[str]) -> None:
        for some in _batches(ids):
            gone = delete(jobs).where(jobs.c.id.in_(some))
            self._write(lambda c, gone=gone: inspect(c).has_table(jobs.name) and c.execute(gone))  # type: ignore[misc]

    def job_rows(self) -> Sequence[Row[Any]]:
        """id, owner, state and age (seconds since the last update) of every job, the newest update first."""
        asked: Select[Any] = select(jobs.c.id, jobs.c.owner, jobs.c.state, (self._now() - jobs.c.updated).label("age"))

        def read(connection: Connection) -> Sequence[Row[Any]]:
            if not inspect(connection).has_table(jobs.name):
                return []
            return connection.execute(asked.order_by(jobs.c.updated.desc()).limit(AT_ONCE)).all()

        path = file_of(self._url)
        return [] if path is not None and is_missing(path) else self._answered(read)

    # ---- raw rows, for `plait.records.repair`

    def raw_rows(self, asked: Select[Any]) -> Sequence[Row[Any]]:
        return self._rows(asked)

    def remove_rows(self, doomed: Delete) -> None:
        self._write(lambda connection: connection.execute(doomed))

    def restore(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Insert rows of another store, known to be intact, with their original numbers."""
        if rows:
            self._write(lambda connection: connection.execute(self._insert(records).on_conflict_do_nothing(), rows))

    def __enter__(self) -> Store:
        return self


_RECORD = (records.c.key, records.c.kind, records.c.config, records.c.result, records.c.about)


def _batches(items: Iterable[Any]) -> Iterator[list[Any]]:
    rest = iter(items)
    while batch := list(islice(rest, AT_ONCE)):
        yield batch


# ---- claims that are held while a record is computed


class Busy(UserError):
    """Another process is computing it."""


@contextmanager
def held(store: Store, key: str, what: str, ttl: float = CLAIM_SECONDS) -> Iterator[None]:
    """Hold the claim on `key` inside the block; raises `Busy` if another process holds it. `what` names the record in
    the message; `ttl` is how many seconds the claim outlives a process of another machine."""
    owner = f"{this_machine()}:{os.getpid()}:{uuid.uuid4().hex}"
    if not store.claim(key, owner, ttl):
        other = store.owner_of(key)
        if other is not None and has_died(other):
            store.release(key, other)
        if store.has([key]) or not store.claim(key, owner, ttl):
            raise Busy(
                f"{what} is being computed by another process now ({store.name} has its claim); what it finds will be "
                f"there. If that process has died, the claim expires within {ttl:.0f} seconds."
            )
    done = threading.Event()

    def renew() -> None:
        while not done.wait(ttl / 4):
            with suppress(UserError):  # the store does not answer; the next renewal may succeed
                store.heartbeat(owner, ttl)

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(1.0)
        with suppress(UserError):
            store.release(key, owner)


def is_open(store: Store, key: str) -> bool:
    """Whether a key may be claimed: it is not held, or its holder has died on this machine."""
    if not store.is_claimed(key):
        return True
    owner = store.owner_of(key)
    return owner is None or has_died(owner)


def has_died(owner: str) -> bool:
    """Whether an owner ("machine:process:…") is a process of this machine that has ended. False if unknown."""
    machine, _, rest = owner.partition(":")
    number = rest.partition(":")[0]
    return machine == this_machine() and number.isdecimal() and process_has_ended(int(number))
