"""A twin, or the whole remote namespace, deleted by somebody: what is to run for ever comes back, the rest does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app import names
from devcluster.cluster import Cluster
from tests.cluster.farlet import Farlet, install_rights, pod_manifest, running
from tests.cluster.gate import gate
from tests.cluster.objects import Object, apply, get, remote_of, restarts, uids, wait_ready
from tests.eventually import eventually

pytestmark = pytest.mark.cluster


@pytest.fixture
def farlet(local: Cluster, remote: Cluster, namespace: str, virtual_node: str, tmp_path: Path) -> Iterator[Farlet]:
    with running(local, remote, virtual_node, tmp_path, "--namespace", f"{namespace}={namespace}") as farlet:
        yield farlet


def pod(farlet: Farlet, namespace: str, name: str) -> Object:
    return get(farlet.local, namespace, "pod", name)


def came_back(farlet: Farlet, namespace: str, name: str, before: set[str]) -> Object:
    """Wait until a pod runs again, in another remote pod than before."""

    def back() -> bool:
        now = pod(farlet, namespace, name)
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in now["status"]["conditions"])
        return ready and now["metadata"]["annotations"][names.ANNOTATION_REMOTE_UID] not in before

    eventually(back, f"{name} is back", timeout=120)
    return pod(farlet, namespace, name)


@pytest.mark.parametrize("cascade", ["background", "foreground"])
def test_a_replicaset_twin_is_made_again(farlet: Farlet, namespace: str, cascade: str) -> None:
    apply(farlet.local, namespace, pod_manifest("box", farlet.node))
    wait_ready(farlet.local, namespace, "pod/box")
    before = pod(farlet, namespace, "box")
    remote_before = uids(remote_of(farlet, namespace, before))
    farlet.remote.kubectl("-n", namespace, "delete", "replicasets", "--all", f"--cascade={cascade}")
    after = came_back(farlet, namespace, "box", remote_before)
    assert after["metadata"]["uid"] == before["metadata"]["uid"], "the local pod stays"
    assert restarts(after) == 1
    eventually(lambda: len(remote_of(farlet, namespace, after)), "one remote pod is left", until=lambda n: n == 1)
    assert len(remote_of(farlet, namespace, after, "replicasets")) == 1


def test_a_replicaset_twin_that_left_its_pod_behind_takes_it_back(farlet: Farlet, namespace: str) -> None:
    """``--cascade=orphan``: the container that runs is not touched."""
    apply(farlet.local, namespace, pod_manifest("box", farlet.node))
    wait_ready(farlet.local, namespace, "pod/box")
    before = pod(farlet, namespace, "box")
    (remote,) = remote_of(farlet, namespace, before)
    (lost,) = remote_of(farlet, namespace, before, "replicasets")
    farlet.remote.kubectl("-n", namespace, "delete", "replicasets", "--all", "--cascade=orphan")

    def owner() -> str:
        (kept,) = remote_of(farlet, namespace, before)
        return str(kept["metadata"].get("ownerReferences", [{"uid": ""}])[0]["uid"])

    eventually(owner, "another twin owns the pod", until=lambda uid: uid not in ("", lost["metadata"]["uid"]))
    assert uids(remote_of(farlet, namespace, before)) == {remote["metadata"]["uid"]}
    after = pod(farlet, namespace, "box")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert restarts(after) == 0


def test_a_job_twin_is_not_made_again(farlet: Farlet, namespace: str) -> None:
    apply(farlet.local, namespace, pod_manifest("once", farlet.node, restartPolicy="Never"))
    wait_ready(farlet.local, namespace, "pod/once")
    farlet.remote.kubectl("-n", namespace, "delete", "jobs", "--all", "--cascade=foreground")
    lost = eventually(
        lambda: pod(farlet, namespace, "once"), "it says so", until=lambda p: p["status"]["phase"] == "Failed"
    )
    assert lost["status"]["reason"] == names.REMOTE_TWIN_LOST
    assert remote_of(farlet, namespace, lost, "jobs") == []
    assert remote_of(farlet, namespace, lost) == []


def test_a_job_twin_is_not_made_again_where_the_answer_to_its_creation_was_lost(
    local: Cluster, remote: Cluster, namespace: str, virtual_node: str, tmp_path: Path
) -> None:
    """The Job is seen later, so that it is known to have been made, by whatever way that became known."""
    install_rights(local, remote)
    with gate(remote) as opened:
        path = opened.kubeconfig(remote.service_account_kubeconfig("farlet", "farlet"), tmp_path / "remote")
        options = ["--namespace", f"{namespace}={namespace}"]
        with running(local, remote, virtual_node, tmp_path, *options, remote_kubeconfig=path) as farlet:
            opened.lose_answer(f"POST /apis/batch/v1/namespaces/{namespace}/jobs")
            apply(local, namespace, pod_manifest("once", farlet.node, restartPolicy="Never"))
            wait_ready(local, namespace, "pod/once")
            assert opened.lost
            (job,) = remote_of(farlet, namespace, pod(farlet, namespace, "once"), "jobs")
            remote.kubectl("-n", namespace, "delete", "jobs", "--all", "--cascade=foreground")
            lost = eventually(
                lambda: pod(farlet, namespace, "once"), "it says so", until=lambda p: p["status"]["phase"] == "Failed"
            )
            assert lost["status"]["reason"] == names.REMOTE_TWIN_LOST
            assert uids(remote_of(farlet, namespace, lost, "jobs")) <= uids([job])


def test_the_remote_namespace_is_deleted(farlet: Farlet, namespace: str) -> None:
    done = {"name": "main", "image": "farlet/busybox:1", "command": ["true"]}
    apply(
        farlet.local,
        namespace,
        pod_manifest("always", farlet.node),
        pod_manifest("once", farlet.node, restartPolicy="Never"),
        pod_manifest("done", farlet.node, restartPolicy="Never", containers=[done]),
    )
    wait_ready(farlet.local, namespace, "pod/always", "pod/once")
    eventually(lambda: pod(farlet, namespace, "done")["status"]["phase"] == "Succeeded", "one has ended")
    before = pod(farlet, namespace, "always")
    remote_before = uids(remote_of(farlet, namespace, before))
    space = get(farlet.remote, namespace, "namespace", namespace)["metadata"]["uid"]
    farlet.remote.kubectl("delete", "namespace", namespace, timeout=120)

    after = came_back(farlet, namespace, "always", remote_before)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert restarts(after) == 1
    assert get(farlet.remote, namespace, "namespace", namespace)["metadata"]["uid"] != space
    lost = eventually(
        lambda: pod(farlet, namespace, "once"),
        "the one that runs once is over",
        until=lambda p: p["status"]["phase"] == "Failed",
    )
    assert pod(farlet, namespace, "done")["status"]["phase"] == "Succeeded", "what has ended is not touched"
    for name in (lost, pod(farlet, namespace, "done")):
        assert remote_of(farlet, namespace, name, "jobs") == [], "and not run again"
