"""Which events of the remote cluster are told on the local pod, and how.

Why a pod does not start is in events about its remote pod, or about the ReplicaSet or Job that makes it (a quota, an
admission webhook): objects that the local user cannot see. An event is carried under a name made from the remote
event's UID, so that telling it again, after a restart too, updates it and makes no second one. Messages are left as
they are, remote names included: they are what to search for over there.

But for one kind: a twin that cannot make its pod says so with a new name for the pod each time, a name that no pod
ever had, and so as a new event each time. These are told as one event that counts.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final, Literal

from app.kube.objects import Object

Mode = Literal["warnings", "all", "none"]

COMPONENT: Final = "farlet"
_TOLD_OF: Final = frozenset({"Pod", "ReplicaSet", "Job"})
_LONGEST_NAME: Final = 253
_NO_POD: Final = "FailedCreate"
_COMBINED: Final = "(combined from similar events): "
"""What client-go puts before a message that stands for several."""


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
        "metadata": {"name": _name(identity(remote_event), pod["name"]), "namespace": pod["namespace"]},
        "involvedObject": _involved(about, local_pod),
        "type": remote_event.get("type") or "Normal",
        "reason": remote_event.get("reason") or "",
        "message": _message(remote_event),
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


def identity(remote_event: Object) -> str:
    """What an event is told under: the same for those that are told as one."""
    metadata = remote_event["metadata"]
    if is_folded(remote_event):
        about = remote_event["involvedObject"]
        return f"{about.get('uid') or about.get('name')}/{_NO_POD}/{_message(remote_event)}"
    return str(metadata.get("uid") or f"{metadata.get('namespace')}/{metadata['name']}")


def is_folded(remote_event: Object) -> bool:
    """Whether an event is told together with others, which differ only in the name of a pod that never was."""
    about = remote_event.get("involvedObject") or {}
    return remote_event.get("reason") == _NO_POD and about.get("kind") in ("ReplicaSet", "Job")


def _message(remote_event: Object) -> str:
    message = str(remote_event.get("message") or remote_event.get("note") or "")
    if not is_folded(remote_event):
        return message
    twin = str(remote_event["involvedObject"].get("name") or "")
    return re.sub(rf"\b({re.escape(twin)})-[a-z0-9]{{5}}\b", r"\1-*", message.removeprefix(_COMBINED))


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


def _name(origin: str, pod_name: str) -> str:
    suffix = hashlib.sha256(origin.encode()).hexdigest()[:16]
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
