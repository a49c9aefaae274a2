"""A kubelet API on loopback with real TLS, and a client that sends exactly the bytes it is given."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.kube.client import Client
from app.kube.objects import Object
from devcluster import pki
from kubelet_api import stall
from kubelet_api.call import Call, CallError, Downstream, Kind, Meter
from kubelet_api.limits import Limits
from kubelet_api.server import KubeletServer
from kubelet_api.twins import Placed, Running, Twin

NODE = "virtual-1"
UID = "0b6c4b3a-0000-4000-8000-000000000001"
STARTED = 1704067200.0
"""2024-01-01T00:00:00Z."""
SPDY = ("Connection: Upgrade", "Upgrade: SPDY/3.1", "X-Stream-Protocol-Version: v4.channel.k8s.io")
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"


def pod(name: str = "web", namespace: str = "shop", uid: str = UID) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "uid": uid},
        "spec": {
            "nodeName": NODE,
            "containers": [{"name": "main", "image": "busybox"}, {"name": "side", "image": "busybox"}],
            "initContainers": [{"name": "init", "image": "busybox"}],
            "ephemeralContainers": [{"name": "debug", "image": "busybox"}],
        },
        "status": {"phase": "Running", "startTime": "2024-01-01T00:00:00Z"},
    }


class Pods:
    """Pods of the node and their twins, in memory."""

    def __init__(self, pods: Iterable[Object] = (), *, without_twin: Iterable[str] = ()) -> None:
        self.pods = {(p["metadata"]["namespace"], p["metadata"]["name"]): p for p in pods}
        self.complete = True
        self._without = set(without_twin)

    def synced(self) -> bool:
        return self.complete

    def local_pod(self, namespace: str, name: str) -> Object | None:
        return self.pods.get((namespace, name))

    def local_pods(self) -> Iterable[Object]:
        return list(self.pods.values())

    def twin(self, pod: Object) -> Twin | None:
        name = pod["metadata"]["name"]
        return None if name in self._without else Twin("remote-shop", f"{name}-twin", "remote-uid")

    def placed(self) -> Iterator[Placed]:
        for item in self.local_pods():
            twin, metadata = self.twin(item), item["metadata"]
            if twin is not None:
                running = tuple(Running(c["name"], STARTED) for c in item["spec"]["containers"])
                started = item["status"]["startTime"]
                yield Placed(metadata["namespace"], metadata["name"], metadata["uid"], twin, "far-1", started, running)

    def is_running(self, pod: Object) -> bool:
        return self.twin(pod) is not None


class _Log:
    def __init__(self, pieces: AsyncIterator[bytes], remote: Recorder) -> None:
        self.wire = remote.wire
        self._pieces = pieces
        self._remote = remote
        remote.open_logs += 1

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces

    async def aclose(self) -> None:
        self._remote.open_logs -= 1
        close: Any = getattr(self._pieces, "aclose", None)
        if close is not None:
            await close()


class Recorder:
    """Notes every call. An upgrade is answered with 101 and sends back what it gets; a log ends when told to."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.pieces: list[bytes] = [b"one\n", b"two\n"]
        self.follow = False
        """Whether a log goes on for ever after its pieces."""
        self.error: CallError | None = None
        self.open_logs = 0
        self.open_streams = 0
        self.reads = True
        """Whether an upgrade reads what the client sends."""
        self.flood = 0
        """Bytes that an upgrade sends at once."""
        self.wire: stall.Wire | None = None
        """What logs and commands come over."""

    async def logs(self, call: Call) -> _Log:
        self._note(call)
        return _Log(self._log(), self)

    async def _log(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece
        if self.follow:
            await asyncio.Event().wait()

    async def upgrade(self, call: Call, downstream: Downstream, meter: Meter) -> None:
        self._note(call)
        self.open_streams += 1
        try:
            await downstream.write(SWITCHED)
            while self.flood > 0:
                await downstream.write(bytes(65536))
                meter.to_client(65536)
                self.flood -= 65536
            if not self.reads:
                await asyncio.Event().wait()
            while data := await downstream.read():
                meter.from_client(len(data))
                await downstream.write(data)
                meter.to_client(len(data))
        finally:
            self.open_streams -= 1

    async def run(self, call: Call, meter: Meter) -> bytes:
        self._note(call)
        meter.over(self.wire)
        if self.follow:
            await asyncio.Event().wait()
        return b"".join(self.pieces)

    def _note(self, call: Call) -> None:
        self.calls.append(call)
        if self.error is not None:
            raise self.error


# ---------------------------------------------------------------------- TLS


@dataclass(frozen=True)
class Authority:
    """One that signs clients, and one that signs the server; as the two are in a cluster that rotates either."""

    clients: pki.Pair = field(default_factory=lambda: pki.authority("clients"))
    servers: pki.Pair = field(default_factory=lambda: pki.authority("servers"))

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(cadata=self.clients.certificate.decode())
        load(context, pki.server(self.servers, NODE, ["127.0.0.1"]))
        return context

    def client_context(self, pair: pki.Pair | None = None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=self.servers.certificate.decode())
        if pair is not None:
            load(context, pair)
        return context

    def user(self, name: str, *groups: str) -> ssl.SSLContext:
        return self.client_context(pki.client(self.clients, name, groups))

    def ended(self, name: str, *groups: str) -> ssl.SSLContext:
        minute_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=1)
        return self.client_context(pki.client(self.clients, name, groups, not_after=minute_ago))


def load(context: ssl.SSLContext, pair: pki.Pair) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pair.write(Path(folder), "pair")
        context.load_cert_chain(Path(folder) / "pair.crt", Path(folder) / "pair.key")


# ---------------------------------------------------------------------- server and client


@contextlib.asynccontextmanager
async def serving(
    reviews: Client,
    authority: Authority,
    *,
    twins: Pods | None = None,
    remote: Recorder | None = None,
    limits: Limits | None = None,
    tls: ssl.SSLContext | None = None,
    **options: Any,
) -> AsyncIterator[KubeletServer]:
    server = KubeletServer(
        host="127.0.0.1",
        port=0,
        tls=tls or authority.server_context(),
        node=NODE,
        version="v1.36.3-farlet",
        twins=twins or Pods([pod()]),
        remote=remote or Recorder(),
        reviews=reviews,
        limits=limits or Limits(farewell=1.0),
        **options,
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


class Wire:
    """One TLS connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = text.rstrip().split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        return int(first.split(" ", 2)[1]), headers

    async def answer(self, *, method: str = "GET") -> Answer:
        status, headers = await self.head()
        if method == "HEAD":
            return Answer(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            return Answer(status, headers, b"".join([piece async for piece in self.chunks()]))
        if "content-length" in headers:
            return Answer(status, headers, await self.reader.readexactly(int(headers["content-length"])))
        return Answer(status, headers, await self.reader.read())

    async def chunks(self) -> AsyncIterator[bytes]:
        while size := int(await self.reader.readline(), 16):
            yield await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        await self.reader.readexactly(2)


@contextlib.asynccontextmanager
async def connected(server: KubeletServer, context: ssl.SSLContext) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", server.port, ssl=context, limit=1 << 20, ssl_shutdown_timeout=2
    )
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def request(method: str, target: str, headers: Sequence[str] = ()) -> bytes:
    return "\r\n".join([f"{method} {target} HTTP/1.1", "Host: node", *headers, "", ""]).encode("latin-1")


async def ask(
    server: KubeletServer, context: ssl.SSLContext, method: str, target: str, headers: Sequence[str] = ()
) -> Answer:
    async with connected(server, context) as wire:
        await wire.send(request(method, target, headers))
        return await wire.answer(method=method)


def bearer(token: str) -> str:
    return f"Authorization: Bearer {token}"


__all__ = ["NODE", "SPDY", "UID", "Answer", "Authority", "Kind", "Pods", "Recorder", "Wire", "ask", "bearer"]
