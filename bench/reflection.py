"""Objects reflected by Farlet against the same objects made directly in the remote cluster, in one run.

Time until the last copy is there, writes for each object, memory, and what a restart writes.
"""

from __future__ import annotations

import base64
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import table, usage
from bench.load import Request, send_all
from bench.rig import Rig, rig
from bench.usage import Writes, resident
from bench.ways import NAMESPACE
from devcluster.api import Api, Object
from devcluster.errors import DevclusterError

_MIB = 1024 * 1024
_CONTENT = 1000
"""Bytes in a ConfigMap or Secret."""
_POLL = 0.1
_TIMEOUT = 300.0
_KINDS = ("configmaps", "secrets", "services")
_REFLECTED = (*_KINDS, "endpointslices")


@dataclass(frozen=True, slots=True)
class Measured:
    """One kind."""

    kind: str
    direct: float
    """Seconds until all were made in the remote cluster by the client itself."""
    seconds: float
    """From the first local create to the last remote copy."""
    creates: float
    """Of these, until the last local create was answered."""
    writes: Writes
    memory: int
    """Bytes that Farlet grew by."""
    deleted: float
    """From the first local delete to the last remote copy gone."""


def run(count: int, *, keep: bool, profile: Path | None) -> None:
    """Measure and print the tables."""
    with rig(0, keep=keep, profile=profile) as clusters:
        clusters.farlet.start()
        _measure(clusters, "configmaps", 20, remove=True)  # caches and connections are warm then
        measured = [_measure(clusters, kind, count, remove=False) for kind in _KINDS]
        restart = _restart(clusters)
        gone = {kind: _remove(clusters, kind, count) for kind in _KINDS}
    rows = [
        [
            each.kind,
            str(count),
            table.seconds(each.direct),
            table.seconds(each.creates),
            table.seconds(each.seconds),
            f"{each.seconds / each.direct:.2f}",
            f"{count / each.seconds:.0f}/s",
            _per_object(each, count),
            f"{each.memory / count / 1024:.1f} KiB",
            table.seconds(gone[each.kind]),
        ]
        for each in measured
    ]
    columns = (
        "reflected",
        "n",
        "direct",
        "created",
        "all there",
        "ratio",
        "rate",
        "writes each",
        "memory each",
        "deleted",
    )
    table.show(f"Objects of {_CONTENT} bytes, reflected", columns, rows)
    works, written, memory = restart
    figures = [
        ["restart: works after", table.seconds(works)],
        ["restart: writes to copies", str(sum(written.values()))],
    ]
    figures.append([f"memory with {count * len(_KINDS)} objects", f"{memory / _MIB:.0f} MiB"])
    table.show("Farlet with all of them", ("", ""), figures)


def _measure(clusters: Rig, kind: str, count: int, *, remove: bool) -> Measured:
    local, remote = clusters.apis
    farlet = clusters.farlet
    direct = _directly(remote, kind, count)
    earlier, _ = usage.settled_writes(remote)
    memory = resident(farlet.pid)
    start = time.monotonic()
    send_all(local, _creations(kind, count, "copy"))
    creates = time.monotonic() - start
    _until(lambda: _count(remote, kind) >= count, f"{count} {kind} were not reflected")
    seconds = time.monotonic() - start
    later, _ = usage.settled_writes(remote)
    farlet.wait_idle()
    grown = max(0, resident(farlet.pid) - memory)
    deleted = _remove(clusters, kind, count) if remove else 0.0
    return Measured(kind, direct, seconds, creates, later[0] - earlier[0], grown, deleted)


def _remove(clusters: Rig, kind: str, count: int) -> float:
    local, remote = clusters.apis
    start = time.monotonic()
    send_all(local, [Request("DELETE", f"{_path(kind)}/copy-{index}", b"{}") for index in range(count)])
    _until(lambda: _count(remote, kind) == 0, f"{kind} were not removed")
    return time.monotonic() - start


def _directly(remote: Api, kind: str, count: int) -> float:
    start = time.monotonic()
    send_all(remote, _creations(kind, count, "direct"))
    seconds = time.monotonic() - start
    send_all(remote, [Request("DELETE", f"{_path(kind)}/direct-{index}", b"{}") for index in range(count)])
    return seconds


def _restart(clusters: Rig) -> tuple[float, Writes, int]:
    """Seconds until it works, what it wrote to copies, and its memory."""
    farlet, remote = clusters.farlet, clusters.apis[1]
    earlier, _ = usage.settled_writes(remote)
    farlet.stop()
    _, works = farlet.start()
    farlet.wait_idle()
    later, _ = usage.settled_writes(remote)
    written: Writes = Counter({what: n for what, n in (later[0] - earlier[0]).items() if what.split()[1] in _REFLECTED})
    return works, written, resident(farlet.pid)


def _creations(kind: str, count: int, stem: str) -> list[Request]:
    return [
        Request("POST", _path(kind), json.dumps(_object(kind, f"{stem}-{index}")).encode()) for index in range(count)
    ]


def _object(kind: str, name: str) -> Object:
    head: Object = {"apiVersion": "v1", "metadata": {"name": name, "labels": {"app": name}}}
    text = "x" * _CONTENT
    if kind == "configmaps":
        return {**head, "kind": "ConfigMap", "data": {"file": text}}
    if kind == "secrets":
        return {**head, "kind": "Secret", "data": {"file": base64.b64encode(text.encode()).decode()}}
    return {**head, "kind": "Service", "spec": {"ports": [{"port": 80}], "clusterIP": "None"}}


def _path(kind: str) -> str:
    return f"/api/v1/namespaces/{NAMESPACE}/{kind}"


def _count(remote: Api, kind: str) -> int:
    """Copies that are there; only their number is of interest, and the watch cache knows it."""
    selector = "labelSelector=farlet.dev%2Forigin"
    found = remote.items(f"{_path(kind)}?{selector}&resourceVersion=0")
    return sum(item["metadata"]["name"].startswith("copy-") for item in found)


def _until(condition: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while not condition():
        if time.monotonic() > deadline:
            raise DevclusterError(f"{problem} within {_TIMEOUT:.0f} s")
        time.sleep(_POLL)


def _per_object(measured: Measured, count: int) -> str:
    written = {what: n for what, n in measured.writes.items() if what.split()[1] in _REFLECTED}
    return f"{sum(written.values()) / count:.2f}"
