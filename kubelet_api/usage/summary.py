"""A snapshot as the JSON of ``/stats/summary``. Pure.

What is not known is left out, never zero. A source that has the remote kubelets' own summaries adds what only these
know (network, file systems, volumes); names, namespaces and UIDs are the local ones in those too.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from app.kube.objects import Object
from kubelet_api.twins import Placed
from kubelet_api.usage.snapshot import ContainerUsage, NodeUsage, PodUsage, Snapshot

Details = Mapping[str, Object]
"""By the local pod's UID: what a remote kubelet's summary says of the pod."""

_POD_DETAILS: Final = ("network", "ephemeral-storage", "process_stats", "io")
_CONTAINER_DETAILS: Final = ("rootfs", "logs", "io")
_MEMORY_DETAILS: Final = ("availableBytes", "usageBytes", "rssBytes", "pageFaults", "majorPageFaults", "psi")

_BATCH: Final = 128


def summary(
    snapshot: Snapshot,
    *,
    node: str,
    started: float,
    unknown: Iterable[Placed] = (),
    details: Details | None = None,
) -> Iterator[bytes]:
    """The whole answer, in pieces. Of *unknown* pods it is only told that they are there."""
    about: Object = {"nodeName": node, "startTime": rfc3339(started)}
    if snapshot.node is not None:
        about |= _figures(snapshot.node)
    yield b'{"node":' + msgspec.json.encode(about) + b',"pods":['
    first = True
    held: list[bytes] = []
    for entry in _entries(snapshot, unknown, details or {}):
        held.append(msgspec.json.encode(entry))
        if len(held) == _BATCH:
            yield (b"" if first else b",") + b",".join(held)
            held, first = [], False
    if held:
        yield (b"" if first else b",") + b",".join(held)
    yield b"]}"


def _entries(snapshot: Snapshot, unknown: Iterable[Placed], details: Details) -> Iterator[Object]:
    for pod in snapshot.pods:
        yield _pod(pod, details.get(pod.placed.uid) or {})
    for placed in unknown:
        yield {**_reference(placed), "containers": []}


def _reference(placed: Placed) -> Object:
    reference = {"name": placed.name, "namespace": placed.namespace, "uid": placed.uid}
    return {"podRef": reference, "startTime": placed.started or None}


def _pod(pod: PodUsage, details: Object) -> Object:
    own = {str(item.get("name")): item for item in _items(details, "containers")}
    entry = {
        **_reference(pod.placed),
        "containers": [_container(usage, own.get(usage.name) or {}) for usage in pod.containers],
        **_figures(pod, _part(details, "memory")),
    }
    entry |= {key: details[key] for key in _POD_DETAILS if key in details}
    if volumes := [_volume(item, pod.placed) for item in _items(details, "volume")]:
        entry["volume"] = volumes
    return entry


def _container(usage: ContainerUsage, details: Object) -> Object:
    entry = {
        "name": usage.name,
        "startTime": rfc3339(usage.started),
        **_figures(usage, _part(details, "memory")),
    }
    return entry | {key: details[key] for key in _CONTAINER_DETAILS if key in details}


def _figures(usage: ContainerUsage | PodUsage | NodeUsage, memory: Object | None = None) -> Object:
    time = rfc3339(usage.time)
    figures: Object = {
        "cpu": {
            "time": time,
            "usageNanoCores": round(usage.rate * 1e9),
            "usageCoreNanoSeconds": round(usage.cpu * 1e9),
        },
        "memory": {"time": time, "workingSetBytes": usage.memory},
    }
    figures["memory"] |= {key: memory[key] for key in _MEMORY_DETAILS if memory and key in memory}
    if usage.swap is not None:
        figures["swap"] = {"time": time, "swapUsageBytes": usage.swap}
    return figures


def _volume(item: Object, placed: Placed) -> Object:
    claim = item.get("pvcRef")
    if not isinstance(claim, dict):
        return item
    return item | {"pvcRef": {"name": claim.get("name", ""), "namespace": placed.namespace}}


def _items(holder: Object, key: str) -> list[Object]:
    found = holder.get(key)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _part(holder: Object, key: str) -> Object:
    found: Any = holder.get(key)
    return found if isinstance(found, dict) else {}


def rfc3339(timestamp: float) -> str:
    """As the API writes times."""
    return datetime.datetime.fromtimestamp(timestamp, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
