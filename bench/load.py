"""Many objects through one API server, quickly: kept connections for writes, one watch to see pods come and go.

The clients share the machine with what they measure, so they do little: requests are made beforehand, of an answer only
the status is read, and of a watched pod only its name, its owner and its conditions.
"""

from __future__ import annotations

import datetime
import http.client
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Self

import msgspec
from msgspec import Struct

from devcluster.api import Api
from devcluster.errors import DevclusterError

_CONNECTIONS = 8
_TIMEOUT = 1800.0
_POLL = 0.02
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Request(NamedTuple):
    """One write."""

    method: str
    path: str
    body: bytes


def send_all(api: Api, requests: Sequence[Request]) -> None:
    """Send them over a few connections, each as soon as the one before it was answered."""
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        shares = [requests[offset::_CONNECTIONS] for offset in range(_CONNECTIONS)]
        for done in [pool.submit(_send, api, share) for share in shares]:
            done.result()


def trickle(api: Api, requests: Sequence[Request], rate: float) -> list[float]:
    """Send them one by one at that many a second; returns when each was sent (monotonic)."""
    sent = []
    with _Wire(api) as wire:
        start = time.monotonic()
        for number, request in enumerate(requests):
            time.sleep(max(0.0, start + number / rate - time.monotonic()))
            sent.append(time.monotonic())
            wire.send(request)
    return sent


def _send(api: Api, requests: Sequence[Request]) -> None:
    with _Wire(api) as wire:
        for request in requests:
            wire.send(request)


class _Wire:
    """One kept connection. ``http.client`` takes more time to read the head of an answer than all of this together."""

    def __init__(self, api: Api) -> None:
        self._connection = api.connection(timeout=60)

    def __enter__(self) -> Self:
        self._connection.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def send(self, request: Request) -> None:
        head = f"{request.method} {request.path} HTTP/1.1\r\nHost: api\r\nContent-Type: application/json\r\n"
        head += f"Accept: application/json\r\nContent-Length: {len(request.body)}\r\n\r\n"
        self._connection.sock.sendall(head.encode() + request.body)
        answer = self._answer()
        if int(answer[9:12]) >= 300:
            raise DevclusterError(f"{request.method} {request.path}: {answer[:400]!r}")

    def _answer(self) -> bytes:
        """A whole answer, as it came: either its length is told, or it ends with an empty chunk."""
        answer = b""
        while True:
            part = self._connection.sock.recv(1 << 16)
            if not part:
                raise DevclusterError(f"the API server closed the connection: {answer[:400]!r}")
            answer += part
            head, complete, body = answer.partition(b"\r\n\r\n")
            if complete:
                length = _LENGTH.search(head)
                if len(body) >= int(length[1]) if length else body.endswith(b"0\r\n\r\n"):
                    return answer


class _Named(Struct):
    name: str = ""


class _Metadata(Struct):
    name: str = ""
    ownerReferences: list[_Named] = []


class _Condition(Struct):
    type: str
    status: str


class _Status(Struct):
    conditions: list[_Condition] = []


class _Pod(Struct):
    metadata: _Metadata
    status: _Status = msgspec.field(default_factory=_Status)


class _Event(Struct):
    type: str
    object: _Pod


_EVENT = msgspec.json.Decoder(_Event)


class _LeaseSpec(Struct):
    renewTime: datetime.datetime


class _Lease(Struct):
    spec: _LeaseSpec


_LEASE = msgspec.json.Decoder(_Lease)


class Heartbeat:
    """Looks at a node's Lease every second, for as long as the block lasts: how old did it get?"""

    def __init__(self, api: Api, node: str) -> None:
        self.oldest = 0.0
        """Seconds."""
        self._api = api
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(30)

    def _follow(self) -> None:
        while not self._over.wait(1):
            lease = _LEASE.decode(self._api.text(self._path, timeout=30).encode())
            age = datetime.datetime.now(datetime.UTC) - lease.spec.renewTime
            self.oldest = max(self.oldest, age.total_seconds())


class Watch:
    """A watch on the pods of a namespace in a thread of its own: which are there, and since when each is Ready.

    A pod goes by the name of its owner where it has one, so that the pod of a ReplicaSet is found by what was made.
    """

    def __init__(self, api: Api, namespace: str) -> None:
        self.present: set[str] = set()
        self.ready: dict[str, float] = {}
        """When each pod that is there was first seen Ready (monotonic)."""
        self.changed = 0.0
        """When the last event came (monotonic)."""
        self._connection = api.connection(timeout=_TIMEOUT)
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._response: http.client.HTTPResponse | None = None

    def __enter__(self) -> Watch:
        self._connection.request("GET", f"{self._path}?watch=1&resourceVersion=0&timeoutSeconds={int(_TIMEOUT)}")
        self._response = self._connection.getresponse()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection.sock is not None:
            self._connection.sock.shutdown(socket.SHUT_RDWR)  # ends the read in the other thread
        self._thread.join(10)
        self._connection.close()

    def wait_ready(self, count: int) -> float:
        """Wait until so many pods are Ready; returns when the last of them was seen so."""
        self._wait(lambda: len(self.ready) >= count, f"{count} pods to be Ready")
        return max(self.ready.copy().values())

    def wait_gone(self) -> float:
        """Wait until no pod is left; returns when the last one went."""
        self._wait(lambda: not self.present, "all pods to be gone")
        return self.changed or time.monotonic()

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _TIMEOUT
        while not condition():
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise DevclusterError(f"waited for {what}: {len(self.present)} are there, {len(self.ready)} Ready")
            time.sleep(_POLL)

    def _follow(self) -> None:
        for line in self._lines():
            event = _EVENT.decode(line)
            metadata = event.object.metadata
            name = metadata.ownerReferences[0].name if metadata.ownerReferences else metadata.name
            self.changed = time.monotonic()
            if event.type == "DELETED":
                self.present.discard(name)
                self.ready.pop(name, None)
                continue
            self.present.add(name)
            if name not in self.ready and any(
                each.type == "Ready" and each.status == "True" for each in event.object.status.conditions
            ):
                self.ready[name] = self.changed

    def _lines(self) -> Iterator[bytes]:
        assert self._response is not None
        rest = b""
        try:
            while part := self._response.read1(1 << 18):
                *lines, rest = (rest + part).split(b"\n")
                yield from lines
        except (OSError, ValueError, http.client.HTTPException):
            return
