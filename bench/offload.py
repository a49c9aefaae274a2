"""Pods offloaded by Farlet against the same pods made directly in the remote cluster, in one run.

The remote cluster has KWOK nodes, so what is measured is what Farlet and the API servers cost, and everything shares
one machine: absolute times are the machine's, ratios are Farlet's. ``docs/bench.md`` says how to read the tables.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import table, usage, ways
from bench.load import Heartbeat, Watch, send_all, trickle
from bench.rig import Rig, rig
from bench.usage import Cpu, Writes, difference
from bench.ways import Way

_MIB = 1024 * 1024
_RATE = 5.0
"""Pods a second of the trickle."""
_WARM = 50
_FEW = 0.005
"""Writes per pod that are not worth a line."""
_SIDES = ("local", "remote")
_OBJECTS = ("pods", "replicasets", "jobs")
"""What a restart must not write to."""


@dataclass(frozen=True, slots=True)
class Burst:
    """Many pods at once, until all were Ready."""

    way: str
    pods: int
    seconds: float
    """From the first create to the last pod seen Ready."""
    cpu: Cpu
    writes: tuple[Writes, Writes]
    """Of the local and the remote API server, until they stopped."""
    tail: float
    """Seconds for which writes went on after that."""
    lease: float
    """The greatest age of the virtual node's Lease meanwhile."""

    @property
    def cpu_per_pod(self) -> float:
        return sum(self.cpu.values()) / self.pods


@dataclass(slots=True)
class Standing:
    """Farlet with that many pods."""

    pods: int
    memory: int = 0
    idle: float | None = None
    """Share of a core that it used while nothing happened."""
    synced: float = 0.0
    """Seconds after a restart until its caches were complete."""
    works: float = 0.0
    """Seconds after a restart until it took up work."""
    restart_cpu: float = 0.0
    restart_writes: Writes = field(default_factory=Writes)


@dataclass(frozen=True, slots=True)
class Deleted:
    """Seconds until all pods were gone."""

    local: float
    remote: float
    cpu: Cpu
    writes: tuple[Writes, Writes]
    lease: float


def run(counts: Sequence[int], *, nodes: int, trickled: int, idle: float, keep: bool, profile: Path | None) -> None:
    """Measure every count in every way and print the tables."""
    with rig(nodes, keep=keep, profile=profile) as clusters:
        Bench(clusters, idle=idle).run(counts, trickled)


class Bench:
    """The measurements, one after another on the same clusters."""

    def __init__(self, clusters: Rig, *, idle: float) -> None:
        self._rig = clusters
        self._idle = idle
        self._direct = ways.direct(clusters.remote, clusters.nodes)
        self._replica_sets = ways.replica_sets(clusters.remote)
        self._farlet = ways.farlet(clusters.local)
        self._ways = (self._direct, self._replica_sets, self._farlet)

    def run(self, counts: Sequence[int], trickled: int) -> None:
        self._rig.farlet.start()
        for way in self._ways:  # caches and connections are warm then
            self._burst(way, _WARM)
            self._delete(way, _WARM)
        if trickled:
            _show_trickle([(way.name, self._trickle(way, trickled)) for way in self._ways])
        for count in counts:
            self._measure(count)

    def _measure(self, count: int) -> None:
        bursts, deleted = [], []
        for way in self._ways:
            bursts.append(self._burst(way, count))
            standing = self._stand(count) if way is self._farlet else Standing(count)
            deleted.append(self._delete(way, count))
        _show_bursts(bursts, deleted)
        names = [way.name for way in self._ways]
        for what, measured in (("to Ready", bursts), ("to delete it", deleted)):
            _show_cpu(f"CPU per pod {what}, by who used it", names, [each.cpu for each in measured], count)
            _show_writes(
                f"Writes per pod {what}, what was asked for included", names, [e.writes for e in measured], count
            )
        _show_standing(standing)
        oldest = [burst.lease for burst in bursts] + [each.lease for each in deleted]
        print(f"  the oldest Lease of the node: {max(oldest):.1f} s", flush=True)

    # ------------------------------------------------------------------ measuring

    def _burst(self, way: Way, count: int) -> Burst:
        requests = way.creations(_names(count))
        earlier, _ = usage.settled_writes(*self._rig.apis)
        with Watch(way.cluster.api, ways.NAMESPACE) as watch, self._heartbeat() as heartbeat:
            before, start = self._rig.cpu(), time.monotonic()
            send_all(way.cluster.api, requests)
            seconds = watch.wait_ready(count) - start
            cpu = difference(self._rig.cpu(), before)
        later, tail = usage.settled_writes(*self._rig.apis)
        return Burst(way.name, count, seconds, cpu, _between(earlier, later), tail, heartbeat.oldest)

    def _delete(self, way: Way, count: int) -> Deleted:
        local, remote = self._rig.local.api, self._rig.remote.api
        earlier, _ = usage.settled_writes(*self._rig.apis)
        pods = Watch(local, ways.NAMESPACE), Watch(remote, ways.NAMESPACE)
        with pods[0] as here, pods[1] as there, self._heartbeat() as heartbeat:
            there.wait_ready(count)
            before, start = self._rig.cpu(), time.monotonic()
            send_all(way.cluster.api, way.deletions(_names(count)))
            gone = [watch.wait_gone() - start for watch in (here, there)]
            cpu = difference(self._rig.cpu(), before)
        later, _ = usage.settled_writes(*self._rig.apis)
        return Deleted(gone[0], gone[1], cpu, _between(earlier, later), heartbeat.oldest)

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(self._rig.local.api, ways.NODE)

    def _trickle(self, way: Way, count: int) -> list[float]:
        """Seconds from create to Ready of each pod, one at a time; sorted."""
        with Watch(way.cluster.api, ways.NAMESPACE) as watch:
            sent = trickle(way.cluster.api, way.creations(_names(count)), _RATE)
            watch.wait_ready(count)
            taken = [watch.ready[name] - at for name, at in zip(_names(count), sent, strict=True)]
        self._delete(way, count)
        return sorted(taken)

    def _stand(self, count: int) -> Standing:
        """Farlet with its pods: memory, nothing happening, and a restart."""
        farlet, standing = self._rig.farlet, Standing(count)
        standing.memory = usage.resident(farlet.pid)
        if self._idle:
            farlet.wait_idle()
            used = farlet.cpu()
            time.sleep(self._idle)
            standing.idle = (farlet.cpu() - used) / self._idle
        earlier, _ = usage.settled_writes(*self._rig.apis)
        farlet.stop()
        standing.synced, standing.works = farlet.start()
        farlet.wait_idle()
        standing.restart_cpu = farlet.cpu()
        later, _ = usage.settled_writes(*self._rig.apis)
        for label, written in zip(_SIDES, _between(earlier, later), strict=True):
            standing.restart_writes.update({f"{label} {what}": number for what, number in written.items()})
        return standing


def _between(earlier: Sequence[Writes], later: Sequence[Writes]) -> tuple[Writes, Writes]:
    """What was written from one moment to the next, locally and remotely."""
    return later[0] - earlier[0], later[1] - earlier[1]


def _names(count: int) -> list[str]:
    return [f"pod-{index}" for index in range(count)]


# ---------------------------------------------------------------------- tables


def _show_trickle(latencies: Sequence[tuple[str, list[float]]]) -> None:
    rows = [
        [name, str(len(taken)), *(f"{table.percentile(taken, share) * 1000:.0f} ms" for share in (0.5, 0.9, 0.99))]
        for name, taken in latencies
    ]
    table.show(f"One pod at a time, {_RATE:g}/s: create sent to Ready seen", ("way", "pods", "p50", "p90", "p99"), rows)


def _show_bursts(bursts: Sequence[Burst], deleted: Sequence[Deleted]) -> None:
    floors = {burst.way: burst for burst in bursts}
    direct, floor = floors[ways.DIRECT], floors[ways.REPLICA_SETS]
    rows = [
        [
            burst.way,
            table.seconds(burst.seconds),
            f"{burst.pods / burst.seconds:.0f}",
            f"{burst.seconds / direct.seconds:.2f}",
            f"{burst.seconds / floor.seconds:.2f}",
            table.milliseconds(burst.cpu_per_pod),
            f"{(burst.cpu_per_pod - floor.cpu_per_pod) * 1000:+.1f} ms",
            f"{burst.tail:.0f} s",
            table.seconds(gone.local) if burst.way == ways.FARLET else "",
            table.seconds(gone.remote),
            table.milliseconds(sum(gone.cpu.values()) / burst.pods),
        ]
        for burst, gone in zip(bursts, deleted, strict=True)
    ]
    columns = ["way", "Ready", "pods/s", "ratio to direct", "to ReplicaSets", "CPU/pod", "above ReplicaSets"]
    columns += ["writes go on", "gone locally", "remotely", "CPU/pod"]
    table.show(f"{direct.pods} pods at once: all Ready, then all deleted", columns, rows)


def _show_cpu(title: str, names: Sequence[str], used: Sequence[Cpu], count: int) -> None:
    columns = list(used[0])
    rows = [
        [name, *(table.milliseconds(cpu[column] / count) for column in columns)]
        for name, cpu in zip(names, used, strict=True)
    ]
    table.show(title, ("way", *columns), rows)


def _show_writes(title: str, names: Sequence[str], written: Sequence[tuple[Writes, Writes]], count: int) -> None:
    rows = []
    for index, label in enumerate(_SIDES):
        for what in sorted({what for sides in written for what in sides[index]}):
            shares = [sides[index][what] / count for sides in written]
            if max(shares) >= _FEW:
                rows.append([f"{label} {what}", *(f"{share:.2f}" if share >= _FEW else "" for share in shares)])
    rows.append(["all", *(f"{sum(sum(side.values()) for side in sides) / count:.2f}" for sides in written)])
    table.show(title, ("", *names), rows)


def _show_standing(standing: Standing) -> None:
    touched = {
        what: number
        for what, number in standing.restart_writes.items()
        if what.rpartition(" ")[2].partition("/")[0] in _OBJECTS
    }
    row = [
        str(standing.pods),
        f"{standing.memory // _MIB} MiB",
        "not measured" if standing.idle is None else f"{standing.idle:.2%}",
        table.seconds(standing.synced),
        table.seconds(standing.works),
        table.seconds(standing.restart_cpu),
        str(sum(touched.values())),
        str(sum(standing.restart_writes.values())),
    ]
    columns = (
        "pods",
        "memory",
        "idle, of a core",
        "restart: caches",
        "works",
        "its CPU",
        "writes to pods, twins",
        "all",
    )
    table.show("Farlet with these pods", columns, [row])
    written = ", ".join(f"{number} {what}" for what, number in sorted(standing.restart_writes.items()))
    print(f"  written on the restart: {written or 'nothing'}", flush=True)
