"""Fake nodes for load: added and removed while the cluster runs, and only for pods that ask for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.cluster import Cluster
from devcluster.fleet import Fleet
from devcluster.kwok import TAINT
from tests.eventually import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.xdist_group("scratch"),  # one at a time: each has clusters of its own besides the shared ones
]


@pytest.fixture
def kwok(elsewhere: Path) -> Iterator[Cluster]:
    fleet = Fleet("kwok")
    fleet.up(["load"], real=False, kwok_nodes=3, metrics=False)
    yield fleet.cluster("load")
    fleet.down()


def test_fake_nodes(kwok: Cluster) -> None:
    assert _ready(kwok) == ["kwok-0", "kwok-1", "kwok-2"]
    kwok.set_kwok_nodes(5)
    assert _ready(kwok) == ["kwok-0", "kwok-1", "kwok-2", "kwok-3", "kwok-4"]
    kwok.set_kwok_nodes(1)
    assert _ready(kwok) == ["kwok-0"]

    toleration = {key: TAINT[key] for key in ("key", "value", "effect")}
    _create_pods(kwok, "asks", 20, tolerations=[toleration])
    _create_pods(kwok, "does-not-ask", 1)
    eventually(lambda: _phases(kwok, "asks"), "20 pods run on the fake node", until=lambda p: p == ["Running"] * 20)
    assert _phases(kwok, "does-not-ask") == ["Pending"]


def _ready(cluster: Cluster) -> list[str]:
    rows = cluster.kubectl("get", "nodes", "--no-headers").stdout.splitlines()
    return sorted(row.split()[0] for row in rows if row.split()[1] == "Ready")


def _create_pods(cluster: Cluster, app: str, count: int, **spec: object) -> None:
    template = {
        "metadata": {"labels": {"app": app}},
        "spec": {"containers": [{"name": "main", "image": "fake"}], **spec},
    }
    replica_set = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": app},
        "spec": {"replicas": count, "selector": {"matchLabels": {"app": app}}, "template": template},
    }
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(replica_set))
    eventually(lambda: _phases(cluster, app), f"the pods of {app}", until=lambda phases: len(phases) == count)


def _phases(cluster: Cluster, app: str) -> list[str]:
    path = "jsonpath={.items[*].status.phase}"
    return cluster.kubectl("get", "pods", "-l", f"app={app}", "-o", path).stdout.split()
