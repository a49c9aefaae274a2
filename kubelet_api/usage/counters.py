"""From samples to counters that rise: of containers, of pods, of the node. Pure.

The remote metrics API tells rates and a kubelet tells sums. Whoever scrapes a kubelet wants sums, computes rates of
them by their timestamps, and takes a sum that falls for a new beginning. So rates are integrated over the remote's own
timestamps, which gives whoever computes them again the same rates; and wherever a sum cannot be continued (a container
was started anew, Farlet was, or another Farlet was asked until now) it begins anew near zero, never at a guess that
would look like a burst of work.

==============================  ==================================================================================
a container                     its sum
==============================  ==================================================================================
not known, or another start     younger than ``YOUNG``: rate x age, as metrics-server measures it from its start;
                                older: begins at (nearly) zero, as somebody else may have told of it before
same start, later sample        grows by rate x time between the samples, also if some were missing
same start, no later sample     stays, with its time
==============================  ==================================================================================

A pod's sum goes on when its containers, or the whole remote pod, are replaced: as a kubelet's, which counts the pod's
cgroup. So does the node's, when pods go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from msgspec import Struct

from kubelet_api.twins import Placed, Running
from kubelet_api.usage.snapshot import FLOOR, ContainerUsage, NodeUsage, PodUsage, Sample

YOUNG: Final = 30.0
"""Seconds: metrics-server, by default, measures containers of less than 15 from their start."""


class _Pod(Struct, gc=False):
    """What was told of a pod last."""

    twin: str
    containers: tuple[ContainerUsage, ...] = ()
    """Of each that runs the last one, also if nothing is known of it now."""
    cpu: float = 0.0
    before: float = 0.0
    """What remote pods before this one have used, where the source counts whole pods."""
    time: float = 0.0


class Counters:
    """The sums of one virtual node. Holds as much as there are pods."""

    def __init__(self) -> None:
        self._pods: dict[str, _Pod] = {}
        self._node_cpu = FLOOR
        self._node_time: float | None = None

    def __len__(self) -> int:
        return len(self._pods)

    def pod(self, placed: Placed, samples: Mapping[str, Sample], whole: Sample | None = None) -> PodUsage | None:
        """Take in what a source says of a pod; None if there is nothing to be told of it."""
        state = self._pods.get(placed.uid)
        if state is None:
            state = _Pod(placed.twin.uid)
        usages: list[ContainerUsage] = []
        unheard: list[ContainerUsage] = []
        grown = rate = 0.0
        memory, time = 0, state.time
        swap: int | None = None
        for running in placed.containers:
            before = None
            for known in state.containers:
                if known.name == running.name:
                    before = known
            sample = samples.get(running.name)
            usage = _container(running, sample, before) if sample is not None else None
            if usage is None:
                if before is not None:
                    unheard.append(before)
                continue
            usages.append(usage)
            same = before is not None and before.started == usage.started
            grown += usage.cpu - before.cpu if before is not None and same else usage.cpu
            rate += usage.rate
            memory += usage.memory
            if usage.time > time:
                time = usage.time
            if usage.swap is not None:
                swap = (swap or 0) + usage.swap
        if not usages:
            return None
        self._pods[placed.uid] = state
        told = tuple(usages)
        state.containers, state.time = (*told, *unheard) if unheard else told, time
        _count_pod(state, placed.twin.uid, grown, whole)
        if whole is not None:
            memory, swap = whole.memory or memory, whole.swap
        return PodUsage(placed, told, state.time, state.cpu, memory, rate, swap)

    def node(self, pods: Iterable[PodUsage], now: float) -> NodeUsage:
        """All pods together, at the present time: theirs differ, and there may be none."""
        rate, memory, swap = 0.0, 0, 0
        swaps = False
        for pod in pods:
            rate += pod.rate
            memory += pod.memory
            if pod.swap is not None:
                swap += pod.swap
                swaps = True
        if self._node_time is None:
            self._node_time = now
        elif now > self._node_time:
            self._node_cpu += rate * (now - self._node_time)
            self._node_time = now
        return NodeUsage(self._node_time, self._node_cpu, max(memory, 1), rate, swap if swaps else None)

    def forget(self, kept: Collection[str]) -> None:
        """Drop the sums of all pods but these, by UID."""
        for uid in [uid for uid in self._pods if uid not in kept]:
            del self._pods[uid]


# ---------------------------------------------------------------------- one container


def _container(running: Running, sample: Sample, before: ContainerUsage | None) -> ContainerUsage | None:
    started = sample.started or running.started
    if sample.memory <= 0 or sample.time < started:  # not known; or of the container that was there before
        return None
    if before is not None and sample.time <= before.time:
        return before if before.started == started else None  # else: a late word of something older
    if sample.total is not None:
        cpu, rate = _counted(sample.total, sample.time, started, before)
        if cpu <= 0:
            return None
    else:
        rate = sample.rate if sample.rate and sample.rate > 0.0 else 0.0
        cpu = _integrated(rate, sample.time, started, before)
    # by position: of ten thousand, names take longer than all the rest
    return ContainerUsage(
        running.name,
        started,
        sample.time,
        cpu,
        sample.memory,
        rate,
        running.image,
        running.container_id,
        sample.swap,
        sample.swap_limit,
    )


def _integrated(rate: float, time: float, started: float, before: ContainerUsage | None) -> float:
    if before is not None and before.started == started:
        return before.cpu + rate * (time - before.time)
    age = time - started
    return max(rate * age, FLOOR) if age <= YOUNG else FLOOR


def _counted(total: float, time: float, started: float, before: ContainerUsage | None) -> tuple[float, float]:
    """The sum that a kubelet gives, and the rate since its last one."""
    if before is not None and before.started == started and total >= before.cpu:
        return total, (total - before.cpu) / (time - before.time)
    return total, total / (time - started) if time > started else 0.0


# ---------------------------------------------------------------------- one pod


def _count_pod(state: _Pod, twin: str, grown: float, whole: Sample | None) -> None:
    if whole is None or whole.total is None:
        if grown > 0.0:
            state.cpu += grown
    else:
        if twin != state.twin or state.before + whole.total < state.cpu:
            state.before = state.cpu
        state.cpu = max(state.before + whole.total, state.cpu)
        state.time = max(state.time, whole.time)
    state.twin = twin
    if state.cpu < FLOOR:
        state.cpu = FLOOR
