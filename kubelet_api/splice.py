"""Bytes from one connection to the other and back, until one of them ends.

What passes is SPDY or WebSocket, which say within them when one direction of a stream is over; so the end of either
connection is the end of both.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from kubelet_api.call import Downstream, Meter

LINGER = 2.0
"""Seconds for which a client that still sends is listened to after the end."""

T = TypeVar("T")


class End(Protocol):
    """The other side of a client's stream."""

    async def read(self) -> bytes: ...

    async def write(self, data: bytes) -> None: ...

    async def close(self) -> None: ...

    def abort(self) -> None: ...


class ClientGone(Exception):
    """The client closed its connection before its call was answered."""


class Client:
    """A client's connection with a read always under way, so that its going is noticed before it is answered."""

    def __init__(self, downstream: Downstream) -> None:
        self._downstream = downstream
        self._ahead: asyncio.Task[bytes] | None = asyncio.create_task(_read(downstream))
        self.write = downstream.write
        self.close = downstream.close
        self.abort = downstream.abort

    async def unless_gone(self, doing: Coroutine[Any, Any, T]) -> T:
        """Wait for something that is done for the client; ClientGone if the client goes first."""
        assert self._ahead is not None
        task = asyncio.create_task(doing)
        try:
            await asyncio.wait({task, self._ahead}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and not self._ahead.result():
                raise ClientGone
            return await task
        finally:
            await ended(task)

    async def read(self) -> bytes:
        if self._ahead is not None:
            data = await asyncio.shield(self._ahead)
            self._ahead = None
            return data
        return await _read(self._downstream)

    async def stop(self) -> None:
        """End the read that is under way."""
        if self._ahead is not None:
            await ended(self._ahead)


async def _read(downstream: Downstream) -> bytes:
    try:
        return await downstream.read()
    except OSError:
        return b""


async def splice(client: Client, remote: End, meter: Meter) -> None:
    """Copy until the end of either, and close both; what was received by then is passed on first."""
    sender = _Copy(client.read, remote.write, meter.from_client)
    receiver = _Copy(remote.read, client.write, meter.to_client)
    sending, receiving = asyncio.create_task(sender.run()), asyncio.create_task(receiver.run())
    try:
        await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done() and sending.result() and not receiving.done():
            await remote.close()  # the client has ended
            client.abort()
        elif await receiving:
            if sender.writing:
                await ended(sending)
                await _hear_out(client)
            await client.close()
        else:
            client.abort()  # it cannot be written to
    finally:
        remote.abort()
        await ended(sending)
        await ended(receiving)


class _Copy:
    """One direction."""

    def __init__(
        self,
        read: Callable[[], Awaitable[bytes]],
        write: Callable[[bytes], Awaitable[None]],
        count: Callable[[int], None],
    ) -> None:
        self.writing = False
        """Whether there was something to pass on that was not taken yet, or could not be."""
        self._read, self._write, self._count = read, write, count

    async def run(self) -> bool:
        """Copy to the end; False if it could not be written to."""
        while data := await self._read():
            self._count(len(data))
            self.writing = True
            try:
                await self._write(data)
            except OSError:
                return False
            self.writing = False
        return True


async def _hear_out(client: Client) -> None:
    """Read on from a client that still sends, for a while.

    A connection that is closed with bytes unread is reset, and the reset overtakes what was sent before it: the end of
    a command's output would be lost because somebody went on typing.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER):
            while await client.read():
                pass


async def ended(task: asyncio.Task[Any]) -> None:
    """Cancel a task, unless it is over, and wait for it; what it says no longer matters."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()
