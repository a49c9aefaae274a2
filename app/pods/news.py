"""Which changes are news: those that could lead to a decision. Pure.

A ReplicaSet counts its pods in its status, twice while its one pod starts; what it counts we see ourselves. A pod is
made and bound before anybody tells anything of it. To look at everything again each time would be half of the work on
a pod.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw, Struct

from app.kube.objects import Envelope, Metadata


class _Status(Struct):
    conditions: Raw = Raw(b"")


class _Condition(Struct):
    type: str = ""
    status: str = ""


class _PodStatus(Struct):
    phase: str = ""
    reason: str = ""
    message: str = ""
    startTime: Raw = Raw(b"")
    conditions: list[_Condition] | None = None
    containerStatuses: Raw = Raw(b"")
    initContainerStatuses: Raw = Raw(b"")
    ephemeralContainerStatuses: Raw = Raw(b"")


_STATUS: Final = msgspec.json.Decoder(_Status)
_POD_STATUS: Final = msgspec.json.Decoder(_PodStatus)
_SCHEDULED: Final = _Condition("PodScheduled", "True")


def is_news(old: Envelope, new: Envelope) -> bool:
    """Whether anything changed of a twin but the counts in its status."""
    return old.spec != new.spec or _conditions(old) != _conditions(new) or _metadata(old) != _metadata(new)


def is_silent(pod: Envelope) -> bool:
    """Whether nobody has told anything of a pod but, perhaps, that it has a node."""
    if pod.metadata.deletionTimestamp is not None:
        return False
    status = _POD_STATUS.decode(pod.status or b"{}")
    told = (
        status.reason,
        status.message,
        status.startTime,
        status.containerStatuses,
        status.initContainerStatuses,
        status.ephemeralContainerStatuses,
    )
    return (
        status.phase in ("", "Pending")
        and not any(map(len, told))
        and all(condition == _SCHEDULED for condition in status.conditions or ())
    )


def _conditions(twin: Envelope) -> bytes:
    return bytes(_STATUS.decode(twin.status or b"{}").conditions)


def _metadata(twin: Envelope) -> Metadata:
    return msgspec.structs.replace(twin.metadata, resourceVersion="")
