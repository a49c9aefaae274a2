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
