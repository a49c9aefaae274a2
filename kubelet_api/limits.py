"""What one server lets its clients take: every number that bounds them, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Counts, sizes in bytes and times in seconds."""

    connections: int = 2048
    """Connections, those in the middle of their TLS handshake among them. More are closed at once."""
    streams: int = 1000
    """Logs, exec, attach and port-forward that are open at once."""
    streams_per_user: int = 900
    """Of one user. All of kubectl's come as one, the API server; the rest is for those who come by themselves."""
    head: int = 256 << 10
    """A request's line and headers."""
    url: int = 192 << 10
    """A request's path and query; an exec has its whole command there."""
    headers: int = 256
    """How many headers a request has."""
    tls_handshake: float = 10.0
    head_time: float = 10.0
    """From a request's first byte (or the connection's first moment) to the end of its head."""
    keep_alive: float = 90.0
    """How long an unused connection is kept, as the kubelet does."""
    idle: float = 4 * 3600.0
    """A stream through which nothing passes for so long is closed, as the kubelet does."""
    stall: float = 90.0
    """A stream is closed when one of its ends acknowledges nothing of what it was sent for so long."""
    farewell: float = 5.0
    """How long what is on its way to a client may take once we are done with it."""
    last_words: float = 1.0
    """The same for all of them together, once streams have had their time and the server stops."""
    unread: float = 60.0
    """How long a client may leave an answer, other than a log, unread while it has to wait for that."""


DEFAULT = Limits()
