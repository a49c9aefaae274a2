"""Many pods through one API server, quickly: kept connections for writes, one watch to see when they are Ready."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from devcluster.api import Api, Object
from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError

_CONNECTIONS = 8
_TIMEOUT = 900.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What making a number of pods took."""

    pods: int
    created: float
    """Seconds until the last create was answered."""
    ready: float
    """Seconds until the last pod was seen Ready."""
    cpu: float
    """CPU seconds of all the cluster's processes."""
    deleted: float = 0.0
    """Seconds until the last pod was seen gone."""


class Pods:
    """The pods of one namespace: made, watched and deleted."""

    def __init__(self, cluster: Cluster, namespace: str, processes: Callable[[], Iterable[int]] | None = None) -> None:
        """*processes*: whose CPU counts; the cluster's own if not given."""
        self._processes = processes or cluster.processes
        self._api = Api(cluster.kubeconfig)
        self._path = f"/api/v1/namespaces/{namespace}/pods"

    def measure(self, pods: Sequence[Object]) -> Measured:
        """Create the pods, wait until all are Ready, delete them, wait until all are gone."""
        with Watch(self._api, self._path) as watch:
            before, start = self._cpu(), time.monotonic()
            self._each([("POST", self._path, json.dumps(pod).encode()) for pod in pods])
            created = time.monotonic() - start
            watch.wait(lambda: len(watch.ready) == len(pods), f"{len(pods)} pods to be Ready")
            ready, cpu = time.monotonic() - start, self._cpu() - before
            start = time.monotonic()
            names = [pod["metadata"]["name"] for pod in pods]
            self._each([("DELETE", f"{self._path}/{name}", b'{"gracePeriodSeconds":0}') for name in names])
            watch.wait(lambda: not watch.present, f"{len(pods)} pods to be gone")
            return Measured(len(pods), created, ready, cpu, time.monotonic() - start)

    def _each(self, requests: Sequence[tuple[str, str, bytes]]) -> None:
        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            shares = [requests[offset::_CONNECTIONS] for offset in range(_CONNECTIONS)]
            for done in [pool.submit(self._send, share) for share in shares]:
                done.result()

    def _send(self, requests: Sequence[tuple[str, str, bytes]]) -> None:
        connection = self._api.connection(timeout=60)
        try:
            for method, path, body in requests:
                connection.request(method, path, body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                content = response.read()
                if response.status >= 300:
                    raise DevclusterError(f"{method} {path}: HTTP {response.status}: {content[:200]!r}")
        finally:
            connection.close()

    def _cpu(self) -> float:
        return cpu_seconds(self._processes())


class Watch:
    """A watch on pods in a thread of its own: which are there, which are Ready."""

    def __init__(self, api: Api, path: str) -> None:
        self.present: set[str] = set()
        self.ready: set[str] = set()
        self._changed = threading.Condition()
        self._connection = api.connection(timeout=_TIMEOUT)
        self._path = path
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

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, _TIMEOUT):
                raise DevclusterError(f"waited {_TIMEOUT:.0f} s for {what}: {len(self.ready)} Ready")

    def _follow(self) -> None:
        for event in self._events():
            item = event["object"]
            name = item["metadata"]["name"]
            with self._changed:
                if event["type"] == "DELETED":
                    self.present.discard(name)
                    self.ready.discard(name)
                else:
                    self.present.add(name)
                    if _is_ready(item):
                        self.ready.add(name)
                self._changed.notify_all()

    def _events(self) -> Iterator[Object]:
        assert self._response is not None
        try:
            for line in self._response:
                yield json.loads(line)
        except (OSError, ValueError, http.client.HTTPException):
            return


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU seconds that these processes have used so far."""
    return sum(_ticks(pid) for pid in pids) / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])
