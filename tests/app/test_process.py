"""How a process of Farlet ends."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from app.facts import StartError
from app.kube.errors import Unreachable
from app.process import one_error, run_until_signalled


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_work_in_its_order(number: signal.Signals) -> None:
    ended = []

    async def work() -> None:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), number)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    run_until_signalled(work())
    assert ended


def test_an_error_of_the_work_is_told() -> None:
    async def work() -> None:
        raise StartError("no")

    with pytest.raises(StartError, match="no"):
        run_until_signalled(work())


@pytest.mark.parametrize(
    "error",
    [
        Unreachable("why"),
        ExceptionGroup("tasks", [Unreachable("why"), StartError("what followed")]),
        ExceptionGroup("tasks", [ExceptionGroup("tasks", [LookupError("why")])]),
    ],
)
def test_the_first_of_many_errors_is_the_one(error: Exception) -> None:
    with pytest.raises(StartError, match=r"^why$"), one_error(LookupError):
        raise error


def test_an_error_that_nobody_expects_is_not_hidden() -> None:
    with pytest.raises(ExceptionGroup) as raised, one_error():
        raise ExceptionGroup("tasks", [LookupError("a fault of ours")])
    assert isinstance(raised.value.exceptions[0], LookupError)
