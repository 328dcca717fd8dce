"""The store's tables, and which version of them a database holds."""

from __future__ import annotations

import time

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    Integer,
    MetaData,
    Table,
    Text,
    func,
    insert,
    inspect,
    select,
)
from sqlalchemy.exc import OperationalError

import plait
from plait.core.errors import UserError
from plait.records.database import BUSY_SECONDS

VERSION = 1
CREATION_LOCK = 0x706C616974  # "plait": a PostgreSQL advisory lock is a number

tables = MetaData()
# Names begin with plait_: a PostgreSQL database may hold other people's tables.
versions = Table("plait_schema", tables, Column("version", Integer, primary_key=True))
records = Table(
    "plait_records",
    tables,
    # Counts up, so that "newest first" needs no clock. SQLite counts only in its own INTEGER.
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("key", Text, nullable=False, unique=True),
    Column("kind", Text, nullable=False, index=True),
    Column("config", Text, nullable=False),  # JSON, as result and about
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


def is_there(connection: Connection, store: str) -> bool:
    """Whether the database holds our tables; a UserError if a newer plait made them."""
    if not inspect(connection).has_table(versions.name):
        return False
    found = connection.scalar(select(func.max(versions.c.version)))
    if found is not None and found > VERSION:
        raise UserError(
            f"the store {store} has schema {found}; plait {plait.__version__} knows schemas up to {VERSION}. "
            "It was left as it is: update plait, or choose another store."
        )
    return found is not None


def create(connection: Connection, store: str) -> None:
    """Our tables in a database that lacks them; of several processes that try at once, one does it."""
    if is_there(connection, store):  # nothing is changed before this is known
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
    """The file remembers it."""
    deadline = time.monotonic() + BUSY_SECONDS
    while not _switched(connection, deadline):
        time.sleep(0.01)


def _switched(connection: Connection, deadline: float) -> bool:
    # Of two processes that switch at the same moment SQLite refuses one at once, whatever its timeout.
    try:
        connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    except OperationalError as wrong:
        if "locked" not in str(wrong.orig) or time.monotonic() > deadline:
            raise
        return False
    return True
