"""Which of the sources of usage is read: what was asked for, or the first that the rights already allow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from app.kube.access import may
from app.kube.client import Client
from app.kube.errors import Forbidden, KubeError, NotFound
from app.settings import MetricsSource

METRICS_GROUP: Final = "metrics.k8s.io"
_METRICS_API: Final = f"/apis/{METRICS_GROUP}/v1beta1"


class Way(StrEnum):
    """How usage is read; the text is for people."""

    METRICS_API = "from the remote metrics API"
    STRAIGHT = "from the remote kubelets, at their addresses"
    PROXY = "from the remote kubelets, through the remote API server (nodes/proxy)"
    NONE = "not read"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The source, and what a person should know of it."""

    way: Way = Way.NONE
    note: str = ""
    """Why it gives nothing, or less, as far as that is known at start."""

    def line(self) -> str:
        """What is told at start."""
        return f"usage of pods: {self.way}" + (f" ({self.note})" if self.note else "")


@dataclass(frozen=True, slots=True)
class Found:
    """What the remote cluster has and lets us do."""

    metrics_served: bool = False
    metrics_allowed: bool = False
    nodes_proxy: bool = False
    nodes_metrics: bool = False
    nodes_stats: bool = False


def decide(wanted: MetricsSource, found: Found) -> Chosen:
    """Choose among the sources; never one that takes more rights than there are, unless it was asked for by name."""
    match wanted:
        case MetricsSource.NONE:
            return Chosen()
        case MetricsSource.METRICS_API:
            return Chosen(Way.METRICS_API, _metrics_problem(found))
        case MetricsSource.KUBELETS:
            return _kubelets(found) or Chosen(
                Way.STRAIGHT, "rights are missing: apply manifests/remote-rbac-kubelets.yaml, see docs/metrics.md"
            )
        case MetricsSource.AUTO:
            if not (problem := _metrics_problem(found)):
                return Chosen(Way.METRICS_API)
            return _kubelets(found) or Chosen(Way.NONE, f"{problem}; and no right to ask the remote kubelets")


def _metrics_problem(found: Found) -> str:
    if not found.metrics_served:
        return "the remote cluster has no metrics API: is metrics-server installed there?"
    return "" if found.metrics_allowed else f"no right to list pods of {METRICS_GROUP}"


def _kubelets(found: Found) -> Chosen | None:
    if found.nodes_proxy:
        return Chosen(Way.PROXY)
    if found.nodes_metrics:
        missing = "" if found.nodes_stats else "no right to get nodes/stats: no network and file system figures"
        return Chosen(Way.STRAIGHT, missing)
    return None


async def choose(remote: Client, wanted: MetricsSource, namespaces: Sequence[str] | None) -> Chosen:
    """Look at the remote cluster and decide."""
    if wanted is MetricsSource.NONE:
        return Chosen()
    return decide(wanted, await _look(remote, namespaces))


async def _look(remote: Client, namespaces: Sequence[str] | None) -> Found:
    spaces = [""] if namespaces is None else namespaces

    async def lists() -> bool:
        each = (may(remote, "list", "pods", group=METRICS_GROUP, namespace=space) for space in spaces)
        return all(await asyncio.gather(*each))

    async def gets(subresource: str) -> bool:
        return await may(remote, "get", "nodes", subresource=subresource)

    try:
        served, listed, *nodes = await asyncio.gather(
            _served(remote), lists(), *(gets(name) for name in ("proxy", "metrics", "stats"))
        )
    except (Forbidden, NotFound):  # it does not say: then it is tried
        return Found(metrics_served=True, metrics_allowed=True)
    return Found(served, listed, *nodes)


async def _served(remote: Client) -> bool:
    """Whether there is a metrics API; one that is down is there."""
    try:
        await remote.get(_METRICS_API, timeout=5.0)
    except NotFound:
        return False
    except KubeError:
        return True
    return True
