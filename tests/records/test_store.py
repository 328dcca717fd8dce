"""What every store does, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from plait.core.errors import UserError
from plait.records import Record, Store, open_store

Make = Callable[..., Record]


def test_what_goes_in_comes_out(store: Store, url: str, make_record: Make) -> None:
    record = make_record(loss=[0.1, 1e-300, 2, None, True], text='é "\\\u0000\ud800 %s', nested={"b": {}, "a": []})
    assert store.put(record)
    with open_store(url) as other:
        found = other.get(record.key)
    assert found == record
    assert list(found.result["nested"]) == ["b", "a"]  # a result's fields stay in their order


def test_the_first_writer_wins(store: Store, make_record: Make) -> None:
    assert store.put(make_record(accuracy=0.1))
    assert not store.put(make_record(accuracy=0.9))
    found = store.get(make_record().key)
    assert found is not None
    assert found.result == {"accuracy": 0.1}
    assert store.count() == 1


def test_what_is_there_is_not_computed_again(store: Store, url: str) -> None:
    config, made = {"protocol": 1, "task": "copy"}, []

    def compute() -> dict[str, int]:
        made.append(1)
        return {"accuracy": len(made)}

    first = store.computed("probe", config, compute)
    assert first.result == {"accuracy": 1}
    with open_store(url) as other:
        assert other.computed("probe", config, compute) == first
    assert len(made) == 1
    assert store.computed("probe", {**config, "seed": 1}, compute).result == {"accuracy": 2}


def test_of_two_who_compute_at_once_the_first_counts_for_both(store: Store, url: str) -> None:
    config = {"protocol": 1, "task": "copy"}

    def slowly() -> dict[str, int]:
        with open_store(url) as other:
            other.computed("probe", config, lambda: {"accuracy": 1})
        return {"accuracy": 2}

    assert store.computed("probe", config, slowly).result == {"accuracy": 1}


def test_a_store_that_is_not_there_is_empty(store: Store, make_record: Make) -> None:
    key = make_record().key
    assert store.get(key) is None
    assert store.has([key]) == set()
    assert store.find() == []
    assert store.count() == 0


def test_has(store: Store, make_record: Make) -> None:
    there = [make_record(seed) for seed in range(3)]
    for record in there:
        store.put(record)
    absent = [make_record(seed).key for seed in range(3, 1200)]  # more than fit into one statement
    keys = {record.key for record in there}
    assert store.has([*absent[:600], *keys, *absent[600:]]) == keys


def test_find_gives_the_newest_first(store: Store, make_record: Make) -> None:
    for seed in (3, 1, 2):
        store.put(make_record(seed))
    store.put(make_record(9, kind="train"))
    assert [record.config["seed"] for record in store.find()] == [9, 2, 1, 3]
    assert [record.config["seed"] for record in store.find("probe", limit=2)] == [2, 1]
    assert [record.config["seed"] for record in store.find("probe", {"big": False}, limit=2)] == [2, 1]
    assert store.find("nothing") == []
    assert store.kinds() == {"probe": 3, "train": 1}


@pytest.mark.parametrize(
    ("where", "seeds"),
    [
        ({"seed": 1}, [1]),
        ({"seed": "1"}, [1]),
        ({"seed": 1.0}, [1]),
        ({"seed": True}, []),
        ({"seed": "true"}, []),
        ({"task.name": "compression", "seed": 0}, [0]),
        ({"task.name": "copy"}, []),
        ({"task.vocab": 16}, [1, 0]),
        ({"lr": "1e-3"}, [1, 0]),
        ({"big": False}, [1, 0]),
        ({"big": "false"}, [1, 0]),
        ({"big": 0}, []),
        ({"task": "compression"}, []),
        ({"nowhere": "null"}, []),
        ({"seed": "1'; drop table plait_records; --"}, []),
    ],
    ids=str,
)
def test_find_by_config(store: Store, make_record: Make, where: dict[str, Any], seeds: list[int]) -> None:
    for seed in range(2):
        store.put(make_record(seed))
    assert [record.config["seed"] for record in store.find(where=where)] == seeds


def test_delete(store: Store, make_record: Make) -> None:
    records = [make_record(seed) for seed in range(3)]
    for record in records:
        store.put(record)
    assert store.delete([records[0].key, records[2].key, "absent"]) == 2
    assert store.find() == [records[1]]
    assert store.put(records[0])


def test_keys_may_be_abbreviated(store: Store, make_record: Make) -> None:
    keys = sorted(make_record(seed).key for seed in range(17))  # two of seventeen begin alike
    for seed in range(17):
        store.put(make_record(seed))
    assert store.full_key(keys[3][:12]) == keys[3]
    shared = next(a[0] for a, b in pairwise(keys) if a[0] == b[0])
    with pytest.raises(UserError, match=f"more than one key begins with '{shared}'"):
        store.full_key(shared)
    for nothing in ("zz", "%", "_"):
        with pytest.raises(UserError, match=f"no record .* begins with '{nothing}'"):
            store.full_key(nothing)


def test_a_wrong_key_is_refused(store: Store, make_record: Make) -> None:
    with pytest.raises(UserError, match="not the key of the record"):
        store.put(replace(make_record(0), key=make_record(1).key))
    with pytest.raises(UserError, match=r"result\.accuracy is nan"):
        store.put(make_record(accuracy=float("nan")))
    assert store.count() == 0


def test_all_of_a_write_is_stored_or_nothing(store: Store, make_record: Make) -> None:
    from sqlalchemy import event

    def fails(_: Any, __: Any, statement: str, *___: Any) -> None:
        if statement.startswith("DELETE"):
            raise KeyboardInterrupt

    store.claim(make_record().key, "me", ttl=60)
    event.listen(store._engine, "before_cursor_execute", fails)
    with pytest.raises(KeyboardInterrupt):
        store.put(make_record())  # interrupted between the record and the end of its claim
    event.remove(store._engine, "before_cursor_execute", fails)
    assert store.count() == 0
    assert store.heartbeat("me", ttl=60) == {make_record().key}


def test_a_newer_schema_is_left_alone(store: Store, url: str, make_record: Make) -> None:
    from sqlalchemy import text

    store.put(make_record())
    with store._engine.begin() as connection:
        connection.execute(text("update plait_schema set version = 7"))
    with open_store(url) as later:
        for attempt in (later.count, lambda: later.put(make_record(1)), lambda: later.claim("k", "me", 1)):
            with pytest.raises(UserError, match=r"has schema 7; plait .* up to 1.*update plait") as refused:
                attempt()
            assert "sqlalchemy" not in str(refused.value)
    assert store.count() == 1


def test_a_forked_process_connects_anew(store: Store, make_record: Make) -> None:
    store.put(make_record(0))
    child = os.fork()
    if child == 0:
        os._exit(0 if store.put(make_record(1)) else 1)
    assert store.put(make_record(2))
    assert os.waitpid(child, 0)[1] == 0
    assert store.count() == 3


# ---- claims


def test_a_claim_keeps_others_out(store: Store) -> None:
    assert store.claim("k", "me", ttl=60)
    assert store.claim("k", "me", ttl=60)  # asking again is no mistake
    assert not store.claim("k", "you", ttl=60)
    assert store.claim("other", "you", ttl=60)
    store.release("k", "you")  # not yours
    assert not store.claim("k", "you", ttl=60)
    store.release("k", "me")
    assert store.claim("k", "you", ttl=60)


def test_a_claim_expires_and_a_heartbeat_renews_it(store: Store) -> None:
    assert store.claim("k", "dead", ttl=-1)
    assert store.claim("kept", "dead", ttl=-1)
    assert store.claim("k", "me", ttl=60)
    assert store.heartbeat("dead", ttl=60) == {"kept"}  # the other one was taken over
    assert not store.claim("kept", "me", ttl=60)
    assert store.heartbeat("me", ttl=-1) == {"k"}
    assert store.claim("k", "you", ttl=60)
    assert store.heartbeat("me", ttl=60) == set()


def test_what_is_done_cannot_be_claimed(store: Store, make_record: Make) -> None:
    record = make_record()
    assert store.claim(record.key, "me", ttl=60)
    store.put(record)
    assert store.heartbeat("me", ttl=60) == set()  # the record has ended the claim
    assert not store.claim(record.key, "you", ttl=60)
    assert not store.claim(record.key, "me", ttl=60)
    store.delete([record.key])
    assert store.claim(record.key, "you", ttl=60)  # the refusals left nothing behind


def test_a_prompt_shows_where_it_is(store: Store) -> None:
    assert repr(store) == f"<store {store.name}>"
