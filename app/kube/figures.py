"""Figures that are kept where the work is done: plain integers, filled by one thread and read by any other.

A client library's counters look their labels up and take a lock each time. Here one observation is a search in a short
list and two additions, and whoever scrapes pays for the rest.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

REQUEST_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

NO_ANSWER: Final = 0
"""In place of a status where there was none."""

WATCH: Final = "watch"
VERBS: Final = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", WATCH: WATCH}


class Histogram:
    """How many observations were up to each bound."""

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.total = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        """As the text format has them: each bound, then ``+Inf``, with all that is not above it."""
        counts = list(self._counts)  # in one step, as far as other threads can see
        found, below = [], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), counts, strict=True):
            below += count
            found.append((bound, float(below)))
        return found


class Requests:
    """Requests to one API server: how many, by verb and status, and how long each took."""

    __slots__ = ("_counts", "seconds")

    def __init__(self) -> None:
        self.seconds = {method: Histogram(REQUEST_BOUNDS) for method in VERBS}
        """By method; of a watch, until its answer begins."""
        self._counts: dict[tuple[str, int], int] = {}

    def count(self, method: str, status: int, seconds: float) -> None:
        key = (method, status)
        self._counts[key] = self._counts.get(key, 0) + 1
        self.seconds[method].observe(seconds)

    def counts(self) -> dict[tuple[str, int], int]:
        """By method and status."""
        return self._counts.copy()
