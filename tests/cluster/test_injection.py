"""What ``farlet run`` is told for every remote pod, and pods that stay on the virtual node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app import names
from devcluster.cluster import Cluster
from tests.cluster.farlet import Farlet, pod_manifest, running
from tests.cluster.objects import apply, get
from tests.eventually import eventually

pytestmark = pytest.mark.cluster

Object = dict[str, Any]

ON_LINUX = {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}
TERMS = {"nodeSelectorTerms": [{"matchExpressions": [ON_LINUX]}]}
AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": TERMS}}


@pytest.fixture
def priority_class(remote: Cluster, namespace: str) -> Iterator[str]:
    remote.kubectl("create", "priorityclass", namespace, "--value=7")
    yield namespace
    remote.kubectl("delete", "priorityclass", namespace)


def test_what_every_remote_pod_gets(
    local: Cluster, remote: Cluster, namespace: str, virtual_node: str, tmp_path: Path, priority_class: str
) -> None:
    file = tmp_path / "affinity.json"
    file.write_text(json.dumps(AFFINITY))
    options = ["--namespace", f"{namespace}={namespace}", "--remote-affinity", str(file)]
    options += ["--remote-label", "example.com/team=blue", "--remote-priority-class", priority_class]
    remote_ip = get(remote, "default", "nodes")["items"][0]["spec"]["podCIDR"]
    options += ["--pod-cidr-map", f"{remote_ip}={_elsewhere(remote_ip)}"]
    with running(local, remote, virtual_node, tmp_path, *options) as farlet:
        apply(local, namespace, pod_manifest("box", farlet.node))
        local.kubectl("-n", namespace, "wait", "--for=condition=Ready", "pod/box", "--timeout=120s", timeout=130)
        (there,) = get(remote, namespace, "pods", "-l", f"{names.LABEL_NODE}={farlet.node}")["items"]
        assert there["spec"]["affinity"] == AFFINITY
        assert there["spec"]["priority"] == 7
        assert there["metadata"]["labels"]["example.com/team"] == "blue"
        here = get(local, namespace, "pod", "box")["status"]
        host = there["status"]["podIP"].rpartition(".")[2]
        assert here["podIP"] == f"{_elsewhere(remote_ip).rpartition('.')[0]}.{host}"
        assert here["podIPs"][0]["ip"] == here["podIP"]
        assert here["hostIP"] == there["status"]["hostIP"], "only the addresses of pods are mapped"
        cpu = get(local, namespace, "node", farlet.node)["status"]["allocatable"]["cpu"]
        assert cpu != "0", "the remote nodes match the affinity"


def _elsewhere(cidr: str) -> str:
    address, _, size = cidr.partition("/")
    return f"198.18.{address.split('.')[2]}.0/{size}"


@pytest.fixture
def farlet(local: Cluster, remote: Cluster, namespace: str, virtual_node: str, tmp_path: Path) -> Iterator[Farlet]:
    with running(local, remote, virtual_node, tmp_path, "--namespace", f"{namespace}={namespace}") as farlet:
        yield farlet


def told(cluster: Cluster, namespace: str, kind: str) -> list[tuple[str, int]]:
    """The events about objects of a kind that say why something stays."""
    selector = f"reason={names.NOT_OFFLOADED},involvedObject.kind={kind}"
    items = get(cluster, namespace, "events", "--field-selector", selector)["items"]
    return [(event["involvedObject"]["name"], event["count"]) for event in items]


def test_a_daemon_set_that_tolerates_everything_is_told_once(farlet: Farlet, namespace: str) -> None:
    local = farlet.local
    container = {"name": "main", "image": "farlet/busybox:1", "command": ["sleep", "1000000"]}
    spec = {
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {"kubernetes.io/hostname": farlet.node},
        "containers": [container],
    }
    template = {"metadata": {"labels": {"app": "agent"}}, "spec": spec}
    body = {"selector": {"matchLabels": {"app": "agent"}}, "template": template}
    manifest = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent"}, "spec": body}
    apply(local, namespace, json.dumps(manifest))

    def waiting() -> str:
        """The UID of its pod, once that says why it waits."""
        (pod,) = get(local, namespace, "pods", "-l", "app=agent")["items"]
        assert "belongs to DaemonSet agent" in pod["status"]["message"]
        assert pod["status"]["phase"] == "Pending"
        return str(pod["metadata"]["uid"])

    first = eventually(waiting, "its pod says why")
    eventually(lambda: told(local, namespace, "DaemonSet"), "it is told", until=lambda found: found == [("agent", 1)])
    local.kubectl("-n", namespace, "delete", "pods", "-l", "app=agent")
    second = eventually(waiting, "the next pod says why", until=lambda uid: uid != first)
    farlet.kill()
    farlet.start()
    # the events of what follows come after whatever is told of the DaemonSet
    apply(local, namespace, pod_manifest("hostly", farlet.node, hostNetwork=True))
    eventually(lambda: told(local, namespace, "Pod"), "a pod that stays is told", until=lambda e: e == [("hostly", 1)])
    assert told(local, namespace, "DaemonSet") == [("agent", 1)]
    assert waiting() == second
    assert not get(farlet.remote, namespace, "pods")["items"]


def test_a_pod_in_another_namespace_is_told_once(farlet: Farlet, local: Cluster, namespace: str) -> None:
    """Also when something happens to its namespace, and after a restart."""
    other = f"{namespace}-other"
    local.kubectl("create", "namespace", other)
    try:
        eventually(lambda: local.kubectl("-n", other, "get", "serviceaccount", "default"), "the ServiceAccount")
        apply(local, other, pod_manifest("stray", farlet.node))
        eventually(lambda: told(local, other, "Pod"), "it is told", until=lambda events: events == [("stray", 1)])
        for number in range(3):
            local.kubectl("label", "namespace", other, f"example.com/{number}=x")
        farlet.kill()
        farlet.start()
        apply(local, other, pod_manifest("after", farlet.node))
        events = eventually(lambda: told(local, other, "Pod"), "so is the next", until=lambda found: len(found) == 2)
        assert sorted(events) == [("after", 1), ("stray", 1)]
    finally:
        local.kubectl("delete", "namespace", other, "--wait=false")
