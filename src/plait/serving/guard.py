"""Access control: the outermost layer of the server, applied before anything else of a request is read.

Only reading is allowed (GET, HEAD). On the loopback interface the Host header must name it, or a foreign page whose
name resolves to this machine could read the store through the user's browser (DNS rebinding). Other interfaces require
a token, which is given once in a URL and then kept in a cookie. Requests from pages of other origins are refused, and
responses may not be framed, sniffed or loaded by them.
"""

from __future__ import annotations

import hmac
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Content security policy: own resources only, nothing inline, no plug-ins, no frames, no forms to other sites.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: dict[str, str] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
COOKIE = "plait_token"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
LONGEST_ADDRESS = 4096  # bytes of path and query


@dataclass(frozen=True)
class Guard:
    """`hosts`: names that the Host header may have, with or without a port; None: any, if a token is required."""

    app: Application
    hosts: Sequence[str] | None
    token: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._handle(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        response_started = False

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            nonlocal response_started
            if message["type"] == "http.response.start":
                response_started = True
                own = {name.lower() for name, _ in message["headers"]}
                more = [(n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in own]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        refused = self._refusal(scope)
        if refused is not None:
            await _respond(send_with_headers, scope, *refused)
            return
        try:
            await self.app(scope, receive, send_with_headers)
        except Exception as wrong:  # a failing request must not stop the server
            print(
                f"plait serve: {scope['method']} {scope['path'][:80]!r}: {type(wrong).__name__}: {wrong}",
                file=sys.stderr,
            )
            if not response_started:
                await _respond(
                    send_with_headers,
                    scope,
                    500,
                    "This page could not be made; see the server's terminal for the error.",
                )

    def _refusal(self, scope: Scope) -> tuple[int, str, dict[str, str]] | None:
        """Status, message and headers of the refusal; None if the request is allowed."""
        headers = _headers(scope)
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "This server is read-only: it accepts only GET and HEAD.", {"allow": "GET, HEAD"}
        if len(scope["path"]) + len(scope.get("query_string", b"")) > LONGEST_ADDRESS:
            return 414, "The address is too long.", {}
        host = headers.get("host", "")
        if self.hosts is not None and _name(host) not in self.hosts:
            return 421, "This server does not answer to that host name.", {}
        origin = headers.get("origin")
        if origin is not None and urlsplit_host(origin) != host.lower():
            return 403, "Requests from pages of other origins are refused.", {}
        from_other_site = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        is_followed_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        if from_other_site and not is_followed_link:  # other sites may link here, but nothing else
            return 403, "Requests from pages of other origins are refused.", {}
        return self._token_refusal(scope, headers)

    def _token_refusal(self, scope: Scope, headers: Mapping[str, str]) -> tuple[int, str, dict[str, str]] | None:
        if self.token is None:
            return None
        query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        token = dict(query).get("token")
        if token is not None and self._is_token(token):
            # The token is removed from the URL at once, to keep it out of bookmarks, history and screenshots.
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            path = "/" + scope["path"].lstrip("/")
            where = _ascii_path(path) + (f"?{rest}" if rest else "")
            cookie = f"{COOKIE}={self.token}; Path=/; HttpOnly; SameSite=Lax; Max-Age=604800"
            return 303, "Signed in.", {"location": where, "set-cookie": cookie, "cache-control": "no-store"}
        bearer = headers.get("authorization", "")
        if bearer.lower().startswith("bearer ") and self._is_token(bearer[7:].strip()):
            return None
        if self._is_token(_cookie(headers.get("cookie", ""))):
            return None
        return (
            401,
            "Open the address with its token: the server's terminal prints it.",
            {"www-authenticate": "Bearer"},
        )

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "replace"), str(self.token).encode())


def urlsplit_host(origin: str) -> str:
    """Name and port of an origin; empty if it is not one, such as `null`."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return ""
    return parts.netloc.lower() if parts.scheme in ("http", "https") else ""


def _name(host: str) -> str:
    """The name in a Host header, without its port."""
    bracketed = re.fullmatch(r"\[([0-9a-fA-F:.]+)\](?::\d+)?", host)
    return bracketed[1].lower() if bracketed else re.sub(r":\d+$", "", host).lower()


def _headers(scope: Scope) -> dict[str, str]:
    """By name. Repeated headers are joined with a comma, so that they pass no check."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]},{text}" if key in headers else text
    return headers


def _cookie(text: str) -> str:
    try:
        cookie = SimpleCookie(text).get(COOKIE)
    except CookieError:
        return ""
    return "" if cookie is None else cookie.value


def _ascii_path(path: str) -> str:
    from urllib.parse import quote

    return quote(path, safe="/:@!$&'()*+,;=-._~")


async def _respond(
    send: Send, scope: Scope, status: int, message: str, headers: Mapping[str, str] | None = None
) -> None:
    body = f"{message}\n".encode()
    more = [(name.encode(), value.encode("latin-1", "replace")) for name, value in (headers or {}).items()]
    start = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
