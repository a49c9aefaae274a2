"""``activeDeadlineSeconds`` of a pod that a ReplicaSet keeps alive: nobody in the remote cluster would end it.

A ReplicaSet's template may have no deadline, so Farlet is the kubelet here. As a kubelet does, it first ends the
containers and then says Failed, so that whoever replaces the pod does not overlap with it. That the time has come is
written on the local pod before anything is ended, and from then on holds whatever a clock says: a pod half ended when
Farlet dies is ended by the next one, and never run again.
"""

from __future__ import annotations

import datetime
from typing import Final

from app import names
from app.kube.objects import Object

MESSAGE: Final = "Pod was active on the node longer than the specified deadline"
"""The kubelet's own words."""


def seconds_left(pod: Object, now: datetime.datetime) -> float | None:
    """How long a local pod may still run, 0 if its time is over; None if Farlet has no time to keep for it.

    It counts from ``startTime``, which is when a remote kubelet first took the pod up.
    """
    spec, status = pod["spec"], pod.get("status") or {}
    allowed = spec.get("activeDeadlineSeconds")
    if allowed is None or (spec.get("restartPolicy") or "Always") != "Always":
        return None
    if status.get("reason") == names.DEADLINE_EXCEEDED:
        return 0.0
    if not status.get("startTime"):
        return None
    started = datetime.datetime.fromisoformat(status["startTime"])
    return max(0.0, float(allowed) - (now - started).total_seconds())
