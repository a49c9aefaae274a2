"""What pods take from a node: their requests, counted as the Kubernetes scheduler and the quota controller do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from app import quantity
from app.kube.objects import Object

Amounts: TypeAlias = Mapping[str, int]
"""Resource to billionths."""

PODS: Final = "pods"

_FINISHED: Final = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Claim:
    """What one pod takes from a node. Small enough to be kept per pod, instead of the pod."""

    node: str
    requests: Amounts


def claim(pod: Object, own_selector: Mapping[str, str]) -> Claim | None:
    """What a pod takes from the node it is bound to; None if that is nothing, or if it is ours."""
    node = (pod.get("spec") or {}).get("nodeName")
    if not node or is_finished(pod) or is_own(pod, own_selector):
        return None
    return Claim(node, {**pod_amounts(pod), PODS: quantity.NANO})


def is_own(pod: Object, own_selector: Mapping[str, str]) -> bool:
    """Whether a remote pod carries all labels that mark the pods of this virtual node."""
    labels = pod["metadata"].get("labels") or {}
    return bool(own_selector) and all(labels.get(key) == value for key, value in own_selector.items())


def is_finished(pod: Object) -> bool:
    """Whether a pod has given back what it took."""
    return (pod.get("status") or {}).get("phase") in _FINISHED


def pod_amounts(pod: Object, kind: Literal["requests", "limits"] = "requests") -> Amounts:
    """What a pod asks for in all, as the scheduler counts it (component-helpers/resource/helpers.go, PodRequests).

    Containers run together, so they add up. Init containers run before them one by one, so the largest counts; but
    sidecars (init containers that restart always) stay, and count with whatever starts after them.
    """
    spec, statuses = pod.get("spec") or {}, _container_statuses(pod)
    actual_only = _resize_is_infeasible(pod)

    def asked(container: Object) -> Amounts:
        status = statuses.get(container.get("name", "")) if kind == "requests" else None
        return _container_amounts(container, kind, status, actual_only=actual_only)

    together: Counter[str] = Counter()
    for container in spec.get("containers") or []:
        add(together, asked(container))
    sidecars: Counter[str] = Counter()
    starting: Counter[str] = Counter()
    for container in spec.get("initContainers") or []:
        amounts = asked(container)
        if container.get("restartPolicy") == "Always":
            add(together, amounts)
            add(sidecars, amounts)
            starting |= sidecars
        else:
            step = Counter(sidecars)
            add(step, amounts)
            starting |= step
    result = dict(together | starting)
    pod_level = amounts_of((spec.get("resources") or {}).get(kind))
    result |= {r: v for r, v in pod_level.items() if r in ("cpu", "memory") or r.startswith("hugepages-")}
    for resource, value in amounts_of(spec.get("overhead")).items():
        if kind == "requests" or resource in result:  # no limit stays no limit
            result[resource] = result.get(resource, 0) + value
    return result


def _container_statuses(pod: Object) -> dict[str, Object]:
    status = pod.get("status") or {}
    lists = (status.get("containerStatuses") or [], status.get("initContainerStatuses") or [])
    return {s["name"]: s for statuses in lists for s in statuses if s.get("resources") or s.get("allocatedResources")}


def _resize_is_infeasible(pod: Object) -> bool:
    """A resize that can never be granted takes nothing: then only what the pod has counts, not what its spec says."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(c.get("type") == "PodResizePending" and c.get("reason") == "Infeasible" for c in conditions)


def _container_amounts(container: Object, kind: str, status: Object | None, *, actual_only: bool) -> Amounts:
    wanted = amounts_of((container.get("resources") or {}).get(kind))
    if status is None:
        return wanted
    # While a container is resized in place, it holds the larger of what it has and what it will have.
    has = Counter(amounts_of((status.get("resources") or {}).get(kind)))
    has |= Counter(amounts_of(status.get("allocatedResources")))
    return has if actual_only else has | Counter(wanted)


def amounts_of(resources: Mapping[str, str] | None) -> dict[str, int]:
    """A map of quantities in billionths."""
    return {resource: quantity.nano(str(text)) for resource, text in (resources or {}).items()}


def add(total: Counter[str], amounts: Amounts) -> None:
    """Add to a running total. (``Counter.update`` is slower, ``+`` drops what is zero.)"""
    for resource, value in amounts.items():
        total[resource] += value
