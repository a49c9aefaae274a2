"""Answers that are asked for often and stay true for a while: bounded, expiring, and each asked for once at a time."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Answers(Generic[K, V]):
    """A cache in front of a question that costs a request.

    Whoever asks while the same question is under way waits for its answer. An error is everybody's who waits, and is
    not kept.
    """

    def __init__(self, *, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._size = size
        self._clock = clock
        self._kept: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._asked: dict[K, asyncio.Task[V]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    async def get(self, key: K, ask: Callable[[], Awaitable[tuple[V, float]]]) -> V:
        """The answer; *ask* gives it with the seconds for which it is true (0: it is not kept)."""
        if (kept := self._look_up(key)) is not None:
            return kept[0]
        task = self._asked.get(key)
        if task is None:
            # its own task: that one who waits gives up must not take the answer from the others
            task = asyncio.create_task(self._ask(key, ask))
            self._asked[key] = task
            task.add_done_callback(lambda done: self._answered(key, done))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """End the questions that are under way."""
        tasks = list(self._asked.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _look_up(self, key: K) -> tuple[V] | None:
        entry = self._kept.get(key)
        if entry is None:
            return None
        until, value = entry
        if self._clock() >= until:
            del self._kept[key]
            return None
        self._kept.move_to_end(key)
        return (value,)

    async def _ask(self, key: K, ask: Callable[[], Awaitable[tuple[V, float]]]) -> V:
        value, seconds = await ask()
        if seconds > 0:
            self._kept[key] = (self._clock() + seconds, value)
            self._kept.move_to_end(key)
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
        return value

    def _answered(self, key: K, task: asyncio.Task[V]) -> None:
        self._asked.pop(key, None)
        if not task.cancelled():
            task.exception()  # seen, also when nobody waits any more
