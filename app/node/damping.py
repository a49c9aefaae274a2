"""When a change of capacity is worth a write: at once if it shrinks, after a while if it grows, not for a trifle.

To shrink late means pods that the remote cluster has no room for; to grow late costs nothing but a moment. So the
node follows every pod that starts over there, and does not flap with each one that restarts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from app import quantity
from app.node.capacity import Capacity


@dataclass(frozen=True, slots=True)
class Damping:
    """How eagerly the node follows the remote cluster."""

    threshold_percent: int = 5
    settle_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Sizing:
    """What the node says, what it might say soon, and since when that has held."""

    published: Capacity = field(default_factory=dict)
    candidate: Capacity = field(default_factory=dict)
    since: float = 0.0


def resize(sizing: Sizing, measured: Capacity, now: float, *, in_use: Capacity, damping: Damping) -> Sizing:
    """The next state after a measurement; publish when ``published`` is another than before.

    While growth settles, the candidate is the least that was measured meanwhile: in a cluster that never rests it
    still arrives at what was free all the time, instead of starting to wait again and again.
    """
    threshold = damping.threshold_percent
    growing = worth_publishing(sizing.published, sizing.candidate, threshold)
    if not growing or _falls(sizing.candidate, measured, threshold):
        candidate, since = measured, now
    else:
        candidate, since = _lower(sizing.candidate, measured), sizing.since
    published = damped(sizing.published, candidate, since, now, in_use=in_use, damping=damping)
    return Sizing(published, candidate, since)


def settles_at(sizing: Sizing, damping: Damping) -> float | None:
    """When to look again although nothing changed; None if there is nothing to wait for."""
    waiting = worth_publishing(sizing.published, sizing.candidate, damping.threshold_percent)
    return sizing.since + damping.settle_seconds if waiting else None


def damped(
    published: Capacity,
    candidate: Capacity,
    candidate_since: float,
    now: float,
    *,
    in_use: Capacity,
    damping: Damping,
) -> Capacity:
    """What to publish now: the candidate, the smaller of both, or what is published already.

    To shrink late means pods that the remote cluster has no room for, so it is done at once; to grow late costs
    nothing but a moment, so it waits until the growth has lasted. A little less than before is no reason to write,
    unless our pods no longer fit.
    """
    if not published:
        return candidate
    threshold = damping.threshold_percent
    if now - candidate_since >= damping.settle_seconds and worth_publishing(published, candidate, threshold):
        return candidate
    if _falls(published, candidate, threshold) or _squeezes(published, candidate, in_use):
        return _lower(published, candidate)
    return published


def worth_publishing(old: Capacity, new: Capacity, threshold_percent: int) -> bool:
    """Whether a resource appeared, vanished, or changed by more than a percentage of what it was."""
    return old.keys() != new.keys() or any(
        _differs(quantity.nano(text), quantity.nano(new[resource]), threshold_percent) for resource, text in old.items()
    )


def _differs(old: int, new: int, threshold_percent: int) -> bool:
    """To or from nothing at all always counts."""
    return old != new and (0 in (old, new) or abs(new - old) * 100 > old * threshold_percent)


def _falls(old: Capacity, new: Capacity, threshold_percent: int) -> bool:
    """Whether a resource vanished or shrank by more than the threshold."""
    for resource, text in old.items():
        before, after = quantity.nano(text), quantity.nano(new.get(resource, "0"))
        if resource not in new or (after < before and _differs(before, after, threshold_percent)):
            return True
    return False


def _squeezes(old: Capacity, new: Capacity, in_use: Capacity) -> bool:
    """Whether what our pods use fits into the old capacity and not into the new."""
    return any(
        quantity.nano(new.get(resource, "0")) < quantity.nano(text) <= quantity.nano(old.get(resource, "0"))
        for resource, text in in_use.items()
        if resource in old
    )


def _lower(one: Capacity, other: Capacity) -> Capacity:
    """The smaller of each resource; what one of the two lacks is not there."""
    return {
        resource: min(text, other[resource], key=quantity.nano) for resource, text in one.items() if resource in other
    }
