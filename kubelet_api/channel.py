"""A connection to somewhere else: TCP, with TLS on top when asked, read and written as bytes.

asyncio's own TLS keeps a buffer of 256 KiB for each connection, in use or not, and cannot resume a TLS session. Here
all connections of one event loop share their buffers, since each is used only within one callback, so that an idle
session costs little more than what OpenSSL keeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from kubelet_api import limits
from kubelet_api.stall import Wire, tune

CLOSE_TIME = 3.0
"""Seconds for what is on its way when a connection is closed."""

_UNREAD = 256 << 10
"""Bytes kept for who reads; beyond that the peer is not read from."""
_UNSENT = 256 << 10
"""Bytes on their way; beyond that who writes waits."""
_RECORD = 16 << 10
"""What TLS has at most in one record."""
_BATCH = 64 << 10
"""Bytes that are worth to be woken for while more is sure to come; the system wakes sooner where it has less room."""
_POURS = 0.005
"""Seconds without anything after which nothing is sure to come."""
_MOMENT = 0.004
"""Seconds after which less will do."""


class Scratch:
    """The buffers that all connections of one event loop share."""

    def __init__(self, size: int = 256 << 10) -> None:
        self.received = memoryview(bytearray(size))
        self.plain = memoryview(bytearray(size + _RECORD))


class Channel(asyncio.BufferedProtocol):
    """One connection. Made by the event loop; used by one reader and by writers that do not mind their order."""

    def __init__(self, scratch: Scratch, stall: float = limits.DEFAULT.stall) -> None:
        """*stall*: after how many seconds of silence somebody wants to know that the peer is gone."""
        self.gathers = False
        """Whether what pours in small pieces is left to the system until it is some more (Linux only).

        A log comes as a TLS record for each 4 KiB, and for each line while it is followed. To wake up, to look and to
        pass something on costs many times what is in one, and who is faster than the peer would do it for each.
        """
        loop = asyncio.get_running_loop()
        self._stall = stall
        self._scratch = scratch
        self._transport: asyncio.Transport | None = None
        self._unread: deque[bytes] = deque()
        self._unread_size = 0
        self._full = False
        self._least = 1
        self._impatient: asyncio.TimerHandle | None = None
        self._looked = float("-inf")
        self._ended = False
        self._failure: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writing_paused = False
        self._writers: set[asyncio.Future[None]] = set()
        self._lost: asyncio.Future[None] = loop.create_future()
        self._tls: ssl.SSLObject | None = None
        self._read_tls: Callable[[int, memoryview], int]
        self._from_peer = ssl.MemoryBIO()
        self._to_peer = ssl.MemoryBIO()
        self._handshake: asyncio.Future[None] | None = None

    # ------------------------------------------------------------------ for who uses it

    async def start_tls(
        self, context: ssl.SSLContext, server_hostname: str, session: ssl.SSLSession | None = None
    ) -> None:
        """Speak TLS from here on. Nothing that was not read may be left from before."""
        if self._unread or self._ended:
            raise ConnectionError("the peer spoke before TLS began")
        self._tls = context.wrap_bio(self._from_peer, self._to_peer, server_hostname=server_hostname, session=session)
        # past what Python has around it, which takes a fifth of the time that a small record does
        tls: Any = self._tls
        self._read_tls = getattr(tls, "_sslobj", tls).read
        self._handshake = asyncio.get_running_loop().create_future()
        self._shake_hands()
        await self._handshake

    @property
    def wire(self) -> Wire | None:
        """Its socket, while it is open."""
        return self._transport.get_extra_info("socket") if self._transport is not None else None

    @property
    def resumed(self) -> bool:
        """Whether TLS began with the session that was given."""
        return self._tls is not None and bool(self._tls.session_reused)

    @property
    def session(self) -> ssl.SSLSession | None:
        """With which another connection to the same server can begin faster. To be asked for rarely: Python (3.11 with
        OpenSSL 3.0 at least) never frees it, some 6 kB each time."""
        session = self._tls.session if self._tls is not None else None
        return session if session is not None and session.has_ticket else None

    async def read(self) -> bytes:
        """What has come; empty at the end, which a broken connection also is (see :attr:`failure`)."""
        while not self._unread:
            if self._ended:
                return b""
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        data = self._unread.popleft()
        self._unread_size -= len(data)
        if self._full and self._unread_size < _UNREAD // 2 and self._transport is not None:
            self._full = False
            self._transport.resume_reading()
        return data

    @property
    def failure(self) -> Exception | None:
        """Why it ended, if not because the peer said so."""
        return self._failure

    async def write(self, data: bytes) -> None:
        """Send, and wait while too much is on its way."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionError("the connection is closed")
        if self._tls is None:
            transport.write(data)
        else:
            view = memoryview(data)
            while view:
                view = view[self._tls.write(view) :]
            transport.write(self._to_peer.read())
        if self._writing_paused:
            writer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._writers.add(writer)
            try:
                await writer
            finally:
                self._writers.discard(writer)

    async def close(self) -> None:
        """Send what is on its way, then close; at once if that takes too long."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            if self._tls is not None:
                with contextlib.suppress(ssl.SSLError, ValueError):  # it writes its farewell, then wants the peer's
                    self._tls.unwrap()
                transport.write(self._to_peer.read())
            transport.close()
        try:
            async with asyncio.timeout(CLOSE_TIME):
                await asyncio.shield(self._lost)
        except TimeoutError:
            self.abort()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------------ for the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_UNSENT)
        wire = transport.get_extra_info("socket")
        if wire is not None and wire.family in (socket.AF_INET, socket.AF_INET6):
            tune(wire, self._stall)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch.received

    def buffer_updated(self, nbytes: int) -> None:
        received = self._scratch.received[:nbytes]
        if self._tls is None:
            self._take(bytes(received))
        else:
            self._from_peer.write(received)
            if self._handshake is not None and not self._shake_hands():
                return
            self._decrypt()
        if self.gathers:
            self._let_gather()

    def eof_received(self) -> bool:
        if self._tls is not None:
            self._from_peer.write_eof()
            if self._handshake is None or self._shake_hands():
                self._decrypt()
        self._end(None)
        return False  # close: nothing here can go on with half a connection

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        for writer in self._writers:
            if not writer.done():
                writer.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._impatient is not None:
            self._impatient.cancel()
        self._end(exc)
        self._fail_handshake(exc or ConnectionError("the peer closed the connection while TLS began"))
        for writer in self._writers:
            if not writer.done():
                writer.set_exception(ConnectionError("the connection is closed"))
        if not self._lost.done():
            self._lost.set_result(None)

    # ------------------------------------------------------------------ within

    def _shake_hands(self) -> bool:
        """Go on with the handshake; whether it is complete."""
        assert self._tls is not None
        assert self._transport is not None
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._transport.write(self._to_peer.read())
            return False
        except (ssl.SSLError, ValueError, OSError) as error:
            self._transport.write(self._to_peer.read())  # the alert, for the peer's log
            self._fail_handshake(error)
            self._end(error)
            self._transport.close()
            return False
        self._transport.write(self._to_peer.read())
        if self._handshake is not None and not self._handshake.done():
            self._handshake.set_result(None)
        self._handshake = None
        return True

    def _fail_handshake(self, error: Exception) -> None:
        if self._handshake is not None and not self._handshake.done():
            self._handshake.set_exception(error)
        self._handshake = None

    def _decrypt(self) -> None:
        assert self._tls is not None
        read, plain, filled = self._read_tls, self._scratch.plain, 0
        most = len(plain) - _RECORD
        failure: Exception | None = None
        ended = True
        try:
            while count := read(_RECORD, plain[filled:]):
                filled += count
                if filled > most:
                    self._take(bytes(plain[:filled]))
                    filled = 0
        except ssl.SSLWantReadError:
            ended = False
        except ssl.SSLError as error:
            failure = error
        if filled:
            self._take(bytes(plain[:filled]))
        if self._to_peer.pending and self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._to_peer.read())  # an answer to a change of keys
        if ended:
            self._end(failure)
            if self._transport is not None:
                self._transport.close()

    def _take(self, data: bytes) -> None:
        self._unread.append(data)
        self._unread_size += len(data)
        if self._unread_size >= _UNREAD and not self._full and self._transport is not None:
            self._full = True
            self._transport.pause_reading()
        self._wake_reader()

    def _let_gather(self) -> None:
        loop = asyncio.get_running_loop()
        waited, self._looked = loop.time() - self._looked, loop.time()
        if self._impatient is not None:
            self._impatient.cancel()
            self._impatient = None
        if waited < _POURS:
            self._wake_for(_BATCH)
            self._impatient = loop.call_later(_MOMENT, self._look_now)
        else:
            self._wake_for(1)

    def _look_now(self) -> None:
        self._impatient = None
        self._looked = asyncio.get_running_loop().time()
        self._wake_for(1)

    def _wake_for(self, least: int) -> None:
        """Have the system say that there is something when there are so many bytes, or it is the end."""
        if least != self._least and self._transport is not None and sys.platform == "linux":
            self._least = least
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)

    def _end(self, failure: Exception | None) -> None:
        if not self._ended:
            self._ended, self._failure = True, failure
        self._wake_reader()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
