"""A process of Farlet: it works until it is told to stop, and ends with one error that a person can read."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine, Iterator
from typing import Any

from app.facts import StartError
from app.kube.errors import KubeError


def run_until_signalled(work: Coroutine[Any, Any, None]) -> None:
    """Run *work* to its end; SIGTERM and SIGINT cancel it, and it ends in its own order."""
    asyncio.run(_until_signalled(work))


async def _until_signalled(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


@contextlib.contextmanager
def one_error(*more: type[Exception]) -> Iterator[None]:
    """What tasks within ended with (KubeError, StartError and *more*) becomes one StartError: the first, as the others
    followed from it."""
    expected: tuple[type[Exception], ...] = (KubeError, StartError, *more)
    failure: BaseException | None = None
    try:
        yield
    except* expected as errors:
        failure = errors
        while isinstance(failure, BaseExceptionGroup):
            failure = failure.exceptions[0]
    if failure is not None:  # raised within `except*` it would be one of a group again
        raise StartError(str(failure)) from None
