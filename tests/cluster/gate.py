"""A way to a real API server on which watches can be stopped, requests refused, and the answer to one lost.

It ends TLS, with the API server's own certificate, so that it can tell a watch from a request; beyond that it passes
bytes. Connections that carry watches carry nothing else: Farlet keeps them apart from its other requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from devcluster.cluster import Cluster
from devcluster.layout import API_PORT
from devcluster.pki import write_private

_CHUNK = 64 * 1024
_STATUS = b'{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"no"}'
_REFUSAL = b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
    len(_STATUS),
    _STATUS,
)
_LATE = 1.0
"""Seconds after which a connection breaks whose answer is lost: watches have told of what was done by then."""


class Gate:
    """Runs in a thread of its own; use ``gate()``."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        pki = cluster.layout.pki
        self._near = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._near.load_cert_chain(pki / "apiserver.crt", pki / "apiserver.key")
        self._far = ssl.create_default_context(cafile=pki / "ca.crt")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._port = 0
        self._server: asyncio.Server | None = None
        self._passages: set[_Passage] = set()
        self._shut = False
        self._losing = b""
        self._refusing = b""
        self.refusals = 0
        """Requests that were refused so far."""
        self.watches = 0
        """Watches that were let through so far."""

    # ------------------------------------------------------------------ what a test does with it

    def kubeconfig(self, original: Path, path: Path) -> Path:
        """The same credentials, through the gate."""
        config = json.loads(original.read_text())
        config["clusters"][0]["cluster"] |= {
            "server": f"https://127.0.0.1:{self._port}",
            "tls-server-name": "kubernetes",
        }
        write_private(path, json.dumps(config, indent=1).encode())
        return path

    def hang_watches(self) -> int:
        """Every watch that is open stays open and passes nothing any more; those to come do. Returns how many."""
        return self._call(lambda: self._each_watch(lambda passage: passage.flowing.clear()))

    def shut(self) -> None:
        """Break every watch that is open, and let no other through until :meth:`open`."""
        self._shut = True
        self._call(lambda: self._each_watch(lambda passage: passage.task.cancel()))

    def open(self) -> None:
        self._shut = False

    def lose_answer(self, request: str) -> None:
        """Of the next request that begins so (``POST /apis/batch``) the answer never comes: the connection breaks."""
        self._losing = request.encode()

    def refuse(self, request: str) -> None:
        """Requests that begin so are forbidden, until something else is; only those without a body."""
        self._refusing = request.encode()

    @property
    def lost(self) -> bool:
        """Whether the answer that was to be lost is."""
        return not self._losing

    # ------------------------------------------------------------------ the inside

    def start(self) -> None:
        self._thread.start()

        async def listen() -> asyncio.Server:
            return await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._near)

        self._server = asyncio.run_coroutine_threadsafe(listen(), self._loop).result(60)
        self._port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        async def end() -> None:
            assert self._server is not None
            self._server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}  # also the TLS handshakes that go on
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0.1)  # transports that were aborted are closed by the loop's next turns

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    def _call(self, function: Callable[[], int]) -> int:
        async def called() -> int:
            return function()

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(60)

    def _each_watch(self, do: Callable[[_Passage], object]) -> int:
        watches = [passage for passage in self._passages if passage.is_watch]
        for passage in watches:
            do(passage)
        return len(watches)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passage = _Passage()
        passage.task = self._loop.create_task(self._serve(passage, reader, writer))
        self._passages.add(passage)

        def ended(_: asyncio.Task[None]) -> None:
            self._passages.discard(passage)
            writer.transport.abort()  # here, since a task that is cancelled before its first step runs nothing

        passage.task.add_done_callback(ended)

    async def _serve(self, passage: _Passage, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            passage.is_watch = b"watch=true" in head.split(b"\r\n", 1)[0]
            if passage.is_watch:
                if self._shut:
                    return
                self.watches += 1
            address = str(self._cluster.layout.ip), API_PORT
            there_reader, there_writer = await asyncio.open_connection(*address, ssl=self._far)
            try:
                self._ask(passage, head, writer, there_writer)
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._carry_questions(passage, reader, writer, there_writer))
                    group.create_task(self._carry_answers(passage, there_reader, writer))
            finally:
                there_writer.transport.abort()
        except* (OSError, asyncio.IncompleteReadError, EOFError):
            pass  # one end went away, and so does the other

    def _ask(
        self, passage: _Passage, data: bytes, writer: asyncio.StreamWriter, there_writer: asyncio.StreamWriter
    ) -> None:
        if self._refusing and data.startswith(self._refusing):
            self.refusals += 1
            writer.write(_REFUSAL)
            return
        if self._losing and data.startswith(self._losing):
            passage.loses = True
        there_writer.write(data)

    async def _carry_questions(
        self,
        passage: _Passage,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        there_writer: asyncio.StreamWriter,
    ) -> None:
        while data := await reader.read(_CHUNK):
            await passage.flowing.wait()
            self._ask(passage, data, writer, there_writer)
            await there_writer.drain()
        raise EOFError

    async def _carry_answers(
        self, passage: _Passage, there_reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await there_reader.read(_CHUNK):
            await passage.flowing.wait()
            if passage.loses:
                self._losing = b""
                await asyncio.sleep(_LATE)
                break
            writer.write(data)
            await writer.drain()
        raise EOFError


class _Passage:
    """One connection."""

    def __init__(self) -> None:
        self.is_watch = False
        self.loses = False
        """Whether the next answer on it is lost."""
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.task: asyncio.Task[None]


@contextlib.contextmanager
def gate(cluster: Cluster) -> Iterator[Gate]:
    """A gate in front of a cluster's API server while the block runs."""
    opened = Gate(cluster)
    opened.start()
    try:
        yield opened
    finally:
        opened.stop()
