"""Connections whose other end is silent while it owes an acknowledgement: how the system tells, and when to give up.

Where something is under way, the system sends it again for about a quarter of an hour. TCP_USER_TIMEOUT would end that
sooner, but it also ends connections whose peer is there and does not read: a person who looks at one page of a log for
some minutes. So the system's own figures of a connection are looked at now and then. Where nothing is under way, as
with a log that is followed and says nothing, keepalive has the system ask, and the peer's system answer whatever its
program does; questions that nobody answers are among those figures. Linux only; elsewhere connections wait as long as
their system does.
"""

from __future__ import annotations

import math
import socket
import struct
from typing import Final, NamedTuple, Protocol

_TCP_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None)
_LAYOUT: Final = struct.Struct("=Bx2B20xI28xI")
"""Of Linux's ``struct tcp_info``, whose beginning never changes: what :class:`Owed` names."""

_ESTABLISHED, _CLOSED, _CLOSE_WAIT = 1, 7, 8
"""Of Linux's states of a connection: open both ways, reset by the peer, and ended by the peer alone."""

_LONGEST_PAUSE: Final = 30
"""Seconds between two questions: whatever translates addresses on the way forgets connections that say nothing."""
_MOST_PROBES: Final = 127
"""What Linux takes."""


class Owed(NamedTuple):
    """What the peer of a connection owes."""

    retransmits: int
    """How often the oldest segment was sent again; 0 once it is acknowledged."""
    probes: int
    """Questions whether the peer is there, or its closed window has opened, since the last answer."""
    segments: int
    """Segments under way."""
    since: float
    """Seconds since the last acknowledgement."""
    state: int = _ESTABLISHED

    @property
    def is_left(self) -> bool:
        """Whether the peer sends nothing more, be there bytes of it that nobody has read or not."""
        return self.state in (_CLOSED, _CLOSE_WAIT)


class Wire(Protocol):
    """As much of a socket as is needed here; asyncio's own view of one has it too."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


class Tunable(Protocol):
    """As much of a socket as is needed to tune it."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def tune(wire: Tunable, limit: float) -> None:
    """Have a connection send what is written at once, and ask often enough to tell a silence of *limit* seconds.

    asyncio does the former only for sockets that name their protocol, which one that was accepted may not: the second
    of two small writes, as the head and the body of an answer, would then wait 40 ms for the other end's system. The
    system's own end of a silent connection comes last, where nobody looks at its figures.
    """
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    pause = min(max(round(limit / 6), 1), _LONGEST_PAUSE)
    count = min(math.ceil(2 * limit / pause), _MOST_PROBES)
    for name, value in (("TCP_KEEPIDLE", pause), ("TCP_KEEPINTVL", pause), ("TCP_KEEPCNT", count)):
        if hasattr(socket, name):  # Linux has all of them
            wire.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def owed(wire: Wire) -> Owed | None:
    """What the system says of a connection; None if it says nothing."""
    if _TCP_INFO is None:
        return None
    try:
        told = wire.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _LAYOUT.size)
    except OSError:  # it is no TCP connection, or closed
        return None
    return parse(told)


def parse(told: bytes) -> Owed | None:
    if len(told) < _LAYOUT.size:
        return None
    state, retransmits, probes, segments, since = _LAYOUT.unpack_from(told)
    return Owed(retransmits, probes, segments, since / 1000, state)


class Stall:
    """Looks at one connection again and again, and says when its peer has been silent for too long."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._began: float | None = None

    def look(self, found: Owed | None, now: float, *, left: bool = False) -> bool:
        """Whether to give up; *left*: the peer has gone, and what it sent last is stuck."""
        if left:
            self._began = now if self._began is None else self._began
        # one probe is on its way at any time while somebody does not read, or when keepalive has just asked
        elif found is None or not ((found.segments and found.retransmits) or found.probes > 1):
            self._began = None
        elif self._began is None or found.since < now - self._began:
            self._began = now  # what came before the first look does not count: a packet may be lost after an idle hour
        return self._began is not None and now - self._began >= self._limit
