"""A client's connection that is no longer HTTP: bytes both ways, with bounded buffers."""

from __future__ import annotations

import asyncio
import contextlib
import http
from collections import deque
from typing import Final

from kubelet_api.call import CallError
from kubelet_api.stall import Wire, owed

HIGH_WATER: Final = 64 << 10
"""Bytes that are held for whoever reads before the client is made to wait."""


class Connection(asyncio.Protocol):
    """Takes a transport over from HTTP; a :class:`kubelet_api.call.Downstream`."""

    def __init__(
        self,
        transport: asyncio.Transport,
        received: bytes,
        closed: asyncio.Future[None],
        *,
        farewell: float,
        ended: bool = False,
    ) -> None:
        """*received* came together with the request's head; *closed* is set when the connection is gone."""
        self.written = False
        """Whether the client was sent anything."""
        self._transport = transport
        self._closed = closed
        self._farewell = farewell
        self._received: deque[bytes] = deque()
        self._held = 0
        self._ended = ended
        self._paused = False
        self._discarding = False
        self._reader: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        transport.set_write_buffer_limits(high=HIGH_WATER)
        transport.set_protocol(self)
        if received:
            self.data_received(received)

    @property
    def wire(self) -> Wire | None:
        """Its socket."""
        wire: Wire | None = self._transport.get_extra_info("socket")
        return wire

    def is_left(self) -> bool:
        """Whether the client has closed its end, also where that is hidden behind bytes that nobody takes."""
        if self._closed.done():
            return True
        found = owed(self.wire) if self._paused and self.wire is not None else None
        return found is not None and found.is_left

    # ------------------------------------------------------------------ Downstream

    async def read(self) -> bytes:
        """What has come; empty at the end."""
        while not self._received:
            if self._ended or self._closed.done():
                return b""
            self._resume()
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        data = self._received.popleft()
        self._held -= len(data)
        if not self._held:
            self._resume()
        return data

    async def write(self, data: bytes) -> None:
        """Send, and wait while too much is on its way."""
        if self._closed.done() or self._transport.is_closing():
            raise ConnectionResetError("the client went away")
        self.written = True
        self._transport.write(data)
        if not self._writable.is_set():
            await self._writable.wait()
            if self._closed.done():
                raise ConnectionResetError("the client went away")

    async def close(self) -> None:
        """Send what is on its way, then close; within ``farewell`` seconds."""
        self._discarding = True
        self._received.clear()
        self._held = 0
        if not self._closed.done():
            self._resume()
            self._transport.close()
        try:
            async with asyncio.timeout(self._farewell):
                await asyncio.shield(self._closed)
        except TimeoutError:
            self.abort()
        except asyncio.CancelledError:
            self.abort()
            raise

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    # ------------------------------------------------------------------ HTTP's last words

    async def answer(self, error: CallError) -> None:
        """Refuse in HTTP, if the client was told nothing yet; the connection is of no use afterwards."""
        if not self.written:
            with contextlib.suppress(ConnectionError):
                await self.write(answer(error))

    # ------------------------------------------------------------------ asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            return
        self._received.append(data)
        self._held += len(data)
        if self._held >= HIGH_WATER and not self._paused:
            self._paused = True
            with contextlib.suppress(RuntimeError):  # it is closing already
                self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._ended = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        if not self._closed.done():
            self._closed.set_result(None)
        self._writable.set()
        self._wake()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            with contextlib.suppress(RuntimeError):
                self._transport.resume_reading()


def answer(error: CallError) -> bytes:
    """A whole HTTP answer, after which the connection ends."""
    body = error.message.encode()
    lines = [
        f"HTTP/1.1 {error.status} {_phrase(error.status)}",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in error.headers if name != "Connection"),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", errors="replace") + body


def _phrase(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return "Error"
