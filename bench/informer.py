"""``python -m bench.informer``: what it takes to list and to hold the pods of a large cluster.

Each way of listing runs in a process of its own, so that memory is what the process grew by, and nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from app.kube.client import Client
from app.kube.config import load
from app.kube.informer import Informer
from app.kube.objects import decode_list
from app.kube.resources import PODS
from devcluster.api import Object
from devcluster.cluster import Cluster
from devcluster.fleet import Fleet

FLEET, CLUSTER, NODE = "bench-informer", "one", "nowhere"
_CONNECTIONS = 8


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.informer", description=__doc__)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--measure", choices=sorted(_WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--kubeconfig", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(asyncio.run(_WAYS[given.measure](given.kubeconfig))))
    else:
        run(given.pods)


def run(pods: int) -> None:
    """Fill a cluster, measure every way of listing it, and print the table."""
    fleet = Fleet(FLEET)
    try:
        fleet.up([CLUSTER], real=False, metrics=False)
        cluster = fleet.cluster(CLUSTER)
        start = time.monotonic()
        _fill(cluster, pods)
        print(f"\n{pods} pods made in {time.monotonic() - start:.0f} s")
        print(f"{'listed':>12}{'pods':>8}{'seconds':>9}{'CPU':>9}{'held/pod':>11}{'peak/pod':>11}  {'note'}")
        for way in _WAYS:
            command = [sys.executable, "-m", "bench.informer", f"--measure={way}", f"--kubeconfig={cluster.kubeconfig}"]
            row = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            print(
                f"{way:>12}{row['pods']:>8}{row['seconds']:>8.2f}s{row['cpu']:>8.2f}s"
                f"{_bytes(row['held']):>11}{_bytes(row['peak']):>11}  {row['note']}",
                flush=True,
            )
    finally:
        fleet.down()


def _bytes(number: float | None) -> str:
    return "–" if number is None else f"{number:.0f} B"


# ---------------------------------------------------------------------- in a process of its own


async def _streamed(kubeconfig: Path) -> Object:
    return await _informed(kubeconfig, streaming=True)


async def _chunked(kubeconfig: Path) -> Object:
    return await _informed(kubeconfig, streaming=False)


async def _informed(kubeconfig: Path, *, streaming: bool) -> Object:
    async with Client(load(kubeconfig)) as client:
        await client.server_version()  # the code and the connection are there now
        informer = Informer(client, PODS, streaming=streaming, indexers={"uid": lambda pod: pod.metadata.uid})
        before = _Usage()
        task = asyncio.create_task(informer.run())
        await informer.wait_synced()
        used = before.since(len(informer))
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        raw = sum(len(pod.raw_metadata) + len(pod.spec) + len(pod.status) + len(pod.extra) for pod in informer.list())
        return used | {"note": f"with an index; {raw / len(informer):.0f} B of JSON in each"}


async def _whole(kubeconfig: Path) -> Object:
    """One answer with everything: what the decoding alone costs."""
    async with Client(load(kubeconfig)) as client:
        content = await client.request("GET", PODS.path(), timeout=120)
    before = _Usage()
    items = decode_list(content).items
    used = before.since(len(items))
    # what the objects take is memory that the answer's pieces have left, so its growth says nothing
    sent = len(content) / len(items)
    return used | {"held": None, "peak": None, "note": f"decoding only; {sent:.0f} B sent for each"}


async def _decoded(kubeconfig: Path) -> Object:
    """For comparison: the same objects as plain dicts, also without managedFields."""
    async with Client(load(kubeconfig)) as client:
        await client.server_version()
        before = _Usage()
        pods: list[Object] = []
        token = ""
        while True:
            page = await client.get(PODS.path(), params={"limit": "500", "continue": token})
            for pod in page["items"]:
                pod["metadata"].pop("managedFields", None)
            pods += page["items"]
            if not (token := page["metadata"].get("continue", "")):
                break
        del page
        return before.since(len(pods)) | {"note": "as dicts, for comparison"}


_WAYS: dict[str, Callable[[Path], Any]] = {
    "streamed": _streamed,
    "chunked": _chunked,
    "whole": _whole,
    "dicts": _decoded,
}


class _Usage:
    """Time and memory from here on."""

    def __init__(self) -> None:
        gc.collect()
        self._resident = _resident()
        self._peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self._cpu = time.process_time()
        self._start = time.monotonic()

    def since(self, pods: int) -> Object:
        seconds, cpu = time.monotonic() - self._start, time.process_time() - self._cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - self._peak
        gc.collect()
        held = _resident() - self._resident
        return {"pods": pods, "seconds": seconds, "cpu": cpu, "held": held / pods, "peak": max(peak, held) / pods}


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


# ---------------------------------------------------------------------- pods as a kubelet leaves them


def _fill(cluster: Cluster, count: int) -> None:
    """Pods with the spec, status and managedFields of ordinary running ones, on a node that nobody runs."""
    cluster.api.post("/api/v1/nodes", {"metadata": {"name": NODE}})
    # an owner that does not exist would have its pods collected
    owner = cluster.api.post("/api/v1/namespaces/default/configmaps", {"metadata": {"name": "owner-of-all"}})
    uid = owner["metadata"]["uid"]
    shares = [range(share, count, _CONNECTIONS) for share in range(_CONNECTIONS)]
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        for done in [pool.submit(_fill_share, cluster, share, uid) for share in shares]:
            done.result()


def _fill_share(cluster: Cluster, numbers: range, owner_uid: str) -> None:
    connection = cluster.api.connection(timeout=60)

    def send(method: str, path: str, body: Object, media: str) -> None:
        connection.request(method, path, json.dumps(body), {"Content-Type": media})
        response = connection.getresponse()
        content = response.read()
        if response.status >= 300:
            raise SystemExit(f"{method} {path}: HTTP {response.status}: {content[:200]!r}")

    path = "/api/v1/namespaces/default/pods"
    for number in numbers:
        send("POST", path, _pod(number, owner_uid), "application/json")
        send("PATCH", f"{path}/web-{number}/status", {"status": _status(number)}, "application/merge-patch+json")
    connection.close()


def _pod(number: int, owner_uid: str) -> Object:
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner-of-all", "uid": owner_uid}
    probe = {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10}
    container = {
        "name": "web",
        "image": "registry.example.com/shop/web:1.42.0",
        "ports": [{"containerPort": 8080, "name": "http"}],
        "env": [{"name": f"SETTING_{index}", "value": f"value-{index}"} for index in range(8)],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
        "readinessProbe": probe,
        "livenessProbe": probe,
    }
    metadata = {
        "name": f"web-{number}",
        "labels": {"app.kubernetes.io/name": "web", "pod-template-hash": "7d4b9", "team": "shop"},
        "annotations": {"prometheus.io/scrape": "true", "checksum/config": f"{number:064x}"},
        "ownerReferences": [owner | {"controller": True, "blockOwnerDeletion": True}],
    }
    return {"metadata": metadata, "spec": {"nodeName": NODE, "containers": [container]}}


def _status(number: int) -> Object:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    types = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
    container = {
        "name": "web",
        "image": "registry.example.com/shop/web:1.42.0",
        "imageID": f"registry.example.com/shop/web@sha256:{1:064x}",
        "containerID": f"containerd://{number:064x}",
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": now}},
    }
    return {
        "phase": "Running",
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in types],
        "hostIP": "10.0.0.1",
        "hostIPs": [{"ip": "10.0.0.1"}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": now,
        "containerStatuses": [container],
    }


if __name__ == "__main__":
    main()
