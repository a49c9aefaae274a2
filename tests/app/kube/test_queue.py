"""What a work queue promises, under orders of events that hypothesis makes up, on a clock that the test turns."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.kube import queue as queues
from app.kube.errors import Conflict, KubeError, TooManyRequests
from app.kube.queue import BACKOFF_FIRST, BACKOFF_MOST, JITTER, PATIENCE, Result, WorkQueue, done, requeue_after
from tests.app.kube.virtual_time import VirtualLoop, now, run

Reconcile = Callable[[str], Awaitable[Result]]


@contextlib.asynccontextmanager
async def working(queue: WorkQueue[str], reconcile: Reconcile, workers: int = 3) -> AsyncIterator[asyncio.Task[None]]:
    """The queue's workers for the length of the block."""
    task = asyncio.create_task(queue.run(reconcile, workers))
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    if isinstance(reconcile, Script):
        assert not reconcile.overlaps, "worked on twice at once"


class Script:
    """A reconcile that takes its time, fails as told, and keeps a record of who runs when."""

    def __init__(self, duration: float = 0.0, failures: int = 0, error: Exception | None = None) -> None:
        self.duration = duration
        self.failures = failures
        self.error = error or KubeError("told to fail")
        self.started: list[tuple[str, float]] = []
        self.finished: list[tuple[str, float]] = []
        self.at_once: Counter[str] = Counter()
        self.overlaps: list[str] = []
        """Keys worked on twice at once. To raise an error would not do: the queue takes it for the key's failure."""

    async def __call__(self, key: str) -> Result:
        self.at_once[key] += 1
        if self.at_once[key] > 1:
            self.overlaps.append(key)
        self.started.append((key, now()))
        try:
            await asyncio.sleep(self.duration)
        finally:
            self.at_once[key] -= 1
        self.finished.append((key, now()))
        if self.failures:
            self.failures -= 1
            raise self.error
        return done()

    def times(self) -> list[float]:
        return [when for _, when in self.started]

    def gaps(self) -> list[float]:
        """How long each run waited after the one before it."""
        return [start - end for (_, end), (_, start) in zip(self.finished, self.started[1:], strict=False)]


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "add_after", "add_rate_limited", "forget", "wait"]),
        st.sampled_from("abc"),
        st.floats(0, 3),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=150)
@given(
    steps,
    st.integers(1, 4),
    st.lists(st.tuples(st.floats(0, 2), st.sampled_from(["done", "later", "fail", "add"])), min_size=1),
)
@example([("add", "a", 0.0), ("add", "a", 0.0), ("wait", "a", 0.5), ("add", "a", 0.0)], 2, [(1.0, "done")])
def test_any_order_of_events(steps: list[tuple[str, str, float]], workers: int, runs: list[tuple[float, str]]) -> None:
    """No key is worked on twice at once, and a run that began after the last ``add`` always comes."""
    asked: dict[str, float] = {}
    begun: dict[str, float] = {}
    active: set[str] = set()
    overlaps: list[tuple[str, float]] = []
    script = iter(runs * 50)

    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue(rng=random.Random(1))

        async def reconcile(key: str) -> Result:
            if key in active or len(active) >= workers:
                overlaps.append((key, now()))  # an error would be taken for the key's failure
            active.add(key)
            begun[key] = now()
            duration, outcome = next(script, (0.0, "done"))
            try:
                await asyncio.sleep(duration)
                if outcome == "fail":
                    raise KubeError("told to fail")
                if outcome == "add" and queue.stats().runs < 60:
                    queue.add(key)
                return requeue_after(1.0) if outcome == "later" and queue.stats().runs < 60 else done()
            finally:
                active.discard(key)

        async with working(queue, reconcile, workers):
            for step, key, seconds in steps:
                match step:
                    case "add":
                        queue.add(key)
                        asked[key] = now()
                    case "add_after":
                        queue.add_after(key, seconds)
                        asked[key] = now()
                    case "add_rate_limited":
                        queue.add_rate_limited(key)
                        asked[key] = now()
                    case "forget":
                        queue.forget(key)
                    case _:
                        await asyncio.sleep(seconds)
            await asyncio.sleep(100_000)
            at_the_end = queue.stats()
        assert (at_the_end.depth, at_the_end.in_flight, at_the_end.delayed) == (0, 0, 0)
        assert not queue._again
        assert not queue._failures, "what is over is forgotten"

    run(scenario())
    assert not overlaps, "worked on twice at once, or by too many workers"
    for key, when in asked.items():
        assert begun.get(key, -1.0) >= when, f"{key} was asked for at {when} and last begun at {begun.get(key)}"


@given(st.lists(st.floats(0.01, 0.9), min_size=1, max_size=20))
def test_added_during_work_runs_again_exactly_once(moments: list[float]) -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        script = Script(duration=1.0)
        async with working(queue, script):
            queue.add("a")
            for moment in moments:
                asyncio.get_running_loop().call_later(moment, queue.add, "a")
            await asyncio.sleep(10)
        assert script.times() == [0.0, 1.0]

    run(scenario())


def test_many_adds_before_work_are_one_run() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        script = Script()
        for _ in range(100):
            queue.add("a")
            queue.add("b")
        assert queue.stats().depth == len(queue) == 2
        async with working(queue, script):
            await asyncio.sleep(1)
        assert script.started == [("a", 0.0), ("b", 0.0)], "each once, first come first served"

    run(scenario())


def test_different_keys_run_at_once_up_to_the_workers() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        script = Script(duration=1.0)
        async with working(queue, script, workers=3):
            for key in "abcde":
                queue.add(key)
            await asyncio.sleep(0.5)
            assert queue.stats().in_flight == 3
            await asyncio.sleep(10)
        assert script.times() == [0, 0, 0, 1, 1]

    run(scenario())


def test_backoff_doubles_up_to_a_cap() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        script = Script(failures=20)
        async with working(queue, script):
            queue.add("a")
            await asyncio.sleep(10_000)
            assert queue.stats().retries == 20
            assert queue.failures("a") == 0, "success forgets"
        gaps = script.gaps()
        assert len(gaps) == 20
        for number, gap in enumerate(gaps):
            full = min(BACKOFF_MOST, BACKOFF_FIRST * 2**number)
            assert full * (1 - JITTER) - 1e-6 <= gap <= full + 1e-6, f"retry {number + 1} came after {gap} s"
        growing = [gap for gap in gaps if gap < BACKOFF_MOST * (1 - JITTER)]
        assert growing == sorted(growing)
        assert len(set(gaps[-5:])) == 5, "at the cap there is jitter too"

    run(scenario())


@pytest.mark.parametrize("failures", [1, 64, 2_000, 10**9])
def test_backoff_of_a_key_that_failed_for_weeks(failures: int) -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue._failures["a"] = failures
    assert 0 < queue._back_off("a") <= BACKOFF_MOST


def test_success_and_forget_reset_the_backoff() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        script = Script(failures=8)
        async with working(queue, script):
            queue.add("a")
            await asyncio.sleep(100)
            script.failures = 1
            queue.add("a")
            await asyncio.sleep(100)
            assert script.gaps()[-1] <= BACKOFF_FIRST + 1e-6
            for _ in range(10):
                queue.add_rate_limited("a")
            assert queue.failures("a") == 10
            queue.forget("a")
            assert queue.failures("a") == 0
            queue.add_rate_limited("b")
            assert queue._delays["b"].timer.when() - now() <= BACKOFF_FIRST

    run(scenario())


def test_a_reconcile_may_ask_for_a_rate_limited_retry_itself() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        starts: list[float] = []

        async def reconcile(key: str) -> Result:
            starts.append(now())
            if len(starts) < 8:
                queue.add_rate_limited(key)
            return done()

        async with working(queue, reconcile):
            queue.add("a")
            await asyncio.sleep(100)
            gaps = [later - before for before, later in itertools.pairwise(starts)]
            assert len(gaps) == 7
            assert gaps == sorted(gaps)
            assert queue.failures("a") == 0

    run(scenario())


@pytest.mark.parametrize("seconds", [0.5, 7.0, 120.0])
def test_retry_after_is_honoured(seconds: float) -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        error = TooManyRequests(429, "TooManyRequests", "slow down", None, seconds)
        script = Script(failures=1, error=error)
        async with working(queue, script):
            queue.add("a")
            await asyncio.sleep(1000)
        assert seconds <= script.gaps()[0] <= seconds * (1 + JITTER)

    run(scenario())


def test_retry_after_shorter_than_the_backoff_does_not_shorten_it() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        script = Script(failures=12, error=TooManyRequests(429, "TooManyRequests", "slow down", None, 0.0))
        async with working(queue, script):
            queue.add("a")
            await asyncio.sleep(1000)
        assert script.gaps()[-1] > 7

    run(scenario())


def test_news_ends_the_wait_for_a_retry() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        script = Script(failures=1, error=TooManyRequests(429, "TooManyRequests", "slow down", None, 50.0))
        async with working(queue, script):
            queue.add("a")
            await asyncio.sleep(1)
            queue.add("a")
            await asyncio.sleep(1000)
            assert script.times() == [0.0, 1.0], "and the retry itself is void"
            assert queue.stats().delayed == 0

    run(scenario())


def test_news_during_a_run_that_fails_does_not_make_a_hot_loop() -> None:
    """As when a reconcile writes to the object that it watches, then fails."""

    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        starts: list[float] = []

        async def reconcile(key: str) -> Result:
            starts.append(now())
            queue.add(key)
            raise KubeError("told to fail")

        async with working(queue, reconcile):
            queue.add("a")
            await asyncio.sleep(60)
        assert len(starts) < 100
        last = starts[-1] - starts[-2]
        assert PATIENCE * (1 - JITTER) <= last <= PATIENCE, "nor does it wait a minute with news at hand"

    run(scenario())


@pytest.mark.parametrize(("seconds", "gap"), [(5.0, 5.0), (0.0, 0.0), (-1.0, 0.0), (math.nan, 0.0)])
def test_requeue_after(seconds: float, gap: float) -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        starts: list[float] = []

        async def reconcile(key: str) -> Result:
            starts.append(now())
            return requeue_after(seconds) if len(starts) == 1 else done()

        async with working(queue, reconcile):
            queue.add("a")
            await asyncio.sleep(100)
        assert starts == [0.0, gap]

    run(scenario())


def test_a_run_replaces_what_an_earlier_run_asked_for() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        starts: list[float] = []

        async def reconcile(key: str) -> Result:
            starts.append(now())
            return requeue_after(10) if now() < 15 else done()

        async with working(queue, reconcile):
            queue.add("a")
            await asyncio.sleep(8)
            queue.add("a")
            await asyncio.sleep(100)
        assert starts == [0, 8, 18]

    run(scenario())


def test_what_others_asked_for_with_add_after_stays() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        script = Script()
        async with working(queue, script):
            queue.add_after("a", 10)
            queue.add_after("a", 30)
            queue.add_after("a", 20)
            queue.add("a")
            await asyncio.sleep(100)
        assert script.times() == [0, 10], "once now and once at the earliest of the later times"

    run(scenario())


def test_a_full_queue_refuses_and_says_when_there_is_room(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        everything = [f"pod-{number}" for number in range(30)]
        seen: set[str] = set()

        def resync() -> None:
            for key in everything:
                if key not in seen:
                    queue.add(key)

        queue: WorkQueue[str] = WorkQueue("pods", limit=10, on_room=resync)
        taken = [queue.add(key) for key in everything]
        assert taken == [True] * 10 + [False] * 20
        assert queue.add("pod-0"), "what it holds already is not refused"
        assert queue.add_after("pod-0", 5)
        assert not queue.add_after("pod-20", 5)
        assert not queue.add_rate_limited("pod-20")
        assert queue.failures("pod-20") == 0
        assert queue.stats().refused == 22

        async def reconcile(key: str) -> Result:
            seen.add(key)
            return done()

        async with working(queue, reconcile):
            await asyncio.sleep(1)
        assert seen == set(everything)

    run(scenario())
    assert "pods: full with 10 keys" in caplog.text


def test_a_full_queue_never_refuses_a_retry() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue(limit=2)
        script = Script(failures=20)
        async with working(queue, script):
            queue.add("a")
            queue.add("b")
            await asyncio.sleep(1000)
            assert queue.stats().retries == 20
            assert {key for key, _ in script.finished[-2:]} == {"a", "b"}

    run(scenario())


@pytest.mark.parametrize("moment", [0.0, 0.5])
def test_cancelling_ends_all_workers_and_keeps_the_keys(moment: float) -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        script = Script(duration=1000.0)
        task = asyncio.create_task(queue.run(script, 3))
        await asyncio.sleep(0.1)
        for key in "abcde":
            queue.add(key)
        queue.add("a")
        await asyncio.sleep(moment)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert now() == pytest.approx(0.1 + moment)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert queue.stats().in_flight == 0
        assert queue.stats().depth == 5
        again = Script()
        async with working(queue, again):
            await asyncio.sleep(1)
        assert sorted(key for key, _ in again.started) == list("abcde")

    run(scenario())


@pytest.mark.parametrize(("duration", "finished", "took"), [(1.0, "abc", 0.5), (1000.0, "", 5.0)])
def test_what_is_in_flight_has_a_grace(duration: float, finished: str, took: float) -> None:
    """Cancelled half a second into the runs: they come to their end if they are quick, and no other begins."""

    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        script = Script(duration=duration)
        task = asyncio.create_task(queue.run(script, 3, grace=5.0))
        for key in "abcde":
            queue.add(key)
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert now() == pytest.approx(0.5 + took)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert sorted(key for key, _ in script.started) == list("abc")
        assert sorted(key for key, _ in script.finished) == list(finished)
        again = Script()
        async with working(queue, again):
            await asyncio.sleep(1)
        left = "de" if finished else "abcde"
        assert sorted(key for key, _ in again.started) == list(left), "the others are for another run"

    run(scenario())


def test_cancelled_in_the_moment_a_key_is_handed_over() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        script = Script()
        task = asyncio.create_task(queue.run(script, 1))
        await asyncio.sleep(1)
        worker = next(task for task in asyncio.all_tasks() if task.get_name() == "queue-0")
        queue.add("a")
        worker.cancel()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        queue.add("b")
        assert script.started == []
        async with working(queue, script):
            await asyncio.sleep(1)
        assert [key for key, _ in script.started] == ["a", "b"]

    run(scenario())


def test_stop_finishes_what_is_in_flight() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        script = Script(duration=1.0)
        task = asyncio.create_task(queue.run(script, 3))
        for key in "ab":
            queue.add(key)
        await asyncio.sleep(0.5)
        queue.stop()
        queue.add("c")
        await task
        assert script.finished == [("a", 1.0), ("b", 1.0)]
        assert queue.stats().depth == 1

    run(scenario())


def test_what_a_reconcile_awaited_was_cancelled() -> None:
    """It is that key's failure; the worker goes on."""

    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        runs = 0

        async def reconcile(key: str) -> Result:
            nonlocal runs
            runs += 1
            if runs == 1:
                raise asyncio.CancelledError
            return done()

        async with working(queue, reconcile, workers=1):
            queue.add("a")
            await asyncio.sleep(1)
        assert runs == 2

    run(scenario())


def test_an_error_of_ours_has_a_traceback_and_one_of_the_servers_has_a_line(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue("pods")
        for error in (ZeroDivisionError("a bug"), Conflict(409, "Conflict", "the object has been modified")):
            async with working(queue, Script(failures=20, error=error)):
                queue.add("default/web")
                await asyncio.sleep(1000)

    with caplog.at_level(logging.WARNING):
        run(scenario())
    bugs = [record for record in caplog.records if record.exc_info]
    refusals = [record for record in caplog.records if not record.exc_info]
    assert len(bugs) == len(refusals) == 5, "the 1st, 2nd, 4th, 8th and 16th"
    assert refusals[0].getMessage().startswith("pods: default/web failed (1 in a row), again in 0.00")
    assert "the object has been modified" in refusals[0].getMessage()


def test_stats() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        assert queue.stats() == queues.Stats(0, 0.0, 0, 0.0, 0, 0, 0, 0)
        script = Script(duration=10.0)
        async with working(queue, script, workers=2):
            for key in "abc":
                queue.add(key)
            await asyncio.sleep(1)
            queue.add("d")
            queue.add_after("e", 100)
            await asyncio.sleep(2)
            assert queue.stats() == queues.Stats(
                depth=2, oldest_age=3.0, in_flight=2, longest_running=3.0, delayed=1, runs=2, retries=0, refused=0
            )

    run(scenario())


def test_runs_that_never_wait_let_others_have_their_turn() -> None:
    async def scenario() -> int:
        queue: WorkQueue[str] = WorkQueue()
        for number in range(1000):
            queue.add(str(number))
        turns = 0

        async def reconcile(key: str) -> Result:
            return done()

        async with working(queue, reconcile, workers=4):
            while len(queue):
                turns += 1
                await asyncio.sleep(0)
        return turns

    assert run(scenario()) >= 1000 / 4


def test_nothing_wakes_up_when_there_is_nothing_to_do() -> None:
    async def scenario() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        queue: WorkQueue[str] = WorkQueue()
        async with working(queue, Script(), workers=50):
            queue.add("a")
            queue.add_after("b", 3600)
            await asyncio.sleep(7200)
        return loop.clock.wakeups

    assert run(scenario()) <= 3


def test_cost_of_a_key() -> None:
    """100,000 keys through the queue; the bound is many times what it takes, as the machine is shared."""

    async def scenario() -> float:
        queue: WorkQueue[int] = WorkQueue()
        left = 100_000
        finished = asyncio.Event()

        async def reconcile(key: int) -> Result:
            nonlocal left
            left -= 1
            if not left:
                finished.set()
            return done()

        task = asyncio.create_task(queue.run(reconcile, 10))
        started = time.process_time()
        for key in range(left):
            queue.add(key)
        await finished.wait()
        used = time.process_time() - started
        task.cancel()
        return used

    assert asyncio.run(scenario()) < 2.0
