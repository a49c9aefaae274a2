"""Anything that somebody may send to the running server: it answers or hangs up, and never falls over.

The sender is the API server's identity, so that nothing is refused before it is understood.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from itertools import pairwise
from threading import Thread
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from app.kube.client import Client
from kubelet_api.call import Call
from kubelet_api.limits import Limits
from kubelet_api.server import KubeletServer
from kubelet_api.twins import Twin
from tests.kubelet_api.serving import NODE, SPDY, UID, Authority, Pods, Recorder, connected, pod

pytestmark = pytest.mark.cluster

EXAMPLES = 150


class Fuzzed:
    """A server in a thread of its own, which lives through all examples."""

    def __init__(self, reviews: Callable[[], AbstractAsyncContextManager[Client]], authority: Authority) -> None:
        self.remote = Recorder()
        self._authority = authority
        self._admin = authority.user("apiserver", "system:masters")
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._started: Future[KubeletServer] = Future()
        self._thread = Thread(target=self._loop.run_until_complete, args=(self._main(reviews),))
        self._thread.start()
        self._server = self._started.result(30)

    async def _main(self, reviews: Callable[[], AbstractAsyncContextManager[Client]]) -> None:
        async with reviews() as client:
            server = KubeletServer(
                host="127.0.0.1",
                port=0,
                tls=self._authority.server_context(),
                node=NODE,
                version="v1",
                twins=Pods([pod()]),
                remote=self.remote,
                reviews=client,
                limits=Limits(head_time=0.2, farewell=0.5),
            )
            await server.start()
            self._started.set_result(server)
            await self._stop.wait()
            await server.stop(0)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        self._loop.close()

    def send(self, pieces: list[bytes]) -> bytes:
        return asyncio.run_coroutine_threadsafe(self._send(pieces), self._loop).result(30)

    async def _send(self, pieces: list[bytes]) -> bytes:
        got = b""
        async with connected(self._server, self._admin) as wire:
            with suppress(OSError, TimeoutError):
                for piece in pieces:
                    await wire.send(piece)
                async with asyncio.timeout(60):
                    while b"\r\n\r\n" not in got and (data := await wire.reader.read(65536)):
                        got += data
        return got


@pytest.fixture
def fuzzed(reviews: Callable[[], AbstractAsyncContextManager[Client]], authority: Authority) -> Iterator[Fuzzed]:
    one = Fuzzed(reviews, authority)
    yield one
    one.close()


NAMES = st.one_of(
    st.sampled_from(
        ["shop", "web", "main", "init", UID, "other", "..", ".", "%2e%2e", "%2F", "%00", "%0d%0a", "%25", "a" * 300]
    ),
    st.text(max_size=8).map(lambda text: quote(text, safe="")),
    st.text(alphabet="abc/%.?&=#;\\ ", max_size=8).map(lambda text: text.replace(" ", "%20")),
)
ROOTS = st.sampled_from(
    ["exec", "attach", "portForward", "run", "containerLogs", "pods", "runningpods", "healthz", "metrics", "stats",
     "configz", "logs", "debug", "else", "", "EXEC"]
)  # fmt: skip
PATHS = st.builds(lambda root, names: "/" + "/".join([root, *names]), ROOTS, st.lists(NAMES, max_size=5))
QUERIES = st.lists(
    st.builds(
        lambda name, value: f"{name}={value}",
        st.sampled_from(
            ["command", "input", "output", "follow", "tailLines", "port", "cmd", "verbose", "exclude", "%FF"]
        ),
        NAMES,
    ),
    max_size=4,
).map("&".join)
METHODS = st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "CONNECT", "TRACE", "FOO", "get"])
LINES = st.one_of(
    st.sampled_from(
        [*SPDY, "Connection: close", "Connection: keep-alive, upgrade", "Upgrade: websocket", "Upgrade: h2c",
         "Upgrade:", "Content-Length: 0", "Content-Length: 5", "Content-Length: -1", "Content-Length: x",
         "Expect: 100-continue",
         "Transfer-Encoding: chunked", "Transfer-Encoding: gzip", "Sec-WebSocket-Protocol: v4.channel.k8s.io, ",
         "Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.YQ", "Authorization: Bearer x", "Host: again",
         "X-Remote-User: admin", " folded", "no colon", ": no name", "Sec-WebSocket-Key: a"]
    ),
    st.text(alphabet=st.characters(max_codepoint=255), max_size=20),
)  # fmt: skip


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    target = draw(PATHS)
    if query := draw(QUERIES):
        target += "?" + query
    version = draw(st.sampled_from(["1.1", "1.1", "1.1", "1.1", "1.0", "2.0", "0.9"]))
    lines = [f"{draw(METHODS)} {target} HTTP/{version}", "Host: node", *draw(st.lists(LINES, max_size=5)), "", ""]
    return "\r\n".join(lines).encode("latin-1", errors="replace")


WHOLE = st.one_of(
    requests(),
    st.builds(lambda one, rest: one + rest, requests(), st.one_of(requests(), st.binary(max_size=100))),
    st.binary(min_size=1, max_size=200),
)


@example(sent=b"CONNECT /healthz HTTP/1.1\r\nHost: node\r\n\r\n", cuts=[])
@given(sent=WHOLE, cuts=st.lists(st.integers(0, 500), max_size=3))
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_fuzz(fuzzed: Fuzzed, caplog: pytest.LogCaptureFixture, sent: bytes, cuts: list[int]) -> None:
    caplog.clear()
    edges = sorted({0, len(sent), *(cut for cut in cuts if cut < len(sent))})
    answer = fuzzed.send([sent[start:end] for start, end in pairwise(edges)])
    assert not answer or answer.startswith(b"HTTP/1.1 "), answer
    assert b"Traceback" not in answer
    assert b"Internal Server Error" not in answer
    complaints = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert not complaints
    for call in fuzzed.remote.calls:
        _is_valid(call)
    fuzzed.remote.calls.clear()


def _is_valid(call: Call) -> None:
    assert (call.namespace, call.pod, call.uid) == ("shop", "web", UID)
    assert call.container in ("main", "side", "init", "debug", None)
    assert call.twin == Twin("remote-shop", "web-twin", "remote-uid")
