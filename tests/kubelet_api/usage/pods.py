"""Pods and samples for tests of usage."""

from __future__ import annotations

from kubelet_api.twins import Placed, Running, Twin
from kubelet_api.usage.snapshot import Sample

START = 1_700_000_000.0
UID = "0b6c4b3a-0000-4000-8000-000000000001"
TWIN_UID = "7d1e0000-1111-4222-8333-444444444444"


def placed(
    name: str = "web",
    *,
    started: float = START,
    containers: tuple[str, ...] = ("main",),
    twin: str = TWIN_UID,
    node: str = "far-1",
    uid: str = UID,
) -> Placed:
    return Placed(
        namespace="shop",
        name=name,
        uid=uid,
        twin=Twin("shop-far", f"{name}-x7-abcde", twin),
        node=node,
        started="2023-11-14T22:13:20Z",
        containers=tuple(Running(container, started, "busybox:1", "c0ffee") for container in containers),
    )


def rate(at: float, cores: float, memory: int = 1 << 20) -> Sample:
    """A sample of a source that tells rates, *at* seconds after START."""
    return Sample(START + at, memory, rate=cores)


def total(at: float, seconds: float, memory: int = 1 << 20, *, started: float = START) -> Sample:
    """A sample of a source that counts."""
    return Sample(START + at, memory, total=seconds, started=started)
