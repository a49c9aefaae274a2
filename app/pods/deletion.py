"""How a twin and its pods are taken away with the grace that the local pod was given.

Pure. What Kubernetes does (reference: twins): deleting a Job orphans its pod unless told otherwise, and the garbage
collector deletes dependents with their own grace, not ours; a grace can only ever be shortened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]

_DEFAULT_GRACE = 30
_JOB_ENDS = frozenset({"Complete", "Failed", "SuccessCriteriaMet", "FailureTarget"})


@dataclass(frozen=True, slots=True)
class Deletion:
    """One DELETE to send."""

    kind: str
    namespace: str
    name: str
    uid: str
    grace: int | None = None
    propagation: str | None = None


@dataclass(frozen=True, slots=True)
class Removal:
    """What is left to do."""

    deletions: tuple[Deletion, ...]
    finished: bool
    """Nothing of it is left in the remote cluster."""


def plan_removal(grace: int | None, twins: Sequence[Object], pods: Sequence[Object]) -> Removal:
    """The deletions that are due; *grace* None means the pod's own."""
    deletions: list[Deletion] = []
    for twin in twins:
        if not twin["metadata"].get("deletionTimestamp"):
            own = _own_grace(twin["spec"].get("template", {}).get("spec", {}))
            longer = grace is not None and grace > own
            deletions.append(_deletion(twin, twin["kind"], propagation="Orphan" if longer else "Background"))
    for pod in pods:
        if (due := _pod_grace(grace, pod, has_twin=bool(twins))) is not None:
            deletions.append(_deletion(pod, "Pod", grace=due))
    return Removal(tuple(deletions), finished=not twins and not pods)


def plan_clean_up(twins: Sequence[Object], pods: Sequence[Object], *, runs_once: bool) -> Removal:
    """The deletions for a local pod that is over: whatever could still run for it, with its own grace.

    A ReplicaSet runs its pod for ever. A Job that has ended stays as long as the local pod, for its logs; one that
    has not is there because its creation took longer than the verdict that it was lost.
    """
    if runs_once and (any(map(_job_ended, twins)) or any(map(ended, pods))):
        return Removal((), finished=True)
    return plan_removal(None, twins, pods)


def ended(pod: Object) -> bool:
    """Whether nothing of a pod runs any more."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _job_ended(job: Object) -> bool:
    found = (job.get("status") or {}).get("conditions") or []
    return any(each["type"] in _JOB_ENDS and each["status"] == "True" for each in found)


def _pod_grace(grace: int | None, pod: Object, *, has_twin: bool) -> int | None:
    """The grace to delete a remote pod with; None if it needs no deletion of ours."""
    metadata = pod["metadata"]
    own = _own_grace(pod["spec"])
    wanted = own if grace is None else grace
    if metadata.get("deletionTimestamp"):
        current = metadata.get("deletionGracePeriodSeconds")
        return wanted if current is not None and wanted < current else None
    if has_twin and wanted == own:
        return None  # the garbage collector does exactly that
    return wanted


def _own_grace(spec: Object) -> int:
    return int(spec.get("terminationGracePeriodSeconds", _DEFAULT_GRACE))


def _deletion(item: Object, kind: str, *, grace: int | None = None, propagation: str | None = None) -> Deletion:
    metadata = item["metadata"]
    return Deletion(kind, metadata["namespace"], metadata["name"], metadata["uid"], grace, propagation)
