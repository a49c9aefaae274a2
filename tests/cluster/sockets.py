"""Pods over raw WebSocket, as programs without a Kubernetes library reach them; cheap enough for hundreds at once."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from app.kube import config
from app.kube.client import Client

STDIN, STDOUT, STDERR, ERROR = 0, 1, 2, 3
"""The channels of exec and attach; the first byte of each message."""

T = TypeVar("T")


class Sockets:
    """WebSockets to the pods of one namespace. Belongs to one event loop."""

    def __init__(self, server: str, tls: ssl.SSLContext | None, namespace: str) -> None:
        self.base = f"{server.replace('https:', 'wss:')}/api/v1/namespaces/{namespace}/pods"
        self.tls = tls

    def exec(
        self, pod: str, *command: str, stdin: bool = False, subprotocol: str = "v4.channel.k8s.io"
    ) -> contextlib.AbstractAsyncContextManager[ClientConnection]:
        """A command in the container ``main``."""
        query = [("container", "main"), ("stdout", "true"), ("stderr", "true")]
        query += [("stdin", "true")] if stdin else []
        return self.open(f"{pod}/exec", [*query, *(("command", word) for word in command)], subprotocol)

    @contextlib.asynccontextmanager
    async def open(
        self, path: str, query: Sequence[tuple[str, str]], subprotocol: str
    ) -> AsyncIterator[ClientConnection]:
        async with connect(
            f"{self.base}/{path}?{urlencode(query)}",
            ssl=self.tls,
            subprotocols=[Subprotocol(subprotocol)],
            compression=None,
            ping_interval=None,
            open_timeout=60,
            close_timeout=5,
            proxy=None,
        ) as socket:
            yield socket


@contextlib.asynccontextmanager
async def sockets(kubeconfig: Path, namespace: str) -> AsyncIterator[Sockets]:
    async with Client(config.load(kubeconfig)) as client:
        access = await client.access()
        yield Sockets(access.server, access.tls, namespace)


async def outputs(socket: ClientConnection) -> dict[int, bytes]:
    """Everything that comes until the end, by channel."""
    found: dict[int, bytes] = {}
    with contextlib.suppress(ConnectionClosed):
        while True:
            message = await socket.recv(decode=False)
            if len(message) > 1:
                found[message[0]] = found.get(message[0], b"") + message[1:]
    return found


def run(work: Coroutine[None, None, T], timeout: float = 120) -> T:
    """Run in an event loop of its own, within a time."""

    async def bounded() -> T:
        async with asyncio.timeout(timeout):
            result = await work
        await asyncio.sleep(0.2)  # a TLS connection that is closed still says goodbye, for which aiohttp does not wait
        return result

    return asyncio.run(bounded())
