"""Where a store is, and what a user hears when it cannot be used. Stored data stay as they are."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import unsynced
from sqlalchemy import event

from plait.core.errors import UserError
from plait.records import Record, open_store

Make = Callable[..., Record]


def test_the_default_is_below_the_working_folder(
    tmp_path: Path, make_record: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store() as store:
        assert store.name == "runs/plait.db"
        assert store.count() == 0
        assert not (tmp_path / "runs").exists()  # reading creates nothing
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        store.put(make_record())
    assert (tmp_path / "runs" / "plait.db").is_file()
    assert os.listdir(tmp_path / "elsewhere") == []


def test_the_environment_names_another(tmp_path: Path, make_record: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_STORE", "sqlite:///mine.db")
    with open_store() as store:
        store.put(make_record())
    assert (tmp_path / "mine.db").is_file()
    with open_store("sqlite:///other.db") as store:  # what is given goes before
        assert store.count() == 0


def test_the_file_is_durable(sqlite_url: str, make_record: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.records.database._durable", unsynced.durable)
    with open_store(sqlite_url) as store:
        store.put(make_record())
        with store._engine.connect() as connection:
            settings = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in PRAGMAS]
    assert dict(zip(PRAGMAS, settings, strict=True)) == PRAGMAS


PRAGMAS = {"journal_mode": "wal", "synchronous": 2, "busy_timeout": 60_000}


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("runs/plait.db", "Did you mean sqlite:///runs/plait.db?"),
        ("mysql://localhost/x", "no store for 'mysql'"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
    ],
)
def test_what_is_no_store(url: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        open_store(url)


def test_a_password_is_never_shown() -> None:
    for url in ("postgresql://me:secret@127.0.0.1:1/x", "me:secret@somewhere"):
        with pytest.raises(UserError) as refused:
            open_store(url).count()
        assert "secret" not in str(refused.value)
    store = open_store("postgresql://me:secret@127.0.0.1:1/x")
    assert "secret" not in store.name
    assert open_store(store.url).url == store.url
    assert "secret" in store.url


def test_no_server_is_a_clear_message() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(UserError, match=r"the store .*127\.0\.0\.1.* cannot be used: .*refused"):
        open_store("postgresql://me@127.0.0.1:1/x").count()


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UserError, match=r"psycopg: pip install 'plait\[postgresql\]'"):
        open_store("postgresql://me@127.0.0.1:1/x")


def damaged(name: str, make_record: Make) -> Path:
    """`store.db`, damaged in one of several ways."""
    path = Path("store.db")
    if name == "text":
        path.write_text("key,kind\n" * 500)
        return path
    with open_store("sqlite:///store.db") as store:
        for seed in range(200):
            store.put(make_record(seed, text="x" * 200))
    content = bytearray(path.read_bytes())
    if name == "beginning":
        content[:4096] = os.urandom(4096)
    elif name == "pages":
        content[4096:] = b"\xa5" * (len(content) - 4096)
    elif name == "torn":
        del content[len(content) // 3 :]
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("damage", ["text", "beginning", "pages", "torn"])
def test_a_damaged_file_is_left_alone(damage: str, make_record: Make) -> None:
    path = damaged(damage, make_record)
    before = path.read_bytes()
    for attempt in (lambda s: s.find(), lambda s: s.put(make_record(999)), lambda s: s.claim("k", "me", 1)):
        with open_store("sqlite:///store.db") as store, pytest.raises(UserError, match=r"store\.db .*left unchanged"):
            attempt(store)
        assert path.read_bytes() == before


def test_an_empty_file_becomes_a_store(make_record: Make) -> None:
    Path("store.db").touch()
    with open_store("sqlite:///store.db") as store:
        assert store.count() == 0
        assert store.put(make_record())


def test_a_full_disk_loses_nothing(sqlite_url: str, make_record: Make) -> None:
    with open_store(sqlite_url) as store:
        store.put(make_record(0))
    with open_store(sqlite_url) as store:
        # SQLite may not grow the file beyond so many pages, and says what it says when the disk is full.
        event.listen(store._engine, "connect", lambda connection, _: connection.execute("PRAGMA max_page_count=20"))
        large = make_record(1, text="x" * 100_000)
        with pytest.raises(UserError, match=r"disk is full.*Nothing stored so far is lost"):
            store.put(large)
        assert store.find() == [make_record(0)]
    with open_store(sqlite_url) as store:  # space was freed
        assert store.put(large)
        assert store.find() == [large, make_record(0)]


def test_a_folder_that_cannot_be(make_record: Make) -> None:
    Path("runs").write_text("a file where the folder should be")
    with open_store() as store, pytest.raises(UserError, match=r"cannot make the folder of the store runs/plait\.db"):
        store.put(make_record())


def test_a_file_where_the_folder_should_be_holds_no_records() -> None:
    Path("runs").touch()
    with open_store() as store:
        assert store.count() == 0


def test_a_file_that_may_not_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the same as one that is not there: "no records" would be a lie."""

    def forbidden(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", forbidden)
    with open_store("sqlite:///nowhere/x.db") as store, pytest.raises(UserError, match="unable to open"):
        store.count()


def test_a_folder_is_no_store(make_record: Make) -> None:
    Path("runs/plait.db").mkdir(parents=True)
    with open_store() as store, pytest.raises(UserError, match="Is it a file"):
        store.put(make_record())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(make_record: Make) -> None:
    Path("runs").mkdir(mode=0o500)
    with open_store() as store, pytest.raises(UserError, match="may it and its folder be read and written"):
        store.put(make_record())


def test_a_read_only_file(sqlite_url: str, make_record: Make) -> None:
    with open_store(sqlite_url) as store:
        store.put(make_record())
    with open_store(sqlite_url) as store:
        event.listen(store._engine, "connect", lambda connection, _: connection.execute("PRAGMA query_only=1"))
        assert store.count() == 1
        with pytest.raises(UserError, match=r"readonly database\. Even a reader writes a log"):
            store.put(make_record(1))


def test_a_lock_that_stays_is_a_clear_message(
    sqlite_url: str, make_record: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.records.database.BUSY_SECONDS", 0.1)
    with open_store(sqlite_url) as store:
        store.put(make_record())
        holder = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        assert store.count() == 1  # readers do not wait for a writer
        with pytest.raises(UserError, match="kept it locked"):
            store.put(make_record(1))
        holder.close()
        assert store.put(make_record(1))


def test_a_new_store_waits_for_another_writer(
    tmp_path: Path, make_record: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The switch to a write-ahead log is refused at once, not after a wait, where another process is at it too."""
    monkeypatch.setattr("plait.records.database.BUSY_SECONDS", 0)
    holder = sqlite3.connect(tmp_path / "store.db", isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    released = threading.Event()

    def release() -> None:
        released.set()
        holder.close()

    threading.Timer(0.3, release).start()
    with open_store("sqlite:///store.db") as store:
        assert store.put(make_record())
        assert released.is_set()


@pytest.mark.parametrize("question", range(1, 5))
def test_another_process_makes_the_tables_while_we_look(url: str, make_record: Make, question: int) -> None:
    """After whichever of our questions: the tables are all there or none is."""
    with open_store(url) as ours, open_store(url) as theirs:
        asked: list[str] = []

        @event.listens_for(ours._engine, "after_cursor_execute")
        def they_are_first(*given: object) -> None:
            statement = str(given[2])
            if "IMMEDIATE" in statement or "lock" in statement:  # from now on they have to wait
                asked.extend(["locked"] * question)
            if any(name in statement for name in ("pg_class", "sqlite_master", "table_info")):
                asked.append(statement)
            if len(asked) == question and asked[-1] == statement:
                theirs.put(make_record(1))

        assert ours.put(make_record(2))
        assert ours.get(make_record(2).key)
