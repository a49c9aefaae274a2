"""What people really run: the pods of Jobs, StatefulSets and Deployments, and bare ones, sent by the RuntimeClass."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from app import names
from devcluster.cluster import Cluster
from tests.cluster.farlet import Farlet, running
from tests.cluster.objects import Object, apply, get, remote_of, twins, uids, wait_ready
from tests.cluster.pods import shell
from tests.eventually import eventually

pytestmark = pytest.mark.cluster

LABELS = {"app": "work"}


@pytest.fixture
def farlet(local: Cluster, remote: Cluster, namespace: str, virtual_node: str, tmp_path: Path) -> Iterator[Farlet]:
    with running(local, remote, virtual_node, tmp_path, "--namespace", f"{namespace}={namespace}") as farlet:
        yield farlet


def template(node: str, script: str = "exec sleep 1000000", **spec: object) -> Object:
    """A pod as a user writes it; of all virtual nodes of the shared cluster it wants the test's own."""
    container = {"name": "main", "image": "farlet/busybox:1", "command": ["sh", "-c", script]}
    pod = {
        "runtimeClassName": names.RUNTIME_CLASS,
        "nodeSelector": {"kubernetes.io/hostname": node},
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        **spec,
    }
    return {"metadata": {"labels": LABELS}, "spec": pod}


def workload(api_version: str, kind: str, spec: Object) -> str:
    return json.dumps({"apiVersion": api_version, "kind": kind, "metadata": {"name": "work"}, "spec": spec})


def pods(farlet: Farlet, namespace: str) -> list[Object]:
    items: list[Object] = get(farlet.local, namespace, "pods", "-l", "app=work")["items"]
    return items


def rolled_out(farlet: Farlet, namespace: str, what: str) -> None:
    farlet.local.kubectl("-n", namespace, "rollout", "status", what, "--timeout=90s", timeout=100)


def nothing_left(farlet: Farlet, namespace: str) -> None:
    """With the local pods everything of theirs in the remote cluster goes."""

    def left() -> list[Object]:
        remote = [item for kind in ("pods", "replicasets", "jobs") for item in twins(farlet, namespace, kind)]
        return [*pods(farlet, namespace), *remote]

    eventually(left, "nothing is left on either side", until=lambda items: not items)


def test_a_job_completes(farlet: Farlet, namespace: str) -> None:
    once = template(farlet.node, "echo done", restartPolicy="Never")
    spec = {"completions": 3, "parallelism": 2, "backoffLimit": 0, "template": once}
    apply(farlet.local, namespace, workload("batch/v1", "Job", spec))
    wait = ["wait", "--for=condition=complete", "job/work", "--timeout=90s"]
    farlet.local.kubectl("-n", namespace, *wait, timeout=100)
    ran = pods(farlet, namespace)
    assert [pod["status"]["phase"] for pod in ran] == ["Succeeded"] * 3
    assert {pod["spec"]["nodeName"] for pod in ran} == {farlet.node}
    assert [len(remote_of(farlet, namespace, pod)) for pod in ran] == [1, 1, 1], "each ran once"
    farlet.local.kubectl("-n", namespace, "delete", "job", "work")
    nothing_left(farlet, namespace)


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_a_job_that_fails(farlet: Farlet, namespace: str, policy: str) -> None:
    """Its retries are counted by the local Job, as anywhere: pods of Never, restarts in place of OnFailure."""
    once = template(farlet.node, "echo failing; exit 3", restartPolicy=policy)
    apply(farlet.local, namespace, workload("batch/v1", "Job", {"backoffLimit": 1, "template": once}))
    wait = ["wait", "--for=condition=failed", "job/work", "--timeout=120s"]
    farlet.local.kubectl("-n", namespace, *wait, timeout=130)
    conditions = get(farlet.local, namespace, "job", "work")["status"]["conditions"]
    assert "BackoffLimitExceeded" in {condition["reason"] for condition in conditions}
    if policy == "Never":
        ran = pods(farlet, namespace)
        assert [pod["status"]["phase"] for pod in ran] == ["Failed"] * 2
        assert [len(remote_of(farlet, namespace, pod)) for pod in ran] == [1, 1], "each ran once"
    farlet.local.kubectl("-n", namespace, "delete", "job", "work")
    nothing_left(farlet, namespace)


def test_a_statefulset(farlet: Farlet, namespace: str) -> None:
    local = farlet.local
    spec = {
        "replicas": 2,
        "serviceName": "work",
        "selector": {"matchLabels": LABELS},
        "template": template(farlet.node),
    }
    apply(local, namespace, workload("apps/v1", "StatefulSet", spec))
    rolled_out(farlet, namespace, "statefulset/work")

    def hostnames() -> list[str]:
        seen = []
        for pod in sorted(pods(farlet, namespace), key=lambda pod: str(pod["metadata"]["name"])):
            (remote,) = remote_of(farlet, namespace, pod)
            seen.append(shell(farlet.remote, namespace, remote["metadata"]["name"], "hostname").strip())
        return seen

    assert hostnames() == ["work-0", "work-1"]
    before, remote_before = uids(pods(farlet, namespace)), uids(twins(farlet, namespace))
    local.kubectl("-n", namespace, "rollout", "restart", "statefulset/work")
    rolled_out(farlet, namespace, "statefulset/work")
    assert not uids(pods(farlet, namespace)) & before, "all were replaced"
    assert not uids(twins(farlet, namespace)) & remote_before, "in the remote cluster too"
    assert hostnames() == ["work-0", "work-1"]

    (first,) = [pod for pod in pods(farlet, namespace) if pod["metadata"]["name"] == "work-0"]
    kept = uids(remote_of(farlet, namespace, first))
    local.kubectl("-n", namespace, "scale", "statefulset/work", "--replicas=1")
    eventually(lambda: uids(pods(farlet, namespace)) == uids([first]), "the last one goes, the first one stays")
    assert uids(twins(farlet, namespace)) == kept, "when a local pod is gone, so is the remote one"
    local.kubectl("-n", namespace, "delete", "statefulset", "work")
    nothing_left(farlet, namespace)


def test_a_rollout_of_a_deployment(farlet: Farlet, namespace: str) -> None:
    local = farlet.local
    spec = {"replicas": 2, "selector": {"matchLabels": LABELS}, "template": template(farlet.node)}
    apply(local, namespace, workload("apps/v1", "Deployment", spec))
    rolled_out(farlet, namespace, "deployment/work")
    before, remote_before = uids(pods(farlet, namespace)), uids(twins(farlet, namespace))
    local.kubectl("-n", namespace, "set", "env", "deployment/work", "VERSION=2")
    rolled_out(farlet, namespace, "deployment/work")
    eventually(lambda: len(pods(farlet, namespace)), "the old pods are gone", until=lambda count: count == 2)
    assert not uids(pods(farlet, namespace)) & before
    remote = twins(farlet, namespace)
    assert len(remote) == 2
    assert not uids(remote) & remote_before
    for pod in remote:
        assert shell(farlet.remote, namespace, pod["metadata"]["name"], "echo $VERSION") == "2\n"
    local.kubectl("-n", namespace, "delete", "deployment", "work")
    nothing_left(farlet, namespace)


def test_a_bare_pod(farlet: Farlet, namespace: str) -> None:
    pod: Object = {"apiVersion": "v1", "kind": "Pod", **template(farlet.node)}
    pod["metadata"]["name"] = "work"
    apply(farlet.local, namespace, json.dumps(pod))
    wait_ready(farlet.local, namespace, "pod/work")
    (local,) = pods(farlet, namespace)
    assert local["spec"]["nodeName"] == farlet.node
    (remote,) = remote_of(farlet, namespace, local)
    assert remote["status"]["podIP"] == local["status"]["podIP"]
    farlet.local.kubectl("-n", namespace, "delete", "pod", "work")
    nothing_left(farlet, namespace)
