"""Pods bound to the virtual node run in the remote cluster, and everything about them is told locally."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from app import names
from devcluster.cluster import Cluster
from tests.cluster import audit
from tests.cluster.farlet import ANY_PORT, Farlet, pod_manifest
from tests.cluster.objects import apply, get, twins, wait_ready
from tests.cluster.pods import shell
from tests.eventually import eventually

pytestmark = pytest.mark.cluster

Object = dict[str, Any]


def deployment(node: str, replicas: int) -> str:
    labels = {"app": "web"}
    container = {"name": "main", "image": "farlet/busybox:1", "command": ["sh", "-c", "exec sleep 1000000"]}
    pod = {
        "runtimeClassName": names.RUNTIME_CLASS,
        "nodeSelector": {"kubernetes.io/hostname": node},
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
    }
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return json.dumps({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec})


def test_the_eleven_steps_of_computing_offloading(farlet: Farlet, namespace: str) -> None:
    """Step by step as the document that the project was created from has them (seed 000)."""
    local, remote = farlet.local, farlet.remote
    apply(local, namespace, deployment(farlet.node, 3))  # 1. a user creates a deployment

    # 2. the controller-manager makes the ReplicaSet and its pods
    pods = eventually(
        lambda: get(local, namespace, "pods", "-l", "app=web")["items"], "three pods", until=lambda p: len(p) == 3
    )
    # 3., 4. the scheduler binds them to the virtual node, for which the RuntimeClass brings toleration and selector
    eventually(
        lambda: {p["spec"].get("nodeName") for p in get(local, namespace, "pods")["items"]},
        "the scheduler binds them",
        until=lambda nodes: nodes == {farlet.node},
    )
    # 5., 7. the virtual kubelet makes a remote ReplicaSet of one for each, with the pod as its template
    sets = eventually(lambda: twins(farlet, namespace, "replicasets"), "three twins", until=lambda t: len(t) == 3)
    uids = {pod["metadata"]["uid"] for pod in pods}
    assert {twin["metadata"]["labels"][names.LABEL_POD_UID] for twin in sets} == uids
    assert all(twin["spec"]["replicas"] == 1 for twin in sets)
    # 8., 9. the remote controller-manager makes the pods
    remote_pods = eventually(lambda: twins(farlet, namespace), "three remote pods", until=lambda p: len(p) == 3)
    owners = {pod["metadata"]["ownerReferences"][0]["uid"] for pod in remote_pods}
    assert owners == {twin["metadata"]["uid"] for twin in sets}
    # 10., 11. the virtual kubelet sees them and keeps the local status up to date
    local.kubectl("-n", namespace, "rollout", "status", "deployment/web", "--timeout=120s", timeout=130)
    addresses = {pod["status"]["podIP"] for pod in twins(farlet, namespace)}
    assert {pod["status"]["podIP"] for pod in get(local, namespace, "pods")["items"]} == addresses
    assert not get(remote, namespace, "deployments")["items"], "only the pods are offloaded"


def test_a_remote_pod_that_is_deleted_returns_and_the_local_one_stays(farlet: Farlet, namespace: str) -> None:
    apply(farlet.local, namespace, pod_manifest("box", farlet.node))
    wait_ready(farlet.local, namespace, "pod/box")
    before = get(farlet.local, namespace, "pod", "box")
    (victim,) = twins(farlet, namespace)
    farlet.remote.kubectl("-n", namespace, "delete", "pod", victim["metadata"]["name"])

    def restarts() -> int:
        status = get(farlet.local, namespace, "pod", "box")["status"]
        return int(status["containerStatuses"][0]["restartCount"])

    eventually(restarts, "the replacement counts as a restart", until=lambda count: count == 1)
    wait_ready(farlet.local, namespace, "pod/box")
    after = get(farlet.local, namespace, "pod", "box")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["phase"] == "Running"
    (returned,) = twins(farlet, namespace)
    assert returned["metadata"]["uid"] != victim["metadata"]["uid"]


def test_deleting_the_local_pod_deletes_the_remote_one_first(farlet: Farlet, namespace: str) -> None:
    script = "trap 'echo asked to end; sleep 2; exit 0' TERM; while true; do sleep 0.1; done"
    container = {"name": "main", "image": "farlet/busybox:1", "command": ["sh", "-c", script]}
    manifest = pod_manifest("box", farlet.node, containers=[container], terminationGracePeriodSeconds=20)
    apply(farlet.local, namespace, manifest)
    wait_ready(farlet.local, namespace, "pod/box")
    farlet.local.kubectl("-n", namespace, "delete", "pod", "box", timeout=60)
    assert twins(farlet, namespace) == [], "when the local pod is gone, the remote one is"
    assert twins(farlet, namespace, "replicasets") == []


def test_a_pod_forced_away_locally_is_cleaned_up_remotely(farlet: Farlet, namespace: str) -> None:
    apply(farlet.local, namespace, pod_manifest("box", farlet.node))
    wait_ready(farlet.local, namespace, "pod/box")
    farlet.local.kubectl("-n", namespace, "delete", "pod", "box", "--grace-period=0", "--force")
    eventually(
        lambda: twins(farlet, namespace) + twins(farlet, namespace, "rs"), "remote is clean", until=lambda t: not t
    )


@pytest.mark.parametrize(("command", "phase", "code"), [("exit 0", "Succeeded", 0), ("exit 3", "Failed", 3)])
def test_a_pod_that_runs_once(farlet: Farlet, namespace: str, command: str, phase: str, code: int) -> None:
    container = {"name": "main", "image": "farlet/busybox:1", "command": ["sh", "-c", f"echo run; {command}"]}
    apply(farlet.local, namespace, pod_manifest("once", farlet.node, containers=[container], restartPolicy="Never"))

    def status() -> Object:
        found: Object = get(farlet.local, namespace, "pod", "once")["status"]
        return found

    ended = eventually(status, "the pod ends", until=lambda s: s["phase"] in ("Succeeded", "Failed"))
    assert ended["phase"] == phase
    assert ended["containerStatuses"][0]["state"]["terminated"]["exitCode"] == code
    farlet.kill()
    farlet.start()
    for kind in ("jobs", "pods"):
        assert len(twins(farlet, namespace, kind)) == 1, "after a restart it has still run just once"
    assert status()["phase"] == phase


def test_a_pod_that_runs_once_is_started_when_a_refusal_ends(farlet: Farlet, namespace: str) -> None:
    """A refused twin was never started, so the pod waits and says why, and is not called lost."""
    quota = ["create", "quota", "none", "--hard=count/jobs.batch=0"]
    farlet.remote.kubectl("-n", namespace, *quota)

    def used() -> str:
        path = "jsonpath={.status.hard}"
        return farlet.remote.kubectl("-n", namespace, "get", "quota", "none", "-o", path).stdout

    eventually(used, "the quota is in force")
    container = {"name": "main", "image": "farlet/busybox:1", "command": ["true"]}
    apply(farlet.local, namespace, pod_manifest("once", farlet.node, containers=[container], restartPolicy="Never"))

    def pod() -> Object:
        return get(farlet.local, namespace, "pod", "once")

    waiting = eventually(pod, "it says why", until=lambda p: "exceeded quota" in json.dumps(p["status"]))
    assert waiting["status"]["phase"] == "Pending"
    farlet.remote.kubectl("-n", namespace, "delete", "quota", "none")
    eventually(pod, "it runs after all", until=lambda p: p["status"]["phase"] == "Succeeded", timeout=120)
    assert len(twins(farlet, namespace, "jobs")) == 1


def policy(name: str, namespace: str) -> list[str]:
    """An admission policy that lets no twin into a namespace, with a status that is none of the usual ones: 413."""
    api = "admissionregistration.k8s.io/v1"
    rules = [
        {"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource]}
        for group, resource in (("apps", "replicasets"), ("batch", "jobs"))
    ]
    here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    no = {"expression": "false", "message": "no twins on Sundays", "reason": "RequestEntityTooLarge"}
    spec = {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": rules}, "validations": [no]}
    binding = {"policyName": name, "validationActions": ["Deny"], "matchResources": {"namespaceSelector": here}}
    return [
        json.dumps({"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": content})
        for kind, content in (("ValidatingAdmissionPolicy", spec), ("ValidatingAdmissionPolicyBinding", binding))
    ]


def test_a_policy_of_the_remote_cluster_that_denies_is_told_and_nothing_is_lost(farlet: Farlet, namespace: str) -> None:
    local, remote = farlet.local, farlet.remote
    job = ["create", "job", "probe", "--image=none", "--dry-run=server"]
    apply(remote, namespace, *policy(namespace, namespace))
    try:
        eventually(lambda: remote.kubectl("-n", namespace, *job, check=False).returncode, "the policy is in force")
        manifests = [pod_manifest("always", farlet.node), pod_manifest("once", farlet.node, restartPolicy="Never")]
        apply(local, namespace, *manifests)

        def says() -> list[str]:
            pods = [get(local, namespace, "pod", name) for name in ("always", "once")]
            return [pod["status"].get("message", "") for pod in pods if not is_marked(pod)]

        def is_marked(pod: Object) -> bool:
            return names.ANNOTATION_STARTED in pod["metadata"].get("annotations", {})

        eventually(says, "both say so", until=lambda said: sum("no twins on Sundays" in text for text in said) == 2)

        def told() -> set[str]:
            events = get(local, namespace, "events")["items"]
            return {event["involvedObject"]["name"] for event in events if event["reason"] == names.OFFLOAD_FAILED}

        eventually(told, "and so do events", until=lambda found: found == {"always", "once"})
        assert farlet.stop() == 0
        farlet.start()
        assert twins(farlet, namespace, "jobs") == []
    finally:
        kinds = "validatingadmissionpolicybindings,validatingadmissionpolicies"
        remote.kubectl("delete", kinds, namespace)
    wait_ready(local, namespace, "pod/always", "pod/once")


def test_a_finished_pod_is_not_run_again_when_its_twin_is_gone(farlet: Farlet, namespace: str) -> None:
    container = {"name": "main", "image": "farlet/busybox:1", "command": ["sh", "-c", "sleep 1000"]}
    apply(farlet.local, namespace, pod_manifest("once", farlet.node, containers=[container], restartPolicy="Never"))
    wait_ready(farlet.local, namespace, "pod/once")
    farlet.kill()
    farlet.remote.kubectl("-n", namespace, "delete", "jobs", "--all", "--cascade=foreground")
    farlet.start()

    def status() -> Object:
        found: Object = get(farlet.local, namespace, "pod", "once")["status"]
        return found

    lost = eventually(status, "the pod says so", until=lambda s: s["phase"] == "Failed")
    assert lost["reason"] == names.REMOTE_TWIN_LOST
    assert twins(farlet, namespace, "jobs") == []


def test_a_namespace_that_is_not_mapped(farlet: Farlet, local: Cluster, namespace: str) -> None:
    """The pod waits, and says what to do."""
    apply(local, "default", pod_manifest(f"stray-{namespace}", farlet.node))
    try:

        def message() -> str:
            status = get(local, "default", "pod", f"stray-{namespace}")["status"]
            return json.dumps(status)

        eventually(message, "the reason is on the pod", until=lambda text: "--namespace default" in text)
        assert get(local, "default", "pod", f"stray-{namespace}")["status"]["phase"] == "Pending"
    finally:
        local.kubectl("delete", "pod", f"stray-{namespace}", "--grace-period=0", "--force")


def test_a_foreign_replicaset_of_the_same_name_is_left_alone(farlet: Farlet, namespace: str) -> None:
    """A remote object that is not ours is never touched; the local pod says so."""
    local, remote = farlet.local, farlet.remote
    farlet.kill()
    apply(local, namespace, pod_manifest("box", farlet.node))
    from app.pods.forge import ForgeOptions, forge_twin

    pod = get(local, namespace, "pod", "box")
    foreign = forge_twin(pod, namespace, ForgeOptions(origin="other", node="other", remote_minor=36))
    apply(remote, namespace, json.dumps(foreign))
    before = get(remote, namespace, "rs", foreign["metadata"]["name"])
    farlet.start()

    def events() -> str:
        return local.kubectl("-n", namespace, "get", "events").stdout

    eventually(events, "an event says so", until=lambda text: "exists and is not ours" in text)
    after = get(remote, namespace, "rs", foreign["metadata"]["name"])
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    local.kubectl("-n", namespace, "delete", "pod", "box")
    assert get(remote, namespace, "rs", foreign["metadata"]["name"])["metadata"]["uid"] == before["metadata"]["uid"]


def test_the_node_survives_being_deleted(farlet: Farlet, namespace: str) -> None:
    apply(farlet.local, namespace, pod_manifest("box", farlet.node))
    wait_ready(farlet.local, namespace, "pod/box")
    uids = _uids(farlet, namespace)
    before = get(farlet.local, namespace, "node", farlet.node)["metadata"]["uid"]
    farlet.local.kubectl("delete", "node", farlet.node)

    def made_again() -> bool:
        found = farlet.local.kubectl("get", "node", farlet.node, "-o", "jsonpath={.metadata.uid}", check=False).stdout
        return bool(found) and found != before

    eventually(made_again, "the node is made again, before its pods are collected", timeout=40)
    eventually(farlet.ready, "and is Ready")
    node = get(farlet.local, namespace, "node", farlet.node)
    eventually(
        lambda: get(farlet.local, "kube-node-lease", "lease", farlet.node)["metadata"]["ownerReferences"][0]["uid"],
        "the lease belongs to the new node",
        until=lambda uid: uid == node["metadata"]["uid"],
    )
    assert _uids(farlet, namespace) == uids, "no pod was lost on either side"


def test_what_an_admin_did_to_the_node_stays(farlet: Farlet) -> None:
    local = farlet.local
    local.kubectl("label", "node", farlet.node, "example.com/mine=yes")
    local.kubectl("taint", "node", farlet.node, "example.com/mine=yes:NoSchedule")
    local.kubectl("cordon", farlet.node)
    farlet.kill()
    farlet.start()
    node = get(local, "default", "node", farlet.node)
    assert node["metadata"]["labels"]["example.com/mine"] == "yes"
    assert node["spec"]["unschedulable"] is True
    keys = {taint["key"] for taint in node["spec"]["taints"]}
    assert {"example.com/mine", names.TAINT_KEY} <= keys


def test_kill_and_start_again_changes_nothing(farlet: Farlet, namespace: str) -> None:
    """kill -9, then a start: no remote pod is made anew, and nothing is written to any pod or twin."""
    for index in range(3):
        apply(farlet.local, namespace, pod_manifest(f"box-{index}", farlet.node))
    for index in range(3):
        wait_ready(farlet.local, namespace, f"pod/box-{index}")
    uids = _uids(farlet, namespace)
    _settle(farlet, namespace)
    farlet.kill()
    marks = [audit.mark(cluster) for cluster in (farlet.local, farlet.remote)]
    farlet.start()
    eventually(lambda: _uids(farlet, namespace) == uids, "the pods are the same")
    # a write of ours would follow the first reconciliation, which the node's Ready does not wait for
    farlet.local.kubectl("-n", namespace, "annotate", "pod", "box-0", "example.com/after=start")

    def carried() -> bool:
        return any("example.com/after" in pod["metadata"].get("annotations", {}) for pod in twins(farlet, namespace))

    eventually(carried, "a change after the start is carried over")
    for cluster, mark in zip((farlet.local, farlet.remote), marks, strict=True):
        written = audit.writes(cluster, mark, namespace)
        allowed = [entry for entry in written if "box-0" in entry]
        assert written == allowed, f"{cluster.name}: {written}"
    assert _uids(farlet, namespace) == uids


def test_changes_reach_the_running_pod(farlet: Farlet, namespace: str) -> None:
    local = farlet.local
    apply(local, namespace, pod_manifest("box", farlet.node))
    wait_ready(local, namespace, "pod/box")
    local.kubectl("-n", namespace, "label", "pod", "box", "example.com/tier=gold")
    local.kubectl("-n", namespace, "annotate", "pod", "box", "example.com/note=hello")

    def carried() -> bool:
        metadata = twins(farlet, namespace)[0]["metadata"]
        labels, annotations = metadata["labels"], metadata.get("annotations", {})
        return bool(labels.get("example.com/tier") == "gold" and annotations.get("example.com/note") == "hello")

    eventually(carried, "labels and annotations are carried over")


def test_the_container_sees_what_it_would_see_locally(farlet: Farlet, namespace: str) -> None:
    fields = {"NAME": "metadata.name", "SPACE": "metadata.namespace", "NODE": "spec.nodeName", "ID": "metadata.uid"}
    env = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
    container = {"name": "main", "image": "farlet/busybox:1", "command": ["sleep", "1000000"], "env": env}
    apply(farlet.local, namespace, pod_manifest("box", farlet.node, containers=[container]))
    wait_ready(farlet.local, namespace, "pod/box")
    uid = get(farlet.local, namespace, "pod", "box")["metadata"]["uid"]
    (remote_pod,) = twins(farlet, namespace)
    script = "echo $NAME $SPACE $NODE $ID; hostname; ls /var/run/secrets 2>/dev/null | wc -l"
    seen = shell(farlet.remote, namespace, remote_pod["metadata"]["name"], script).split()
    assert seen == ["box", namespace, farlet.node, uid, "box", "0"]


def test_a_second_farlet_for_the_same_node_waits(farlet: Farlet, namespace: str, tmp_path: Path) -> None:
    second = Farlet(farlet.local, farlet.remote, farlet.node, tmp_path / "second.log", [*ANY_PORT])
    second.start()  # its node is Ready, thanks to the first
    try:
        assert "is the leader" not in second.log.read_text()
        farlet.kill()
        eventually(lambda: "is the leader" in second.log.read_text(), "the second takes over", timeout=60)
    finally:
        second.stop()
        farlet.start()


def _uids(farlet: Farlet, namespace: str) -> set[str]:
    local = get(farlet.local, namespace, "pods")["items"]
    return {pod["metadata"]["uid"] for pod in [*local, *twins(farlet, namespace)]}


def _settle(farlet: Farlet, namespace: str) -> None:
    """Wait until nothing is left to say: a kubelet goes on a little after its pod is Ready."""

    def looked() -> tuple[int, ...]:
        versions = [pod["metadata"]["resourceVersion"] for pod in get(farlet.local, namespace, "pods")["items"]]
        versions += [pod["metadata"]["resourceVersion"] for pod in twins(farlet, namespace)]
        return tuple(map(int, versions))

    before: list[tuple[int, ...]] = [()]

    def quiet() -> bool:
        time.sleep(3)
        before.append(looked())
        return before[-1] == before[-2]

    eventually(quiet, "the pods come to rest")
