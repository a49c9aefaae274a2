"""Which headers of an upgrade pass between the client and the remote API server.

A list of what passes, never of what does not: a header that somebody takes for authority tomorrow stays out as well.
"""

from __future__ import annotations

from collections.abc import Iterable

from kubelet_api.call import CallError
from kubelet_api.http1 import Head, check_header

Headers = Iterable[tuple[bytes, bytes]]

BEARER = b"base64url.bearer.authorization.k8s.io."
"""Start of the WebSocket subprotocol that carries a token."""

SPDY = b"spdy/3.1"
WEBSOCKET = b"websocket"
TUNNEL = b"SPDY/3.1+portforward.k8s.io"

_ASKED = {
    SPDY: {b"x-stream-protocol-version"},
    WEBSOCKET: {b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-extensions"},
}
_ANSWERED = {
    SPDY: (b"x-stream-protocol-version",),
    WEBSOCKET: (b"sec-websocket-accept", b"sec-websocket-protocol", b"sec-websocket-extensions"),
}
_SPELLED = {SPDY: b"SPDY/3.1", WEBSOCKET: b"websocket"}


def upgrade_kind(headers: Headers) -> bytes | None:
    """What a client wants to speak: SPDY, WEBSOCKET, or None."""
    given = list(headers)
    if b"upgrade" not in _members(given, b"connection", lower=True):
        return None
    wanted = _members(given, b"upgrade", lower=True)
    return next((kind for kind in (WEBSOCKET, SPDY) if kind in wanted), None)


def subprotocols(headers: Headers) -> list[bytes]:
    """The WebSocket subprotocols that a client offers, without its token."""
    return [name for name in _members(headers, b"sec-websocket-protocol") if not name.lower().startswith(BEARER)]


def stream_versions(headers: Headers) -> list[bytes]:
    """The protocols over SPDY that a client offers, in its order."""
    return _members(headers, b"x-stream-protocol-version")


def for_remote(headers: Headers, kind: bytes) -> list[tuple[bytes, bytes]]:
    """What of a client's upgrade is repeated to the remote API server."""
    given = list(headers)
    passed = [(b"Connection", b"Upgrade"), (b"Upgrade", _SPELLED[kind])]
    passed += [(name, value) for name, value in given if name in _ASKED[kind]]
    if kind == WEBSOCKET and (offered := subprotocols(given)):
        passed.append((b"sec-websocket-protocol", b", ".join(offered)))
    for name, value in passed:
        try:
            check_header(name, value)
        except ValueError as error:
            raise CallError(400, str(error)) from None
    return passed


def is_accepted(head: Head, kind: bytes) -> bool:
    """Whether an answer of the remote is the upgrade that was asked for."""
    upgraded = kind in head.tokens(b"upgrade") and b"upgrade" in head.tokens(b"connection")
    return head.status == 101 and upgraded


def for_client(head: Head, kind: bytes) -> bytes:
    """The 101 for the client, with what it must know of the remote's and nothing else, such as a gateway's cookie."""
    passed = [(name, value) for name in _ANSWERED[kind] for value in head.all(name)]
    return switching(kind, passed)


def switching(kind: bytes, headers: Headers) -> bytes:
    """A 101."""
    lines = [b"HTTP/1.1 101 Switching Protocols", b"Connection: Upgrade", b"Upgrade: " + _SPELLED[kind]]
    lines += [b"-".join(part.capitalize() for part in name.split(b"-")) + b": " + value for name, value in headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _members(headers: Headers, name: bytes, *, lower: bool = False) -> list[bytes]:
    found = [part.strip() for key, value in headers if key == name for part in value.split(b",")]
    return [part.lower() if lower else part for part in found if part]
