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
from collections import deque

CLOSE_TIME = 3.0
"""Seconds for what is on its way when a connection is closed."""

_UNREAD = 256 << 10
"""Bytes kept for who reads; beyond that the peer is not read from."""
_UNSENT = 256 << 10
"""Bytes on their way; beyond that who writes waits."""
_RECORD = 16 << 10
"""What TLS has at most in one record."""


class Scratch:
    """The buffers that all connections of one event loop share."""

    def __init__(self, size: int = 256 << 10) -> None:
        self.received = memoryview(bytearray(size))
        self.plain = memoryview(bytearray(size + _RECORD))


class Channel(asyncio.BufferedProtocol):
    """One connection. Made by the event loop; used by one reader and by writers that do not mind their order."""

    def __init__(self, scratch: Scratch) -> None:
        loop = asyncio.get_running_loop()
        self._scratch = scratch
        self._transport: asyncio.Transport | None = None
        self._unread: deque[bytes] = deque()
        self._unread_size = 0
        self._reading_paused = False
        self._ended = False
        self._failure: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writing_paused = False
        self._writers: set[asyncio.Future[None]] = set()
        self._lost: asyncio.Future[None] = loop.create_future()
        self._tls: ssl.SSLObject | None = None
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
        self._handshake = asyncio.get_running_loop().create_future()
        self._shake_hands()
        await self._handshake

    @property
    def session(self) -> ssl.SSLSession | None:
        """With which another connection to the same server can begin faster."""
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
        if self._reading_paused and self._unread_size < _UNREAD // 2 and self._transport is not None:
            self._reading_paused = False
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
            keep_alive(wire)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch.received

    def buffer_updated(self, nbytes: int) -> None:
        received = self._scratch.received[:nbytes]
        if self._tls is None:
            self._take(bytes(received))
            return
        self._from_peer.write(received)
        if self._handshake is not None and not self._shake_hands():
            return
        self._decrypt()

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
        plain, filled = self._scratch.plain, 0
        failure: Exception | None = None
        ended = False
        while True:
            try:
                count = self._tls.read(len(plain) - filled, plain[filled:])
            except ssl.SSLWantReadError:
                break
            except ssl.SSLError as error:
                failure, ended = error, True
                break
            if not count:
                ended = True
                break
            filled += int(count)
            if len(plain) == filled:
                self._take(bytes(plain))
                filled = 0
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
        if self._unread_size >= _UNREAD and not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()
        self._wake_reader()

    def _end(self, failure: Exception | None) -> None:
        if not self._ended:
            self._ended, self._failure = True, failure
        self._wake_reader()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def keep_alive(wire: socket.socket) -> None:
    """Send small pieces at once, and notice within minutes that the peer is gone."""
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            wire.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
