"""A part that runs in its own thread behaves as a coroutine of the loop that waits for it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from app.thread import in_own_thread


def test_it_runs_in_another_thread_and_loop() -> None:
    async def main() -> tuple[bool, bool]:
        seen: list[tuple[threading.Thread, asyncio.AbstractEventLoop]] = []

        async def work() -> None:
            seen.append((threading.current_thread(), asyncio.get_running_loop()))

        await in_own_thread(work, "part")
        thread, loop = seen[0]
        return thread is threading.current_thread(), loop is asyncio.get_running_loop()

    assert asyncio.run(main()) == (False, False)


def test_its_error_is_ours() -> None:
    async def work() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(in_own_thread(work, "part"))


def test_cancelling_us_ends_it_in_order() -> None:
    ended = threading.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.01)
            ended.set()

    async def main() -> bool:
        task = asyncio.create_task(in_own_thread(work, "part"))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return ended.is_set()

    assert asyncio.run(main())
    assert "part" not in [thread.name for thread in threading.enumerate()]


def test_cancelled_before_it_began() -> None:
    async def main() -> None:
        task = asyncio.create_task(in_own_thread(lambda: asyncio.sleep(3600), "early"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert "early" not in [thread.name for thread in threading.enumerate()]


def test_its_loop_turns_while_ours_is_busy() -> None:
    turns = 0

    async def work() -> None:
        nonlocal turns
        while turns < 5:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> int:
        task = asyncio.create_task(in_own_thread(work, "part"))
        await asyncio.sleep(0)
        while turns < 5:  # our loop does nothing else meanwhile
            pass
        await task
        return turns

    assert asyncio.run(main()) == 5
