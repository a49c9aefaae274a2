"""SPDY for the client, WebSocket for the remote: for ways to the remote that cannot carry SPDY.

A command's streams become the channels of ``v5.channel.k8s.io``; a port-forward's bytes are wrapped as they are. What
the client cannot tell from SPDY to the end: its streams are answered here, its pings too, and how the command ended is
told in the words of the protocol version that it speaks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

import msgspec

from kubelet_api import spdy
from kubelet_api.call import CallError, Meter
from kubelet_api.query import Streams
from kubelet_api.splice import LINGER, Client, ended
from kubelet_api.websocket import WebSocket

V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
CHANNELS = (V5, V4)
"""What is offered to the remote; before 1.30 it knows only the second, which cannot say that the input is over."""

VERSIONS = ("v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io")
"""What a client may speak over SPDY."""

UNHEARD_TIME = 10.0
"""Seconds for which a command goes on after the end of its input before somebody is told that it may not know."""

_UNHEARD = (
    "farlet: the remote cluster is older than Kubernetes 1.30 and the way to it carries no SPDY, so that it cannot be "
    "told that the input has ended: a command that waits for that does not return\n"
)

STREAMS_TIME = 30.0
"""Seconds in which the client must open its streams."""

_STDIN, _STDOUT, _STDERR, _ERROR, _RESIZE = range(5)
_NUMBERS = {"stdin": _STDIN, "stdout": _STDOUT, "stderr": _STDERR, "error": _ERROR, "resize": _RESIZE}
_END_OF = 255
"""Of v5: the byte that, before a channel's number, ends the channel."""

_MAX_ERROR = 64 << 10


def choose(offered: Iterable[bytes]) -> str:
    """The first of the client's versions that is known here; CallError as a kubelet's if there is none."""
    versions = [version.decode("latin-1") for version in offered]
    if not versions:
        raise CallError(400, "unable to upgrade: x-stream-protocol-version is required")
    for version in versions:
        if version in VERSIONS:
            return version
    accepted = tuple(("X-Accepted-Stream-Protocol-Versions", version) for version in VERSIONS)
    raise CallError(403, f"unable to upgrade: unable to negotiate protocol: client supports {versions}", accepted)


class Command:
    """A command, or an attachment to one, between its client and its WebSocket."""

    def __init__(self, client: Client, websocket: WebSocket, streams: Streams, version: str, meter: Meter) -> None:
        self._client = client
        self._websocket = websocket
        self._version = version
        self._meter = meter
        self._spdy = spdy.Server()
        self._channels: dict[int, int] = {}  # of the client's streams
        self._streams: dict[int, int] = {}  # of the remote's channels
        self._expected = {_ERROR} | {
            number
            for number, wanted in (
                (_STDIN, streams.stdin),
                (_STDOUT, streams.stdout),
                (_STDERR, streams.stderr),
                (_RESIZE, streams.tty and version in VERSIONS[:2]),
            )
            if wanted
        }
        self._complete = asyncio.Event()
        self._status = b""
        self._unheard: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Until the command, or its client, ends."""
        sending = asyncio.create_task(self._from_client())
        receiving = asyncio.create_task(self._to_client())
        try:
            await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                await self._websocket.close()  # the client has gone
                self._client.abort()
                return
            if receiving.result():
                with contextlib.suppress(TimeoutError):  # it closes when it is told that all is over
                    async with asyncio.timeout(LINGER):
                        await sending
            await self._client.close()
        except OSError:
            self._client.abort()
        finally:
            self._websocket.abort()
            await ended(sending)
            await ended(receiving)
            if self._unheard is not None:
                await ended(self._unheard)

    # ------------------------------------------------------------------ from the client

    async def _from_client(self) -> None:
        lost = False
        while data := await self._client.read():
            self._meter.from_client(len(data))
            try:
                events = self._spdy.receive(data)
            except spdy.SpdyError:
                return
            await self._reply()
            for event in events:
                if lost:
                    break
                try:
                    await self._handle(event)
                except ConnectionError:
                    lost = True  # the other direction knows why, and tells it; the client is read until it goes

    async def _handle(self, event: spdy.Event) -> None:
        match event:
            case spdy.Opened(stream, headers):
                self._opened(stream, headers)
            case spdy.Data(stream, content):
                channel = self._channels.get(stream)
                if channel in (_STDIN, _RESIZE):
                    await self._websocket.send(bytes([channel]) + content)
            case spdy.Ended(stream) | spdy.Reset(stream):
                if self._channels.get(stream) != _STDIN:
                    return
                if self._websocket.subprotocol == V5:
                    await self._websocket.send(bytes([_END_OF, _STDIN]))
                elif self._unheard is None:
                    self._unheard = asyncio.create_task(self._tell_unheard())
            case spdy.Pinged():
                await self._websocket.ping()

    async def _tell_unheard(self) -> None:
        """It may be that nobody minds, as with a command that reads nothing, so it goes on."""
        await asyncio.sleep(UNHEARD_TIME)
        if _STDERR in self._streams:
            self._spdy.send(self._streams[_STDERR], _UNHEARD.encode())
            await self._reply()

    def _opened(self, stream: int, headers: dict[str, str]) -> None:
        channel = _NUMBERS.get(headers.get("streamtype", ""))
        if channel is None or channel in self._streams:
            self._spdy.reset(stream)
            return
        self._channels[stream], self._streams[channel] = channel, stream
        if self._expected <= self._streams.keys():
            self._complete.set()

    # ------------------------------------------------------------------ to the client

    async def _to_client(self) -> bool:
        """Pass everything on; whether the client was told that all is over."""
        try:
            async with asyncio.timeout(STREAMS_TIME):
                await self._complete.wait()
        except TimeoutError:
            return False
        while (message := await self._websocket.receive()) is not None:
            if len(message) < 2:
                continue
            channel, content = message[0], message[1:]
            if channel == _ERROR:
                self._status = (self._status + content)[:_MAX_ERROR]
            elif channel in (_STDOUT, _STDERR) and channel in self._streams:
                self._spdy.send(self._streams[channel], content)
                await self._reply()
        told = outcome(self._status, self._version)
        for channel, stream in self._streams.items():
            self._spdy.send(stream, told if channel == _ERROR else b"", fin=True)
        self._spdy.go_away()
        await self._reply()
        return True

    async def _reply(self) -> None:
        if data := self._spdy.data_to_send():
            self._meter.to_client(len(data))
            await self._client.write(data)


def outcome(status: bytes, version: str) -> bytes:
    """How a command ended, in the words of a protocol version.

    The remote always says; if it did not, the connection broke, which must not look like success.
    """
    if not status:
        lost = "the connection to the remote API server was lost while the command ran"
        status = msgspec.json.encode(
            {"metadata": {}, "status": "Failure", "message": lost, "reason": "InternalError", "code": 500}
        )
    if version == VERSIONS[0]:
        return status
    try:
        found = msgspec.json.decode(status)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return status
    if not isinstance(found, dict) or found.get("status") == "Success":
        return b""
    return str(found.get("message") or "the command failed").encode()
