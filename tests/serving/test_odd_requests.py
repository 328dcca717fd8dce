"""What nobody should send: the server answers, refuses or hangs up, and goes on."""

from __future__ import annotations

import asyncio
import random
import socket
import string
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_to_bytes, urlsplit

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from plait.serving.app import application
from plait.serving.guard import LOOPBACK

from .stored import NASTY, filled

ANSWERS = {200, 303, 307, 400, 404, 405, 414, 421}


def piece(chance: random.Random, keys: list[str]) -> str:
    return chance.choice(
        [
            "records", "record", "kind", "run", "runs", "beside", "live", "static", "..", ".", "", "%00", "%2e%2e%2f",
            "//", "page.js", "overview", "etc/passwd", "figure", "curves.svg", "model", "0.json", "-1.json",
            "record.json", "numbers.csv", "report.html", "%ff", "'", '"', "<", "a" * 300, "train", "plait.db",
            "train-0123456789", "%C3%A9", chance.choice(keys), chance.choice(keys)[:9], quote(NASTY, safe=""),
            "".join(chance.choices(string.ascii_letters + "%+;=&,", k=12)),
        ]
    )  # fmt: skip


def target(chance: random.Random, keys: list[str]) -> str:
    """A path and a query."""
    path = "/" + "/".join(piece(chance, keys) for _ in range(chance.randrange(6)))
    names = ["q", "kind", "sort", "up", "page", "key", "token", "x"]
    values = ["", "-1", "0", "1e9", "9" * 20, "NaN", "%", "_", "' OR 1=1 --", NASTY, "\x00", "é", "value", "newest",
              "\ud800", chance.choice(keys), "".join(chance.choices(string.printable, k=20)),
              "x" * chance.choice((1, 5000))]  # fmt: skip
    query = "&".join(
        f"{chance.choice(names)}={quote(chance.choice(values), errors='replace')}" for _ in range(chance.randrange(5))
    )
    return f"{path}?{query}"


def test_odd_requests_are_answered(tmp_path: Path) -> None:
    """Straight to the application, where no library has cleaned them."""
    chance = random.Random(1)
    with filled(tmp_path) as store:
        keys = [one.key for one in store.find()]
        app = application(store, tmp_path, hosts=LOOPBACK)

        async def ask(method: str, address: str) -> tuple[int, bytes]:
            path, _, query = address.partition("?")
            scope: dict[str, Any] = {
                "type": "http", "method": method, "path": unquote_to_bytes(path).decode("utf-8", "replace"),
                "raw_path": path.encode(), "query_string": query.encode(), "headers": [(b"host", b"localhost")],
                "http_version": "1.1", "scheme": "http", "server": ("localhost", 1), "client": None, "root_path": "",
            }  # fmt: skip
            sent: list[Any] = []

            async def receive() -> dict[str, Any]:
                return {"type": "http.request", "body": b"", "more_body": False}

            async def send(message: Any) -> None:
                sent.append(message)

            await app(scope, receive, send)
            return sent[0]["status"], b"".join(each.get("body", b"") for each in sent[1:])

        async def ask_all() -> Counter[int]:
            counts: Counter[int] = Counter()
            for _ in range(120):
                address = target(chance, keys)
                status, body = await ask(chance.choice(["GET", "GET", "HEAD", "POST", "X"]), address)
                assert status in ANSWERS, address
                assert "report.html" in address or b"<script>alert" not in body
                counts[status] += 1
            return counts

        assert {200, 404, 405} <= asyncio.run(ask_all()).keys()


@pytest.mark.slow
def test_ten_thousand_odd_requests_leave_the_server_running(tmp_path: Path, started: Callable[..., str]) -> None:
    """Over real connections: odd addresses, broken headers, bodies that do not end, plain noise."""
    with filled(tmp_path) as store:
        keys = [one.key for one in store.find()]
        before = store.count()
    address = started(tmp_path)
    place = urlsplit(address)
    chance = random.Random(2)
    counts: Counter[str] = Counter()
    for _ in range(10_000):
        sent = _bytes(chance, keys, place.netloc)
        with socket.create_connection((str(place.hostname), int(place.port or 0)), timeout=20) as connection:
            connection.sendall(sent)
            connection.settimeout(5.0 if sent.endswith(b"\r\n\r\n") else 0.02)  # half a request is waited for
            answer = b""
            with suppress(ConnectionResetError, TimeoutError):
                while more := connection.recv(65536):
                    answer += more
        status = answer[9:12].decode("ascii", "replace") if answer.startswith(b"HTTP/") else "none"
        assert status != "500", sent
        counts[status] += 1
    print(dict(counts))
    assert counts["200"] > 500
    assert urllib.request.urlopen(address, timeout=5).status == 200
    with filled(tmp_path) as store:
        assert store.count() == before


def _bytes(chance: random.Random, keys: list[str], host: str) -> bytes:
    kind = chance.random()
    if kind < 0.05:
        return chance.randbytes(chance.randrange(1, 400))
    headers = [f"Host: {host if chance.random() < 0.9 else chance.choice(['evil', '', 'a b'])}"]
    if kind < 0.25:
        headers.append(chance.choice([
            "Content-Length: 99", "Content-Length: -1", "Transfer-Encoding: chunked", "Origin: null",
            f"X: {'y' * 20000}",
            "Cookie: plait_token=;;=", "Range: bytes=9-1", "Connection: upgrade\r\nUpgrade: websocket", "Bad header",
            "Expect: 100-continue", f"Host: {host}", "\x00: \x01",
        ]))  # fmt: skip
    method = chance.choice(["GET"] * 6 + ["HEAD", "POST", "PUT", "DELETE", "CONNECT", "get", "\x01"])
    where = target(chance, keys) if chance.random() < 0.95 else chance.choice(["*", "http://evil/", "", "records"])
    lines = [f"{method} {where} HTTP/1.1", *headers, "Connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1", "replace")
