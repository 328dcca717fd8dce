"""Work that two processes start at the same moment runs once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from plait.core.errors import UserError
from plait.records import Record, Store
from plait.records.store import has_died, held, this_machine


def test_one_of_two_computes(store: Store, make_record: Callable[..., Record]) -> None:
    key = make_record().key
    with held(store, key, "it"):
        with pytest.raises(UserError, match="it is being computed by another process now"), held(store, key, "it"):
            raise AssertionError("both")
        assert store.owner_of(key) is not None
    assert store.owner_of(key) is None
    with held(store, key, "it"):
        store.put(make_record())
    assert store.owner_of(key) is None


def test_the_claim_of_a_dead_process_is_taken_over_at_once(store: Store, make_record: Callable[..., Record]) -> None:
    key = make_record().key
    program = (
        "import os, sys\nfrom plait.records import open_store\nfrom plait.records.store import held\n"
        "with held(open_store(sys.argv[1]), sys.argv[2], 'it'):\n    os._exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, store.url, key], check=False).returncode == 9
    assert store.owner_of(key) is not None
    with held(store, key, "it"):
        store.put(make_record())


def test_only_a_process_of_this_machine_can_be_seen_to_be_dead() -> None:
    """Another machine's may have the number of one that has ended here."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert has_died(f"{this_machine()}:{ended.pid}:of-it")
    assert not has_died(f"{'0' * 12}:{ended.pid}:of-it")
    assert not has_died(f"{this_machine()}:{os.getpid()}:of-it")
    assert not has_died("something else")
