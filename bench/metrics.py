"""What one scrape of ``/metrics/resource`` costs: synthetic pods and a synthetic answer of the remote metrics API.

Everything but the network is the real thing: the pods are looked up in caches as informers hold them, the answer is
decoded from its JSON, counted, written and packed. Each size runs in a process of its own, for its memory.

A thousand pods are also real ones, offloaded to a KWOK node that tells what they use: the remote metrics-server, the
node itself, Farlet and the local API server are then all asked as in production.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from app import names
from app.caches import Caches
from app.kube.objects import Envelope, Key
from app.kube.store import Store
from app.pods.known import BY_POD_UID, by_pod_uid
from app.twins import CachedTwins
from bench import table, ways
from bench.load import Watch, send_all
from bench.rig import LOCAL, MANIFESTS, REMOTE, Farlet
from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.fleet import Fleet
from devcluster.process import wait_for
from kubelet_api.usage import metricsapi
from kubelet_api.usage.live import Usage
from kubelet_api.usage.sources import MetricsApi

SIZES = ((100, 1), (1_000, 1), (10_000, 1), (10_000, 2))
"""Pods, and containers in each."""
SCRAPERS = 10
REAL = 1000
"""Pods that are offloaded: what one KWOK node takes."""
FLEET = "usage"
_ROUNDS = 5
_START = 1_700_000_000
_CONTAINERS = ("main", "side")
_SCRAPES = 10
_PAUSE = 1.5
"""Seconds between two real scrapes: more than the interval, so that each is a new look."""
_SCRAPED = f"/api/v1/nodes/{ways.NODE}/proxy/metrics/resource"
_SOURCES = {
    "metrics-api": "/apis/metrics.k8s.io/v1beta1/pods",
    "kubelets": "/api/v1/nodes/kwok-0/proxy/metrics/resource",
}
"""What Farlet reads, and where in the remote cluster the same is to be had straight."""


def run(sizes: Sequence[tuple[int, int]] = SIZES) -> None:
    """Measure each size in a process of its own, and print the table."""
    rows = []
    for pods, containers in sizes:
        command = [sys.executable, "-m", "bench.metrics", f"--measure={pods}", f"--containers={containers}"]
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        rows.append(
            [
                str(pods),
                str(containers),
                table.milliseconds(found["first"]),
                table.milliseconds(found["cpu"]),
                table.milliseconds(found["seconds"]),
                table.milliseconds(found["again"]),
                table.milliseconds(found["summary"]),
                table.milliseconds(found["block"]),
                table.milliseconds(found["block_cpu"]),
                f"{found['memory'] / 2**20:.1f} MiB",
                f"{found['text'] / 2**20:.2f} MiB",
                f"{found['packed'] / 2**10:.0f} KiB",
                str(found["looks"]),
            ]
        )
    columns = [
        "pods",
        "containers",
        "first, CPU",
        "scrape, CPU",
        "scrape, time",
        "from cache, CPU",
        "summary, CPU",
        "longest turn",
        "its CPU",
        "memory",
        "text",
        "gzip",
        f"looks of {SCRAPERS} scrapers",
    ]
    table.show(
        "/metrics/resource, synthetic pods; targets at 10,000: 300 ms CPU, no turn of the event loop over 50 ms",
        columns,
        rows,
    )


# ---------------------------------------------------------------------- real pods


def run_real(*, keep: bool) -> None:
    """Offload pods, scrape the virtual node by each source in turn, and print the table."""
    fleet = Fleet(FLEET)  # its own: no other benchmark wants a metrics-server
    try:
        fleet.up([REMOTE], real=False, kwok_nodes=1)
        fleet.up([LOCAL], real=False, metrics=False)
        local, remote = fleet.cluster(LOCAL), fleet.cluster(REMOTE)
        remote.kubectl("apply", "-f", str(MANIFESTS / "remote-rbac-kubelets.yaml"))
        rows = [_scraped(local, remote, source, path) for source, path in _SOURCES.items()]
        columns = ["source", "pods", "source itself", "scrape, time", "ratio", "Farlet's CPU", "text", "scrape error"]
        title = f"/metrics/resource of {REAL} offloaded pods through the local API server, medians of {_SCRAPES}"
        table.show(title, columns, rows)
    finally:
        if not keep:
            fleet.down()


def _scraped(local: Cluster, remote: Cluster, source: str, itself: str) -> list[str]:
    options = ["--metrics-source", source, "--metrics-interval", "1"]
    farlet = Farlet(local, remote, reachable=True, options=options)
    try:
        farlet.start()
        _offload(local)
        answer = _until_complete(local)
        farlet.wait_idle()
        used, start = farlet.cpu(), time.monotonic()
        time.sleep(_SCRAPES * _PAUSE)
        idle = (farlet.cpu() - used) / (time.monotonic() - start)
        direct, through = [], []
        used, start = farlet.cpu(), time.monotonic()
        for _ in range(_SCRAPES):
            time.sleep(_PAUSE)
            direct.append(_timed(remote, itself)[0])
            seconds, answer = _timed(local, _SCRAPED)
            through.append(seconds)
        cpu = farlet.cpu() - used - idle * (time.monotonic() - start)
    finally:
        farlet.stop()
    asked, scraped = statistics.median(direct), statistics.median(through)
    return [
        source,
        str(_pods_in(answer)),
        table.milliseconds(asked),
        table.milliseconds(scraped),
        f"{scraped / asked:.2f}",
        table.milliseconds(cpu / _SCRAPES),
        f"{len(answer) / 2**20:.2f} MiB",
        answer.rsplit(" ", 1)[1].strip(),
    ]


def _offload(local: Cluster) -> None:
    """Have the pods run; with the second source they do already."""
    way = ways.farlet(local)
    there = {item["metadata"]["name"] for item in local.api.items(way.collection)}
    missing = [name for number in range(REAL) if (name := f"pod-{number}") not in there]
    with Watch(local.api, ways.NAMESPACE) as watch:
        send_all(local.api, way.creations(missing))
        watch.wait_ready(REAL)


def _until_complete(local: Cluster) -> str:
    """The first answer that tells of all pods: metrics-server has to look three times."""
    answer = ""

    def complete() -> bool:
        nonlocal answer
        answer = local.api.text(_SCRAPED, timeout=30)
        return _pods_in(answer) == REAL

    if not wait_for(complete, 240, 2):
        raise DevclusterError(f"usage of {_pods_in(answer)} of {REAL} pods is told: {answer[-200:]}")
    return answer


def _timed(cluster: Cluster, path: str) -> tuple[float, str]:
    """How long an answer takes, and what it is. Whatever its type: KWOK has its pages only for whoever names none."""
    connection = cluster.api.connection(timeout=30)
    try:
        start = time.perf_counter()
        connection.request("GET", path)
        response = connection.getresponse()
        answer = response.read().decode()
        seconds = time.perf_counter() - start
    finally:
        connection.close()
    if response.status != 200:
        raise DevclusterError(f"GET {path}: {response.status} {answer[:200]}")
    return seconds, answer


def _pods_in(answer: str) -> int:
    return answer.count("\npod_cpu_usage_seconds_total{")


# ---------------------------------------------------------------------- in a process of its own


class _Answer(MetricsApi):
    """The remote metrics API, without the way to it: the bytes of its answer are there."""

    def __init__(self, pods: int, containers: int = 1) -> None:
        super().__init__(cast(Any, None), "")
        self._pods, self._names = pods, _CONTAINERS[:containers]
        self.content = b""
        self.time = _START + 600

    def prepare(self) -> None:
        """Make the next answer; that is the remote's work, and so is what the garbage collector has to do after it."""
        self.time += 15
        self.content = _pod_metrics(self._pods, self._names, self.time)
        gc.collect()

    async def _list(self, namespace: str) -> tuple[metricsapi.PodMetrics, ...]:
        return metricsapi.decode(self.content)


class _Blocks:
    """The longest turn of the event loop: on the clock, with whatever else the machine did meanwhile, and of CPU."""

    def __init__(self) -> None:
        self.clock = self.cpu = 0.0

    async def watch(self) -> None:
        clock, cpu = time.perf_counter(), time.thread_time()
        while True:
            await asyncio.sleep(0)
            now, used = time.perf_counter(), time.thread_time()
            self.clock, self.cpu = max(self.clock, now - clock), max(self.cpu, used - cpu)
            clock, cpu = now, used


async def _measure(pods: int, containers: int) -> dict[str, float]:
    twins = CachedTwins(lambda: caches)
    gc.collect()
    before = _resident()
    caches = _caches(pods, _CONTAINERS[:containers])
    source = _Answer(pods, containers)
    clock = SimpleNamespace(at=0.0)
    usage = Usage(twins, "far", source, clock=lambda: clock.at)
    gc.collect()
    held = _resident()

    async def scrape() -> float:
        clock.at += 15
        source.prepare()
        return await _cpu(lambda: usage.resource(packed=True))

    first = await scrape()
    times, costs = [], []
    for _ in range(_ROUNDS):
        clock.at += 15
        source.prepare()
        start = time.perf_counter()
        costs.append(await _cpu(lambda: usage.resource(packed=True)))
        times.append(time.perf_counter() - start)
    again = await _cpu(lambda: usage.resource(packed=True))
    text = sum(map(len, await usage.resource()))
    packed = sum(map(len, await usage.resource(packed=True)))
    gc.collect()
    memory = _resident() - held
    clock.at += 15
    source.prepare()
    summary = await _cpu(lambda: usage.summary(only_cpu_and_memory=True))
    clock.at += 15
    source.prepare()
    looks = usage.looks
    blocks = _Blocks()
    watcher = asyncio.create_task(blocks.watch())
    await asyncio.sleep(0)
    await asyncio.gather(*(usage.resource(packed=bool(number % 2)) for number in range(SCRAPERS)))
    watcher.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watcher
    await usage.close()
    assert before < held
    return {
        "first": first,
        "cpu": sorted(costs)[len(costs) // 2],
        "seconds": sorted(times)[len(times) // 2],
        "again": again,
        "summary": summary,
        "block": blocks.clock,
        "block_cpu": blocks.cpu,
        "memory": memory,
        "text": text,
        "packed": packed,
        "looks": usage.looks - looks,
    }


async def _cpu(ask: Callable[[], Awaitable[object]]) -> float:
    start = time.process_time()
    await ask()
    return time.process_time() - start


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


# ---------------------------------------------------------------------- pods


class _Cache:
    synced = True

    def __init__(self) -> None:
        self.store = Store({BY_POD_UID: by_pod_uid})

    def list(self) -> Sequence[Envelope]:
        return self.store.all()

    def get(self, key: Key) -> Envelope | None:
        return self.store.get(key)

    def by_index(self, name: str, value: str) -> Sequence[Envelope]:
        return self.store.by_index(name, value)

    def each_by_index(self, name: str, values: Sequence[str]) -> Sequence[tuple[Envelope, ...]]:
        return self.store.each_by_index(name, values)


def _caches(pods: int, containers: Sequence[str]) -> Caches:
    local, remote, replica_sets = _Cache(), _Cache(), _Cache()
    for number in range(pods):
        uid = f"{number:08x}-0000-4000-8000-000000000000"
        metadata = {"name": f"web-{number}", "namespace": "shop", "uid": uid, "resourceVersion": "1"}
        local.store.put(Envelope.of({"apiVersion": "v1", "kind": "Pod", "metadata": metadata}))
        labels = {names.LABEL_POD_UID: uid, names.LABEL_ORIGIN: "here", names.LABEL_NODE: "far"}
        created = {"creationTimestamp": "2023-11-14T22:13:20Z", "resourceVersion": "1", "labels": labels}
        owner = {"name": f"web-{number}-x", "namespace": "far", "uid": f"rs-{number}", **created}
        replica_sets.store.put(Envelope.of({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": owner}))
        reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": f"rs-{number}"}
        twin = {"name": _twin(number), "namespace": "far", "uid": f"remote-{number}", "ownerReferences": [reference]}
        state = {"running": {"startedAt": "2023-11-14T22:13:20Z"}}
        statuses = [{"name": name, "image": "web:1", "state": state} for name in containers]
        status = {"phase": "Running", "startTime": "2023-11-14T22:13:20Z", "containerStatuses": statuses}
        spec = {"nodeName": f"node-{number % 100}"}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": twin | created, "spec": spec, "status": status}
        remote.store.put(Envelope.of(body))
    found = SimpleNamespace(local_pods=local, remote_pods=remote, replica_sets=replica_sets, jobs=_Cache())
    return cast(Caches, found)


def _twin(number: int) -> str:
    return f"web-{number}-x7k2j9d4f1-abcde"


def _pod_metrics(pods: int, containers: Sequence[str], at: int) -> bytes:
    timestamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    items = [
        {
            "metadata": {"name": _twin(number), "namespace": "far", "labels": {"app": "web", names.LABEL_NODE: "far"}},
            "timestamp": timestamp,
            "window": "15.123s",
            "containers": [
                {"name": name, "usage": {"cpu": f"{(number * 7919 + at) % 10**8 + 1}n", "memory": f"{number + 1000}Ki"}}
                for name in containers
            ],
        }
        for number in range(pods)
    ]
    return json.dumps({"kind": "PodMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "items": items}).encode()


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.metrics", description=__doc__)
    parser.add_argument("--measure", type=int, metavar="PODS", help=argparse.SUPPRESS)
    parser.add_argument("--containers", type=int, default=1, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(asyncio.run(_measure(given.measure, given.containers))))
    else:
        run()


if __name__ == "__main__":
    main()
