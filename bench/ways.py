"""The ways to have a number of pods run in the remote cluster, which are compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.load import Request
from devcluster import kwok
from devcluster.api import Object
from devcluster.cluster import Cluster

NAMESPACE = "default"
NODE = "far"
"""The virtual node."""

DIRECT, REPLICA_SETS, FARLET = "direct", "ReplicaSets", "Farlet"

_LABEL = "bench.farlet.dev/of"


@dataclass(frozen=True, slots=True)
class Way:
    """How pods are made, and where they are seen."""

    name: str
    cluster: Cluster
    collection: str
    forge: Callable[[str], Object]
    """The object to make, by its name."""

    def creations(self, names: Sequence[str]) -> list[Request]:
        return [Request("POST", self.collection, json.dumps(self.forge(name)).encode()) for name in names]

    def deletions(self, names: Sequence[str]) -> list[Request]:
        body = json.dumps({"propagationPolicy": "Background"}).encode()
        return [Request("DELETE", f"{self.collection}/{name}", body) for name in names]


def direct(remote: Cluster, nodes: int) -> Way:
    """Pods bound to the remote nodes when they are made: the least that it can cost."""

    def forge(name: str) -> Object:
        return pod(name, node=f"kwok-{int(name.rpartition('-')[2]) % nodes}")

    return Way(DIRECT, remote, f"/api/v1/namespaces/{NAMESPACE}/pods", forge)


def scheduled(remote: Cluster) -> Way:
    """Pods that the scheduler places."""
    return Way("scheduled", remote, f"/api/v1/namespaces/{NAMESPACE}/pods", pod)


def replica_sets(remote: Cluster) -> Way:
    """ReplicaSets of one: what twins cost when nobody stands behind them, the floor of the agentless mode."""
    return Way(REPLICA_SETS, remote, f"/apis/apps/v1/namespaces/{NAMESPACE}/replicasets", _replica_set)


def farlet(local: Cluster) -> Way:
    """Pods bound to the virtual node."""
    return Way(FARLET, local, f"/api/v1/namespaces/{NAMESPACE}/pods", lambda name: pod(name, node=NODE))


def pod(name: str, *, node: str | None = None) -> Object:
    """A small pod; bound if a node is given."""
    spec = _pod_spec()
    if node is not None:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _pod_spec() -> Object:
    return {
        "containers": [{"name": "main", "image": "fake", "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}}],
        "automountServiceAccountToken": False,
        "tolerations": [{"key": kwok.TAINT["key"], "operator": "Exists"}],
        "terminationGracePeriodSeconds": 5,
    }


def _replica_set(name: str) -> Object:
    labels = {_LABEL: name}
    template = {"metadata": {"labels": labels}, "spec": _pod_spec()}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }
