"""Restarts that a remote cluster hides when it replaces a pod.

A local pod outlives its remote pods: when one is evicted or deleted, the twin makes another, whose containers count
from zero. For whoever looks at the local pod that was a restart. So the local pod remembers, in annotations written
by the same patch as its status, which remote pod the status tells of and how many restarts came before it: the
count survives a kill at any moment, because there is no moment at which only half of it is written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from app import names
from app.kube.objects import Object

TERMINAL = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class Restarts:
    """What earlier remote pods leave to be added."""

    replaced: bool = False
    """The remote pod is not the one that the local status tells of."""
    before: Mapping[str, int] = field(default_factory=dict)
    """Restarts of each container that the remote pod does not know of."""


def hidden_restarts(local: Object, remote: Object | None) -> Restarts:
    """The restarts to add to those that *remote* counts; reading it twice gives the same."""
    before = _recorded(local)
    recorded = _annotations(local).get(names.ANNOTATION_REMOTE_UID)
    if remote is None or not recorded or recorded == remote["metadata"]["uid"]:
        return Restarts(before=before)
    status = local.get("status") or {}
    for entry in (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or []):
        if _had_run(entry):
            # what is shown already holds the restarts before that remote pod, and its own
            before[entry["name"]] = int(entry.get("restartCount") or 0) + 1
    return Restarts(replaced=True, before=before)


def restart_annotations(local: Object, remote: Object | None) -> dict[str, str]:
    """What to write on the local pod together with the status that tells of *remote*."""
    phase = (local.get("status") or {}).get("phase")
    if remote is None or phase in TERMINAL:
        return {}
    recorded = _annotations(local).get(names.ANNOTATION_REMOTE_UID)
    uid = str(remote["metadata"]["uid"])
    if recorded == uid:
        return {}
    if not recorded and not _has_containers(remote):
        return {}  # nothing of it can restart yet: one write less for each pod
    # the name is for people: a patch that is sent anyway is the cheapest place to say where the pod runs
    where = f"{remote['metadata'].get('namespace')}/{remote['metadata']['name']}"
    written = {names.ANNOTATION_REMOTE_UID: uid, names.ANNOTATION_REMOTE_POD: where}
    before = hidden_restarts(local, remote).before
    if before:
        written[names.ANNOTATION_RESTARTS_BEFORE] = json.dumps(before, sort_keys=True, separators=(",", ":"))
    return written


def _had_run(entry: Object) -> bool:
    """Whether a container ran in the remote pod that the local status tells of."""
    state = entry.get("state") or {}
    if state.get("running") or state.get("terminated") or entry.get("containerID"):
        return True
    # a container that waits for a replacement has run; one that waits in the replacement has not
    return (state.get("waiting") or {}).get("reason") == names.REMOTE_REPLACED


def _has_containers(remote: Object) -> bool:
    status = remote.get("status") or {}
    return bool(status.get("containerStatuses") or status.get("initContainerStatuses"))


def _recorded(local: Object) -> dict[str, int]:
    """The counts written before; people can edit annotations, so anything else is left out."""
    try:
        found = json.loads(_annotations(local).get(names.ANNOTATION_RESTARTS_BEFORE) or "{}")
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    # restartCount is an int32: what does not fit would make the API server refuse every status from then on
    return {
        name: count
        for name, count in found.items()
        if isinstance(count, int) and not isinstance(count, bool) and 0 < count < 2**30
    }


def _annotations(local: Object) -> Mapping[str, str]:
    return local["metadata"].get("annotations") or {}
