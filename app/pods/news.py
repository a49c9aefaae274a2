"""Which changes of a twin are news: those that could lead to a decision. Pure.

A ReplicaSet counts its pods in its status, twice while its one pod starts; what it counts we see ourselves, and to look
at everything again each time would be a third of the work on a pod.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw, Struct

from app.kube.objects import Envelope, Metadata


class _Status(Struct):
    conditions: Raw = Raw(b"")


_STATUS: Final = msgspec.json.Decoder(_Status)


def is_news(old: Envelope, new: Envelope) -> bool:
    """Whether anything changed of a twin but the counts in its status."""
    return old.spec != new.spec or _conditions(old) != _conditions(new) or _metadata(old) != _metadata(new)


def _conditions(twin: Envelope) -> bytes:
    return bytes(_STATUS.decode(twin.status or b"{}").conditions)


def _metadata(twin: Envelope) -> Metadata:
    return msgspec.structs.replace(twin.metadata, resourceVersion="")
