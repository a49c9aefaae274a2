"""Pods offloaded by Farlet against the same pods made directly in the remote cluster, in one run.

The remote cluster has KWOK nodes, so what is measured is what Farlet and the API servers cost. Pods are created bound
to the virtual node. The floor is the same number of pods bound directly to the remote nodes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.floor import pod
from bench.load import Measured, Pods, cpu_seconds
from devcluster import kwok
from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.fleet import Fleet
from devcluster.process import proportional_memory, wait_for

FLEET, LOCAL, REMOTE, NODE, NAMESPACE = "bench", "near", "load", "far", "default"
_MIB = 1024 * 1024
_WIDTHS = (7, 9, 10, 9, 8, 14, 14, 12, 11)


def run(counts: Sequence[int], *, nodes: int) -> None:
    """Measure every count, directly and through Farlet, and print the table."""
    fleet = Fleet(FLEET)
    try:
        fleet.up([REMOTE], real=False, kwok_nodes=nodes, metrics=False)
        fleet.up([LOCAL], real=False, metrics=False)
        local, remote = fleet.cluster(LOCAL), fleet.cluster(REMOTE)
        with _farlet(local, remote) as process:
            print(
                f"\nPods offloaded by Farlet to a cluster with {nodes} KWOK nodes, against the same made there directly"
            )
            titles = (
                "pods",
                "way",
                "Ready",
                "pods/s",
                "ratio",
                "CPU/pod, all",
                "CPU/pod, ours",
                "our memory",
                "deleted",
            )
            print("".join(f"{title:>{width}}" for title, width in zip(titles, _WIDTHS, strict=True)))

            def everybody() -> list[int]:
                return [*local.processes(), *remote.processes(), process.pid]

            through, directly = Pods(local, NAMESPACE, everybody), Pods(remote, NAMESPACE, everybody)
            directly.measure([pod(index, nodes, bound=True) for index in range(50)])
            through.measure([_offloaded(index) for index in range(50)])
            for count in counts:
                floor = directly.measure([pod(index, nodes, bound=True) for index in range(count)])
                _row("direct", floor, floor)
                before = cpu_seconds([process.pid])
                ours = through.measure([_offloaded(index) for index in range(count)])
                used = (cpu_seconds([process.pid]) - before) / count * 1000
                _row("farlet", ours, floor, f"{used:.1f} ms", f"{proportional_memory(process.pid) // _MIB} MiB")
    finally:
        fleet.down()


def _row(way: str, measured: Measured, floor: Measured, ours: str = "", memory: str = "") -> None:
    cells = (
        str(measured.pods),
        way,
        f"{measured.ready:.2f} s",
        f"{measured.pods / measured.ready:.0f}",
        f"{measured.ready / floor.ready:.2f}",
        f"{measured.cpu / measured.pods * 1000:.1f} ms",
        ours,
        memory,
        f"{measured.deleted:.2f} s",
    )
    print("".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)), flush=True)


def _offloaded(index: int) -> dict[str, object]:
    item = pod(index, 1, bound=False)
    item["spec"]["nodeName"] = NODE
    return item


@contextlib.contextmanager
def _farlet(local: Cluster, remote: Cluster) -> Iterator[subprocess.Popen[bytes]]:
    """A ``farlet run`` between the two, as a user starts it."""
    arguments = ["--kubeconfig", str(local.kubeconfig), "--remote-kubeconfig", str(remote.kubeconfig)]
    arguments += ["--node-name", NODE, "--namespace", f"{NAMESPACE}={NAMESPACE}", "--health-address", "127.0.0.1:0"]
    arguments += ["--remote-toleration", kwok.TAINT["key"], "--capacity", "cpu=10k,memory=100Ti,pods=20k"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "farlet.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "app", "run", *arguments], stdout=file, stderr=file, env=os.environ
            )
        try:
            if not wait_for(lambda: local.api.exists(f"/api/v1/nodes/{NODE}") or process.poll() is not None, 60, 0.2):
                raise DevclusterError(f"farlet made no node: {log.read_text()[-2000:]}")
            if process.poll() is not None:
                raise DevclusterError(f"farlet ended: {log.read_text()[-2000:]}")
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(30)
