"""What is known of usage at one moment: plain data, made by :mod:`counters`, written by :mod:`exposition`. Pure.

A *sample* is what a source says of a container of the remote cluster; a *usage* is what is told of a local one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from msgspec import Struct

from kubelet_api.twins import Placed

FLOOR: Final = 1e-6
"""Seconds of CPU that everything has used at least: readers take 0 for "not known" and drop the pod, or the node."""

PodKey: TypeAlias = tuple[str, str]
"""Namespace and name in the remote cluster."""


class Sample(Struct, frozen=True, gc=False):
    """What a source says of a container, or of a whole pod."""

    time: float
    """Since the epoch, by the clock of whoever measured."""
    memory: int
    """Working set in bytes; 0: not known."""
    rate: float | None = None
    """Cores in use, from a source that tells rates."""
    total: float | None = None
    """Seconds of CPU since its start, from a source that counts."""
    started: float | None = None
    """Since the epoch, where the source knows it."""
    swap: int | None = None
    swap_limit: int | None = None


@dataclass(slots=True)
class Reading:
    """One look at the source."""

    containers: Mapping[PodKey, Mapping[str, Sample]] = field(default_factory=dict)
    """By pod and by the container's name; of others' pods too, if the source gives them."""
    pods: dict[PodKey, Sample] = field(default_factory=dict)
    """Of whole pods, where the source counts them."""
    failed: dict[str, str] = field(default_factory=dict)
    """The parts of the remote cluster that gave no answer, and why."""


class ContainerUsage(Struct, frozen=True, gc=False):
    """What is told of a container."""

    name: str
    started: float
    time: float
    cpu: float
    """Seconds of CPU; never less than before, unless it was started anew."""
    memory: int
    rate: float
    """Cores in use, now."""
    image: str = ""
    container_id: str = ""
    swap: int | None = None
    swap_limit: int | None = None


class PodUsage(Struct, frozen=True, gc=False):
    """What is told of a pod that has at least one container to tell of."""

    placed: Placed
    containers: tuple[ContainerUsage, ...]
    time: float
    cpu: float
    memory: int
    rate: float
    swap: int | None = None


class NodeUsage(Struct, frozen=True, gc=False):
    """All pods together."""

    time: float
    cpu: float
    memory: int
    rate: float
    swap: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that is told until the next look."""

    pods: Sequence[PodUsage] = ()
    node: NodeUsage | None = None
    """None: nothing is known."""
    complete: bool = False
    """Whether nothing is left out because a part of the remote cluster has not answered for too long."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """The parts that did not answer this time, and why."""
