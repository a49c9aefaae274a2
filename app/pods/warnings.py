"""Which events of the remote cluster are told on the local pod, and how.

Why a pod does not start is in events about its remote pod, or about the ReplicaSet or Job that makes it (a quota, an
admission webhook): objects that the local user cannot see. An event is carried under a name made from the remote
event's UID, so that telling it again, after a restart too, updates it and makes no second one. Messages are left as
they are, remote names included: they are what to search for over there.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, Literal

from app.kube.objects import Object

Mode = Literal["warnings", "all", "none"]

COMPONENT: Final = "farlet"
_TOLD_OF: Final = frozenset({"Pod", "ReplicaSet", "Job"})
_LONGEST_NAME: Final = 253


def local_event(remote_event: Object, local_pod: Object, *, mode: Mode = "warnings") -> Object | None:
    """The event to have in the local cluster; None if this one is not told."""
    if mode == "none" or (mode == "warnings" and remote_event.get("type") != "Warning"):
        return None
    about = remote_event.get("involvedObject") or {}
    if about.get("kind") not in _TOLD_OF:
        return None
    pod = local_pod["metadata"]
    first, last = _times(remote_event)
    event: Object = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": _name(remote_event, pod["name"]), "namespace": pod["namespace"]},
        "involvedObject": _involved(about, local_pod),
        "type": remote_event.get("type") or "Normal",
        "reason": remote_event.get("reason") or "",
        "message": remote_event.get("message") or remote_event.get("note") or "",
        "count": _count(remote_event),
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": "",
    }
    event |= {"firstTimestamp": first} if first else {}
    return event | ({"lastTimestamp": last} if last else {})


def event_patch(stored: Object, wanted: Object) -> Object | None:
    """A merge patch that brings the event's count up to date; None if it is, or if *wanted* is older."""
    if wanted["count"] <= (stored.get("count") or 0):
        return None
    fields = ("count", "lastTimestamp", "message")
    return {field: wanted[field] for field in fields if field in wanted and wanted[field] != stored.get(field)}


def _involved(about: Object, local_pod: Object) -> Object:
    pod = local_pod["metadata"]
    involved = {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": pod["namespace"],
        "name": pod["name"],
        "uid": pod["uid"],
    }
    # spec.containers{name}: kubectl describe shows it; a twin's own means nothing to the pod
    if about.get("kind") == "Pod" and about.get("fieldPath"):
        involved["fieldPath"] = about["fieldPath"]
    return involved


def _name(remote_event: Object, pod_name: str) -> str:
    metadata = remote_event["metadata"]
    origin = metadata.get("uid") or f"{metadata.get('namespace')}/{metadata['name']}"
    suffix = hashlib.sha256(str(origin).encode()).hexdigest()[:16]
    start = pod_name[: _LONGEST_NAME - len(suffix) - 1].rstrip("-.")
    return f"{start}.{suffix}"


def _count(event: Object) -> int:
    series = event.get("series") or {}
    return int(series.get("count") or event.get("count") or event.get("deprecatedCount") or 1)


def _times(event: Object) -> tuple[str, str]:
    """When it was seen first and last, whichever of the two event APIs wrote it."""
    series, happened = event.get("series") or {}, event.get("eventTime")
    created = event["metadata"].get("creationTimestamp")
    first = event.get("firstTimestamp") or happened or created
    last = series.get("lastObservedTime") or event.get("lastTimestamp") or happened or created
    return _seconds(first), _seconds(last)


def _seconds(time: Any) -> str:
    """Without the fraction that only the newer event API has."""
    text = str(time or "")
    return f"{text.partition('.')[0]}Z" if "." in text else text
