"""Runs a part of Farlet in a thread and an event loop of its own, as if it were a coroutine of this one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any


async def in_own_thread(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    """Run *work* to its end in another thread; its error is ours, and if we are cancelled, so is it."""
    outer = asyncio.get_running_loop()
    begun: asyncio.Future[Callable[[], object]] = outer.create_future()
    ended: asyncio.Future[BaseException | None] = outer.create_future()

    async def body() -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        outer.call_soon_threadsafe(begun.set_result, lambda: loop.call_soon_threadsafe(task.cancel))
        await work()

    def run() -> None:
        failure: BaseException | None = None
        try:
            asyncio.run(body())
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is told in the other thread
            failure = error
        outer.call_soon_threadsafe(ended.set_result, failure)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    try:
        await asyncio.wait({ended})
    except asyncio.CancelledError:
        either: set[asyncio.Future[Any]] = {begun, ended}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            begun.result()()
            await asyncio.wait({ended})
        raise
    finally:
        await asyncio.to_thread(thread.join)
    failure = ended.result()
    if failure is not None:
        raise failure
