"""Answers that are kept."""

from __future__ import annotations

import asyncio

import pytest

from kubelet_api.cache import Answers


class Asked:
    """Counts how often it was asked, and answers that number."""

    def __init__(self, seconds: float = 10.0) -> None:
        self.seconds = seconds
        self.count = 0
        self.go = asyncio.Event()
        self.go.set()
        self.error: Exception | None = None

    async def __call__(self) -> tuple[int, float]:
        self.count += 1
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return self.count, self.seconds


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_answer_is_kept_for_its_time() -> None:
    async def main() -> None:
        clock, asked = Clock(), Asked(10)
        answers: Answers[str, int] = Answers(size=10, clock=clock)
        assert [await answers.get("a", asked), await answers.get("a", asked)] == [1, 1]
        clock.now = 9.99
        assert await answers.get("a", asked) == 1
        clock.now = 10.0
        assert await answers.get("a", asked) == 2

    asyncio.run(main())


def test_what_is_not_to_be_kept_is_not() -> None:
    async def main() -> None:
        asked = Asked(0)
        answers: Answers[str, int] = Answers(size=10)
        assert [await answers.get("a", asked), await answers.get("a", asked)] == [1, 2]
        assert len(answers) == 0

    asyncio.run(main())


def test_it_is_bounded_and_forgets_what_was_not_used_longest() -> None:
    async def main() -> None:
        answers: Answers[str, int] = Answers(size=2)
        first, second, third = Asked(), Asked(), Asked()
        await answers.get("a", first)
        await answers.get("b", second)
        await answers.get("a", first)
        await answers.get("c", third)
        assert len(answers) == 2
        await answers.get("a", first)
        await answers.get("b", second)
        assert (first.count, second.count) == (1, 2)

    asyncio.run(main())


def test_many_who_ask_the_same_ask_once() -> None:
    async def main() -> None:
        asked = Asked()
        asked.go.clear()
        answers: Answers[str, int] = Answers(size=10)
        waiting = [asyncio.create_task(answers.get("a", asked)) for _ in range(5)]
        await asyncio.sleep(0)
        waiting[0].cancel()  # whoever gives up takes nothing from the others
        await asyncio.sleep(0)
        asked.go.set()
        assert await asyncio.gather(*waiting[1:]) == [1, 1, 1, 1]
        assert asked.count == 1

    asyncio.run(main())


def test_an_error_is_everybodys_and_is_not_kept() -> None:
    async def main() -> None:
        asked = Asked()
        asked.error = ValueError("no")
        answers: Answers[str, int] = Answers(size=10)
        results = await asyncio.gather(*(answers.get("a", asked) for _ in range(3)), return_exceptions=True)
        assert [type(result) for result in results] == [ValueError] * 3
        assert asked.count == 1
        asked.error = None
        assert await answers.get("a", asked) == 2

    asyncio.run(main())


def test_closing_ends_what_is_under_way() -> None:
    async def main() -> None:
        asked = Asked()
        asked.go.clear()
        answers: Answers[str, int] = Answers(size=10)
        waiting = asyncio.create_task(answers.get("a", asked))
        await asyncio.sleep(0)
        await answers.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
