"""The pace of requests to one API server: as many at once as it takes."""

from __future__ import annotations

import asyncio
import time
from collections import deque


class Limiter:
    """How many requests may be under way: halved when the server says 429, one more for each windowful it accepts.

    As in TCP, answers to requests that were under way at the last halving say nothing new, so they do not halve again.
    """

    def __init__(self, *, start: int = 16, ceiling: int = 64) -> None:
        self.limit = float(start)
        self.in_flight = 0
        self._ceiling = float(ceiling)
        self._halved = float("-inf")
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn."""
        return len(self._waiting)

    async def acquire(self) -> None:
        """Wait for a turn, first come first served."""
        if self.in_flight < int(self.limit) and not self._waiting:
            self.in_flight += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()  # the turn had come already: pass it on
            else:
                self._waiting.remove(turn)
            raise

    def release(self) -> None:
        """End a turn."""
        self.in_flight -= 1
        self._wake()

    def accepted(self) -> None:
        """The server took a request."""
        if self.in_flight + 1 >= int(self.limit):  # a limit that is not reached tells nothing about what it could be
            self.limit = min(self._ceiling, self.limit + 1 / self.limit)
            self._wake()

    def throttled(self, sent: float) -> None:
        """The server refused a request that was sent at that (monotonic) time as one too many."""
        if sent >= self._halved:
            self.limit = max(1.0, self.limit / 2)
            self._halved = time.monotonic()

    def _wake(self) -> None:
        while self._waiting and self.in_flight < int(self.limit):
            turn = self._waiting.popleft()
            if not turn.done():
                self.in_flight += 1
                turn.set_result(None)
