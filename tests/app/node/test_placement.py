"""A node counts if the remote scheduler would put a pod of ours there."""

from __future__ import annotations

from typing import Any

import pytest

from app.kube.objects import Object
from app.node.placement import Placement, takes_pods, tolerates

READY = {"conditions": [{"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": "True"}]}
CONTROL_PLANE = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
GPU = {"key": "gpu", "value": "a100", "effect": "NoSchedule"}
UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}


def node(status: Object | None = None, spec: Object | None = None, **metadata: Any) -> Object:
    return {"metadata": {"name": "n1", **metadata}, "spec": spec or {}, "status": READY if status is None else status}


def ready(status: str) -> Object:
    return {"conditions": [{"type": "Ready", "status": status}]}


def required(*terms: Object) -> Placement:
    selector = {"nodeSelectorTerms": list(terms)}
    return Placement(node_affinity={"requiredDuringSchedulingIgnoredDuringExecution": selector})


def expression(operator: str, *values: str, key: str = "zone") -> Object:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


ANY = Placement()
ALL = Placement(tolerations=[{"operator": "Exists"}])
VIRTUAL = {"type": "virtual-kubelet"}
OURS = {"farlet.dev/virtual-node": "true"}

CASES: list[tuple[str, Object, Placement, bool]] = [
    ("a plain node", node(), ANY, True),
    ("not Ready", node(ready("False")), ANY, False),
    ("not heard of", node(ready("Unknown")), ANY, False),
    ("new, without conditions", node({}), ANY, False),
    ("not Ready, for pods that tolerate all", node(ready("False")), ALL, False),
    ("about to go", node(deletionTimestamp="2026-07-30T12:00:00Z"), ANY, False),
    ("cordoned", node(spec={"unschedulable": True}), ANY, False),
    ("cordoned, tolerated", node(spec={"unschedulable": True}), Placement(tolerations=[UNSCHEDULABLE]), True),
    ("control plane", node(spec={"taints": [CONTROL_PLANE]}), ANY, False),
    ("control plane, for pods that tolerate all", node(spec={"taints": [CONTROL_PLANE]}), ALL, True),
    ("evicting", node(spec={"taints": [{"key": "x", "effect": "NoExecute"}]}), ANY, False),
    ("rather not", node(spec={"taints": [{"key": "x", "effect": "PreferNoSchedule"}]}), ANY, True),
    ("GPUs, tolerated", node(spec={"taints": [GPU]}), Placement(tolerations=[{"key": "gpu", "value": "a100"}]), True),
    (
        "two taints, one tolerated",
        node(spec={"taints": [GPU, CONTROL_PLANE]}),
        Placement(tolerations=[{"key": "gpu", "operator": "Exists"}]),
        False,
    ),
    ("virtual", node(labels=VIRTUAL), ANY, False),
    ("virtual, ours", node(labels=OURS), ANY, False),
    ("virtual, asked for", node(labels=VIRTUAL), Placement(virtual_nodes=True), True),
    ("another type", node(labels={"type": "worker"}), ANY, True),
    ("selected", node(labels={"pool": "a", "x": "y"}), Placement(node_selector={"pool": "a"}), True),
    ("not selected", node(labels={"pool": "b"}), Placement(node_selector={"pool": "a"}), False),
    ("no labels", node(), Placement(node_selector={"pool": "a"}), False),
    ("In", node(labels={"zone": "a"}), required(expression("In", "a", "b")), True),
    ("not In", node(labels={"zone": "c"}), required(expression("In", "a", "b")), False),
    ("not In, unlabelled", node(), required(expression("In", "a")), False),
    ("NotIn", node(labels={"zone": "c"}), required(expression("NotIn", "a")), True),
    ("NotIn, unlabelled", node(), required(expression("NotIn", "a")), True),
    ("Exists", node(labels={"zone": ""}), required(expression("Exists")), True),
    ("DoesNotExist", node(labels={"zone": ""}), required(expression("DoesNotExist")), False),
    ("Gt", node(labels={"zone": "5"}), required(expression("Gt", "4")), True),
    ("Gt, not a number", node(labels={"zone": "x"}), required(expression("Gt", "4")), False),
    ("Lt", node(labels={"zone": "5"}), required(expression("Lt", "4")), False),
    ("an operator of tomorrow", node(labels={"zone": "5"}), required(expression("Like", "5")), False),
    ("one of two terms", node(labels={"zone": "a"}), required(expression("In", "b"), expression("In", "a")), True),
    ("an empty term", node(), required({}), False),
    (
        "by name",
        node(),
        required({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}),
        True,
    ),
    (
        "a preference only",
        node(),
        Placement(node_affinity={"preferredDuringSchedulingIgnoredDuringExecution": []}),
        True,
    ),
]


@pytest.mark.parametrize(("node", "placement", "takes"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_which_nodes_take_pods(node: Object, placement: Placement, takes: bool) -> None:
    assert takes_pods(node, placement) is takes


@pytest.mark.parametrize(
    ("toleration", "taint", "result"),
    [
        ({"operator": "Exists"}, GPU, True),
        ({"key": "gpu", "operator": "Exists"}, GPU, True),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, GPU, False),
        ({"key": "gpu", "operator": "Equal", "value": "a100", "effect": "NoSchedule"}, GPU, True),
        ({"key": "gpu", "value": "t4"}, GPU, False),
        ({"key": "gpu"}, GPU, False),
        ({"key": "other", "operator": "Exists"}, GPU, False),
        ({"key": "x"}, {"key": "x", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "operator": "Gt", "value": "1"}, GPU, False),
        ({}, GPU, False),
    ],
)
def test_tolerations_are_matched_as_kubernetes_does(toleration: Object, taint: Object, result: bool) -> None:
    assert tolerates(toleration, taint) is result
