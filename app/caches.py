"""What Farlet knows of both clusters: one informer for each kind, as narrow as its selectors can make it.

The worker decides on them, and the kubelet API, in a thread of its own, finds pods in them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence, Set

from app import names
from app.facts import Facts, StartError
from app.kube.client import Client
from app.kube.errors import Forbidden
from app.kube.informer import DEFAULT_TIMING, Informer, Timing
from app.kube.informers import Cache, Informers
from app.kube.objects import Envelope
from app.kube.optional import OptionalInformer
from app.kube.resources import JOBS, NAMESPACE_OFFLOADINGS, NAMESPACES, NODES, PODS, REPLICA_SETS, Resource
from app.node.vigil import AWAY
from app.pods.known import BY_POD_UID, BY_UID, by_pod_uid, by_uid

_SYNC_TIMEOUT = 120.0


class Caches:
    """The objects that concern one virtual node."""

    def __init__(self, local: Client, remote: Client, facts: Facts, node: str, timing: Timing = DEFAULT_TIMING) -> None:
        ours = f"{names.LABEL_ORIGIN}={facts.local_id},{names.LABEL_NODE}={node}"
        self.own_node = Informer(local, NODES, field_selector=f"metadata.name={node}", timing=timing)
        self.local_namespaces = Informer(local, NAMESPACES, timing=timing)
        self.offloadings = OptionalInformer(
            local, Informer(local, NAMESPACE_OFFLOADINGS, timing=timing), NAMESPACE_OFFLOADINGS.path()
        )
        self.remote_namespaces: Cache | None = None
        """Those of our origin; None where rights are confined to given ones."""
        if facts.remote_namespaces is None:
            own = f"{names.LABEL_ORIGIN}={facts.local_id}"
            informer = Informer(remote, NAMESPACES, label_selector=own, timing=timing)
            self.remote_namespaces = OptionalInformer(remote, informer, NAMESPACES.path())
        self.local_pods = Informer(
            local, PODS, field_selector=f"spec.nodeName={node}", indexers={BY_UID: by_uid}, timing=timing
        )
        self.remote_pods, self.replica_sets, self.jobs = (
            _remote(remote, resource, ours, facts.remote_namespaces, timing) for resource in (PODS, REPLICA_SETS, JOBS)
        )

    def pods(self) -> list[Cache]:
        """Those that tell where each local pod runs."""
        return [self.local_pods, self.remote_pods, self.replica_sets, self.jobs]

    def in_use(self, remote_namespace: str) -> bool:
        """Whether something runs, or is kept running, for a pod of ours in a remote namespace."""
        kept = (self.remote_pods, self.replica_sets, self.jobs)
        return any(found.key.namespace == remote_namespace for cache in kept for found in cache.list())

    def all(self) -> list[Cache]:
        return [
            self.own_node,
            self.local_namespaces,
            self.offloadings,
            self.local_pods,
            self.remote_pods,
            self.replica_sets,
            self.jobs,
            *([self.remote_namespaces] if self.remote_namespaces is not None else []),
        ]

    def local_pod(self, uid: str) -> Envelope | None:
        found = self.local_pods.by_index(BY_UID, uid)
        return found[0] if found else None

    def places(self, namespace: str) -> Mapping[str, Set[str]]:
        """For a local namespace, the remote ones in which something stands for its pods, with the pods' UIDs."""
        found: dict[str, set[str]] = {}
        for pod in self.local_pods.list():
            if pod.key.namespace != namespace:
                continue
            uid = pod.metadata.uid
            for cache in (self.remote_pods, self.replica_sets, self.jobs):
                for item in cache.by_index(BY_POD_UID, uid):
                    found.setdefault(item.key.namespace, set()).add(uid)
        return found


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


async def all_synced(informers: Iterable[Cache], *, waited: float = 0.0, patient: bool = False) -> None:
    """Wait until every cache is complete; a right that is missing is said at once, with the way out.

    *waited*: for how long that has been tried already. *patient*: for a cluster that is away it is waited without end.
    """
    every = list(informers)
    deadline = time.monotonic() + _SYNC_TIMEOUT - waited
    while missing := [informer for informer in every if not informer.synced]:
        for informer in missing:
            if isinstance(informer.error, Forbidden):
                raise StartError(f"a right is missing: {informer.error.message} (manifests/ has the roles to apply)")
        if time.monotonic() > deadline:
            late = [informer for informer in missing if not (patient and _may_be_away(informer))]
            problems = [f"{informer.resource.plural}: {informer.error or 'no answer'}" for informer in late]
            if problems:
                raise StartError(f"could not read everything within {_SYNC_TIMEOUT:.0f} s: {'; '.join(problems)}")
        await asyncio.sleep(0.05)


def _may_be_away(informer: Cache) -> bool:
    return informer.error is None or isinstance(informer.error, AWAY)
