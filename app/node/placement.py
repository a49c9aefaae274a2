"""Which nodes of the remote cluster take our pods: what its scheduler would say of each.

A node that is counted and not used is capacity that does not exist: the local scheduler sends pods for it, and they
wait in the remote cluster where nobody looks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from app.kube.objects import Object
from app.names import LABEL_TYPE, LABEL_VIRTUAL_NODE, TYPE_VIRTUAL_KUBELET
from app.node.selector import any_term_allows


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the remote scheduler can put our pods: what the options inject into every one of them."""

    tolerations: Sequence[Object] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    node_affinity: Object | None = None
    """As in ``spec.affinity.nodeAffinity`` of a pod."""
    virtual_nodes: bool = False
    """Count virtual nodes too. Two clusters that do so and offer each other grow for ever."""


ANYWHERE: Final = Placement()


def takes_pods(node: Object, placement: Placement) -> bool:
    """Whether a node is Ready and the scheduler would put a pod of ours there."""
    labels = node["metadata"].get("labels") or {}
    if is_virtual(labels) and not placement.virtual_nodes:
        return False
    return (
        "deletionTimestamp" not in node["metadata"]
        and _is_ready(node)
        and all(any(tolerates(t, taint) for t in placement.tolerations) for taint in _hard_taints(node))
        and all(labels.get(key) == value for key, value in placement.node_selector.items())
        and _affinity_allows(placement.node_affinity, node["metadata"].get("name", ""), labels)
    )


def is_virtual(labels: Mapping[str, str]) -> bool:
    """Whether a node stands for another cluster, by the labels of ours and of every virtual kubelet."""
    return labels.get(LABEL_TYPE) == TYPE_VIRTUAL_KUBELET or LABEL_VIRTUAL_NODE in labels


def tolerates(toleration: Object, taint: Object) -> bool:
    """Whether a toleration matches a taint; operators that are not known tolerate nothing."""
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    operator = toleration.get("operator") or "Equal"
    if operator == "Exists":
        return True
    return (
        bool(toleration.get("key"))
        and operator == "Equal"
        and (toleration.get("value") or "") == (taint.get("value") or "")
    )


def _is_ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _hard_taints(node: Object) -> list[Object]:
    spec = node.get("spec") or {}
    taints = [t for t in spec.get("taints") or [] if t.get("effect") in ("NoSchedule", "NoExecute")]
    if spec.get("unschedulable"):  # a controller makes a taint of it, a moment later
        taints.append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
    return taints


def _affinity_allows(node_affinity: Object | None, name: str, labels: Mapping[str, str]) -> bool:
    required = (node_affinity or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    return any_term_allows(required.get("nodeSelectorTerms") or [], name, labels)
