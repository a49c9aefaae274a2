"""A source that fails keeps its last good answer and says so once."""

from __future__ import annotations

import asyncio
import logging

import pytest

from app.node.capacity import CapacityError
from app.node.sources import Fixed, Polled


class Program:
    """Says what the test wants, or fails."""

    def __init__(self, says: str | CapacityError) -> None:
        self.says = says

    async def ask(self) -> str:
        if isinstance(self.says, CapacityError):
            raise self.says
        return self.says


def test_what_a_flag_states_has_room_for_pods() -> None:
    assert Fixed("cpu=2,memory=1Gi").measure().capacity == {"cpu": "2", "memory": "1Gi", "pods": "10k"}


@pytest.mark.parametrize("says", [CapacityError("did not end"), "cpu=many", ""])
def test_a_program_that_fails_at_start_is_an_error_with_the_way_out(says: str | CapacityError) -> None:
    source = Polled("--capacity-command x", Program(says).ask, 1)
    with pytest.raises(CapacityError, match=r"^--capacity-command x: .*cpu=100, or use --capacity"):
        asyncio.run(source.start())


def test_a_program_that_fails_later(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    program = Program('{"cpu": 10}')
    source = Polled("--capacity-command x", program.ask, 0.001)
    heard: list[dict[str, str]] = []
    source.listen(lambda: heard.append(source.measure().capacity))

    async def polls(says: str | CapacityError, times: int = 1) -> None:
        program.says = says
        for _ in range(times):
            await source._poll()

    async def story() -> None:
        await source.start()
        await polls('{"cpu": 10}', 2)
        await polls(CapacityError("did not end"), 3)
        await polls("cpu=", 2)
        assert source.measure().capacity == {"cpu": "10", "pods": "10k"}
        await polls("cpu=12", 2)

    asyncio.run(story())
    assert heard == [{"cpu": "12", "pods": "10k"}]
    assert [(record.levelname, record.message.partition(": ")[2]) for record in caplog.records] == [
        ("WARNING", "--capacity-command x: did not end"),
        ("WARNING", "--capacity-command x: line 1: 'cpu=' is not name=quantity, such as cpu=100 or memory=256Gi"),
        ("INFO", ""),
    ]


def test_it_is_asked_again_and_again() -> None:
    program = Program("cpu=1")
    source = Polled("--capacity-url x", program.ask, 0.001)
    changed = asyncio.Event()
    source.listen(changed.set)

    async def story() -> None:
        await source.start()
        following = asyncio.create_task(source.run())
        program.says = "cpu=2"
        async with asyncio.timeout(30):
            await changed.wait()
        following.cancel()

    asyncio.run(story())
    assert source.measure().capacity["cpu"] == "2"
