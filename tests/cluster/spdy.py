"""Pods over raw SPDY/3.1, as kubectl did before it had WebSockets and programs with an older library still do."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Sequence
from urllib.parse import urlencode, urlsplit

from tests.cluster.sockets import Sockets
from tests.kubelet_api.test_spdy import Writer

_HEADERS = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n"


class Spdy:
    """One connection, once it is no longer HTTP."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = Writer()
        self._opened = 0

    async def open(self, **headers: str) -> int:
        """A stream of ours; its number."""
        stream, self._opened = 2 * self._opened + 1, self._opened + 1
        await self._send(self._frames.open(stream, 0, **headers))
        return stream

    async def send(self, stream: int, content: bytes, *, fin: bool = False) -> None:
        await self._send(self._frames.data(stream, content, fin))

    async def received(self) -> AsyncIterator[tuple[int, bytes]]:
        """What comes on which stream, until the other end is done."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                first, length = struct.unpack(">II", await self._reader.readexactly(8))
                content = await self._reader.readexactly(length & 0xFFFFFF)
                if not first >> 31:  # no control frame
                    yield first, content

    async def outputs(self) -> dict[int, bytes]:
        """Everything that comes until the end, by stream."""
        found: dict[int, bytes] = {}
        async for stream, content in self.received():
            found[stream] = found.get(stream, b"") + content
        return found

    async def _send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()


@contextlib.asynccontextmanager
async def connected(reach: Sockets, path: str, query: Sequence[tuple[str, str]], version: str) -> AsyncIterator[Spdy]:
    """A connection, which is cut at the end of the block."""
    url = urlsplit(f"{reach.base}/{path}?{urlencode(query)}")
    reader, writer = await asyncio.open_connection(url.hostname, url.port, ssl=reach.tls)
    try:
        head = f"POST {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\n{_HEADERS}"
        writer.write(f"{head}X-Stream-Protocol-Version: {version}\r\n\r\n".encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 101 "), answer
        yield Spdy(reader, writer)
    finally:
        writer.transport.abort()
