"""A pod of a ReplicaSet that ran longer than its deadline ends as under a kubelet, and never runs again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app import names
from app.pods.deadline import MESSAGE
from devcluster.cluster import Cluster
from tests.cluster.farlet import Farlet, pod_manifest, running
from tests.eventually import eventually

pytestmark = pytest.mark.cluster

Object = dict[str, Any]


@pytest.fixture
def farlet(local: Cluster, remote: Cluster, namespace: str, virtual_node: str, tmp_path: Path) -> Iterator[Farlet]:
    with running(local, remote, virtual_node, tmp_path, "--namespace", f"{namespace}={namespace}") as farlet:
        yield farlet


def pod(farlet: Farlet, namespace: str) -> Object:
    found: Object = json.loads(farlet.local.kubectl("-n", namespace, "get", "pod", "box", "-o", "json").stdout)
    return found


def twins(farlet: Farlet, namespace: str) -> list[str]:
    ours = f"{names.LABEL_NODE}={farlet.node}"
    return farlet.remote.kubectl("-n", namespace, "get", "rs,pods", "-l", ours, "-o", "name").stdout.split()


def run(farlet: Farlet, namespace: str, *, needs: int = 1, **spec: object) -> None:
    """A pod whose container needs some of its grace."""
    script = f"trap 'sleep {needs}; exit 7' TERM; while true; do sleep 0.2; done"
    container = {"name": "main", "image": "farlet/busybox:1", "command": ["sh", "-c", script]}
    manifest = pod_manifest("box", farlet.node, containers=[container], terminationGracePeriodSeconds=30, **spec)
    farlet.local.kubectl("-n", namespace, "apply", "-f", "-", stdin=manifest)


def wait_ready(farlet: Farlet, namespace: str) -> None:
    wait = ["wait", "--for=condition=Ready", "pod/box", "--timeout=120s"]
    farlet.local.kubectl("-n", namespace, *wait, timeout=130)


def failed(farlet: Farlet, namespace: str) -> Object:
    ended = eventually(
        lambda: pod(farlet, namespace), "the pod fails", until=lambda p: p["status"]["phase"] == "Failed"
    )
    assert (ended["status"]["reason"], ended["status"]["message"]) == (names.DEADLINE_EXCEEDED, MESSAGE)
    return ended


def test_the_deadline_ends_the_pod(farlet: Farlet, namespace: str) -> None:
    run(farlet, namespace, activeDeadlineSeconds=1000)
    wait_ready(farlet, namespace)  # a container that is slow to start would be ended before it knows how
    farlet.local.kubectl("-n", namespace, "patch", "pod", "box", "-p", '{"spec": {"activeDeadlineSeconds": 6}}')
    ended = failed(farlet, namespace)
    terminated = ended["status"]["containerStatuses"][0]["state"]["terminated"]
    assert terminated["exitCode"] == 7, "it had its grace, and Failed was not said before it ended"
    eventually(lambda: twins(farlet, namespace), "nothing is left in the remote cluster", until=lambda t: not t)
    farlet.kill()
    farlet.start()
    farlet.local.kubectl("-n", namespace, "annotate", "pod", "box", "example.com/after=start")
    assert pod(farlet, namespace)["status"] == ended["status"]
    assert twins(farlet, namespace) == []
    farlet.local.kubectl("-n", namespace, "delete", "pod", "box", timeout=30)


def test_a_deadline_that_is_set_later_and_a_farlet_that_dies_on_the_way(farlet: Farlet, namespace: str) -> None:
    """Killed after the pod was told to end and before it has: the next one goes on, and makes nothing again."""
    run(farlet, namespace, needs=15)
    wait_ready(farlet, namespace)
    farlet.local.kubectl("-n", namespace, "patch", "pod", "box", "-p", '{"spec": {"activeDeadlineSeconds": 1000}}')
    farlet.local.kubectl("-n", namespace, "patch", "pod", "box", "-p", '{"spec": {"activeDeadlineSeconds": 1}}')
    told = eventually(
        lambda: pod(farlet, namespace),
        "it is told that its time is over",
        until=lambda p: p["status"].get("reason") == names.DEADLINE_EXCEEDED,
    )
    farlet.kill()
    assert told["status"]["phase"] == "Running", "its container still has its grace"
    before = set(twins(farlet, namespace))
    farlet.start()
    failed(farlet, namespace)
    eventually(lambda: twins(farlet, namespace), "nothing is left in the remote cluster", until=lambda t: not t)
    assert before, "the remote pod was there when Farlet died"


def test_a_local_pod_that_was_ended_by_another_leaves_nothing_running(farlet: Farlet, namespace: str) -> None:
    run(farlet, namespace)
    wait_ready(farlet, namespace)
    body = json.dumps({"status": {"phase": "Failed", "reason": "Elsewhere"}})
    farlet.local.kubectl("-n", namespace, "patch", "pod", "box", "--subresource=status", "-p", body)
    eventually(lambda: twins(farlet, namespace), "nothing is left in the remote cluster", until=lambda t: not t)
    assert pod(farlet, namespace)["status"]["reason"] == "Elsewhere"
