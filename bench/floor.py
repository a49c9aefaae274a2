"""What the scheduler costs: pods made straight in one cluster, bound when they are made or placed by the scheduler."""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench import table, usage, ways
from bench.load import Watch, send_all
from bench.rig import FLEET, REMOTE
from bench.ways import Way
from devcluster.cluster import Cluster
from devcluster.fleet import Fleet

_WARM = 50


def run(counts: Sequence[int], *, nodes: int, keep: bool) -> None:
    """Measure every count, bound and scheduled, and print the table."""
    fleet = Fleet(FLEET)
    try:
        fleet.up([REMOTE], real=False, kwok_nodes=nodes, metrics=False)
        cluster = fleet.cluster(REMOTE)
        both = (ways.direct(cluster, nodes), ways.scheduled(cluster))
        _measure(cluster, both[0], _WARM)
        rows = []
        for count in counts:
            bound, placed = (_measure(cluster, way, count) for way in both)
            for way, (ready, cpu, gone) in zip(both, (bound, placed), strict=True):
                rows.append(
                    [
                        way.name,
                        str(count),
                        table.seconds(ready),
                        f"{count / ready:.0f}",
                        f"{ready / bound[0]:.2f}",
                        table.milliseconds(cpu / count),
                        table.seconds(gone),
                    ]
                )
        columns = ("way", "pods", "Ready", "pods/s", "ratio to direct", "CPU/pod", "deleted")
        table.show(f"Pods made directly in one cluster with {nodes} KWOK nodes", columns, rows)
    finally:
        if not keep:
            fleet.down()


def _measure(cluster: Cluster, way: Way, count: int) -> tuple[float, float, float]:
    """Seconds until all are Ready, CPU seconds of the cluster until then, seconds until all are gone."""
    names = [f"pod-{index}" for index in range(count)]
    requests = way.creations(names)
    with Watch(cluster.api, ways.NAMESPACE) as watch:
        before, start = usage.cpu_of(cluster.processes()), time.monotonic()
        send_all(cluster.api, requests)
        ready = watch.wait_ready(count) - start
        cpu = usage.cpu_of(cluster.processes()) - before
        start = time.monotonic()
        send_all(cluster.api, way.deletions(names))
        return ready, cpu, watch.wait_gone() - start
