"""The connection to the remote, against a server of ours that says exactly what a test wants on the wire."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.kube import config
from app.kube.client import Client
from kubelet_api import upstream as upstream_module
from kubelet_api.call import CallError, Kind
from kubelet_api.remote import RemoteCalls
from kubelet_api.upstream import Upstream, target
from tests.kubelet_api.front import Count, make_call
from tests.kubelet_api.gateway import certificate

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
SPDY_HEADERS = (
    (b"connection", b"Upgrade"),
    (b"upgrade", b"SPDY/3.1"),
    (b"x-stream-protocol-version", b"v4.channel.k8s.io"),
    (b"authorization", b"Bearer of-the-caller"),
)
SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"


class Peer:
    """A server that plays the remote's end of the wire."""

    def __init__(self, folder: Path, serve: Serve) -> None:
        self.folder, self.serve = folder, serve
        self.asked: list[bytes] = []
        self.resumed: list[bool] = []
        self.opened = self.ended = 0
        self.reached = asyncio.Event()
        self.quiet = asyncio.Event()
        """Set while no connection is open, after the first."""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        try:
            ssl_object = writer.get_extra_info("ssl_object")
            self.resumed.append(bool(ssl_object and ssl_object.session_reused))
            self.asked.append(await reader.readuntil(b"\r\n\r\n"))
            self.reached.set()
            await self.serve(reader, writer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.ended += 1
            if self.ended == self.opened:
                self.quiet.set()
            writer.transport.abort()


@contextlib.asynccontextmanager
async def peer(folder: Path, serve: Serve, **cluster: Any) -> AsyncIterator[tuple[Peer, Client]]:
    made = Peer(folder, serve)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority = certificate(folder)
    context.load_cert_chain(authority, folder / "key.pem")
    context.set_alpn_protocols(["h2", "http/1.1"])
    server = await asyncio.start_server(made.handle, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    (folder / "token").write_text("of-farlet")
    cluster = {"server": f"https://127.0.0.1:{port}/prefix", "certificate-authority": str(authority), **cluster}
    content = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"tokenFile": str(folder / "token")}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **content}))
    async with Client(config.load(folder / "kubeconfig"), name="remote") as client, server:
        yield made, client


class Downstream:
    """A client that sends what it is told and keeps what it gets."""

    def __init__(self, *sends: bytes, stays: bool = False) -> None:
        self.got = b""
        self.how = ""
        self._sends = list(sends)
        self._stays = stays

    @property
    def left(self) -> int:
        """What was not taken from it."""
        return len(self._sends)

    async def read(self) -> bytes:
        if self._sends:
            return self._sends.pop(0)
        if self._stays:
            await asyncio.Event().wait()
        return b""

    async def write(self, data: bytes) -> None:
        self.got += data

    async def close(self) -> None:
        self.how = self.how or "closed"

    def abort(self) -> None:
        self.how = self.how or "aborted"


class Going(Downstream):
    """A client that goes when the remote has been asked."""

    def __init__(self, peer: Peer) -> None:
        super().__init__()
        self._peer = peer

    async def read(self) -> bytes:
        await self._peer.reached.wait()
        return b""


def exec_call(**options: Any) -> Any:
    query = (("command", "a b"), ("command", "ü&="), ("output", "1"))
    return make_call(Kind.EXEC, "ns", "web", method="POST", query=query, headers=SPDY_HEADERS, **options)


def test_bytes_with_the_head_are_kept_at_both_ends(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCHING + b"with the head")
        writer.write(b", received " + await reader.readexactly(10))

    async def test() -> None:
        async with peer(tmp_path, serve) as (made, client):
            downstream, count = Downstream(b"before", b"-101", stays=True), Count()
            await RemoteCalls(client).upgrade(exec_call(), downstream, count)
            head, _, rest = downstream.got.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 101 ")
            assert rest == b"with the head, received before-101"
            assert (downstream.how, count.up, count.down) == ("closed", 10, len(rest))
            first, *headers = made.asked[0].decode().split("\r\n")
            path = "/prefix/api/v1/namespaces/ns/pods/web/exec"
            query = "container=main&stdout=true&command=a%20b&command=%C3%BC%26%3D"
            assert first == f"POST {path}?{query} HTTP/1.1"
            assert "Authorization: Bearer of-farlet" in headers
            assert "of-the-caller" not in made.asked[0].decode()

    asyncio.run(test())


def test_a_client_that_goes_is_noticed_before_the_answer(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == b""

    async def test() -> None:
        async with peer(tmp_path, serve) as (made, client):
            downstream = Going(made)
            await RemoteCalls(client).upgrade(exec_call(), downstream, Count())
            assert (downstream.got, downstream.how) == (b"", "aborted")
            await asyncio.wait_for(made.quiet.wait(), 20)

    asyncio.run(test())


def test_the_end_of_the_client_is_the_end_of_the_remote_after_what_it_sent(tmp_path: Path) -> None:
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCHING)
        received.append(await reader.read())

    async def test() -> None:
        async with peer(tmp_path, serve) as (made, client):
            pieces = [bytes([number]) * 100_000 for number in range(20)]
            await RemoteCalls(client).upgrade(exec_call(), Downstream(*pieces), Count())
            await asyncio.wait_for(made.quiet.wait(), 20)
            assert received == [b"".join(pieces)]

    asyncio.run(test())


def test_a_client_that_still_sends_is_heard_out_before_it_is_closed(tmp_path: Path) -> None:
    """Closed with bytes unread, its connection would be reset, and the reset overtake the last output."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCHING + b"all of it")  # and not one byte is read

    class Typing(Downstream):
        async def read(self) -> bytes:
            await asyncio.sleep(0)
            return await super().read()

    async def test() -> None:
        async with peer(tmp_path, serve) as (_, client):
            downstream = Typing(*[bytes(100_000)] * 500)
            await RemoteCalls(client).upgrade(exec_call(), downstream, Count())
            assert downstream.got.endswith(b"all of it")
            assert (downstream.left, downstream.how) == (0, "closed")

    asyncio.run(test())


def test_credentials_are_renewed_after_a_401(tmp_path: Path) -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(asked) == 1:
            (tmp_path / "token").write_text("renewed")
            writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")

    async def test() -> None:
        async with peer(tmp_path, serve) as (made, client):
            made.asked = asked
            calls = RemoteCalls(client)
            stream = await calls.logs(make_call(Kind.LOGS, "ns", "web"))
            assert [piece async for piece in stream] == [b"hello"]
            assert [b"renewed" in head for head in asked] == [False, True]
            made.serve = refuse
            with pytest.raises(CallError, match="refuses Farlet's credentials") as error:
                await calls.logs(make_call(Kind.LOGS, "ns", "web"))
            assert error.value.status == 502

    asyncio.run(test())


def test_tls_sessions_are_resumed(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async def test() -> None:
        async with peer(tmp_path, serve) as (made, client):
            calls = RemoteCalls(client)
            for _ in range(3):
                await (await calls.logs(make_call(Kind.LOGS, "ns", "web"))).aclose()
            assert made.resumed == [False, True, True]

    asyncio.run(test())


@pytest.mark.parametrize(
    ("says", "text"),
    [
        (b"", "closed the connection without an answer"),
        (b"HTTP/1.1 200 OK\r\nConte", "closed the connection without an answer"),
        (b"SSH-2.0-OpenSSH_9\r\n", "cannot be understood: its answer is not HTTP"),
    ],
)
def test_a_remote_that_makes_no_sense(tmp_path: Path, says: bytes, text: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says)

    async def test() -> None:
        async with peer(tmp_path, serve) as (_, client):
            with pytest.raises(CallError, match=text) as error:
                await RemoteCalls(client).logs(make_call(Kind.LOGS, "ns", "web"))
            assert error.value.status == 502

    asyncio.run(test())


def test_a_log_that_breaks_off_does_not_look_complete(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")

    async def test() -> None:
        async with peer(tmp_path, serve) as (_, client):
            stream = await RemoteCalls(client).logs(make_call(Kind.LOGS, "ns", "web"))
            assert await anext(stream) == b"hello"
            with pytest.raises(CallError):
                await anext(stream)

    asyncio.run(test())


def test_a_pod_on_no_node_yet_is_waiting(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    async def test() -> None:
        async with peer(tmp_path, serve) as (_, client):
            with pytest.raises(CallError, match='container "main" in pod "web" is waiting to start') as error:
                await RemoteCalls(client).logs(make_call(Kind.LOGS, "ns", "web"))
            assert error.value.status == 400

    asyncio.run(test())


def test_a_remote_that_is_silent_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def test() -> None:
        async with peer(tmp_path, serve) as (_, client):
            with pytest.raises(CallError, match=r"gave no answer within 0\.2 s"):
                await Upstream(client).ask("GET", "/x", (), (), head_time=0.2)

    asyncio.run(test())


@pytest.mark.parametrize(
    ("cluster", "text"),
    [
        ({"server": "https://127.0.0.1:1"}, "not reachable: Connection refused"),
        ({"server": "https://no-such-name.invalid"}, "not reachable: its name cannot be resolved"),
        ({"server": "https://240.0.0.1"}, "not reachable: "),
        ({"tls-server-name": "another"}, "not reachable: its certificate is not trusted"),
        ({"proxy-url": "http://127.0.0.1:1"}, "the proxy to the remote API server is not reachable"),
        ({"proxy-url": "https://127.0.0.1:1"}, "use an http:// proxy"),
    ],
)
def test_a_remote_that_cannot_be_reached_is_said_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: dict[str, str], text: str
) -> None:
    monkeypatch.setattr(upstream_module, "CONNECT_TIME", 1.0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pytest.fail("nobody should get here")

    async def test() -> None:
        async with peer(tmp_path, serve, **cluster) as (_, client):
            started = time.monotonic()
            with pytest.raises(CallError, match=text) as error:
                await RemoteCalls(client).upgrade(exec_call(), Downstream(stays=True), Count())
            assert error.value.status == 502
            assert time.monotonic() - started < 30

    asyncio.run(test())


def test_tls_that_never_begins_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_module, "CONNECT_TIME", 0.3)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def test() -> None:
        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        address = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, peer(tmp_path, silent, server=address) as (_, client):
            with pytest.raises(CallError, match=r"no connection within 0\.3 s"):
                await RemoteCalls(client).logs(make_call(Kind.LOGS, "ns", "web"))

    asyncio.run(test())


@pytest.mark.parametrize("agrees", [True, False])
def test_through_a_proxy(tmp_path: Path, agrees: bool) -> None:
    asked: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        if not agrees:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            writer.close()
            return
        port = int(asked[0].split(b" ")[1].rpartition(b":")[2])
        inner, outer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    sink.write(data)
                    await sink.drain()
            sink.close()

        await asyncio.gather(copy(reader, outer), copy(inner, writer))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")

    async def test() -> None:
        server = await asyncio.start_server(proxy, "127.0.0.1", 0)
        url = f"http://me:p%40ss@127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, peer(tmp_path, serve, **{"proxy-url": url}) as (_, client):
            if agrees:
                stream = await RemoteCalls(client).logs(make_call(Kind.LOGS, "ns", "web"))
                assert [piece async for piece in stream] == [b"hello"]
                assert b"Proxy-Authorization: Basic bWU6cEBzcw==" in asked[0]
            else:
                with pytest.raises(CallError, match=r"the proxy .* is not reachable: it refuses: 407"):
                    await RemoteCalls(client).logs(make_call(Kind.LOGS, "ns", "web"))

    asyncio.run(test())


def test_a_slow_client_stops_the_remote(tmp_path: Path) -> None:
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(SWITCHING)
        while sent < 400 << 20:
            writer.write(bytes(1 << 20))
            await writer.drain()
            sent += 1 << 20

    class Slow(Downstream):
        async def write(self, data: bytes) -> None:
            if data[:4] != b"HTTP":
                await asyncio.Event().wait()

    async def test() -> None:
        async with peer(tmp_path, serve) as (_, client):
            task = asyncio.create_task(RemoteCalls(client).upgrade(exec_call(), Slow(stays=True), Count()))
            seen = -1
            while sent != seen or not sent:  # until it stands still
                seen = sent
                await asyncio.sleep(0.5)
            assert sent < 64 << 20  # what the system's buffers hold, and ours
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled()

    asyncio.run(test())


def test_targets_are_quoted() -> None:
    assert target("/k8s/clusters/c-1", "/api", (("command", "a/b?c#d\n é"),)) == (
        "/k8s/clusters/c-1/api?command=a%2Fb%3Fc%23d%0A%20%C3%A9"
    )
