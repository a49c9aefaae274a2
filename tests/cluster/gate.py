"""A way to a real API server on which watches, and nothing else, can be stopped.

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

    # ------------------------------------------------------------------ the inside

    def start(self) -> None:
        self._thread.start()

        async def listen() -> asyncio.Server:
            return await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._near)

        self._server = asyncio.run_coroutine_threadsafe(listen(), self._loop).result(10)
        self._port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        async def end() -> None:
            assert self._server is not None
            self._server.close()
            tasks = [passage.task for passage in self._passages]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0.1)  # transports that were aborted are closed by the loop's next turns

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _call(self, function: Callable[[], int]) -> int:
        async def called() -> int:
            return function()

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(10)

    def _each_watch(self, do: Callable[[_Passage], object]) -> int:
        watches = [passage for passage in self._passages if passage.is_watch]
        for passage in watches:
            do(passage)
        return len(watches)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passage = _Passage()
        passage.task = self._loop.create_task(self._serve(passage, reader, writer))
        self._passages.add(passage)
        passage.task.add_done_callback(lambda _: self._passages.discard(passage))

    async def _serve(self, passage: _Passage, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            passage.is_watch = b"watch=true" in head.split(b"\r\n", 1)[0]
            if passage.is_watch:
                if self._shut:
                    return
                self.watches += 1
            address = str(self._cluster.layout.ip), API_PORT
            there_reader, there_writer = await asyncio.open_connection(*address, ssl=self._far)
            ends.append(there_writer)
            there_writer.write(head)
            async with asyncio.TaskGroup() as group:
                group.create_task(_carry(passage, reader, there_writer))
                group.create_task(_carry(passage, there_reader, writer))
        except* (OSError, asyncio.IncompleteReadError, EOFError):
            pass  # one end went away, and so does the other
        finally:
            for end in ends:
                end.transport.abort()


class _Passage:
    """One connection."""

    def __init__(self) -> None:
        self.is_watch = False
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.task: asyncio.Task[None]


async def _carry(passage: _Passage, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        await passage.flowing.wait()
        writer.write(data)
        await writer.drain()
    raise EOFError


@contextlib.contextmanager
def gate(cluster: Cluster) -> Iterator[Gate]:
    """A gate in front of a cluster's API server while the block runs."""
    opened = Gate(cluster)
    opened.start()
    try:
        yield opened
    finally:
        opened.stop()
