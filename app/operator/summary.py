"""What a NamespaceOffloading says of itself: one condition made of what its clusters say. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence

from app.kube.objects import Object
from app.namespaces.offloading import CONFLICT, FAILED, FORBIDDEN, NOT_GIVEN, Entry

NO_CLUSTER_SELECTED, IN_PROGRESS, READY = "NoClusterSelected", "InProgress", "Ready"
SOME_FAILED, ALL_FAILED, TERMINATING = "SomeFailed", "AllFailed", "Terminating"

_FAILURES = frozenset({CONFLICT, FORBIDDEN, NOT_GIVEN, FAILED})


def awaited(entries: Sequence[Entry]) -> list[Entry]:
    """Those that an object waits for when it is deleted: who extended nothing has nothing to take back."""
    return [entry for entry in entries if entry.reason != NOT_GIVEN]


def summary(selected: Collection[str], entries: Sequence[Entry], *, deleting: bool) -> tuple[bool, str, str]:
    """Whether it is ready, why in one word, and why in a sentence. *selected*: the virtual nodes that are chosen."""
    if deleting:
        waiting = [f"{entry.node} ({entry.message or entry.reason})" for entry in awaited(entries)]
        return False, TERMINATING, f"waiting for {', '.join(waiting)}" if waiting else "nothing is left to wait for"
    if not selected:
        return False, NO_CLUSTER_SELECTED, "no virtual node matches the clusterSelector"
    told = {entry.node: entry for entry in entries}
    ready = [node for node in selected if node in told and told[node].ready]
    failed = [told[node] for node in selected if node in told and told[node].reason in _FAILURES]
    problems = "; ".join(f"{entry.node}: {entry.message or entry.reason}" for entry in failed)
    if len(ready) == len(selected):
        return True, READY, f"extended to {', '.join(sorted(ready))}"
    if len(failed) == len(selected):
        return False, ALL_FAILED, problems
    if failed:
        return False, SOME_FAILED, problems
    waiting = sorted(set(selected) - set(ready))
    return (
        False,
        IN_PROGRESS,
        f"waiting for {', '.join(waiting)}: does farlet run for them, and may it read this object?",
    )


def condition(ready: bool, reason: str, message: str, generation: int, before: Object | None, now: str) -> Object:
    """The condition as it is stored; it keeps its time while its status is the same."""
    status = "True" if ready else "False"
    same = before is not None and before.get("status") == status
    return {
        "type": "Ready",
        "status": status,
        "observedGeneration": generation,
        "lastTransitionTime": before["lastTransitionTime"] if same and before else now,
        "reason": reason,
        "message": message[:32768],
    }


def timestamp() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
