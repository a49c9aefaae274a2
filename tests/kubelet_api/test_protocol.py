"""One connection, without Kubernetes: slow, broken and greedy clients, and the hooks of uvicorn that it hangs on."""

from __future__ import annotations

import asyncio
import inspect
import socket
import ssl
import struct
from asyncio import sslproto
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any

import h11
import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from kubelet_api.call import CallError, Kind
from kubelet_api.channel import Scratch
from kubelet_api.connection import Connection, answer
from kubelet_api.limits import Limits
from kubelet_api.metrics import Metrics
from kubelet_api.protocol import KubeletProtocol, State
from kubelet_api.request import Head
from kubelet_api.routes import Found
from kubelet_api.sessions import Session
from kubelet_api.tls import SharedTls
from tests.kubelet_api.front import make_call
from tests.kubelet_api.serving import Authority

EXEC = b"POST /exec/a/b/c?x HTTP/1.1\r\nHost: n\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
GET = b"GET /healthz HTTP/1.1\r\nHost: n\r\n\r\n"


# ---------------------------------------------------------------------- hooks


def test_uvicorn_is_the_version_that_the_hooks_were_read_in() -> None:
    assert uvicorn.__version__.startswith("0.54."), "read h11_impl.py of the new version, then change this"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("connection_made", ["self", "transport"]),
        ("connection_lost", ["self", "exc"]),
        ("data_received", ["self", "data"]),
        ("shutdown", ["self"]),
        ("_should_upgrade", ["self"]),
        ("_unset_keepalive_if_required", ["self"]),
        ("handle_websocket_upgrade", ["self", "event"]),
        ("send_400_response", ["self", "msg"]),
        ("on_response_complete", ["self"]),
        ("pause_writing", ["self"]),
        ("resume_writing", ["self"]),
    ],
)
def test_a_method_of_uvicorn_that_we_override_or_call(name: str, arguments: list[str]) -> None:
    method = getattr(H11Protocol, name, None)
    assert method is not None, f"uvicorn's H11Protocol has no {name} any more: kubelet_api/protocol.py leans on it"
    assert list(inspect.signature(method).parameters) == arguments


def test_where_uvicorn_calls_the_hooks() -> None:
    source = inspect.getsource(H11Protocol.handle_events)
    scope, asked, taken = (source.find(text) for text in ("self.scope = {", "_should_upgrade()", "_upgrade(event)"))
    assert 0 < scope < asked < taken, "the scope is set before _should_upgrade is asked, for each request"
    after = source[taken:].splitlines()[1].strip()
    assert after == "return", "nothing else is parsed once the connection was taken over"
    assert "except h11.RemoteProtocolError" in source.partition("send_400_response")[0]


def test_attributes_of_uvicorn_that_we_use() -> None:
    async def main() -> None:
        protocol = await _protocol(asyncio.get_running_loop().create_future())
        used = (
            "conn",
            "cycle",
            "transport",
            "scope",
            "headers",
            "connections",
            "tasks",
            "loop",
            "logger",
            "server_state",
        )
        for name in used:
            assert hasattr(protocol, name), f"uvicorn's H11Protocol has no attribute {name} any more"
        assert hasattr(protocol.conn, "trailing_data")
        source = inspect.getsource(RequestResponseCycle)
        for name in ("self.disconnected", "self.response_complete", "self.on_response()"):
            assert name in source

    asyncio.run(main())


def test_what_of_asyncios_tls_we_override_or_use() -> None:
    protocol: Any = sslproto.SSLProtocol
    assert "bytearray(self.max_size)" in inspect.getsource(protocol.__init__)
    assert "self._incoming.write(self._ssl_buffer_view[:nbytes])" in inspect.getsource(protocol.buffer_updated)
    assert "self._do_read__copied()" in inspect.getsource(protocol._do_read)
    copied = inspect.getsource(protocol._do_read__copied)
    for used in ("self._sslobj.read(", "self._app_protocol.data_received(", "except SSLAgainErrors:"):
        assert used in copied
    end = copied[copied.index("if not chunk:\n            #") :]
    assert [line.strip() for line in end.splitlines()[2:]] == ["self._call_eof_received()", "self._start_shutdown()"]


@pytest.mark.parametrize("size", [1, 4096, 20_000])
def test_everything_comes_through_small_shared_buffers(authority: Authority, size: int) -> None:
    """Two connections at once, each with more than the buffers hold, and its end told after its last byte."""
    scratch = Scratch(size)

    class Taking(asyncio.Protocol):
        def __init__(self) -> None:
            self.got = bytearray()
            self.ended = asyncio.get_running_loop().create_future()

        def data_received(self, data: bytes) -> None:
            self.got += data

        def eof_received(self) -> None:
            self.ended.set_result(bytes(self.got))

    async def main() -> None:
        loop, context, taking = asyncio.get_running_loop(), authority.server_context(), [Taking(), Taking()]
        free = iter(taking)
        server = await loop.create_server(lambda: SharedTls(scratch, next(free), context, waiter=None), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        sent = [bytes([number]) * (300_000 if size > 1 else 30_000) for number in (1, 2)]

        async def send(data: bytes) -> None:
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=authority.client_context())
            for start in range(0, len(data), 7_000):
                writer.write(data[start : start + 7_000])
                await asyncio.sleep(0)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

        await asyncio.gather(*map(send, sent))
        assert sorted([await protocol.ended for protocol in taking]) == sent
        server.close()

    asyncio.run(main())


# ---------------------------------------------------------------------- a server of one kind of connection


class Served:
    """Listens without TLS; plain requests are answered ``ok``, upgrades with what they got."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.state = State()
        self.taken: list[tuple[Head, bytes]] = []
        self.refused: list[str] = []
        self.body = b"ok"
        self.kept: asyncio.StreamWriter
        self.port = 0

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        head: Head = scope["state"]["head"]
        if head.error is not None:
            await send({"type": "http.response.start", "status": head.error.status, "headers": []})
            await send({"type": "http.response.body", "body": head.error.message.encode()})
            return
        length = str(len(self.body)).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        await send({"type": "http.response.body", "body": self.body})

    async def on_upgrade(self, head: Head, found: Found, connection: Connection) -> None:
        if head.error is not None:
            await connection.answer(head.error)
        else:
            got = b""
            while not got.endswith(b"!") and (data := await connection.read()):
                got += data
            self.taken.append((head, got))
            await connection.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + got)
        await connection.close()

    def protocol(self) -> KubeletProtocol:
        config = Config(
            self.app,
            http=KubeletProtocol,
            ws="none",
            log_config=None,
            lifespan="off",
            interface="asgi3",
            h11_max_incomplete_event_size=self.limits.head,
            proxy_headers=False,
            timeout_keep_alive=int(self.limits.keep_alive),
        )
        config.load()
        closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return KubeletProtocol(
            config,
            self.state,
            limits=self.limits,
            on_upgrade=self.on_upgrade,
            closed=closed,
            on_refusal=self.refused.append,
        )


async def _protocol(closed: asyncio.Future[None]) -> KubeletProtocol:
    return Served(Limits()).protocol()


@asynccontextmanager
async def served(limits: Limits | None = None) -> AsyncIterator[Served]:
    one = Served(limits or Limits(farewell=1.0))
    server = await asyncio.get_running_loop().create_server(one.protocol, "127.0.0.1", 0)
    one.port = server.sockets[0].getsockname()[1]
    try:
        yield one
    finally:
        server.close()
        for connection in list(one.state.connections):
            connection.transport.abort()
        await asyncio.gather(*list(one.state.tasks))
        await server.wait_closed()


async def talk(one: Served, *pieces: bytes) -> bytes:
    """Send pieces, each on its own, and read until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@given(cuts=st.lists(st.integers(0, 400), max_size=8), body=st.binary(max_size=200), length=st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_cutting_of_an_upgrade_gives_the_same(cuts: list[int], body: bytes, length: bool) -> None:
    whole = EXEC + (b"Content-Length: 0\r\n" if length else b"") + b"\r\n" + body.replace(b"!", b"?") + b"!"
    edges = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    pieces = [whole[start:end] for start, end in pairwise(edges)]

    async def main() -> None:
        async with served() as one:
            answer = await talk(one, *pieces)
            assert answer == b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + body.replace(b"!", b"?") + b"!"
            head, _ = one.taken[0]
            assert (head.method, head.path, head.query) == ("POST", "/exec/a/b/c", "x")

    asyncio.run(main())


def test_an_upgrade_after_another_request_on_the_same_connection() -> None:
    async def main() -> None:
        async with served() as one:
            answer = await talk(one, GET + GET + EXEC + b"\r\nhello!")
            assert answer.count(b"HTTP/1.1 200") == 2
            assert answer.endswith(b"hello!")

    asyncio.run(main())


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: n\r\n", GET + b"GE"])
def test_a_head_that_takes_its_time_is_not_waited_for(sent: bytes) -> None:
    async def main() -> None:
        async with served(Limits(head_time=0.3)) as one:
            answer = await talk(one, sent)
            assert answer.count(b"HTTP/1.1 200") == sent.count(GET)
            assert not one.state.connections
            assert one.refused == ["late-head"]

    asyncio.run(main())


def test_an_unused_connection_is_closed() -> None:
    async def main() -> None:
        async with served(Limits(keep_alive=1.0)) as one:
            assert b"200" in await talk(one, GET)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01 this is TLS\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET /\x00 HTTP/1.1\r\nHost: n\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: n\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: n\r\nX: " + b"a" * 5000, 431),
        (b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: n\r\nConnection: close\r\n" + b"X: y\r\n" * 60 + b"\r\n", 431),
        (EXEC + b"Content-Length: 3\r\n\r\nabc", 400),
        (EXEC + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (EXEC + b"X: y\r\n" * 60 + b"\r\n", 431),
    ],
)
def test_what_is_refused(sent: bytes, status: int) -> None:
    async def main() -> None:
        async with served(Limits(head=4096, url=2048, headers=50, farewell=1.0)) as one:
            answer = await talk(one, sent)
            assert answer.startswith(b"HTTP/1.1 %d " % status), answer
            assert not one.taken
            assert len(one.refused) <= 1, "by h11, else by the gate, which counts too"

    asyncio.run(main())


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost: n\r\nX: " + b"a" * 5000])
def test_what_is_no_request_is_counted(sent: bytes) -> None:
    async def main() -> None:
        async with served(Limits(head=4096)) as one:
            await talk(one, sent)
            assert one.refused == ["bad-request"]

    asyncio.run(main())


async def gone(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


async def unread(one: Served, request: bytes) -> KubeletProtocol:
    """The connection of a client that asks again and again, and reads nothing."""
    one.body = bytes(1 << 20)
    _, writer = await asyncio.open_connection("127.0.0.1", one.port, limit=1)
    writer.write(request * 100)
    async with asyncio.timeout(60):
        while True:
            for protocol in one.state.connections:
                if isinstance(protocol, KubeletProtocol) and protocol.flow.write_paused:
                    one.kept = writer
                    return protocol
            await asyncio.sleep(0.01)


def test_answers_that_nobody_reads_do_not_wait_for_ever() -> None:
    async def main() -> None:
        async with served(Limits(unread=0.1)) as one:
            await asyncio.wait_for((await unread(one, GET))._closed, 30)  # the default is 60
            assert one.refused == ["unread"]
            await gone(one.kept)

    asyncio.run(main())


def test_a_log_that_nobody_reads_waits() -> None:
    async def main() -> None:
        async with served(Limits(unread=0.1)) as one:
            protocol = await unread(one, GET.replace(b"/healthz", b"/containerLogs/a/b/c"))
            async with asyncio.timeout(60):
                while protocol._unread_timer is not None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert one.refused == []
            assert not protocol.transport.is_closing()
            await gone(one.kept)

    asyncio.run(main())


def test_garbage_in_the_middle_of_a_body_ends_the_connection() -> None:
    async def main() -> None:
        async with served() as one:
            start = b"POST /healthz HTTP/1.1\r\nHost: n\r\nTransfer-Encoding: chunked\r\n\r\n"
            assert (await talk(one, start, b"zz\r\n")).count(b"HTTP/1.1") <= 1

    asyncio.run(main())


def test_a_body_that_nobody_reads_ends_the_connection() -> None:
    async def main() -> None:
        async with served() as one:
            answer = await talk(one, b"POST /healthz HTTP/1.1\r\nHost: n\r\nContent-Length: 100000000\r\n\r\nabc")
            assert answer.endswith(b"ok")

    asyncio.run(main())


def test_an_old_client_is_not_upgraded() -> None:
    async def main() -> None:
        async with served() as one:
            answer = await talk(one, EXEC.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n")
            assert answer.startswith(b"HTTP/1.1 200")

    asyncio.run(main())


# ---------------------------------------------------------------------- the connection afterwards


def test_a_connection_that_closes_says_what_was_written() -> None:
    async def main() -> None:
        async with served() as one:
            body = b"x" * (4 << 20) + b"!"
            answer = await talk(one, EXEC + b"\r\n", body)
            assert len(answer) == len(b"HTTP/1.1 101 Switching Protocols\r\n\r\n") + len(body)

    asyncio.run(main())


def test_an_answer_cannot_be_split_by_what_is_in_it() -> None:
    head, _, body = answer(CallError(404, "pod does not exist\r\nX-Header: no")).partition(b"\r\n\r\n")
    assert b"X-Header" not in head
    assert body.startswith(b"pod does not exist")


def test_h11_keeps_what_comes_after_the_head() -> None:
    conn = h11.Connection(h11.SERVER)
    conn.receive_data(EXEC + b"\r\nrest")
    conn.next_event()
    assert conn.trailing_data == (b"rest", False)


# ---------------------------------------------------------------------- clients that go while nobody reads


class Unread(Served):
    """An upgrade whose other end reads nothing; the test looks at its session, at times of its own."""

    def __init__(self) -> None:
        super().__init__(Limits(farewell=1.0))
        self.opened: asyncio.Future[tuple[Connection, Session]] = asyncio.get_running_loop().create_future()
        self.over = asyncio.Event()

    async def on_upgrade(self, head: Head, found: Found, connection: Connection) -> None:
        session = Session(make_call(Kind.EXEC, "a", "b"), Metrics(), stall=90)
        session.over(connection.wire, connection.is_left)
        await connection.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
        self.opened.set_result((connection, session))
        await self.over.wait()
        connection.abort()


@asynccontextmanager
async def unread_session(
    server: ssl.SSLContext | None, client: ssl.SSLContext | None
) -> AsyncIterator[tuple[asyncio.StreamWriter, Connection, Session]]:
    one, scratch = Unread(), Scratch()

    def protocol() -> asyncio.BaseProtocol:
        return one.protocol() if server is None else SharedTls(scratch, one.protocol(), server, waiter=None)

    listener = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    async with listener:
        _, writer = await asyncio.open_connection("127.0.0.1", listener.sockets[0].getsockname()[1], ssl=client)
        writer.write(EXEC + b"\r\n")
        try:
            connection, session = await asyncio.wait_for(one.opened, 60)
            yield writer, connection, session
        finally:
            await gone(writer)
            one.over.set()
            await asyncio.gather(*list(one.state.tasks))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.02)


async def standstill(writer: asyncio.StreamWriter) -> None:
    """Until nothing more of what was written is taken."""
    left = [-1, *[-2] * 9]
    while len({*left}) > 1:
        await asyncio.sleep(0.05)
        left = [*left[1:], writer.transport.get_write_buffer_size()]


@pytest.mark.parametrize(
    ("size", "reset"),
    [
        pytest.param(100, False, id="ended with little"),
        pytest.param(200_000, False, id="ended with more than is held for who reads"),
        pytest.param(64 << 20, True, id="reset with more than all buffers hold"),
    ],
)
def test_a_client_that_goes_is_noticed_though_nobody_reads(authority: Authority, size: int, reset: bool) -> None:
    async def main() -> None:
        server, client = authority.server_context(), authority.client_context()
        async with unread_session(server, client) as (writer, connection, session):
            writer.write(bytes(size))
            await standstill(writer)
            assert not any(session.is_stalled(now) for now in (0, 50, 100, 150)), "it waits, as it may"
            if reset:
                now_and_hard = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now_and_hard)
            writer.transport.abort()
            await until(connection.is_left)
            assert not session.is_stalled(200)
            assert not session.is_stalled(280)
            assert session.is_stalled(291)

    asyncio.run(main())


def test_a_client_that_ends_its_input_and_gets_output_is_kept() -> None:
    async def main() -> None:
        async with unread_session(None, None) as (writer, connection, session):
            writer.write(bytes(100_000))  # the system holds what is not held here, else the end would be behind it
            await standstill(writer)
            writer.write_eof()
            await until(connection.is_left)
            for now in range(0, 1000, 50):
                session.to_client(1)
                assert not session.is_stalled(now), "something passes"

    asyncio.run(main())
