"""What is never broken, with real faults: the link, the remote API server, a Farlet that dies at a bad moment."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app import names
from devcluster import faults
from devcluster.controlplane import API_SERVER
from devcluster.fleet import Fleet
from devcluster.layout import MACHINE
from tests.cluster.farlet import Farlet, pod_manifest, running
from tests.cluster.gate import gate
from tests.cluster.objects import Object, apply, get, wait_ready
from tests.eventually import eventually

pytestmark = pytest.mark.faults


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


def condition(item: Object, kind: str) -> str:
    return next((c["status"] for c in item["status"].get("conditions", []) if c["type"] == kind), "none")


def node_condition(farlet: Farlet, kind: str) -> str:
    return condition(get(farlet.local, "default", "node", farlet.node), kind)


def remote_uids(farlet: Farlet, namespace: str) -> set[str]:
    """Asked for from inside the remote cluster, whatever is cut."""
    selector = f"{names.LABEL_NODE}={farlet.node}"
    command = farlet.remote.kubectl_command("-n", namespace, "get", "pods", "-l", selector, "-o", "json")
    inside = ["nsenter", f"--net={farlet.remote.layout.netns_path}", "--", *command]
    items = json.loads(subprocess.run(inside, capture_output=True, text=True, check=True, timeout=30).stdout)["items"]
    return {item["metadata"]["uid"] for item in items}


def run_pod(farlet: Farlet, namespace: str, name: str = "box", **spec: object) -> Object:
    apply(farlet.local, namespace, pod_manifest(name, farlet.node, **spec))
    wait_ready(farlet.local, namespace, f"pod/{name}")
    return get(farlet.local, namespace, "pod", name)


def test_a_link_that_is_cut_changes_nothing_under_keep(faulty: Fleet, keeping: Farlet, faulty_namespace: str) -> None:
    """60 s of silence: the node stays Ready, and no pod is touched on either side."""
    before = run_pod(keeping, faulty_namespace)
    uids = remote_uids(keeping, faulty_namespace)
    faults.cut(faulty, "remote", MACHINE)
    eventually(lambda: node_condition(keeping, "RemoteReachable") == "False", "the node says so")
    at_cut = get(keeping.local, faulty_namespace, "pod", "box")["metadata"]["resourceVersion"]
    time.sleep(60)
    assert node_condition(keeping, "Ready") == "True"
    during = get(keeping.local, faulty_namespace, "pod", "box")
    assert during["metadata"]["resourceVersion"] == at_cut, "nothing was written to the pod"
    assert condition(during, "Ready") == "True"
    taints = {taint["key"] for taint in get(keeping.local, "default", "node", keeping.node)["spec"]["taints"]}
    assert "farlet.dev/remote-unreachable" in taints
    faults.restore(faulty, "remote", MACHINE)
    eventually(lambda: node_condition(keeping, "RemoteReachable") == "True", "the node says so")
    after = get(keeping.local, faulty_namespace, "pod", "box")
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
        status = get(keeping.local, faulty_namespace, "pod", "box")["status"]
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
        c for c in get(telling.local, "default", "node", telling.node)["status"]["conditions"] if c["type"] == "Ready"
    )
    assert ready["reason"] == names.REMOTE_UNREACHABLE
    assert "cannot be reached since" in ready["message"]

    def pod(name: str) -> Object:
        return get(telling.local, faulty_namespace, "pod", name)

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
    apply(telling.local, faulty_namespace, pod_manifest("new", telling.node))
    telling.start()
    wait_ready(telling.local, faulty_namespace, "pod/new")
    eventually(lambda: len(remote_uids(telling, faulty_namespace)) == 1, "the deleted one is gone remotely")
    assert not remote_uids(telling, faulty_namespace) & uids


def lease(farlet: Farlet) -> str:
    """When the node was last heard of."""
    renewed: str = get(farlet.local, "kube-node-lease", "lease", farlet.node)["spec"]["renewTime"]
    return renewed


def test_a_farlet_that_dies_while_the_link_is_cut(faulty: Fleet, keeping: Farlet, faulty_namespace: str) -> None:
    """The next one cannot see the remote cluster: it keeps the node alive until it can, and then goes on."""
    before = run_pod(keeping, faulty_namespace)
    uids = remote_uids(keeping, faulty_namespace)
    faults.cut(faulty, "remote", MACHINE)
    eventually(lambda: node_condition(keeping, "RemoteReachable") == "False", "the node says so")
    keeping.kill()
    died = lease(keeping)
    keeping.start()
    eventually(lambda: lease(keeping) > died, "the node is heard of again", timeout=90)
    eventually(keeping.ready, "the node is Ready")
    assert node_condition(keeping, "RemoteReachable") == "False"
    faults.restore(faulty, "remote", MACHINE)
    eventually(lambda: node_condition(keeping, "RemoteReachable") == "True", "the node says so", timeout=120)
    run_pod(keeping, faulty_namespace, "after")
    after = get(keeping.local, faulty_namespace, "pod", "box")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0
    assert uids < remote_uids(keeping, faulty_namespace)


def test_a_farlet_whose_remote_is_away_when_it_starts_or_goes_meanwhile_says_so(
    telling: Farlet, faulty_namespace: str, tmp_path: Path
) -> None:
    """The API server is gone, and nothing listens in its place; under ``not-ready``."""
    uids = {run_pod(telling, faulty_namespace)["metadata"]["uid"]} | remote_uids(telling, faulty_namespace)

    def says_so() -> None:
        eventually(lambda: node_condition(telling, "Ready") == "False", "the node is not Ready", timeout=120)
        conditions = get(telling.local, "default", "node", telling.node)["status"]["conditions"]
        (ready,) = (found for found in conditions if found["type"] == "Ready")
        assert ready["reason"] == names.REMOTE_UNREACHABLE
        assert "cannot be reached since" in ready["message"]

    assert telling.stop() == 0
    with gate(telling.remote) as way:
        way.shut()
        account = telling.remote.service_account_kubeconfig("farlet", "farlet")
        telling.remote_kubeconfig = way.kubeconfig(account, tmp_path / "remote")
        telling.launch()
        known = f"node {telling.node} = remote cluster"
        eventually(lambda: telling.log.read_text().count(known) == 2, "it knows who they are, and can read nothing")
        faults.kill(telling.remote, API_SERVER)
        before = lease(telling)
        says_so()
        eventually(lambda: lease(telling) > before, "the node is heard of again", timeout=90)
        assert telling.stop() == 0

        as_it_was = json.dumps({"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
        telling.local.kubectl("patch", "node", telling.node, "--subresource=status", "-p", as_it_was)
        telling.launch()
        says_so()
        faults.start(telling.remote, API_SERVER)
        way.open()
        eventually(telling.ready, "the node is Ready again", timeout=120)
        box = get(telling.local, faulty_namespace, "pod", "box")["metadata"]["uid"]
        assert {box} | remote_uids(telling, faulty_namespace) == uids


def test_the_last_word_of_a_farlet_that_is_stopped(
    faulty: Fleet, faulty_namespace: str, virtual_node: str, tmp_path: Path
) -> None:
    """``--on-shutdown=not-ready``; and where nobody listens, it ends all the same, long before it would be killed."""
    for farlet in start(faulty, faulty_namespace, virtual_node, tmp_path, "--on-shutdown", "not-ready"):
        assert farlet.stop() == 0
        conditions = get(farlet.local, "default", "node", farlet.node)["status"]["conditions"]
        (ready,) = (found for found in conditions if found["type"] == "Ready")
        assert (ready["status"], ready["reason"]) == ("False", "FarletStopped")
        farlet.start()
        faults.pause(farlet.local, API_SERVER)
        try:
            assert farlet.stop() == 0
        finally:
            faults.resume(farlet.local, API_SERVER)
        assert "could not say that Farlet was stopped: no answer within 3 s" in farlet.log.read_text()
