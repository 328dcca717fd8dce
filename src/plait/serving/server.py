"""Starting the dashboard: on the loopback interface, or on others with a token."""

from __future__ import annotations

import ipaddress
import secrets
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from plait.core.errors import UserError
from plait.model.architecture import load_mixers
from plait.records.store import Store, opened_store
from plait.serving.app import INSTALL, application
from plait.serving.guard import LOOPBACK

PORT = 8642
SHORTEST_TOKEN = 16


@dataclass(frozen=True)
class Address:
    host: str
    port: int
    token: str | None

    @property
    def url(self) -> str:
        """The address to open. It contains the token, so it is shown to the user only."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        if self.host in ("0.0.0.0", "::"):
            name = socket.gethostname()
        return f"http://{name}:{self.port}/" + (f"?token={self.token}" if self.token else "")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def checked_token(host: str, token: str | None) -> str | None:
    """The given token, or a new one if the host needs it; None on the loopback interface."""
    if token is not None:
        if len(token) < SHORTEST_TOKEN or not all(c.isalnum() or c in "-_.~" for c in token) or not token.isascii():
            raise UserError(
                f"--token: at least {SHORTEST_TOKEN} letters, digits or -_.~ are needed. Leave it out, and plait makes "
                "one where it is needed."
            )
        return token
    return None if is_loopback(host) else secrets.token_urlsafe(24)


def serve(
    *,
    store: str | Store | None = None,
    runs: str | Path | None = None,
    host: str = "127.0.0.1",
    port: int = PORT,
    token: str | None = None,
    mixers: Sequence[str | Path] = (),
    on_start: Callable[[Address], object] = lambda address: None,
) -> None:
    """Show a store in a browser, live, until interrupted: running commands, every record with its curves, fronts, heat
    maps and provenance, records side by side, each at a permanent address. It is read-only.

    runs      folder of the trainings; default: that of the store's file
    host      any but the loopback requires a token
    port      0: any free port
    token     generated if one is needed and none is given
    mixers    files with your own mixers, to draw their architectures and costs
    on_start  called with its address (`address.url`) once it answers
    """
    load_mixers(mixers)
    held = checked_token(host, token)
    if not 0 <= port <= 65535:
        raise UserError(f"--port {port}: must be from 0 (any free port) to 65535.")
    with opened_store(store) as opened:
        beside = opened.file.parent if opened.file is not None else Path("runs")
        _run(opened, Path(runs) if runs is not None else beside, host, port, held, on_start)


def _run(
    store: Store, runs: Path, host: str, port: int, held: str | None, on_start: Callable[[Address], object]
) -> None:
    try:
        import uvicorn
    except ModuleNotFoundError:
        raise UserError(INSTALL) from None
    hosts = (*LOOPBACK, host.lower()) if is_loopback(host) else None
    app = application(store, runs, hosts=hosts, token=held)
    listening = _socket(host, port)
    address = Address(host, listening.getsockname()[1], held)

    class Started(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            on_start(address)

    config = uvicorn.Config(
        app, log_level="error", access_log=False, server_header=False, date_header=True, lifespan="off",
        limit_concurrency=64, timeout_keep_alive=10, proxy_headers=False, h11_max_incomplete_event_size=16384,
        http="h11", ws="none",
    )  # fmt: skip
    with listening, suppress(KeyboardInterrupt):  # the normal way to stop
        Started(config).run([listening])


def _socket(host: str, port: int) -> socket.socket:
    """A bound, listening socket; a port that is taken or a host that is not this machine's is a UserError."""
    try:
        kind, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError, OverflowError) as wrong:
        raise UserError(f"--host {host}: {wrong}.") from None
    listener = socket.socket(kind, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(128)
    except OSError as wrong:
        listener.close()
        raise UserError(
            f"cannot listen on {host}:{port}: {wrong.strerror}. Give another --port; 0 uses a free one."
        ) from None
    return listener
