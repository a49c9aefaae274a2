"""The conditions of the virtual node: what a person reads when they ask why it is as it is.

A condition's text changes only with the facts in it (no counters, no durations), because every change is a write; its
transition time changes only when its status flips, because controllers measure from it.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from app.kube.objects import Object
from app.names import REMOTE_UNREACHABLE
from app.settings import OnUnreachable

READY: Final = "Ready"
REMOTE_REACHABLE: Final = "RemoteReachable"
OWN: Final = ("MemoryPressure", "DiskPressure", "PIDPressure", REMOTE_REACHABLE, READY)
"""The types that are ours, in the order in which they are shown; those of others are never touched."""

_PRESSURES: Final = (
    ("MemoryPressure", "RemoteHasSufficientMemory", "short of memory"),
    ("DiskPressure", "RemoteHasNoDiskPressure", "short of disk"),
    ("PIDPressure", "RemoteHasSufficientPID", "short of process ids"),
)
_LONGEST_ERROR = 500


@dataclass(frozen=True, slots=True)
class Health:
    """What the node says of itself."""

    ready: bool
    reason: str
    message: str
    reachable: bool
    reachable_reason: str
    reachable_message: str


def healthy() -> Health:
    """The remote cluster answers."""
    return Health(
        ready=True,
        reason="RemoteClusterReady",
        message="pods bound to this node run in the remote cluster",
        reachable=True,
        reachable_reason="RemoteAnswers",
        reachable_message="the remote cluster's API server answers",
    )


def unreachable(since: datetime.datetime, error: str, policy: OnUnreachable, *, what: str = "GET /readyz") -> Health:
    """The remote cluster does not answer: what was tried, since when it fails, and how it failed last."""
    problem = f"the remote cluster's API server cannot be reached since {timestamp(since)}: {what}: {_one_line(error)}"
    if policy is OnUnreachable.KEEP:
        ready, reason = True, "RemoteUnreachableKept"
        message = f"{problem}. Kept Ready by --on-unreachable=keep: pods run on, and show what was last known of them"
    else:
        ready, reason = False, REMOTE_UNREACHABLE
        message = f"{problem}. Pods run on over there; here they are evicted as their tolerations say"
    return Health(ready, reason, message, reachable=False, reachable_reason="NoAnswer", reachable_message=problem)


def stopped(now: datetime.datetime) -> Health:
    """Farlet was stopped on purpose: nobody looks after this node."""
    message = f"Farlet was stopped at {timestamp(now)}; pods run on in the remote cluster"
    return Health(False, "FarletStopped", message, True, "NotProbed", message)


def conditions(now: datetime.datetime, health: Health, previous: Iterable[Object] = ()) -> list[Object]:
    """All conditions of ours, Ready last."""
    before = list(previous)
    pressures = [
        condition(kind, False, reason, f"the remote scheduler keeps pods off nodes that are {lack}", now, before)
        for kind, reason, lack in _PRESSURES
    ]
    reachable = condition(
        REMOTE_REACHABLE, health.reachable, health.reachable_reason, health.reachable_message, now, before
    )
    return [*pressures, reachable, ready_condition(now, health.ready, health.reason, health.message, before)]


def ready_condition(
    now: datetime.datetime, ok: bool, reason: str, message: str, previous: Iterable[Object] = ()
) -> Object:
    """The condition that decides whether pods stay."""
    return condition(READY, ok, reason, message, now, previous)


def condition(
    kind: str, ok: bool, reason: str, message: str, now: datetime.datetime, previous: Iterable[Object]
) -> Object:
    """One condition; its transition time is that of the previous one of its kind, unless the status flipped."""
    status = "True" if ok else "False"
    before = next((c for c in previous if c.get("type") == kind and c.get("status") == status), {})
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": timestamp(now),
        "lastTransitionTime": before.get("lastTransitionTime") or timestamp(now),
    }


def timestamp(moment: datetime.datetime) -> str:
    """As Kubernetes writes times: UTC, whole seconds."""
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _one_line(text: str) -> str:
    line = " ".join(text.split()) or "no reason given"
    return line if len(line) <= _LONGEST_ERROR else f"{line[:_LONGEST_ERROR]}…"
