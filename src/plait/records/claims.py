"""Holding the claim on a record while it is computed, so that what two processes begin at one moment runs once.

The claim is renewed in the background and given up at the end, whatever the end is. One whose process has died on this
machine is taken over at once; one of another machine when it expires.
"""

from __future__ import annotations

import hashlib
import os
import platform
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from plait.core.errors import UserError
from plait.records.store import Store

TTL = 60.0


class Busy(UserError):
    """Another process is computing it."""


@contextmanager
def held(store: Store, key: str, what: str, ttl: float = TTL) -> Iterator[None]:
    """Compute `key` inside; a UserError where another process is doing so. `what` is its name, for the message;
    `ttl` how long the claim outlives a process of another machine."""
    owner = f"{this_machine()}:{os.getpid()}:{uuid.uuid4().hex}"
    if not store.claim(key, owner, ttl):
        other = store.owner_of(key)
        if other is not None and has_died(other):
            store.release(key, other)
        if store.has([key]) or not store.claim(key, owner, ttl):
            raise Busy(
                f"{what} is being computed by another process now ({store.name} has its claim); what it finds will be "
                f"there. If that process is no more, the claim ends within {ttl:.0f} seconds."
            )
    done = threading.Event()

    def renew() -> None:
        while not done.wait(ttl / 4):
            with suppress(UserError):  # a store that is away for a while; the next time will do
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


def this_machine() -> str:
    """Tells this machine, since it was started, from others; not which it is."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        boot = ""
    return hashlib.sha256(f"{platform.node()}{boot}".encode()).hexdigest()[:12]


def has_died(owner: str) -> bool:
    """Whether an owner ("machine:process:…") is a process of this machine that has ended. False where nobody knows."""
    machine, _, rest = owner.partition(":")
    number = rest.partition(":")[0]
    if machine != this_machine() or not number.isdecimal():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
