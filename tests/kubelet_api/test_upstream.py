"""The connection to the remote, against a server of ours that says exactly what a test wants on the wire."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from websockets.utils import accept_key

from app.kube import config, credentials
from app.kube.client import Client
from kubelet_api import channel as channel_module
from kubelet_api import translate
from kubelet_api import upstream as upstream_module
from kubelet_api.call import CallError, Kind
from kubelet_api.channel import Channel, Scratch
from kubelet_api.remote import RemoteCalls
from kubelet_api.upstream import Upstream, target
from tests.kubelet_api.front import Count, make_call
from tests.kubelet_api.gateway import certificate
from tests.kubelet_api.test_spdy import Writer

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
async def peer(
    folder: Path, serve: Serve, *, user: dict[str, Any] | None = None, **cluster: Any
) -> AsyncIterator[tuple[Peer, Client]]:
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
        "users": [{"name": "u", "user": user or {"tokenFile": str(folder / "token")}}],
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
            await asyncio.wait_for(made.quiet.wait(), 60)

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
            await asyncio.wait_for(made.quiet.wait(), 60)
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


def test_a_plugin_that_fails_after_a_401_is_our_fault_and_no_bug(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "PLUGIN_PAUSE", 0.0)
    plugin = tmp_path / "plugin"
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "once"}
    }  # fmt: skip
    plugin.write_text(f"#!/bin/sh\nmkdir '{tmp_path}/asked' || exit 1\necho '{json.dumps(credential)}'\n")
    plugin.chmod(0o755)
    user = {"apiVersion": credential["apiVersion"], "command": str(plugin), "interactiveMode": "Never"}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")

    async def test() -> None:
        async with peer(tmp_path, serve, user={"exec": user}) as (_, client):
            with pytest.raises(CallError, match="Farlet has no usable credentials") as error:
                await RemoteCalls(client).logs(make_call(Kind.LOGS, "ns", "web"))
            assert error.value.status == 502

    asyncio.run(test())
    assert str(plugin) in caplog.text


def test_a_remote_that_wants_a_certificate_says_so(tmp_path: Path) -> None:
    """In TLS 1.3 it does when the handshake is over, so that it looks like an answer that does not come."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pytest.fail("nobody should get here")

    def refuse(listener: socket.socket) -> None:
        """asyncio's own server would not say why."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
        context.load_verify_locations(tmp_path / "certificate.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        accepted, _ = listener.accept()
        with context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False) as wire:
            with pytest.raises(ssl.SSLError):
                wire.do_handshake()
            while socket.socket.recv(wire, 65536):  # closed with bytes unread, it would reset what it said
                pass

    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = f"https://127.0.0.1:{listener.getsockname()[1]}"
            async with peer(tmp_path, serve, server=address) as (_, client):
                refusing = asyncio.create_task(asyncio.to_thread(refuse, listener))
                with pytest.raises(CallError, match=r"without an answer: TLS failed: .*CERTIFICATE_REQUIRED") as error:
                    await RemoteCalls(client).logs(make_call(Kind.LOGS, "ns", "web"))
                assert error.value.status == 502
                await refusing

    asyncio.run(test())


def without_spdy(asked: list[bytes], status: int, subprotocol: str = translate.V5) -> Serve:
    """A remote that refuses SPDY with a status, and opens WebSockets of which nothing comes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found = re.search(rb"(?i)sec-websocket-key: (\S+)", asked[-1])
        if found is None:
            writer.write(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % status)
            return
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n")
        writer.write(f"Sec-WebSocket-Protocol: {subprotocol}\r\n".encode())
        writer.write(f"Sec-WebSocket-Accept: {accept_key(found[1].decode())}\r\n\r\n".encode())
        await reader.read()

    return serve


@pytest.mark.parametrize(("status", "carries"), [(403, False), (400, False), (502, True), (503, True), (504, True)])
def test_what_is_learnt_of_a_way_without_spdy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, carries: bool
) -> None:
    """A gateway whose backend was away for a moment says nothing about SPDY, though WebSocket is tried then as well."""
    monkeypatch.setattr(translate, "STREAMS_TIME", 0.05)

    async def test() -> None:
        asked: list[bytes] = []
        async with peer(tmp_path, without_spdy(asked, status)) as (made, client):
            made.asked = asked
            calls, downstream = RemoteCalls(client), Downstream(stays=True)
            await calls.upgrade(exec_call(), downstream, Count())
            assert downstream.got.startswith(b"HTTP/1.1 101 ")
            assert calls.carries_spdy is carries

    asyncio.run(test())


@pytest.mark.parametrize(("subprotocol", "told"), [(translate.V4, True), (translate.V5, False)])
def test_who_waits_for_a_command_that_does_not_hear_the_end_of_its_input_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subprotocol: str, told: bool
) -> None:
    """As remotes before 1.30 do not; it goes on all the same, since not every command minds."""
    monkeypatch.setattr(translate, "UNHEARD_TIME", 0.1)
    frames = Writer()
    streams = {1: "error", 3: "stdin", 5: "stdout", 7: "stderr"}
    sent = [frames.open(number, streamtype=name) for number, name in streams.items()]
    query = tuple((name, "1") for name in ("input", "output", "error"))
    call = make_call(Kind.EXEC, "ns", "web", method="POST", query=query, headers=SPDY_HEADERS)

    async def test() -> None:
        asked: list[bytes] = []
        async with peer(tmp_path, without_spdy(asked, 403, subprotocol)) as (made, client):
            made.asked = asked
            downstream = Downstream(*sent, frames.data(3, b"in", fin=True), stays=True)
            task = asyncio.create_task(RemoteCalls(client).upgrade(call, downstream, Count()))
            if told:
                async with asyncio.timeout(60):
                    while b"cannot be told that the input has ended" not in downstream.got:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
            else:
                await asyncio.sleep(0.5)
                assert b"cannot be told" not in downstream.got
            assert not task.done()
            task.cancel()
            await asyncio.wait({task})

    asyncio.run(test())


@pytest.mark.parametrize("told", [True, False], ids=["resumed", "as if never resumed"])
def test_tls_sessions_are_resumed_and_taken_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bool) -> None:
    """Each that is taken costs memory for good."""
    taken = 0
    session: Any = Channel.session

    def counted(channel: Channel) -> ssl.SSLSession | None:
        nonlocal taken
        taken += 1
        found: ssl.SSLSession | None = session.fget(channel)
        return found

    monkeypatch.setattr(Channel, "session", property(counted))
    if not told:
        monkeypatch.setattr(Channel, "resumed", property(lambda channel: False))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async def test() -> None:
        async with peer(tmp_path, serve) as (made, client):
            calls = RemoteCalls(client)
            for _ in range(4):
                await (await calls.logs(make_call(Kind.LOGS, "ns", "web"))).aclose()
            assert made.resumed == [False, True, True, True]
            assert taken == 1

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


def test_a_log_that_pours_is_gathered_and_all_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "_POURS", 1000.0)  # however slow the machine is
    lines = [b"line %d\r\n" % number if number % 1000 == 0 else b"line %d\n" % number for number in range(20_000)]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for line in lines:
            writer.write(b"%x\r\n%b\r\n" % (len(line), line))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async def test() -> None:
        async with peer(tmp_path, serve) as (_, client):
            stream = await RemoteCalls(client).logs(make_call(Kind.LOGS, "ns", "web"))
            assert b"".join([piece async for piece in stream]) == b"".join(lines)

    asyncio.run(test())


@pytest.mark.skipif(sys.platform != "linux", reason="the system gathers nothing")
def test_what_pours_is_left_to_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "_POURS", 1000.0)
    monkeypatch.setattr(channel_module, "_MOMENT", 1000.0)

    async def test() -> None:
        made: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
        server = await asyncio.start_server(lambda _, writer: made.set_result(writer), "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        async with server:
            _, channel = await asyncio.get_running_loop().create_connection(lambda: Channel(Scratch()), *address)
            peer = await made

            async def reads(sent: bytes) -> bytes:
                peer.write(sent)
                return await channel.read()

            assert await reads(b"1") == b"1"
            assert await reads(b"2") == b"2"
            channel.gathers = True
            assert await reads(b"3") == b"3", "the first is never kept"
            assert await reads(b"4") == b"4"
            reading = asyncio.create_task(reads(b"5"))
            await asyncio.sleep(0.1)
            assert not reading.done(), "there is more to come"
            channel._look_now()
            assert await reading == b"5", "but no more for now"
            channel._look_now()
            monkeypatch.setattr(channel_module, "_POURS", -1.0)
            assert await reads(b"6") == b"6"
            assert await reads(b"7") == b"7", "it no longer pours"
            monkeypatch.setattr(channel_module, "_POURS", 1000.0)
            assert await reads(b"8") == b"8"
            found = await reads(b"9" * 100_000)  # which is worth it
            while len(found) < 100_000:
                channel._look_now()
                found += await channel.read()
            reading = asyncio.create_task(reads(b"the end"))
            await asyncio.sleep(0)
            peer.close()
            assert await reading == b"the end"
            assert await channel.read() == b""
            channel.abort()

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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: dict[str, Any], text: str
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
        way: dict[str, Any] = {"proxy-url": url}
        async with server, peer(tmp_path, serve, **way) as (_, client):
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
