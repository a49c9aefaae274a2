"""How large the virtual node is: what the remote cluster has left for us.

Two sources are computed here, the remote nodes minus what others ask of them and a remote ResourceQuota; what people
state is read by :mod:`app.node.stated`. All give a map of resource to quantity. Pods of ours are never subtracted:
the local scheduler subtracts them from the node itself, and counted twice they would push each other out. Sums are
integers in billionths (:mod:`app.quantity`), so a cluster's worth of memory keeps its last byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from app import quantity
from app.kube.objects import Object
from app.node.claims import PODS, Amounts, Claim, add, amounts_of, claim, is_finished, pod_amounts
from app.node.placement import ANYWHERE, Placement, takes_pods
from app.settings import Rounding

Capacity: TypeAlias = dict[str, str]
"""Resource to canonical quantity."""

UNSTATED_PODS: Final = "10k"
"""A node that states no number of pods takes none at all; who states only CPU and memory means no such limit."""

_ALWAYS: Final = ("cpu", "memory", PODS)
NATIVE: Final = (*_ALWAYS, "ephemeral-storage")
"""Resources of a node that have no domain in their names, apart from huge pages."""


class CapacityError(ValueError):
    """A capacity that a person or a program of theirs stated wrongly."""


def shared(
    nodes: Iterable[Object],
    pods: Iterable[Object],
    *,
    own_selector: Mapping[str, str],
    share_percent: int = 90,
    rounding: Rounding = Rounding.DOWN,
    placement: Placement = ANYWHERE,
) -> Capacity:
    """The share of what the remote nodes have left after the pods that are not ours."""
    claims = (taken for pod in pods if (taken := claim(pod, own_selector)) is not None)
    return shared_of_claims(nodes, claims, share_percent=share_percent, rounding=rounding, placement=placement)


def shared_of_claims(
    nodes: Iterable[Object],
    claims: Iterable[Claim],
    *,
    share_percent: int = 90,
    rounding: Rounding = Rounding.DOWN,
    placement: Placement = ANYWHERE,
) -> Capacity:
    """As :func:`shared`, for who keeps the claims of pods instead of the pods.

    Each node is subtracted from by itself: one that promised more than it has (static pods may) takes nothing from
    what is free on the others.
    """
    left = {
        node["metadata"]["name"]: amounts_of((node.get("status") or {}).get("allocatable"))
        for node in nodes
        if takes_pods(node, placement)
    }
    for taken in claims:
        free = left.get(taken.node)
        if free is not None:
            for resource, value in taken.requests.items():
                if resource in free:
                    free[resource] -= value
    total: Counter[str] = Counter(dict.fromkeys(_ALWAYS, 0))
    for free in left.values():
        add(total, {resource: max(value, 0) for resource, value in free.items()})
    return _formatted(share(total, share_percent, rounding))


def share(amounts: Amounts, percent: int, rounding: Rounding = Rounding.DOWN) -> dict[str, int]:
    """A percentage of each amount, in whole units of it. Fractions of a millicore or a byte are always dropped."""
    if percent < 0:
        raise CapacityError(f"a share of {percent} % is not possible")
    return {
        resource: _share_of_one(value * percent, 100 * quantity.quantum(resource), rounding, resource)
        * quantity.quantum(resource)
        for resource, value in amounts.items()
    }


def _share_of_one(dividend: int, divisor: int, rounding: Rounding, resource: str) -> int:
    if rounding is Rounding.DOWN or not quantity.is_count(resource):
        return dividend // divisor
    return -(-dividend // divisor) if rounding is Rounding.UP else (2 * dividend + divisor) // (2 * divisor)


def total_requests(pods: Iterable[Object]) -> Capacity:
    """What unfinished pods ask for together, and how many they are."""
    total: Counter[str] = Counter()
    for pod in pods:
        if not is_finished(pod):
            add(total, {**pod_amounts(pod), PODS: quantity.NANO})
    return _formatted(total)


def _formatted(amounts: Amounts) -> Capacity:
    """Canonical quantities, whole units only (a pod may ask for ``1500m`` bytes)."""
    result = {}
    for resource, value in sorted(amounts.items()):
        unit = 1 if resource == quantity.CPU else quantity.NANO
        result[resource] = quantity.format_nano(min(value, quantity.LARGEST) // unit * unit, resource)
    return result


def from_quota(
    quota: Object,
    ours: Amounts,
    *,
    share_percent: int = 100,
    rounding: Rounding = Rounding.DOWN,
) -> Capacity:
    """What a ResourceQuota leaves to us: its hard limits minus what others use of them.

    ``ours`` is what our pods use, as the sum of :func:`quota_use`. Requests never exceed limits, so a quota on limits
    bounds the requests too; the tightest bound counts. A quota with scopes is about some pods only and says nothing
    of a node; neither do entries that are no resource of a node (services, storage). Several quotas of a namespace
    all hold: :func:`least`.
    """
    spec = quota.get("spec") or {}
    if spec.get("scopes") or spec.get("scopeSelector"):
        return {}
    used = amounts_of((quota.get("status") or {}).get("used"))
    left: dict[str, int] = {}
    for name, hard in amounts_of(spec.get("hard")).items():
        resource = _quota_resource(name)
        if resource is None:
            continue
        others = max(used.get(name, 0) - ours.get(_quota_key(name), 0), 0)
        rest = max(hard - others, 0)
        left[resource] = min(left.get(resource, rest), rest)
    return _formatted(share(left, share_percent, rounding))


def _quota_resource(name: str) -> str | None:
    """The resource of a node that an entry of a quota bounds."""
    if name in (PODS, "count/pods"):
        return PODS
    prefix, dot, rest = name.partition(".")
    resource = rest if dot and prefix in ("requests", "limits") else name
    if resource in NATIVE or resource.startswith("hugepages-"):
        return resource
    return resource if prefix == "requests" and "/" in resource else None


def _quota_key(name: str) -> str:
    """``cpu`` is short for ``requests.cpu``."""
    return name if name.startswith(("requests.", "limits.", "count/")) or name == PODS else f"requests.{name}"


def quota_use(pod: Object) -> Amounts:
    """What a pod uses of a quota, by its names. It counts from creation on, bound or not."""
    if is_finished(pod):
        return {"count/pods": quantity.NANO}
    return {
        "count/pods": quantity.NANO,
        PODS: quantity.NANO,
        **{f"requests.{resource}": value for resource, value in pod_amounts(pod).items()},
        **{f"limits.{resource}": value for resource, value in pod_amounts(pod, "limits").items()},
    }


def least(*capacities: Capacity) -> Capacity:
    """The smallest of each resource, where several bounds hold at once; what only one names is as that one says."""
    result: Capacity = {}
    for capacity in capacities:
        for resource, text in capacity.items():
            if resource not in result or quantity.nano(text) < quantity.nano(result[resource]):
                result[resource] = text
    return dict(sorted(result.items()))


def most(one: Capacity, other: Capacity) -> Capacity:
    """The larger of each resource; what only one names is as that one says."""
    return {
        resource: max(one.get(resource, "0"), other.get(resource, "0"), key=quantity.nano)
        for resource in sorted({*one, *other})
    }


def with_pods(capacity: Capacity) -> Capacity:
    """The same with a number of pods, if it states none."""
    return {PODS: UNSTATED_PODS, **capacity}
