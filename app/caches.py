"""What Farlet knows of both clusters: one informer for each kind, as narrow as its selectors can make it.

The worker decides on them, and the kubelet API, in a thread of its own, finds pods in them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

from app import names
from app.facts import Facts, StartError
from app.kube.client import Client
from app.kube.errors import Forbidden
from app.kube.informer import DEFAULT_TIMING, Informer, Timing
from app.kube.informers import Cache, Informers
from app.kube.resources import JOBS, NAMESPACES, NODES, PODS, REPLICA_SETS, Resource
from app.pods.controller import BY_POD_UID, BY_UID, by_pod_uid, by_uid

_SYNC_TIMEOUT = 120.0


class Caches:
    """The objects that concern one virtual node."""

    def __init__(self, local: Client, remote: Client, facts: Facts, node: str, timing: Timing = DEFAULT_TIMING) -> None:
        ours = f"{names.LABEL_ORIGIN}={facts.local_id},{names.LABEL_NODE}={node}"
        self.own_node = Informer(local, NODES, field_selector=f"metadata.name={node}", timing=timing)
        self.local_namespaces = Informer(local, NAMESPACES, timing=timing)
        self.local_pods = Informer(
            local, PODS, field_selector=f"spec.nodeName={node}", indexers={BY_UID: by_uid}, timing=timing
        )
        self.remote_pods, self.replica_sets, self.jobs = (
            _remote(remote, resource, ours, facts.remote_namespaces, timing) for resource in (PODS, REPLICA_SETS, JOBS)
        )

    def pods(self) -> list[Cache]:
        """Those that tell where each local pod runs."""
        return [self.local_pods, self.remote_pods, self.replica_sets, self.jobs]

    def all(self) -> list[Cache]:
        return [
            self.own_node,
            self.local_namespaces,
            self.local_pods,
            self.remote_pods,
            self.replica_sets,
            self.jobs,
        ]


def _remote(
    remote: Client, resource: Resource, selector: str, namespaces: Sequence[str] | None, timing: Timing
) -> Cache:
    """What is ours of one kind: in these namespaces, or wherever it is."""

    def informer(namespace: str | None) -> Informer:
        return Informer(
            remote,
            resource,
            namespace=namespace,
            label_selector=selector,
            indexers={BY_POD_UID: by_pod_uid},
            timing=timing,
        )

    return informer(None) if namespaces is None else Informers(resource, namespaces, informer)


def waiting_for(informers: Iterable[Cache]) -> list[str]:
    """The kinds whose first list is not complete yet."""
    return [informer.resource.plural for informer in informers if not informer.synced]


async def all_synced(informers: Iterable[Cache]) -> None:
    """Wait until every cache is complete; a right that is missing is said at once, with the way out."""
    every = list(informers)
    deadline = time.monotonic() + _SYNC_TIMEOUT
    while missing := [informer for informer in every if not informer.synced]:
        for informer in missing:
            if isinstance(informer.error, Forbidden):
                raise StartError(f"a right is missing: {informer.error.message} (manifests/ has the roles to apply)")
        if time.monotonic() > deadline:
            problems = [f"{informer.resource.plural}: {informer.error or 'no answer'}" for informer in missing]
            raise StartError(f"could not read everything within {_SYNC_TIMEOUT:.0f} s: {'; '.join(problems)}")
        await asyncio.sleep(0.05)
