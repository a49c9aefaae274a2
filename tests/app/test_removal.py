"""What is due to remove a virtual node, whatever was done before."""

from __future__ import annotations

from typing import Any

import pytest

from app import names
from app.kube.objects import Object
from app.namespaces.mapping import remote_name
from app.pods.deletion import Deletion
from app.removal import (
    Remote,
    Step,
    View,
    content,
    count,
    is_bare,
    is_leader_lease,
    is_led,
    leaving,
    listed,
    listed_pods,
    made_by_us,
    may_hold_content,
    ours,
    plan,
    sharing,
    title,
    why_not,
)

ORIGIN = "0a1b2c3d"


def pod(name: str = "a", *, owner: str | None = "ReplicaSet", evicted: bool = False, mirror: bool = False) -> Object:
    metadata: Object = {"namespace": "near", "name": name, "uid": f"uid-{name}"}
    if owner:
        metadata["ownerReferences"] = [{"kind": owner, "name": "owner", "controller": True}]
    if evicted:
        metadata |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
    if mirror:
        metadata["annotations"] = {"kubernetes.io/config.mirror": "hash"}
    return {"metadata": metadata, "spec": {}}


def remote_object(kind: str, stands_for: str, *, deleted: bool = False, origin: str = ORIGIN) -> Object:
    labels = {names.LABEL_ORIGIN: origin, names.LABEL_NODE: "far", names.LABEL_POD_UID: f"uid-{stands_for}"}
    metadata: Object = {"namespace": "far", "name": f"{kind}-{stands_for}", "uid": f"{kind}-{stands_for}"}
    metadata["labels"] = labels
    if deleted:
        metadata |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
    return {"kind": kind, "metadata": metadata, "spec": {}}


def twin(stands_for: str = "a", *, deleted: bool = False) -> Object:
    return remote_object("ReplicaSet", stands_for, deleted=deleted)


def remote_pod(stands_for: str = "a", *, deleted: bool = False) -> Object:
    return remote_object("Pod", stands_for, deleted=deleted)


TWIN_OF_A = Deletion("ReplicaSet", "far", "ReplicaSet-a", "ReplicaSet-a", propagation="Background")
BOTH = Remote([twin()], [remote_pod()])
A, EVICTED = pod(), pod(evicted=True)


@pytest.mark.parametrize(
    ("view", "step"),
    [
        # a farlet runs: pods are evicted, and it does the rest
        ({"pods": [A], "leading": False, "remote": BOTH}, Step(evict=(A,), left=(A,))),
        ({"pods": [EVICTED], "leading": False, "remote": BOTH}, Step(left=(EVICTED,))),
        ({"pods": [], "leading": False, "remote": BOTH}, Step()),
        ({"pods": [], "leading": False, "remote": Remote()}, Step()),
        ({"pods": [A], "leading": False, "remote": None}, Step(evict=(A,), left=(A,))),
        ({"pods": [], "leading": False, "remote": None}, Step()),
        # none runs: we end what runs remotely, then the pod
        ({"pods": [A], "leading": True, "remote": BOTH}, Step(evict=(A,), left=(A,))),
        ({"pods": [EVICTED], "leading": True, "remote": BOTH}, Step(deletions=(TWIN_OF_A,), left=(EVICTED,))),
        (
            {"pods": [EVICTED], "leading": True, "remote": Remote([], [remote_pod(deleted=True)])},
            Step(left=(EVICTED,)),
        ),
        ({"pods": [EVICTED], "leading": True, "remote": Remote()}, Step(end=(EVICTED,), left=(EVICTED,))),
        # what stands for no pod any more
        ({"pods": [], "leading": True, "remote": BOTH}, Step(deletions=(TWIN_OF_A,))),
        ({"pods": [], "leading": True, "remote": Remote([twin(deleted=True)])}, Step()),
        (
            {"pods": [pod("b")], "leading": True, "remote": BOTH},
            Step(evict=(pod("b"),), deletions=(TWIN_OF_A,), left=(pod("b"),)),
        ),
        # done
        ({"pods": [], "leading": True, "remote": Remote()}, Step(finished=True)),
        ({"pods": [], "leading": True, "remote": None}, Step(finished=True)),
        ({"pods": [pod(owner="DaemonSet")], "leading": True, "remote": None}, Step(finished=True)),
        # the pods of a remote that is given up are deleted, but not while a farlet could still work on them
        ({"pods": [A, EVICTED], "leading": False, "remote": None, "force": True}, Step(left=(A, EVICTED))),
        (
            {"pods": [A, EVICTED], "leading": True, "remote": None, "force": True},
            Step(end=(A, EVICTED), left=(A, EVICTED)),
        ),
        ({"pods": [], "leading": True, "remote": None, "force": True}, Step(finished=True)),
        ({"pods": [], "leading": False, "remote": None, "force": True}, Step()),
    ],
)
def test_plan(view: dict[str, Any], step: Step) -> None:
    assert plan(View(**view)) == step


def test_without_a_remote_no_pod_is_ended_unless_forced() -> None:
    assert plan(View(pods=[EVICTED], leading=True, remote=None)) == Step(left=(EVICTED,))


def test_a_twin_of_a_daemon_set_pod_goes_before_the_node() -> None:
    """Its pod does not count, so nothing else would see to it."""
    step = plan(View(pods=[pod(owner="DaemonSet")], leading=True, remote=BOTH))
    assert step == Step(deletions=(TWIN_OF_A,))


@pytest.mark.parametrize(
    ("candidate", "leaves"),
    [
        (pod(), True),
        (pod(owner=None), True),
        (pod(owner="Job"), True),
        (pod(owner="DaemonSet"), False),
        (pod(owner="Node"), False),
        (pod(owner=None, mirror=True), False),
    ],
)
def test_which_pods_have_to_leave(candidate: Object, leaves: bool) -> None:
    assert leaving([candidate]) == ([candidate] if leaves else [])


def test_bare_pods() -> None:
    assert is_bare(pod(owner=None))
    assert not is_bare(pod())


def node(name: str = "far", **labels: str) -> Object:
    return {"metadata": {"name": name, "labels": labels}}


VIRTUAL = {names.LABEL_VIRTUAL_NODE: "true", names.LABEL_REMOTE_CLUSTER: "beef"}


@pytest.mark.parametrize(
    ("existing", "remote_id", "traces", "says"),
    [
        (node(**VIRTUAL), None, False, None),
        (node(**VIRTUAL), "beef", False, None),
        (node(**VIRTUAL), "cafe", True, "--remote-kubeconfig leads to cafe"),
        (node(), None, True, "not a virtual node of Farlet"),
        (node(), "beef", True, "not a virtual node of Farlet"),
        ({"metadata": {"name": "far"}}, None, False, "not a virtual node of Farlet"),
        (None, None, False, "there is no node far"),
        (None, "beef", False, "there is no node far"),
        (None, None, True, None),
        (None, "beef", True, None),
    ],
)
def test_what_is_refused(existing: Object | None, remote_id: str | None, traces: bool, says: str | None) -> None:
    reason = why_not("far", existing, remote_ids=[remote_id] if remote_id else None, traces=traces)
    assert reason is None if says is None else says in (reason or "")


def lease(holder: str | None, renewed: str = "1", seconds: int = 15) -> Object:
    spec: Object = {"leaseDurationSeconds": seconds, "renewTime": renewed}
    return {"metadata": {}, "spec": spec | ({"holderIdentity": holder} if holder else {})}


@pytest.mark.parametrize(
    ("first", "now", "waited", "led"),
    [
        (None, None, 0, False),
        (lease(None), lease(None), 0, False),  # given up
        (lease("a"), lease("a"), 0, None),
        (lease("a"), lease("a"), 15, None),
        (lease("a"), lease("a"), 15.1, False),  # it died
        (lease("a"), lease("a", "2"), 5, True),  # renewed
        (lease("a"), lease("b"), 5, True),  # taken over
        (lease("a"), lease(None), 5, False),  # given up while we looked
        (lease("a"), None, 5, False),
        (None, lease("a"), 5, True),
    ],
)
def test_whether_a_farlet_runs(first: Object | None, now: Object | None, waited: float, led: bool | None) -> None:
    assert is_led(first, now, waited) is led


def test_the_heartbeat_of_a_node_is_no_lock() -> None:
    assert is_leader_lease(lease("a"))
    assert not is_leader_lease({"metadata": {"ownerReferences": [{"kind": "Node", "name": "farlet-far"}]}})


def test_only_what_we_wrote_is_ours() -> None:
    strange = {"metadata": {"labels": {names.LABEL_ORIGIN: ORIGIN, names.LABEL_NODE: "far"}}}
    items = [twin("a"), remote_object("Job", "b", origin="other"), strange]
    assert ours(items, ORIGIN) == ([twin("a")], {"other"})


def namespace(name: str, local: str | None = "shop", origin: str = ORIGIN, *, deleted: bool = False) -> Object:
    metadata: Object = {"name": name, "labels": {names.LABEL_ORIGIN: origin}}
    if local:
        metadata["annotations"] = {names.ANNOTATION_LOCAL_NAMESPACE: local}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {"metadata": metadata}


def mapped(name: str) -> Object:
    content = namespace(name)
    content["metadata"]["annotations"][names.ANNOTATION_MAPPED_BY] = "offloading"
    return content


@pytest.mark.parametrize(
    ("candidate", "made"),
    [
        (namespace(remote_name("shop", ORIGIN)), True),
        (namespace(remote_name("s" * 63, ORIGIN), "s" * 63), True),
        (namespace("shop"), False),  # made for --namespace shop=shop: the user's name for it
        (namespace(remote_name("shop", ORIGIN), None), False),
        (namespace(remote_name("shop", ORIGIN), origin="other"), False),
        (namespace(remote_name("shop", ORIGIN), deleted=True), False),
        ({"metadata": {"name": "default"}}, False),
        (mapped("shop"), True),  # made for a NamespaceOffloading, under the name that this asks for
    ],
)
def test_which_remote_namespaces_we_made(candidate: Object, made: bool) -> None:
    assert made_by_us([candidate], ORIGIN) == ([candidate] if made else [])


def test_nodes_that_share_a_remote_cluster() -> None:
    other = {**VIRTUAL, names.LABEL_REMOTE_CLUSTER: "cafe"}
    nodes = [node(**VIRTUAL), node("far-2", **VIRTUAL), node("elsewhere", **other), node("real")]
    assert sharing(nodes, "far", ["beef"]) == ["far-2"]


@pytest.mark.parametrize(
    ("group", "plural", "found", "inside"),
    [
        ("", "serviceaccounts", ["default"], []),
        ("", "serviceaccounts", ["default", "robot"], ["serviceaccounts/robot"]),
        ("", "configmaps", ["kube-root-ca.crt"], []),
        ("example.com", "configmaps", ["kube-root-ca.crt"], ["configmaps/kube-root-ca.crt"]),
        ("", "secrets", ["default"], ["secrets/default"]),
    ],
)
def test_what_a_namespace_holds(group: str, plural: str, found: list[str], inside: list[str]) -> None:
    assert content(group, plural, found) == inside


def test_kinds_that_are_no_content() -> None:
    kinds = [("", "events"), ("events.k8s.io", "events"), ("metrics.k8s.io", "pods"), ("", "pods"), ("x.io", "events")]
    assert [kind for kind in kinds if may_hold_content(*kind)] == [("", "pods"), ("x.io", "events")]


def test_words() -> None:
    assert title(pod()) == "near/a"
    assert listed_pods([pod(), pod("b")]) == "near/a, near/b"
    assert [count([pod()] * number) for number in (0, 1, 2)] == ["0 pods", "1 pod", "2 pods"]
    assert listed(list("abc")) == "a, b, c"
    assert listed(list("abcdefg")) == "a, b, c, d, e and 2 more"
