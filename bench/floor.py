"""The floor of every load benchmark: pods made straight in one cluster, with no virtual kubelet at all.

Bound pods (``spec.nodeName``) are the baseline; the same pods placed by the scheduler show what a binding costs.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.load import Measured, Pods
from devcluster import kwok
from devcluster.api import Object
from devcluster.fleet import Fleet

FLEET, CLUSTER, NAMESPACE = "bench", "load", "default"


def run(counts: Sequence[int], *, nodes: int) -> None:
    """Measure every count, bound and scheduled, and print the table."""
    fleet = Fleet(FLEET)
    try:
        fleet.up([CLUSTER], real=False, kwok_nodes=nodes, metrics=False)
        cluster = fleet.cluster(CLUSTER)
        pods = Pods(cluster, NAMESPACE)
        pods.measure([pod(index, nodes, bound=True) for index in range(50)])  # caches and connections are warm now
        print(f"\nPods made directly in one cluster with {nodes} KWOK nodes (the floor)")
        header = ("pods", "placed by", "created", "Ready", "pods/s", "CPU/pod", "deleted", "ratio to bound")
        print("".join(f"{title:>{width}}" for title, width in zip(header, _WIDTHS, strict=True)))
        for count in counts:
            bound = pods.measure([pod(index, nodes, bound=True) for index in range(count)])
            _row("nodeName", bound, 1.0)
            placed = pods.measure([pod(index, nodes, bound=False) for index in range(count)])
            _row("scheduler", placed, placed.ready / bound.ready)
    finally:
        fleet.down()


_WIDTHS = (7, 12, 11, 10, 9, 11, 11, 17)


def _row(placed_by: str, measured: Measured, ratio: float) -> None:
    cells = (
        str(measured.pods),
        placed_by,
        f"{measured.created:.2f} s",
        f"{measured.ready:.2f} s",
        f"{measured.pods / measured.ready:.0f}",
        f"{measured.cpu / measured.pods * 1000:.1f} ms",
        f"{measured.deleted:.2f} s",
        f"{ratio:.2f}",
    )
    print("".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)), flush=True)


def pod(index: int, nodes: int, *, bound: bool) -> Object:
    spec: Object = {
        "containers": [{"name": "main", "image": "fake", "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}}],
        "automountServiceAccountToken": False,
        "tolerations": [{"key": kwok.TAINT["key"], "operator": "Exists"}],
        "terminationGracePeriodSeconds": 0,
    }
    if bound:
        spec["nodeName"] = f"kwok-{index % nodes}"
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{index}"}, "spec": spec}
