"""What a pod takes from a node is counted as the scheduler counts it."""

from __future__ import annotations

from typing import Any

import pytest

from app import quantity
from app.kube.objects import Object
from app.node.claims import claim, is_own, pod_amounts
from devcluster.cluster import Cluster
from tests.eventually import eventually

OWN = {"farlet.dev/origin": "here", "farlet.dev/node": "far"}


def container(name: str = "c", *, always: bool = False, **requests: str) -> Object:
    found: Object = {"name": name, "resources": {"requests": requests}}
    return found | ({"restartPolicy": "Always"} if always else {})


def limited(name: str, **limits: str) -> Object:
    return {"name": name, "resources": {"limits": limits}}


def pod(*containers: Object, init: list[Object] | None = None, status: Object | None = None, **spec: Any) -> Object:
    whole = {"nodeName": "n1", "containers": list(containers), "initContainers": init or [], **spec}
    return {"metadata": {"name": "p"}, "spec": whole, "status": {"phase": "Running"} | (status or {})}


def in_status(name: str, **more: Object) -> Object:
    return {"name": name, **more}


def waiting_for_resize(reason: str) -> Object:
    return {
        "containerStatuses": [in_status("c", resources={"requests": {"cpu": "1"}}, allocatedResources={"cpu": "1"})],
        "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}],
    }


CASES: list[tuple[str, Object, dict[str, str]]] = [
    ("nothing asked", pod(container(), {"name": "bare"}), {}),
    (
        "containers add up",
        pod(container(cpu="1", memory="1Gi"), container(cpu="500m")),
        {"cpu": "1500m", "memory": "1Gi"},
    ),
    ("an init container that is smaller", pod(container(cpu="2"), init=[container(cpu="1")]), {"cpu": "2"}),
    (
        "the largest init container, per resource",
        pod(container(cpu="2", memory="1Gi"), init=[container(cpu="3"), container(cpu="1", memory="4Gi")]),
        {"cpu": "3", "memory": "4Gi"},
    ),
    (
        "a sidecar stays",
        pod(container(cpu="2"), init=[container(cpu="1", always=True)]),
        {"cpu": "3"},
    ),
    (
        "an init container after a sidecar runs beside it",
        pod(container(cpu="1"), init=[container(cpu="1", always=True), container(cpu="5")]),
        {"cpu": "6"},
    ),
    (
        "an init container before a sidecar does not",
        pod(container(cpu="1"), init=[container(cpu="5"), container(cpu="1", always=True)]),
        {"cpu": "5"},
    ),
    (
        "only a sidecar asks",
        pod(container(), init=[container(cpu="1", always=True), container("d", memory="1Gi", always=True)]),
        {"cpu": "1", "memory": "1Gi"},
    ),
    ("overhead", pod(container(cpu="1"), overhead={"cpu": "250m", "memory": "1Mi"}), {"cpu": "1250m", "memory": "1Mi"}),
    (
        "pod-level resources go before the sum, with overhead on top; others stay",
        pod(
            {"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}}},
            resources={"requests": {"cpu": "4", "hugepages-2Mi": "2Mi", "nvidia.com/gpu": "8"}},
            overhead={"cpu": "1"},
        ),
        {"cpu": "5", "memory": "1Gi", "nvidia.com/gpu": "1", "hugepages-2Mi": "2Mi"},
    ),
    (
        "being resized up: what it will have",
        pod(container(cpu="3"), status={"containerStatuses": [in_status("c", allocatedResources={"cpu": "1"})]}),
        {"cpu": "3"},
    ),
    (
        "being resized down: what it has",
        pod(container(cpu="1"), status={"containerStatuses": [in_status("c", resources={"requests": {"cpu": "3"}})]}),
        {"cpu": "3"},
    ),
    ("a resize that waits", pod(container(cpu="9"), status=waiting_for_resize("Deferred")), {"cpu": "9"}),
    ("a resize that cannot be", pod(container(cpu="9"), status=waiting_for_resize("Infeasible")), {"cpu": "1"}),
    ("empty fields", {"metadata": {"name": "p"}, "spec": {"containers": None}, "status": None}, {}),
]


@pytest.mark.parametrize(("found", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_what_a_pod_asks_for(found: Object, expected: dict[str, str]) -> None:
    amounts = {resource: quantity.format_nano(value, resource) for resource, value in pod_amounts(found).items()}
    assert amounts == expected


def test_limits_are_counted_alike_and_overhead_limits_nothing_by_itself() -> None:
    found = pod(limited("a", cpu="1"), limited("b", cpu="2"), overhead={"cpu": "1", "memory": "1Gi"})
    assert pod_amounts(found, "limits") == {"cpu": quantity.nano("4")}


@pytest.mark.parametrize(
    ("phase", "node", "labels", "counts"),
    [
        ("Running", "n1", {}, True),
        ("Pending", "n1", {}, True),
        ("Unknown", "n1", {}, True),
        (None, "n1", {}, True),
        ("Pending", "", {}, False),
        ("Succeeded", "n1", {}, False),
        ("Failed", "n1", {}, False),
        ("Running", "n1", OWN, False),
        ("Running", "n1", OWN | {"app": "web"}, False),
        ("Running", "n1", OWN | {"farlet.dev/origin": "elsewhere"}, True),
        ("Running", "n1", OWN | {"farlet.dev/node": "another"}, True),
        ("Running", "n1", {"farlet.dev/node": "far"}, True),
    ],
)
def test_which_pods_count(phase: str | None, node: str, labels: dict[str, str], counts: bool) -> None:
    found = pod(container(cpu="1"))
    found["metadata"]["labels"] = labels
    found["spec"]["nodeName"] = node
    found["status"]["phase"] = phase
    taken = claim(found, OWN)
    assert (taken is not None) is counts
    if taken is not None:
        assert (taken.node, taken.requests) == ("n1", {"cpu": quantity.nano("1"), "pods": quantity.nano("1")})


def test_a_selector_of_nothing_does_not_make_every_pod_ours() -> None:
    assert not is_own(pod(), {})


def real(name: str, requests: str, limits: str, *, always: bool = False) -> Object:
    resources = {"requests": {"cpu": requests}, "limits": {"cpu": limits}}
    found: Object = {"name": name, "image": "none", "resources": resources}
    return found | ({"restartPolicy": "Always"} if always else {})


@pytest.mark.cluster
def test_the_quota_controller_counts_the_same(local: Cluster, namespace: str) -> None:
    shapes: list[Object] = [
        {"containers": [real("a", "1", "2"), real("b", "250m", "1")]},
        {"containers": [real("a", "1", "2")], "initContainers": [real("i", "3", "3"), real("j", "2", "5")]},
        {
            "containers": [real("a", "1", "1")],
            "initContainers": [real("s", "1", "2", always=True), real("i", "5", "6"), real("t", "2", "2", always=True)],
        },
        {"containers": [real("a", "1", "1")], "resources": {"requests": {"cpu": "4"}, "limits": {"cpu": "7"}}},
    ]
    hard = {"requests.cpu": "100", "limits.cpu": "100", "pods": "100"}
    quota: Object = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}}
    path = f"/api/v1/namespaces/{namespace}"
    local.api.post(f"{path}/resourcequotas", quota)
    eventually(lambda: local.api.get(f"{path}/resourcequotas/q")["status"]["used"], "the quota is in force")
    asked = {"requests.cpu": 0, "limits.cpu": 0, "pods": 0}
    for number, spec in enumerate(shapes):
        # for a scheduler that does not exist: the pod stays as it is
        whole = {"schedulerName": "nobody", "automountServiceAccountToken": False, **spec}
        metadata = {"name": f"p{number}"}
        made = local.api.post(f"{path}/pods", {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": whole})
        asked["requests.cpu"] += pod_amounts(made)["cpu"]
        asked["limits.cpu"] += pod_amounts(made, "limits")["cpu"]
        asked["pods"] += quantity.NANO
        used = local.api.get(f"{path}/resourcequotas/q")["status"]["used"]
        assert {name: quantity.nano(text) for name, text in used.items()} == asked, spec
