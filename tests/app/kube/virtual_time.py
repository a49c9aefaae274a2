"""An event loop whose clock jumps to the next timer instead of waiting for it: hours pass in milliseconds, exactly."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jump(selectors.DefaultSelector):
    """Where the loop would sleep, time passes."""

    now = 0.0
    wakeups = 0
    """How often the loop had nothing more to do at one moment."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("everything waits and no timer is set: this test would hang for ever")
        if timeout > 0:
            self.now += timeout
            self.wakeups += 1
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Timers are exact and in order; for tests without I/O."""

    def __init__(self) -> None:
        self.clock = _Jump()
        super().__init__(self.clock)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self.clock.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """As ``asyncio.run``, on a clock of its own that starts at 0."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def now() -> float:
    return asyncio.get_running_loop().time()
