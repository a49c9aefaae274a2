"""A WebSocket to the remote API server, over a connection of our own."""

from __future__ import annotations

import base64
import os
from collections import deque
from collections.abc import Sequence

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidState
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri
from websockets.utils import accept_key

from kubelet_api import headers
from kubelet_api.call import CallError
from kubelet_api.channel import Channel
from kubelet_api.query import Query
from kubelet_api.upstream import Answer, Upstream

MAX_MESSAGE = 4 << 20
"""Bytes of a message; an API server's have at most some 32 KiB."""

_MESSAGE_OUT = 64 << 10
"""Bytes of a message that we send: more than 32 KiB at a time is not read by the other end anyway."""


class WebSocket:
    """One WebSocket, from the client's side: binary messages both ways."""

    def __init__(self, answer: Answer, subprotocol: str) -> None:
        self.subprotocol = subprotocol
        self._channel: Channel = answer.channel
        self._protocol = ClientProtocol(parse_uri("ws://remote/"), state=State.OPEN, max_size=MAX_MESSAGE)
        self._messages: deque[bytes] = deque()
        self._parts: list[bytes] = []
        self._ended = False
        self.wire = answer.channel.wire
        self._take(answer.rest)

    @property
    def ended_well(self) -> bool:
        """Whether the other end closed it in the proper way."""
        return self._protocol.close_rcvd is not None and self._protocol.close_rcvd.code == CloseCode.NORMAL_CLOSURE

    async def receive(self) -> bytes | None:
        """The next message; None at the end, however it came."""
        while not self._messages:
            if self._ended:
                return None
            data = await self._channel.read()
            if data:
                self._take(data)
            else:
                self._protocol.receive_eof()
                self._ended = True
            await self._flush()
        return self._messages.popleft()

    async def send(self, message: bytes) -> None:
        """Send a message; ConnectionError if that cannot be done any more."""
        try:
            self._protocol.send_binary(message)
        except InvalidState:
            raise ConnectionError("the WebSocket is closed") from None
        await self._flush(lenient=False)

    async def ping(self) -> None:
        """Show whatever is on the way that the session is alive."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_ping(b"")
            await self._flush()

    async def close(self) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
            await self._flush()
        await self._channel.close()

    def abort(self) -> None:
        self._channel.abort()

    def _take(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if not isinstance(event, Frame):
                continue
            if event.opcode is Opcode.CLOSE:
                self._ended = True
            elif event.opcode in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):
                self._parts.append(bytes(event.data))
                if sum(map(len, self._parts)) > MAX_MESSAGE:
                    self._protocol.fail(CloseCode.MESSAGE_TOO_BIG)
                    self._ended = True
                elif event.fin:
                    self._messages.append(b"".join(self._parts))
                    self._parts.clear()

    async def _flush(self, *, lenient: bool = True) -> None:
        data = b"".join(self._protocol.data_to_send())
        if not data:
            return
        try:
            await self._channel.write(data)
        except OSError:
            if not lenient:
                raise


class Tunnel:
    """A stream of bytes within a WebSocket: each message is a piece of it, cut anywhere."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self.close = websocket.close
        self.abort = websocket.abort

    async def read(self) -> bytes:
        while (message := await self._websocket.receive()) is not None:
            if message:
                return message
        return b""

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), _MESSAGE_OUT):
            await self._websocket.send(data[start : start + _MESSAGE_OUT])


class Refused(Exception):
    """The remote, or what is on the way, did not open a WebSocket."""

    def __init__(self, answer: Answer, body: bytes) -> None:
        super().__init__(f"{answer.head.status} {answer.head.phrase}")
        self.head = answer.head
        self.body = body


async def open_websocket(upstream: Upstream, path: str, query: Query, subprotocols: Sequence[str]) -> WebSocket:
    """Open one with any of these subprotocols; Refused, or CallError if nobody answers."""
    key = base64.b64encode(os.urandom(16)).decode()
    asked = (
        (b"Connection", b"Upgrade"),
        (b"Upgrade", b"websocket"),
        (b"Sec-WebSocket-Key", key.encode()),
        (b"Sec-WebSocket-Version", b"13"),
        (b"Sec-WebSocket-Protocol", ", ".join(subprotocols).encode()),
    )
    answer = await upstream.ask("GET", path, query, asked)
    try:
        if not headers.is_accepted(answer.head, headers.WEBSOCKET):
            raise Refused(answer, await answer.refusal())
        chosen = (answer.head.first(b"sec-websocket-protocol") or b"").decode("latin-1")
        accepted = (answer.head.first(b"sec-websocket-accept") or b"").decode("latin-1")
        if accepted != accept_key(key) or chosen not in subprotocols:
            raise CallError(502, "the remote API server did not open the WebSocket that it was asked for")
        return WebSocket(answer, chosen)
    except BaseException:
        answer.channel.abort()
        raise
