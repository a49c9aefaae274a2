"""What is never broken, with real faults: the link, the remote API server, a Farlet that dies at a bad moment."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app import names
from devcluster import faults
from devcluster.fleet import Fleet
from devcluster.layout import MACHINE
from tests.cluster.farlet import Farlet, pod_manifest, running
from tests.eventually import eventually

pytestmark = pytest.mark.faults

Object = dict[str, Any]


@pytest.fixture
def quick(tmp_path: Path) -> Path:
    """Settings that notice a lost remote in seconds."""
    file = tmp_path / "farlet.yaml"
    file.write_text("probe-interval: 1\nprobe-timeout: 1\nprobe-failures: 2\n")
    return file


def start(faulty: Fleet, namespace: str, node: str, folder: Path, *options: str) -> Iterator[Farlet]:
    local, remote = faulty.cluster("local"), faulty.cluster("remote")
    with running(local, remote, node, folder, "--namespace", f"{namespace}={namespace}", *options) as farlet:
        yield farlet


@pytest.fixture
def keeping(faulty: Fleet, faulty_namespace: str, virtual_node: str, tmp_path: Path, quick: Path) -> Iterator[Farlet]:
    yield from start(
        faulty, faulty_namespace, virtual_node, tmp_path, "--config", str(quick), "--on-unreachable", "keep"
    )


@pytest.fixture
def telling(faulty: Fleet, faulty_namespace: str, virtual_node: str, tmp_path: Path, quick: Path) -> Iterator[Farlet]:
    yield from start(faulty, faulty_namespace, virtual_node, tmp_path, "--config", str(quick))


def get(farlet: Farlet, namespace: str, *what: str) -> Object:
    content: Object = json.loads(farlet.local.kubectl("-n", namespace, "get", *what, "-o", "json").stdout)
    return content


def condition(item: Object, kind: str) -> str:
    return next((c["status"] for c in item["status"].get("conditions", []) if c["type"] == kind), "none")


def node_condition(farlet: Farlet, kind: str) -> str:
    return condition(get(farlet, "default", "node", farlet.node), kind)


def remote_uids(farlet: Farlet, namespace: str) -> set[str]:
    """Asked for from inside the remote cluster, whatever is cut."""
    selector = f"{names.LABEL_NODE}={farlet.node}"
    command = farlet.remote.kubectl_command("-n", namespace, "get", "pods", "-l", selector, "-o", "json")
    inside = ["nsenter", f"--net={farlet.remote.layout.netns_path}", "--", *command]
    items = json.loads(subprocess.run(inside, capture_output=True, text=True, check=True, timeout=30).stdout)["items"]
    return {item["metadata"]["uid"] for item in items}


def run_pod(farlet: Farlet, namespace: str, name: str = "box", **spec: object) -> Object:
    farlet.local.kubectl("-n", namespace, "apply", "-f", "-", stdin=pod_manifest(name, farlet.node, **spec))
    wait = ["wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s"]
    farlet.local.kubectl("-n", namespace, *wait, timeout=70)
    return get(farlet, namespace, "pod", name)


def test_a_link_that_is_cut_changes_nothing_under_keep(faulty: Fleet, keeping: Farlet, faulty_namespace: str) -> None:
    """60 s of silence: the node stays Ready, and no pod is touched on either side."""
    before = run_pod(keeping, faulty_namespace)
    uids = remote_uids(keeping, faulty_namespace)
    faults.cut(faulty, "remote", MACHINE)
    eventually(lambda: node_condition(keeping, "RemoteReachable") == "False", "the node says so")
    at_cut = get(keeping, faulty_namespace, "pod", "box")["metadata"]["resourceVersion"]
    time.sleep(60)
    assert node_condition(keeping, "Ready") == "True"
    during = get(keeping, faulty_namespace, "pod", "box")
    assert during["metadata"]["resourceVersion"] == at_cut, "nothing was written to the pod"
    assert condition(during, "Ready") == "True"
    taints = {taint["key"] for taint in get(keeping, "default", "node", keeping.node)["spec"]["taints"]}
    assert "farlet.dev/remote-unreachable" in taints
    faults.restore(faulty, "remote", MACHINE)
    eventually(lambda: node_condition(keeping, "RemoteReachable") == "True", "the node says so")
    after = get(keeping, faulty_namespace, "pod", "box")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert remote_uids(keeping, faulty_namespace) == uids


def test_a_remote_pod_returns_while_the_link_is_cut(faulty: Fleet, keeping: Farlet, faulty_namespace: str) -> None:
    run_pod(keeping, faulty_namespace)
    uids = remote_uids(keeping, faulty_namespace)
    faults.cut(faulty, "remote", MACHINE)
    command = keeping.remote.kubectl_command("-n", faulty_namespace, "delete", "pods", "--all")
    inside = ["nsenter", f"--net={keeping.remote.layout.netns_path}", "--", *command]
    subprocess.run(inside, check=True, capture_output=True, timeout=60)
    eventually(lambda: len(remote_uids(keeping, faulty_namespace) - uids) == 1, "it is back with no help from us")
    faults.restore(faulty, "remote", MACHINE)

    def restarts() -> int:
        status = get(keeping, faulty_namespace, "pod", "box")["status"]
        return int(status["containerStatuses"][0]["restartCount"])

    eventually(restarts, "and counts as a restart once we can see it", until=lambda count: count == 1, timeout=150)


def test_eviction_follows_under_not_ready(faulty: Fleet, telling: Farlet, faulty_namespace: str) -> None:
    """The node and its pods say that the remote is gone; a pod that tolerates that for 5 s is evicted."""
    seconds = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    ]
    run_pod(telling, faulty_namespace, "short", tolerations=seconds)
    run_pod(telling, faulty_namespace, "long")
    faults.cut(faulty, "remote", MACHINE)
    eventually(lambda: node_condition(telling, "Ready") == "False", "the node is not Ready")
    ready = next(
        c for c in get(telling, "default", "node", telling.node)["status"]["conditions"] if c["type"] == "Ready"
    )
    assert ready["reason"] == names.REMOTE_UNREACHABLE
    assert "cannot be reached since" in ready["message"]

    def pod(name: str) -> Object:
        return get(telling, faulty_namespace, "pod", name)

    eventually(lambda: condition(pod("long"), "Ready") == "False", "so are its pods")
    eventually(lambda: "deletionTimestamp" in pod("short")["metadata"], "the impatient one is evicted")
    assert "deletionTimestamp" not in pod("long")["metadata"]
    faults.restore(faulty, "remote", MACHINE)
    eventually(lambda: node_condition(telling, "Ready") == "True", "the node is Ready again")
    eventually(lambda: condition(pod("long"), "Ready") == "True", "so is the pod that waited", timeout=150)


def test_the_remote_api_server_is_started_anew(telling: Farlet, faulty_namespace: str) -> None:
    run_pod(telling, faulty_namespace)
    uids = remote_uids(telling, faulty_namespace)
    faults.kill(telling.remote, "kube-apiserver")
    faults.start(telling.remote, "kube-apiserver")
    eventually(telling.remote.healthy, "the remote cluster is back", timeout=120)
    run_pod(telling, faulty_namespace, "after")
    assert uids < remote_uids(telling, faulty_namespace), "the pod from before is still the same"


def test_farlet_stopped_and_paused(telling: Farlet, faulty_namespace: str) -> None:
    """Twins go on running while Farlet is stopped; what happened meanwhile is made up for."""
    run_pod(telling, faulty_namespace)
    uids = remote_uids(telling, faulty_namespace)
    assert telling.stop() == 0
    assert remote_uids(telling, faulty_namespace) == uids
    telling.local.kubectl("-n", faulty_namespace, "delete", "pod", "box", "--wait=false")
    manifest = pod_manifest("new", telling.node)
    telling.local.kubectl("-n", faulty_namespace, "apply", "-f", "-", stdin=manifest)
    telling.start()
    wait = ["wait", "--for=condition=Ready", "pod/new", "--timeout=60s"]
    telling.local.kubectl("-n", faulty_namespace, *wait, timeout=70)
    eventually(lambda: len(remote_uids(telling, faulty_namespace)) == 1, "the deleted one is gone remotely")
    assert not remote_uids(telling, faulty_namespace) & uids
