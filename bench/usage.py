"""What the programs of the clusters and Farlet use: CPU and memory from /proc, writes from the API servers' metrics."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from devcluster import kwok
from devcluster.api import Api
from devcluster.cluster import Cluster
from devcluster.controlplane import API_SERVER, CONTROLLER_MANAGER, ETCD, SCHEDULER

_TICKS = os.sysconf("SC_CLK_TCK")
_WRITES = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"})
_SAMPLE = re.compile(r"^apiserver_request_total\{([^}]*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_HEARTBEATS = frozenset({"leases", "nodes/status"})
_QUIET = 3.0

Cpu = Mapping[str, float]
"""CPU seconds by who used them."""

Writes = Counter[str]
"""How often each write was asked for: "PATCH pods/status"."""

_PARTS = {ETCD: "etcd", CONTROLLER_MANAGER: "controllers", SCHEDULER: "scheduler", kwok.KWOK: "KWOK"}


def programs(clusters: Mapping[str, Cluster]) -> dict[str, list[int]]:
    """The processes of all clusters by what they are; API servers are told apart by their cluster."""
    found: dict[str, list[int]] = {}
    for label, cluster in clusters.items():
        for component in cluster.components():
            identity = component.identity()
            if identity is None:
                continue
            name = f"API {label}" if component.name == API_SERVER else _PARTS.get(component.name, "other")
            found.setdefault(name, []).append(identity.pid)
    return found


def cpu_of(pids: Iterable[int]) -> float:
    """CPU seconds that these processes have used so far."""
    return sum(_ticks(pid) for pid in pids) / _TICKS


def resident(pid: int) -> int:
    """Bytes of memory that a process has in use."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def difference(after: Cpu, before: Cpu) -> dict[str, float]:
    return {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}


def writes(api: Api) -> Writes:
    """The writes that an API server has taken so far, without heartbeats of nodes and reviews, which store nothing."""
    found: Writes = Counter()
    for labels, number in _SAMPLE.findall(api.text("/metrics", timeout=60)):
        values = dict(_LABEL.findall(labels))
        what = "/".join(filter(None, (values["resource"], values["subresource"])))
        if values["verb"] in _WRITES and what not in _HEARTBEATS and not what.endswith("reviews"):
            found[f"{values['verb']} {what}"] += int(float(number))
    return found


def settled_writes(*apis: Api) -> tuple[list[Writes], float]:
    """The writes so far, once no more have come for a while; and for how long they went on from now."""
    start = last = time.monotonic()
    seen = [writes(api) for api in apis]
    while time.monotonic() - last < _QUIET:
        time.sleep(1)
        now = [writes(api) for api in apis]
        if now != seen:
            seen, last = now, time.monotonic()
    return seen, last - start


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])
