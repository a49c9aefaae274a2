"""How long pods wait for us: for their twin, to be told that they are Ready, to have their status told. No I/O.

Only what this process has seen from its beginning counts: a pod, or a change, that was there when it became the leader
says nothing about its speed. Filled by the thread that works; others may read it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from app.kube.figures import Histogram

_BOUNDS: Final = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Latency:
    """The times of the pods of one virtual node, each by the UID of the local pod."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.offload = Histogram(_BOUNDS)
        """From when a local pod was seen until its twin was made."""
        self.ready = Histogram(_BOUNDS)
        """From when a local pod was seen until it was told that it is Ready: pulling and starting it included."""
        self.status = Histogram(_BOUNDS)
        """From when a change of a remote pod was seen until the local status was written."""
        self._clock = clock
        self._waiting: dict[str, float] = {}
        """Pods that have no twin yet: since when."""
        self._starting: dict[str, float] = {}
        """Pods whose twin was made by us and that have not been Ready: since when they are known."""
        self._changed: dict[str, float] = {}
        """Remote pods that have changed since they were looked at: since when."""
        self._untold: dict[str, float] = {}
        """Those that were looked at, and whose change is not told yet."""

    # ------------------------------------------------------------------ out

    def seen(self, uid: str) -> None:
        """There is a new local pod."""
        self._waiting.setdefault(uid, self._clock())

    def stays(self, uid: str) -> None:
        """It is not to be offloaded, or has a twin already: nobody waits for us."""
        self._waiting.pop(uid, None)

    def made(self, uid: str) -> None:
        """Its twin was made."""
        since = self._waiting.pop(uid, None)
        if since is not None:
            self.offload.observe(self._clock() - since)
            self._starting[uid] = since

    # ------------------------------------------------------------------ back

    def changed(self, uid: str) -> None:
        """Its remote pod is another than before."""
        self._changed.setdefault(uid, self._clock())

    def looked(self, uid: str) -> None:
        """What happened up to now is about to be told; what happens from now on is for the next time."""
        since = self._changed.pop(uid, None)
        if since is not None:
            self._untold.setdefault(uid, since)

    def told(self, uid: str, *, ready: bool) -> None:
        """Its local status was written."""
        if (since := self._untold.pop(uid, None)) is not None:
            self.status.observe(self._clock() - since)
        if ready and (since := self._starting.pop(uid, None)) is not None:
            self.ready.observe(self._clock() - since)

    def settled(self, uid: str) -> None:
        """Nothing is left to be told."""
        self._untold.pop(uid, None)

    def forget(self, uid: str) -> None:
        for times in (self._waiting, self._starting, self._changed, self._untold):
            times.pop(uid, None)

    def stopped(self) -> None:
        """Somebody else works from now on: what waits does not wait for us, and is not measured if we work again."""
        for times in (self._waiting, self._starting, self._changed, self._untold):
            times.clear()

    # ------------------------------------------------------------------ now

    def longest_without_twin(self) -> float:
        """Seconds that the pod which has waited longest has no twin; 0 if none waits."""
        return self._longest(self._waiting)

    def longest_untold(self) -> float:
        """Seconds since the oldest change that is not told yet; 0 if all is told."""
        return max(self._longest(self._changed), self._longest(self._untold))

    def _longest(self, times: dict[str, float]) -> float:
        since = min(list(times.values()), default=None)  # a copy: another thread may change it
        return max(0.0, self._clock() - since) if since is not None else 0.0
