"""Damage to a store is noticed wherever a record is read, and what is whole can be saved."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from plait.cli.main import app
from plait.core.errors import UserError
from plait.records import Record, open_store
from plait.records.repair import repair, verify

SEEDS = 12


@pytest.fixture
def filled(url: str, make_record: Callable[..., Record]) -> str:
    with open_store(url) as store:
        for seed in range(SEEDS):
            store.put(make_record(seed, accuracy=seed / SEEDS, curve=[seed + n / 7 for n in range(20)]))
    return url


def change(url: str, statement: str) -> None:
    with open_store(url) as store:
        store._write(lambda connection: connection.exec_driver_sql(statement))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE plait_records SET result = replace(result, '0.25', '0.35') WHERE id = 4",
        "UPDATE plait_records SET config = replace(config, '\"seed\":3', '\"seed\":7') WHERE id = 4",
        "UPDATE plait_records SET kind = 'prabe' WHERE id = 4",
        "UPDATE plait_records SET about = replace(about, '2026', '2027') WHERE id = 4",
        "UPDATE plait_records SET result = '{' WHERE id = 4",
    ],
)
def test_a_changed_record_is_noticed_and_taken_out(
    filled: str, statement: str, make_record: Callable[..., Record]
) -> None:
    with open_store(filled) as store:
        keys = [record.key for record in store.find()][::-1]
        records = {key: store.get(key) for key in keys}
    change(filled, statement)
    with open_store(filled) as store:
        with pytest.raises(UserError, match=r"is damaged: .*plait runs repair"):
            store.get(keys[3])
        with pytest.raises(UserError, match="is damaged"):
            store.find()
        assert store.get(keys[4]) == records[keys[4]]
        seen = verify(store)
        assert [one.key for one in seen.damaged] == [keys[3]]
        assert seen.records == SEEDS - 1
        done = repair(store)
        assert Path(done.backup).exists()
    with open_store(filled) as store:
        assert verify(store).whole
        assert {record.key: record for record in store.find()} == {
            key: record for key, record in records.items() if key != keys[3]
        }
        assert store.put(make_record(3))  # computed again


def test_what_a_record_holds_does_not_show_its_checksum(filled: str) -> None:
    with open_store(filled) as store:
        assert set(store.find()[0].provenance) == {"started"}


def test_records_of_before_are_read(sqlite_url: str, make_record: Callable[..., Record]) -> None:
    with open_store(sqlite_url) as store:
        store.put(make_record(1))
    change(sqlite_url, """UPDATE plait_records SET about = '{"started":"2026-01-02T03:04:05+00:00"}'""")
    with open_store(sqlite_url) as store:
        assert store.find() == [make_record(1)]
        assert verify(store).whole


def flipped(path: Path, bit: int) -> None:
    with path.open("r+b") as opened:
        opened.seek(bit // 8)
        byte = opened.read(1)[0]
        opened.seek(bit // 8)
        opened.write(bytes([byte ^ 1 << bit % 8]))


def test_flipped_bits_are_noticed_or_harmless(filled: str, sqlite_url: str, tmp_path: Path) -> None:
    if filled != sqlite_url:
        pytest.skip("a file's bits")
    original = Path(sqlite_url.removeprefix("sqlite:///"))
    with open_store(sqlite_url) as store:
        truth = store.find()
    draw, copy = random.Random(0), tmp_path / "copy.db"
    bits = [draw.randrange(8 * original.stat().st_size) for _ in range(60)] + [8 * n + 1 for n in range(0, 100, 3)]
    noticed = 0
    for bit in bits:
        for old in tmp_path.glob("copy.db*"):
            old.unlink()
        shutil.copyfile(original, copy)
        flipped(copy, bit)
        try:
            with open_store(f"sqlite:///{copy}") as store:
                assert store.find() == truth, bit
                assert store.find("probe", {"seed": 3}) == [truth[-4]], bit
                assert [store.get(record.key) for record in truth] == truth, bit
        except UserError:
            noticed += 1
            with open_store(f"sqlite:///{copy}") as store:
                assert not verify(store).whole, bit
    assert noticed > len(bits) // 5  # the others fall into empty parts of pages, of which every table has some


def test_a_damaged_file_is_rebuilt_from_its_rows(filled: str, sqlite_url: str) -> None:
    """The index of keys says other keys than the table does: records would be lost to whoever asks by key."""
    if filled != sqlite_url:
        pytest.skip("a file's pages")
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    with open_store(sqlite_url) as store:
        truth = store.find()
    data = path.read_bytes()
    key = truth[3].key.encode()
    places = [at for at in range(len(data)) if data.startswith(key, at)]
    assert len(places) == 2  # in the table and in the index
    with sqlite3.connect(path) as connection:
        page = connection.execute("SELECT rootpage FROM sqlite_master WHERE name LIKE 'sqlite_autoindex_plait_rec%'")
        size = connection.execute("PRAGMA page_size").fetchone()[0]
        start = (page.fetchone()[0] - 1) * size
    connection.close()
    (in_index,) = (at for at in places if start <= at < start + size)
    flipped(path, 8 * in_index)
    with open_store(sqlite_url) as store, pytest.raises(UserError, match=r"is damaged: .*repair"):
        store.get(truth[3].key)
    done = CliRunner().invoke(app, ["runs", "verify", "--store", sqlite_url])
    assert done.exit_code == 1
    assert f"{SEEDS} records whole, 0 damaged" in done.output
    done = CliRunner().invoke(app, ["runs", "repair", "--store", sqlite_url])
    assert done.exit_code == 0, done.output
    assert f"{SEEDS} records kept" in done.output
    with open_store(sqlite_url) as store:
        assert store.find() == truth
        assert [store.get(record.key) for record in truth] == truth
    assert path.with_name(f"{path.name}.damaged-1").exists()


def test_a_store_without_its_version_is_not_taken_for_empty(filled: str) -> None:
    change(filled, "ALTER TABLE plait_schema RENAME TO plbit_schema")
    with open_store(filled) as store, pytest.raises(UserError, match="damaged: it has no table plait_schema"):
        store.find()


def test_a_store_that_takes_nothing_is_told_of_before_work(tmp_path: Path, make_record: Any) -> None:
    (tmp_path / "file").touch()
    with open_store(f"sqlite:///{tmp_path}/file/plait.db") as store, pytest.raises(UserError, match="cannot make"):
        store.require_writable()
    with open_store(f"sqlite:///{tmp_path}/plait.db") as store:
        store.require_writable()
        assert store.find() == []
