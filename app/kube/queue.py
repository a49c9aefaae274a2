"""The work queue of a controller: keys in, one reconcile at a time per key, retries with backoff.

A key says only *what* to look at, never what happened to it, so any number of events about one object become one run,
and a run that is already on its way stands for all of them. What client-go's queue promises holds here too: a key is
never worked on twice at once, and one that is added while it is worked on runs once more afterwards.

Two things differ from client-go, both because a run decides anew when to come back:

- a run replaces the delay that an earlier run of the same key asked for, so that nothing piles up;
- a key that fails *and* was added meanwhile still waits (up to a second) before it runs again. A reconcile that writes
  to the object it watches and then fails would otherwise call itself back without a pause.

All time is the event loop's, which lets the tests turn the clock. A queue belongs to one event loop and is not
thread-safe.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from app.kube.errors import ApiError, KubeError

K = TypeVar("K", bound=Hashable)

_log = logging.getLogger(__name__)

BACKOFF_FIRST: Final = 0.005
BACKOFF_MOST: Final = 60.0
"""Seconds before the first retry of a key, and before any later one; each wait is twice the one before."""

JITTER: Final = 0.25
"""Share by which a wait is shortened at random (a server's Retry-After: lengthened), so that keys that failed together
do not come back together."""

PATIENCE: Final = 1.0
"""Seconds that a failed key waits at most when there is news about it."""

MOST_KEYS: Final = 200_000
"""Keys that a queue holds; at some 300 bytes each."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a reconcile says when it did not fail."""

    after: float | None = None
    """Seconds after which the key runs again at the latest; None: when something happens to it."""


_DONE: Final = Result()


def done() -> Result:
    """Nothing to do until something happens to the key."""
    return _DONE


def requeue_after(seconds: float) -> Result:
    """Look again after that time. Whatever makes the key run before that takes the place of this."""
    return Result(seconds)


@dataclass(frozen=True, slots=True)
class Stats:
    """A queue at one moment; what counts, counts since the queue was made."""

    depth: int
    """Keys that could run and wait for a worker."""
    oldest_age: float
    """Seconds that the first of them has waited."""
    in_flight: int
    """Keys that are worked on."""
    longest_running: float
    """Seconds since the oldest run that goes on was started."""
    delayed: int
    """Keys that wait for their time: retries and ``add_after``."""
    runs: int
    retries: int
    refused: int
    """Keys not taken because the queue was full."""


@dataclass(frozen=True, slots=True)
class _Delay:
    timer: asyncio.TimerHandle
    by_run: bool
    """Asked for by a run of the key, hence void when the next run begins."""


class WorkQueue(Generic[K]):
    """Keys to reconcile, each once however often it is added.

    :param name: said in logs.
    :param limit: keys that are held. A key too many is refused and counted; as the reconciler is level-based, nothing
        is lost if *on_room* then adds all keys anew.
    :param on_room: called when keys were refused and the queue has become half empty.
    """

    def __init__(
        self,
        name: str = "queue",
        *,
        limit: int = MOST_KEYS,
        on_room: Callable[[], None] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.name = name
        self._limit = limit
        self._on_room = on_room
        self._rng = rng or random.Random()
        self._order: deque[K] = deque()
        self._ready: dict[K, float] = {}
        """Since when each key of ``_order`` waits."""
        self._in_flight: dict[K, float] = {}
        """Since when each key is worked on."""
        self._again: set[K] = set()
        """Keys in flight that were added meanwhile."""
        self._delays: dict[K, _Delay] = {}
        self._failures: dict[K, int] = {}
        self._idle: deque[asyncio.Future[K | None]] = deque()
        """Workers that wait: each for the key that is handed to it, or for None, which ends it."""
        self._stopping = self._ending = False
        self._overflowed = False
        self._runs = self._retries = self._refused = 0

    def __len__(self) -> int:
        return len(self._order)

    def add(self, key: K) -> bool:
        """Have *key* run as soon as a worker is free; False if the queue is full.

        It also runs at once when it waits for a retry: there is news, which may be what it needed.
        """
        if key in self._in_flight:
            self._again.add(key)
        elif key not in self._ready:
            if not self._has_room(key):
                return False
            self._make_ready(key)
        return True

    def add_after(self, key: K, seconds: float) -> bool:
        """Have *key* run after that time, or earlier if it was already to run earlier; False if the queue is full."""
        if not seconds > 0:
            return self.add(key)
        if not self._has_room(key):
            return False
        self._delay(key, seconds, by_run=False)
        return True

    def add_rate_limited(self, key: K) -> bool:
        """Have *key* run after a wait that doubles each time until ``forget``; False if the queue is full."""
        if not self._has_room(key):
            return False
        self._delay(key, self._back_off(key), by_run=False)
        return True

    def forget(self, key: K) -> None:
        """Let the next retry of *key* wait as little as a first one; a run that succeeds does this by itself."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        """How often *key* failed since it last succeeded."""
        return self._failures.get(key, 0)

    def stats(self) -> Stats:
        now = _now()
        return Stats(
            depth=len(self._order),
            oldest_age=now - self._ready[self._order[0]] if self._order else 0.0,
            in_flight=len(self._in_flight),
            longest_running=now - min(self._in_flight.values()) if self._in_flight else 0.0,
            delayed=len(self._delays),
            runs=self._runs,
            retries=self._retries,
            refused=self._refused,
        )

    async def run(self, reconcile: Callable[[K], Awaitable[Result]], workers: int, *, grace: float = 0.0) -> None:
        """Reconcile keys, at most *workers* at a time, until cancelled or stopped.

        When it is cancelled, what is in flight has *grace* seconds to finish and is cancelled then; those keys are
        back in the queue, for another ``run``.
        """
        work = asyncio.create_task(self._work_all(reconcile, workers), name=self.name)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            if grace > 0:
                self._end_workers()
                await asyncio.wait((work,), timeout=grace)
            raise
        finally:
            work.cancel()
            await asyncio.wait((work,))
            self._ending = False

    async def _work_all(self, reconcile: Callable[[K], Awaitable[Result]], workers: int) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(workers):
                group.create_task(self._work(reconcile), name=f"{self.name}-{number}")

    def stop(self) -> None:
        """Let ``run`` return when what is in flight is finished; no other key is ever begun."""
        self._stopping = True
        self._end_workers()

    def _end_workers(self) -> None:
        """Let each worker end when it has finished what it does."""
        self._ending = True
        while (waiter := self._waiting_worker()) is not None:
            waiter.set_result(None)

    async def _work(self, reconcile: Callable[[K], Awaitable[Result]]) -> None:
        while (key := await self._take()) is not None:
            await self._reconcile(key, reconcile)

    async def _take(self) -> K | None:
        """The next key, now in flight; None to end.

        A key goes straight to a worker that waits, so that each run costs one wake-up. A worker that finds a key
        lets the others have a turn first: runs that never wait must not starve the heartbeats of this event loop.
        """
        if self._order:
            await asyncio.sleep(0)
        if self._stopping or self._ending:
            return None
        if self._order:
            key = self._order.popleft()
            del self._ready[key]
            self._begin(key)
            return key
        waiter: asyncio.Future[K | None] = asyncio.get_running_loop().create_future()
        self._idle.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled() and (handed := waiter.result()) is not None:
                self._put_back(handed)
            raise

    async def _reconcile(self, key: K, reconcile: Callable[[K], Awaitable[Result]]) -> None:
        failures = self._failures.get(key)
        try:
            after = (await reconcile(key)).after
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                self._put_back(key)
                raise
            self._failed(key, error)  # something that the reconcile awaited was cancelled, not this worker
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one key must not end the work on all others
            self._failed(key, error)
        except BaseException:
            self._put_back(key)
            raise
        else:
            if self._failures.get(key) == failures:  # else the reconcile itself asked for a retry
                self._failures.pop(key, None)
            self._finished(key, after)

    def _begin(self, key: K) -> None:
        self._in_flight[key] = _now()
        self._runs += 1
        delay = self._delays.get(key)
        if delay is not None and delay.by_run:
            del self._delays[key]
            delay.timer.cancel()

    def _finished(self, key: K, after: float | None) -> None:
        del self._in_flight[key]
        if key in self._again:
            self._again.discard(key)
            self._make_ready(key)
        elif after is not None and not after > 0:
            self._make_ready(key)
        elif after is not None:
            self._delay(key, after, by_run=True)
        if self._overflowed:
            self._say_if_room()

    def _failed(self, key: K, error: BaseException) -> None:
        wait = self._back_off(key)
        if key in self._again:
            self._again.discard(key)
            wait = min(wait, PATIENCE)
        if isinstance(error, ApiError) and error.retry_after is not None:
            wait = max(wait, error.retry_after * (1 + JITTER * self._rng.random()))
        self._retries += 1
        self._report(key, error, wait)
        self._finished(key, wait)

    def _report(self, key: K, error: BaseException, wait: float) -> None:
        """Say at the 1st, 2nd, 4th, 8th ... failure in a row: a broken link must not fill the disk with one line."""
        count = self._failures[key]
        level = logging.WARNING if count & (count - 1) == 0 else logging.DEBUG
        ours = not isinstance(error, KubeError)
        message = "%s: %s failed (%d in a row), again in %.3g s: %s"
        _log.log(level, message, self.name, key, count, wait, str(error) or type(error).__name__, exc_info=ours)

    def _put_back(self, key: K) -> None:
        """Return a key whose run was cut short, to be the next."""
        self._ready[key] = self._in_flight.pop(key)
        self._again.discard(key)
        self._order.appendleft(key)

    def _make_ready(self, key: K) -> None:
        waiter = self._waiting_worker()
        if waiter is not None:
            self._begin(key)
            waiter.set_result(key)
        else:
            self._ready[key] = _now()
            self._order.append(key)

    def _waiting_worker(self) -> asyncio.Future[K | None] | None:
        """The worker that has waited longest, no longer counted as waiting; cancelled ones are passed over."""
        while self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                return waiter
        return None

    def _delay(self, key: K, seconds: float, *, by_run: bool) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        before = self._delays.get(key)
        if before is not None:
            by_run = by_run and before.by_run
            due = min(due, before.timer.when())
            before.timer.cancel()
        self._delays[key] = _Delay(loop.call_at(due, self._due, key), by_run)

    def _due(self, key: K) -> None:
        del self._delays[key]
        if key in self._in_flight:
            self._again.add(key)
        elif key not in self._ready:
            self._make_ready(key)

    def _back_off(self, key: K) -> float:
        count = self._failures[key] = self._failures.get(key, 0) + 1
        # The exponent is bounded because 2.0**1024 is an error, and a key may fail for weeks.
        wait = min(BACKOFF_MOST, BACKOFF_FIRST * 2.0 ** min(count - 1, 32))
        return wait * (1 - JITTER * self._rng.random())

    def _has_room(self, key: K) -> bool:
        held = len(self._order) + len(self._in_flight) + len(self._delays)
        if held < self._limit or key in self._delays or key in self._ready or key in self._in_flight:
            return True
        self._refused += 1
        if not self._overflowed:
            self._overflowed = True
            _log.error("%s: full with %d keys; more are refused until it is half empty", self.name, held)
        return False

    def _say_if_room(self) -> None:
        if len(self._order) + len(self._in_flight) + len(self._delays) <= self._limit // 2:
            self._overflowed = False
            if self._on_room is not None:
                self._on_room()


def _now() -> float:
    return asyncio.get_running_loop().time()
