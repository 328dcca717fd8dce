"""A stored search, found by its key or as the latest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plait.core.errors import UserError

if TYPE_CHECKING:
    from plait.records import Record, Store

KIND = "search"
LATEST = "latest"


def stored_search(store: Store, key: str, method: str | None = None) -> Record:
    """The search whose key begins so; or the latest, where `method` is given of those by it."""
    if key == LATEST:
        newest = store.find(KIND, {"method": method} if method else None, limit=1)
        record = newest[0] if newest else None
    else:
        record = store.get(store.full_key(key))
    if record is None:
        wanted = f"search by {method}" if method else "search"
        raise UserError(f"there is no {wanted} in {store.name}; make one with `plait search`.")
    if record.kind != KIND:
        raise UserError(f"{record.key[:10]} is no front of `plait search` but a record of kind '{record.kind}'.")
    return record
