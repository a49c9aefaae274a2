"""Real clients straight at the calls to the remote cluster, without the server in between.

A listener on loopback plays the API server and the kubelet API's server in one: it turns a client's request for a
pod's subresource into the call that a kubelet would get, and hands everything else on to the remote API server, so
that an ordinary kubectl works through it. It runs in a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import yaml

from app.kube import config
from app.kube.client import Client
from app.kube.errors import ApiError
from kubelet_api import splice
from kubelet_api.call import Call, CallError, Kind, User
from kubelet_api.channel import Channel, Scratch
from kubelet_api.remote import RemoteCalls
from kubelet_api.stall import Wire
from kubelet_api.twins import Twin

T = TypeVar("T")

KINDS = {"exec": Kind.EXEC, "attach": Kind.ATTACH, "portforward": Kind.PORT_FORWARD, "log": Kind.LOGS}
WORDS = {"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"}
POD = re.compile(r"/api/v1/namespaces/([a-z0-9-]+)/pods/([a-z0-9.-]+)/(exec|attach|portforward|log)")


def make_call(kind: Kind, namespace: str, pod: str, container: str | None = "main", **options: Any) -> Call:
    """A call to a pod whose twin has the same name, unless told otherwise."""
    options.setdefault("twin", Twin(namespace, pod, "remote-uid"))
    options.setdefault("method", "GET")
    return Call(
        kind=kind, user=User("test"), namespace=namespace, pod=pod, uid="local-uid", container=container, **options
    )


class Count:
    """A meter."""

    def __init__(self) -> None:
        self.up = self.down = 0

    def from_client(self, count: int) -> None:
        self.up += count

    def to_client(self, count: int) -> None:
        self.down += count

    def over(self, wire: Wire | None) -> None:
        pass


class Held:
    """A client's connection whose first bytes came with the head."""

    def __init__(self, channel: Channel, held: bytes) -> None:
        self._channel, self._held = channel, held
        self.write, self.close, self.abort = channel.write, channel.close, channel.abort

    async def read(self) -> bytes:
        held, self._held = self._held, b""
        return held or await self._channel.read()


class Front:
    """The listener; use :func:`front`."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self.loop = asyncio.new_event_loop()
        self.port = 0
        self.errors: list[BaseException] = []
        self.meters: list[Count] = []
        self.sessions: set[asyncio.Task[None]] = set()
        self.calls: RemoteCalls
        self._scratch = Scratch()

    def run(self, doing: Coroutine[Any, Any, T], timeout: float = 60.0) -> T:
        """Do something in the listener's thread."""
        return asyncio.run_coroutine_threadsafe(doing, self.loop).result(timeout)

    def write_kubeconfig(self, path: Path) -> Path:
        """A kubeconfig for clients."""
        cluster = {"name": "front", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}
        context = {"name": "front", "context": {"cluster": "front", "user": "front"}}
        content = {"clusters": [cluster], "contexts": [context], "current-context": "front"}
        path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "users": [{"name": "front"}], **content}))
        return path

    async def open(self) -> None:
        self._client = Client(config.load(self._kubeconfig), name="remote")
        await self._client.__aenter__()
        self.calls = RemoteCalls(self._client)
        self._server = await self.loop.create_server(lambda: Accepted(self._scratch, self._accept), "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def shut(self) -> None:
        self._server.close()
        for session in list(self.sessions):
            await splice.ended(session)
        await self._client.__aexit__(None, None, None)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        self.errors += [AssertionError(f"left over: {task}") for task in left if not task.done()]

    def _accept(self, channel: Channel) -> None:
        task = self.loop.create_task(self._serve(channel))
        self.sessions.add(task)
        task.add_done_callback(self.sessions.discard)

    async def _serve(self, channel: Channel) -> None:
        try:
            received = b""
            while b"\r\n\r\n" not in received:
                data = await channel.read()
                if not data:
                    return
                received += data
            head, _, held = received.partition(b"\r\n\r\n")
            await self._handle(head, Held(channel, held))
        except OSError:
            pass
        except Exception as error:  # noqa: BLE001 - a test looks at it
            self.errors.append(error)
        finally:
            channel.abort()

    async def _handle(self, head: bytes, client: Held) -> None:
        first, *lines = head.split(b"\r\n")
        method, target, _ = first.decode().split(" ")
        headers = tuple((name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines))
        url = urlsplit(target)
        query = parse_qsl(url.query, keep_blank_values=True)
        matched = POD.fullmatch(url.path)
        try:
            if matched is None:
                body = await self._client.request("GET", url.path, params=dict(query) or None, retry=False)
                await answer(client, 200, body, "application/json")
                return
            call = make_call(
                KINDS[matched[3]],
                matched[1],
                matched[2],
                dict(query).get("container", "main"),
                method=method,
                query=tuple(kubelet_query(query)),
                headers=headers,
            )
            if call.kind is Kind.LOGS:
                await self._logs(call, client)
            else:
                self.meters.append(Count())
                await self.calls.upgrade(call, client, self.meters[-1])
        except CallError as error:
            if matched is not None and matched[3] == "log":  # of which the API server makes an object
                await refuse(client, error.status, error.message)
            else:
                await answer(client, error.status, error.message.encode(), "text/plain; charset=utf-8")
        except ApiError as error:
            await refuse(client, error.status, error.message)

    async def _logs(self, call: Call, client: Held) -> None:
        stream = await self.calls.logs(call)
        gone = asyncio.create_task(client.read())
        copying = asyncio.create_task(self._copy(stream, client))
        try:
            await asyncio.wait({gone, copying}, return_when=asyncio.FIRST_COMPLETED)
            if copying.done():
                copying.result()
        finally:
            await splice.ended(gone)
            await splice.ended(copying)
            await stream.aclose()

    async def _copy(self, stream: Any, client: Held) -> None:
        await client.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/plain\r\n\r\n")
        async for piece in stream:
            await client.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await client.write(b"0\r\n\r\n")
        await client.close()


class Accepted(Channel):
    """A connection that somebody else made."""

    def __init__(self, scratch: Scratch, accept: Callable[[Channel], None]) -> None:
        super().__init__(scratch)
        self._accept = accept

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._accept(self)


def kubelet_query(query: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """What the API server makes of the options of a subresource."""
    for name, value in query:
        if name in WORDS:
            if value == "true":
                yield WORDS[name], "1"
        elif name != "container":
            yield {"ports": "port"}.get(name, name), value


async def answer(client: Held, status: int, body: bytes, content_type: str) -> None:
    head = f"HTTP/1.1 {status} Whatever\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
    await client.write(head.encode() + b"Connection: close\r\n\r\n" + body)
    await client.close()


async def refuse(client: Held, status: int, message: str) -> None:
    content = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": status}
    await answer(client, status, json.dumps(content).encode(), "application/json")


@contextlib.contextmanager
def front(kubeconfig: Path) -> Iterator[Front]:
    """A listener in front of the cluster of a kubeconfig; fails if anything went wrong within."""
    made = Front(kubeconfig)
    thread = threading.Thread(target=made.loop.run_forever, daemon=True)
    thread.start()
    try:
        made.run(made.open())
        yield made
    finally:
        made.run(made.shut())
        made.loop.call_soon_threadsafe(made.loop.stop)
        thread.join()
        made.loop.close()
    assert made.errors == []
