"""Conditions of a local pod: which are the virtual kubelet's to write, and what they say.

A pod's conditions have several writers. Those that a kubelet owns come from the remote pod, apart from Ready, which
also waits for the local pod's readiness gates, and PodScheduled, which tells of the local scheduler. All others are
left as they are. A condition's transition time moves only when its status does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from app.kube.objects import Object

READY: Final = "Ready"
CONTAINERS_READY: Final = "ContainersReady"
INITIALIZED: Final = "Initialized"
SCHEDULED: Final = "PodScheduled"
SANDBOX: Final = "PodReadyToStartContainers"
DISRUPTED: Final = "DisruptionTarget"
_RESIZE: Final = ("PodResizePending", "PodResizeInProgress")

COPIED: Final = (SANDBOX, INITIALIZED, *_RESIZE, "AllContainersRestarting")
OWNED: Final = frozenset({*COPIED, READY, CONTAINERS_READY})
"""What a kubelet owns, but for PodScheduled."""


def find(pod: Object, kind: str) -> Object | None:
    """A pod's (or twin's) condition of that type."""
    for condition in (pod.get("status") or {}).get("conditions") or []:
        if condition.get("type") == kind:
            assert isinstance(condition, dict)
            return condition
    return None


def holds(pod: Object, kind: str) -> bool:
    return (find(pod, kind) or {}).get("status") == "True"


def from_remote(local: Object, remote: Object) -> list[Object]:
    """The conditions that a remote kubelet wrote, and Ready as the local pod's gates have it."""
    told = [condition for kind in COPIED if (condition := find(remote, kind))]
    containers, ready = find(remote, CONTAINERS_READY), find(remote, READY)
    if containers:
        told.append(containers)
    # the remote's node controller clears Ready alone, when it loses a node
    base = containers if containers and containers["status"] != "True" else ready or containers
    if base:
        told.append(_judged(local, base))
    return [_without_generation(condition, local, remote) for condition in told]


def unready(reason: str, message: str) -> list[Object]:
    """What a pod says whose containers do not run."""
    return [condition(kind, "False", reason, message) for kind in (CONTAINERS_READY, READY)]


def condition(kind: str, status: str, reason: str = "", message: str = "") -> Object:
    made = {"type": kind, "status": status, "reason": reason, "message": message}
    return {key: value for key, value in made.items() if value}


def merged(local: Object, wanted: Iterable[Object], *, drop: bool, generation: int, now: str) -> list[Object]:
    """All conditions of the local pod: *wanted* in place of their like, others' kept; *drop* takes owned ones away."""
    by_kind = {each["type"]: each for each in wanted}
    result: list[Object] = []
    for old in (local.get("status") or {}).get("conditions") or []:
        new = by_kind.pop(old["type"], None)
        if new is not None:
            result.append(_settled(new, old, generation, now))
        elif not drop or old["type"] not in OWNED:
            result.append(old)
    return result + [_settled(new, {}, generation, now) for new in by_kind.values()]


def _judged(local: Object, base: Object) -> Object:
    """Ready, which is that of the containers and of every readiness gate."""
    ready = base | {"type": READY}
    if base["status"] != "True":
        return ready
    complaints, times = [], [str(base.get("lastTransitionTime") or "")]
    for gate in local["spec"].get("readinessGates") or []:
        kind = gate["conditionType"]
        found = find(local, kind)
        if found is None:
            complaints.append(f'corresponding condition of pod readiness gate "{kind}" does not exist.')
        elif found["status"] != "True":
            complaints.append(f'the status of pod readiness gate "{kind}" is not "True", but {found["status"]}')
        else:
            times.append(str(found.get("lastTransitionTime") or ""))
    if complaints:
        return condition(READY, "False", "ReadinessGatesNotReady", ", ".join(complaints))
    return ready | {"lastTransitionTime": max(times)}


def _without_generation(told: Object, local: Object, remote: Object) -> Object:
    """A condition without the remote's generation; one that speaks of an older spec keeps what it said locally."""
    made = {key: value for key, value in told.items() if key != "observedGeneration"}
    speaks_of = told.get("observedGeneration")
    if told["type"] in _RESIZE and speaks_of and speaks_of < (remote["metadata"].get("generation") or 0):
        old = find(local, told["type"]) or {}
        if old.get("observedGeneration"):
            made["observedGeneration"] = old["observedGeneration"]
    return made


def _settled(new: Object, old: Mapping[str, object], generation: int, now: str) -> Object:
    """A condition as it is written: generation of the local pod, and the time when it came to be so."""
    result = {key: value for key, value in new.items() if value is not None}
    known = int(str(old.get("observedGeneration") or 0))
    if observed := max(int(result.get("observedGeneration") or generation), known):
        result["observedGeneration"] = observed
    before = str(old.get("lastTransitionTime") or "")
    if before and old.get("status") == new["status"]:
        result["lastTransitionTime"] = before
    elif not result.get("lastTransitionTime") or result["lastTransitionTime"] < before:
        # such as Ready again after the remote was out of reach: nothing changed over there
        result["lastTransitionTime"] = now
    return result
