"""``farlet remove`` takes a virtual node away: politely, in place of a farlet that died, or by force."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app import names
from devcluster.cluster import Cluster
from devcluster.fleet import Fleet
from tests.cluster.farlet import DIES_WITH_US, Farlet, pod_manifest, running
from tests.eventually import eventually

Object = dict[str, Any]

REFUSED, NOT_IN_TIME, INTERRUPTED = 1, 3, 130


class Removal:
    """A ``farlet remove`` that runs, with the rights of ``manifests/`` unless given others."""

    def __init__(self, node: str, folder: Path, local: Path, *options: str) -> None:
        self.log = folder / f"remove-{len(list(folder.glob('remove-*')))}.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*DIES_WITH_US, sys.executable, "-m", "app", "remove", node, "--kubeconfig", str(local), *options],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def says(self, text: str, timeout: float = 60) -> None:
        eventually(self.log.read_text, f"farlet remove says {text!r}", until=lambda said: text in said, timeout=timeout)

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def ends_with(self, code: int, timeout: float = 120) -> str:
        """Wait for its end; what it printed."""
        try:
            ended = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            ended = None
        assert ended == code, self.log.read_text()
        return self.log.read_text()


@pytest.fixture
def farlet(local: Cluster, remote: Cluster, namespace: str, virtual_node: str, tmp_path: Path) -> Iterator[Farlet]:
    with running(local, remote, virtual_node, tmp_path, "--namespace", f"{namespace}={namespace}") as farlet:
        yield farlet


def removal(farlet: Farlet, folder: Path, *options: str, remote: bool) -> Removal:
    account = ("farlet", "farlet")
    given = ["--remote-kubeconfig", str(farlet.remote.service_account_kubeconfig(*account))] if remote else []
    return Removal(farlet.node, folder, farlet.local.service_account_kubeconfig(*account), *given, *options)


def items(cluster: Cluster, *what: str) -> list[Object]:
    found: list[Object] = json.loads(cluster.kubectl("get", *what, "-o", "json").stdout)["items"]
    return found


def twins(farlet: Farlet) -> list[str]:
    """What the node has in the remote cluster, as kind/name."""
    found = items(farlet.remote, "replicasets,jobs,pods", "-A", "-l", f"{names.LABEL_NODE}={farlet.node}")
    return [f"{item['kind']}/{item['metadata']['name']}" for item in found]


def pods(farlet: Farlet) -> list[Object]:
    found = items(farlet.local, "pods", "-A", "--field-selector", f"spec.nodeName={farlet.node}")
    return [pod for pod in found if not _of_daemon_set(pod)]


def _of_daemon_set(pod: Object) -> bool:
    return any(owner["kind"] == "DaemonSet" for owner in pod["metadata"].get("ownerReferences", []))


def exists(cluster: Cluster, *what: str) -> bool:
    return cluster.kubectl("get", *what, "--ignore-not-found", "-o", "name").stdout != ""


def assert_gone(farlet: Farlet) -> None:
    assert not exists(farlet.local, "node", farlet.node)
    for lease in (farlet.node, names.lock_name(farlet.node)):
        assert not exists(farlet.local, "-n", "kube-node-lease", "lease", lease), lease


def run_deployment(farlet: Farlet, namespace: str, *, available: int) -> None:
    """Two pods on the node, of which a budget wants so many to be available."""
    labels = {"app": "web"}
    pod: Object = json.loads(pod_manifest("web", farlet.node))["spec"]
    del pod["nodeName"]
    pod |= {"runtimeClassName": names.RUNTIME_CLASS, "nodeSelector": {"kubernetes.io/hostname": farlet.node}}
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
    budget = {"minAvailable": available, "selector": {"matchLabels": labels}}
    made = [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec},
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"}, "spec": budget},
    ]
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": made})
    farlet.local.kubectl("-n", namespace, "apply", "-f", "-", stdin=manifest)
    farlet.local.kubectl("-n", namespace, "rollout", "status", "deployment/web", "--timeout=90s", timeout=100)


@pytest.mark.cluster
def test_budgets_are_respected_and_farlet_ends_the_pods(farlet: Farlet, namespace: str, tmp_path: Path) -> None:
    local = farlet.local
    run_deployment(farlet, namespace, available=2)
    before = sorted(twins(farlet))

    said = removal(farlet, tmp_path, "--timeout", "1", remote=False).ends_with(NOT_IN_TIME)
    assert "disruption budget web" in said
    assert f"kubectl uncordon {farlet.node}" in said
    assert len(pods(farlet)) == 2
    assert sorted(twins(farlet)) == before, "nothing was ended against the budget"
    (node,) = items(local, "node", "-l", f"kubernetes.io/hostname={farlet.node}")
    assert node["spec"]["unschedulable"] is True

    interrupted = removal(farlet, tmp_path, remote=False)
    interrupted.says("may not be evicted yet")
    interrupted.interrupt()
    interrupted.ends_with(INTERRUPTED)

    again = removal(farlet, tmp_path, remote=True)
    again.says("may not be evicted yet")
    local.kubectl("-n", namespace, "patch", "pdb", "web", "-p", '{"spec":{"minAvailable":0}}')
    again.says("would make the node again")
    assert pods(farlet) == []
    assert twins(farlet) == []
    assert exists(local, "node", farlet.node)
    assert farlet.stop() == 0
    again.ends_with(0)
    assert_gone(farlet)
    assert exists(farlet.remote, "namespace", namespace), "it was given by the user"


@pytest.mark.cluster
def test_force_leaves_the_remote_alone(farlet: Farlet, namespace: str, tmp_path: Path) -> None:
    run_deployment(farlet, namespace, available=2)
    before = sorted(twins(farlet))
    farlet.stop()

    refused = removal(farlet, tmp_path, remote=False).ends_with(REFUSED)
    assert "--force" in refused
    (node,) = items(farlet.local, "node", "-l", f"kubernetes.io/hostname={farlet.node}")
    assert "unschedulable" not in node["spec"], "nothing was touched"

    said = removal(farlet, tmp_path, "--force", remote=False).ends_with(0)
    assert f"farlet remove {farlet.node} --remote-kubeconfig" in said
    assert pods(farlet) == []
    assert_gone(farlet)
    assert sorted(twins(farlet)) == before, "what runs there was left alone"

    removal(farlet, tmp_path, remote=True).ends_with(0)  # the remote is back
    assert twins(farlet) == []
    assert_gone(farlet)
    assert "there is no node" in removal(farlet, tmp_path, remote=True).ends_with(REFUSED)


@pytest.mark.cluster
def test_a_farlet_started_meanwhile_waits_and_is_noticed(farlet: Farlet, namespace: str, tmp_path: Path) -> None:
    run_deployment(farlet, namespace, available=2)
    farlet.stop()
    going = removal(farlet, tmp_path, remote=True)
    going.says("may not be evicted yet")
    farlet.start()
    farlet.local.kubectl("-n", namespace, "delete", "pdb", "web")
    assert "was waiting and makes node" in going.ends_with(REFUSED)
    farlet.stop()
    removal(farlet, tmp_path, remote=True).ends_with(0)
    assert_gone(farlet)


@pytest.mark.cluster
@pytest.mark.parametrize("remote_too", [False, True])
def test_a_node_that_is_not_ours_is_refused(local: Cluster, remote: Cluster, remote_too: bool, tmp_path: Path) -> None:
    (node, *_) = items(local, "nodes", "-l", f"!{names.LABEL_VIRTUAL_NODE}")
    before = node["metadata"]["resourceVersion"], node["spec"]
    options = ["--remote-kubeconfig", str(remote.kubeconfig)] if remote_too else []
    said = Removal(node["metadata"]["name"], tmp_path, local.kubeconfig, *options).ends_with(REFUSED)
    assert said.count("\n") == 1
    assert "is not a virtual node of Farlet" in said
    (after,) = [item for item in items(local, "nodes") if item["metadata"]["uid"] == node["metadata"]["uid"]]
    assert after["spec"] == before[1]
    lease = names.lock_name(node["metadata"]["name"])
    assert not exists(local, "-n", "kube-node-lease", "lease", lease)
    assert "there is no node" in Removal("no-such-node", tmp_path, local.kubeconfig, *options).ends_with(REFUSED)


@pytest.mark.cluster
def test_the_wrong_remote_is_refused(farlet: Farlet, tmp_path: Path) -> None:
    wrong = ["--remote-kubeconfig", str(farlet.local.kubeconfig)]
    said = Removal(farlet.node, tmp_path, farlet.local.kubeconfig, *wrong).ends_with(REFUSED)
    assert "--remote-kubeconfig leads to" in said
    (node,) = items(farlet.local, "node", "-l", f"kubernetes.io/hostname={farlet.node}")
    assert "unschedulable" not in node["spec"]


# With clusters of its own: other virtual nodes of the same cluster would keep the remote namespaces.
@pytest.mark.faults
def test_in_place_of_a_farlet_that_died(
    faulty: Fleet, faulty_namespace: str, virtual_node: str, tmp_path: Path
) -> None:
    """What it would have done is done: twins, pods, and the remote namespaces that it made, if they are empty."""
    local, remote = faulty.cluster("local"), faulty.cluster("remote")
    spaces = [faulty_namespace, f"{faulty_namespace}-kept"]
    local.kubectl("create", "namespace", spaces[1])
    eventually(lambda: exists(local, "-n", spaces[1], "serviceaccount", "default"), "its ServiceAccount")
    options = [part for space in spaces for part in ("--namespace", space)]
    try:
        with running(local, remote, virtual_node, tmp_path, *options) as farlet:
            once = pod_manifest("once", farlet.node, restartPolicy="Never")
            for space in spaces:
                for manifest in (pod_manifest("box", farlet.node), once):
                    local.kubectl("-n", space, "apply", "-f", "-", stdin=manifest)
                local.kubectl(
                    "-n", space, "wait", "--for=condition=Ready", "pods", "--all", "--timeout=90s", timeout=95
                )
            made = {
                item["metadata"]["annotations"][names.ANNOTATION_LOCAL_NAMESPACE]: item["metadata"]["name"]
                for item in items(remote, "namespaces", "-l", names.LABEL_ORIGIN)
            }
            remote.kubectl("-n", made[spaces[1]], "create", "configmap", "precious")
            farlet.kill()

            administrator = ["--remote-kubeconfig", str(remote.kubeconfig)]
            said = Removal(farlet.node, tmp_path, local.kubeconfig, *administrator).ends_with(0)
            assert "no farlet runs for it" in said
            assert "configmaps/precious" in said
            assert twins(farlet) == []
            assert pods(farlet) == []
            assert_gone(farlet)
            eventually(lambda: not exists(remote, "namespace", made[spaces[0]]), "the empty namespace is gone")
            assert exists(remote, "-n", made[spaces[1]], "configmap", "precious")
            remote.kubectl("delete", "namespace", made[spaces[1]], "--wait=false")
    finally:
        local.kubectl("delete", "namespace", spaces[1], "--wait=false", check=False)
