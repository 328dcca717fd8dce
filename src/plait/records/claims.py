"""Claims: a process that computes a record holds a claim on its key, so that two processes do not compute it twice.

The claim is renewed in the background and released at the end, also after an error. If the process dies, others on the
same machine take the claim over at once, those on other machines when it expires.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from plait.core.errors import UserError
from plait.core.files import process_has_ended
from plait.records.record import this_machine
from plait.records.store import Store

TTL = 60.0


class Busy(UserError):
    """Another process is computing it."""


@contextmanager
def held(store: Store, key: str, what: str, ttl: float = TTL) -> Iterator[None]:
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
            with suppress(UserError):  # the store does not answer now; the next renewal may succeed
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
    """Whether a key may be claimed: nobody holds it, or its holder has died on this machine."""
    if not store.is_claimed(key):
        return True
    owner = store.owner_of(key)
    return owner is None or has_died(owner)


def has_died(owner: str) -> bool:
    """Whether an owner ("machine:process:…") is a process of this machine that has ended. False if unknown."""
    machine, _, rest = owner.partition(":")
    number = rest.partition(":")[0]
    return machine == this_machine() and number.isdecimal() and process_has_ended(int(number))
