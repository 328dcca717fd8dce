"""The database behind a store: connections, transactions, the tables and their version, and clear error messages.

SQLite runs with a write-ahead log: readers and one writer work concurrently, and a process killed at any moment leaves
the file as of the last commit. `synchronous=FULL` also protects against power failures; it costs one fsync per commit,
which is little compared with the seconds of work behind a record.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Double,
    Engine,
    Integer,
    MetaData,
    Row,
    Select,
    Table,
    Text,
    create_engine,
    delete,
    event,
    extract,
    func,
    insert,
    inspect,
    literal,
    make_url,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DatabaseError, InterfaceError, OperationalError

import plait
from plait.core.errors import UserError

DEFAULT = "sqlite:///runs/plait.db"
VARIABLE = "PLAIT_STORE"
BUSY_SECONDS = 60  # how long a writer waits for the others
RESTART_SECONDS = 120.0  # how long to wait for a server that was reachable before
SWITCH_SECONDS = 60  # how long a new store waits to switch to its write-ahead log
POSTGRES = "postgresql+psycopg"
DRIVERS = {"sqlite": "sqlite", "postgresql": POSTGRES, "postgres": POSTGRES, POSTGRES: POSTGRES}

Done = TypeVar("Done")

#: Whether an insert took place is known from its row count, which SQLAlchemy drops unless asked to keep it.
COUNTED = {"preserve_rowcount": True}

#: SQLite's messages, and what to do about them. PostgreSQL's own messages are clear enough.
REMEDIES = {
    "disk is full": "Nothing stored so far is lost: free some space and run again.",
    "not a database": "It is damaged, or not a database. It was left unchanged: move it away, or choose another store.",
    "malformed": "It is damaged. It was left unchanged: `plait runs repair` saves what can be read, or put a backup in "
    "its place.",
    "no such table": "It is damaged: `plait runs repair` saves what can be read.",
    "no such column": "It is damaged: `plait runs repair` saves what can be read.",
    "decode to UTF-8": "It is damaged: `plait runs repair` saves what can be read.",
    "locked": f"Another process has kept it locked for {BUSY_SECONDS} seconds. Nothing is lost: run again.",
    "readonly": "Even a reader writes a log next to it: copy the store, or change the permissions of its folder.",
    "unable to open": "Is it a file, and may it and its folder be read and written?",
    "disk I/O": "The disk may be full or failing. Nothing stored so far is lost.",
}  # fmt: skip


def resolve(url: str | None) -> URL:
    """The URL of the store: the given one, otherwise $PLAIT_STORE, otherwise a file in the working folder."""
    text = url or os.environ.get(VARIABLE) or DEFAULT
    allowed = f"A store is {DEFAULT} (a file) or postgresql://user@host/database."
    try:
        parsed = make_url(text)
    except ArgumentError:
        # Even text that is not a URL may contain a password, so it is repeated only if it looks like a file name.
        hint = f" Did you mean sqlite:///{text}?" if "@" not in text else ""
        raise UserError(f"this is not the URL of a store.{hint} {allowed}") from None
    if parsed.drivername not in DRIVERS:
        raise UserError(f"no store for '{parsed.drivername}'. {allowed}")
    parsed = parsed.set(drivername=DRIVERS[parsed.drivername])
    if parsed.drivername != "sqlite":
        return parsed
    if parsed.database in (None, "", ":memory:"):
        raise UserError(f"'{text}' names no file. {allowed}")
    # Absolute, so that a later change of the working folder does not create a second store.
    return parsed.set(database=os.path.abspath(os.path.expanduser(str(parsed.database))))


def file_of(url: URL) -> Path | None:
    """The SQLite file; None for a server."""
    return Path(str(url.database)) if url.drivername == "sqlite" else None


def is_missing(path: Path) -> bool:
    """Whether the file does not exist. Without permission to look, it may exist: opening the database will report the
    problem."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False


def display_name(url: URL) -> str:
    """The store in messages: its file, relative to the working folder if it is inside, or the URL without password."""
    path = file_of(url)
    return os.path.relpath(path) if path and path.is_relative_to(Path.cwd()) else str(path or url)


def make_engine(url: URL) -> Engine:
    """An engine that connects on first use."""
    if url.drivername == "sqlite":
        engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS}, execution_options=COUNTED)
        event.listen(engine, "connect", _durable)
        return engine
    try:
        # An idle connection may be closed by the time a long computation ends: test it before use.
        return create_engine(url, pool_pre_ping=True, execution_options=COUNTED)
    except ModuleNotFoundError as missing:
        raise UserError(f"PostgreSQL needs {missing.name}: pip install 'plait[postgresql]'.") from None


def _durable(connection: sqlite3.Connection, _: Any) -> None:
    connection.execute("PRAGMA synchronous=FULL")


@contextmanager
def explained(url: URL) -> Iterator[None]:
    """Turns the database's exceptions into `UserError`s, with the original as cause."""
    try:
        yield
    except (DatabaseError, InterfaceError, sqlite3.Error) as wrong:
        lines = str(wrong if isinstance(wrong, sqlite3.Error) else wrong.orig).strip().splitlines()
        reason = lines[0] if lines else type(wrong).__name__
        remedy = next((remedy for sign, remedy in REMEDIES.items() if sign in reason), "")
        raise UserError(f"the store {display_name(url)} cannot be used: {reason}. {remedy}".rstrip()) from wrong


def is_away(wrong: BaseException | None) -> bool:
    """Whether a server is temporarily unreachable, for example while it restarts."""
    if not isinstance(wrong, OperationalError | InterfaceError):
        return False
    text = str(wrong.orig)
    return wrong.connection_invalidated or any(sign in text for sign in AWAY)


AWAY = (
    "the database system is", "terminating connection", "server closed the connection", "connection is bad",
    "Connection refused", "could not connect", "connection failed", "connection is lost", "is not connected",
)  # fmt: skip
REPAIR = "It was left unchanged: `plait runs repair` saves what can be read, or put a backup in its place."
CHECKED_BYTES = 16 * 2**20  # files up to this size are checked when opened, which takes a tenth of a second


def _require_whole(connection: Connection, store: str) -> None:
    """Check small files for a damaged index, which would hide records without an error. Larger files are checked by
    `plait runs verify`."""
    pages, size = (connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("page_count", "page_size"))
    if (pages or 0) * (size or 0) <= CHECKED_BYTES:
        problem = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar()
        if problem != "ok":
            raise UserError(f"the store {store} is damaged: {str(problem).splitlines()[0]}. {REPAIR}")


VERSION = 1
CREATION_LOCK = 0x706C616974  # "plait" as a number, as PostgreSQL's advisory locks require

tables = MetaData()
# Names begin with plait_, because a PostgreSQL database may contain other tables.
versions = Table("plait_schema", tables, Column("version", Integer, primary_key=True))
records = Table(
    "plait_records",
    tables,
    # Increments, so that "newest first" needs no clock. SQLite increments only its own INTEGER.
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("key", Text, nullable=False, unique=True),
    Column("kind", Text, nullable=False, index=True),
    Column("config", Text, nullable=False),  # JSON, like result and about
    Column("result", Text, nullable=False),
    Column("about", Text, nullable=False),
    sqlite_autoincrement=True,
)
claims = Table(
    "plait_claims",
    tables,
    Column("key", Text, primary_key=True),
    Column("owner", Text, nullable=False, index=True),
    Column("expires", Double, nullable=False),  # seconds since 1970
)
#: Progress of running commands. Added later: stores of earlier versions may lack it.
jobs = Table(
    "plait_jobs",
    tables,
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("state", Text, nullable=False),  # JSON
    Column("updated", Double, nullable=False),  # seconds since 1970
)


def is_there(connection: Connection, store: str) -> bool:
    """Whether the database contains our tables; a UserError if a newer plait created them."""
    there = tables.tables.keys() & set(inspect(connection).get_table_names())  # all were created at once, or none
    if versions.name not in there:
        if there:
            raise UserError(f"the store {store} is damaged: it has no table {versions.name}. {REPAIR}")
        return False
    if records.name not in there:
        raise UserError(f"the store {store} is damaged: it has no table {records.name}. {REPAIR}")
    if connection.dialect.name == "sqlite":
        _require_whole(connection, store)
    version = connection.scalar(select(func.max(versions.c.version)))
    if version is not None and version > VERSION:
        raise UserError(
            f"the store {store} has schema {version}; plait {plait.__version__} knows schemas up to {VERSION}. "
            "It was left unchanged: update plait, or choose another store."
        )
    return version is not None


def create(connection: Connection, store: str) -> None:
    """Create our tables if they are missing. If several processes try at once, one succeeds."""
    if is_there(connection, store):  # change nothing before this check
        return
    if connection.dialect.name == "sqlite":
        _use_write_ahead_log(connection)
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        connection.execute(select(func.pg_advisory_xact_lock(CREATION_LOCK)))
    if not is_there(connection, store):
        tables.create_all(connection)
        connection.execute(insert(versions).values(version=VERSION))
    connection.commit()


def _use_write_ahead_log(connection: Connection) -> None:
    """Switch to the write-ahead log; the file stores this setting."""
    deadline = time.monotonic() + SWITCH_SECONDS
    while not _switched(connection, deadline):
        time.sleep(0.01)


def _switched(connection: Connection, deadline: float) -> bool:
    # If two processes switch at the same moment, SQLite refuses one immediately, whatever its timeout.
    try:
        connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    except OperationalError as wrong:
        if "locked" not in str(wrong.orig) or time.monotonic() > deadline:
            raise
        return False
    return True


class Database:
    """Connections to the database at a URL. If a server that was reachable restarts, operations wait for it."""

    def __init__(self, url: str | None = None) -> None:
        self._url = resolve(url)
        self._engine = make_engine(self._url)
        self._process = os.getpid()
        self._created = False
        self._reached = False  # whether the server was reachable before; then operations wait for it
        # Both dialects support "insert unless it exists" in the same way, but not with SQLAlchemy's generic insert.
        self._insert = sqlite.insert if self._url.drivername == "sqlite" else postgresql.insert

    @property
    def url(self) -> str:
        """The URL with which another process opens this store. It may contain a password: not for display."""
        return self._url.render_as_string(hide_password=False)

    @property
    def name(self) -> str:
        """The store's name in messages."""
        return display_name(self._url)

    @property
    def file(self) -> Path | None:
        """The SQLite file; None for a server."""
        return file_of(self._url)

    def require_writable(self) -> None:
        """Raise a `UserError` now, before hours of work, if results could not be stored. Creates nothing."""
        path = file_of(self._url)
        if path is not None and is_missing(path):
            there = next(folder for folder in path.parents if folder.exists())
            if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
                raise UserError(f"cannot make the folder of the store {self.name}: {there} cannot be written to.")
            return
        self._write(lambda connection: connection.execute(delete(claims).where(claims.c.key == "")))

    def _now(self) -> ColumnElement[Any]:
        # Machines that share a server use its clock, because theirs differ. Users of a file share one clock anyway.
        if self._url.drivername == "sqlite":
            return literal(time.time())
        return extract("epoch", func.clock_timestamp())

    def _rows(self, asked: Select[Any]) -> Sequence[Row[Any]]:
        path = file_of(self._url)
        if path is not None and is_missing(path):  # connecting would create it
            return []

        def read(connection: Connection) -> Sequence[Row[Any]]:
            if not self._created:
                self._created = is_there(connection, self.name)
            return connection.execute(asked).all() if self._created else []

        return self._answered(read)

    def _write(self, work: Callable[[Connection], Done]) -> Done:
        """Run in one transaction: either everything is stored at the end, or nothing."""

        def write(connection: Connection) -> Done:
            with connection.begin():
                return work(connection)

        if not self._created:
            self._create()
        return self._answered(write)

    def _answered(self, ask: Callable[[Connection], Done]) -> Done:
        """Run a query; if the server is restarting, retry until it answers."""
        deadline = time.monotonic() + RESTART_SECONDS
        while True:
            try:
                with self._connected() as connection:
                    done = ask(connection)
                    self._reached = True
                    return done
            except UserError as wrong:
                if not (self._reached and is_away(wrong.__cause__)) or time.monotonic() > deadline:
                    raise
            time.sleep(0.5)

    def _create(self) -> None:
        path = file_of(self._url)
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as wrong:
                raise UserError(f"cannot make the folder of the store {self.name}: {wrong.strerror}.") from None
        with self._connected() as connection:
            create(connection, self.name)
        self._created = True

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        if self._process != os.getpid():  # after a fork the connections belong to the parent
            self._engine.dispose(close=False)
            self._process = os.getpid()
        with explained(self._url), self._engine.connect() as connection:
            yield connection

    def close(self) -> None:
        self._engine.dispose()

    def __exit__(self, *_: object) -> None:
        self.close()
