"""One look for all who ask; what does not answer is told on for a while, and then said to be missing."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterator, Mapping, Sequence

from app.kube.objects import Object
from kubelet_api.twins import Placed
from kubelet_api.usage.live import Usage
from kubelet_api.usage.relabel import Family
from kubelet_api.usage.snapshot import Reading, Sample
from kubelet_api.usage.sources import Nothing, Pages
from tests.kubelet_api.serving import Pods
from tests.kubelet_api.usage.pods import START, placed

INTERVAL = 10.0


class Twins(Pods):
    """Pods that run where the test says."""

    def __init__(self, *items: Placed) -> None:
        super().__init__()
        self.items = list(items)

    def placed(self) -> Iterator[Placed]:
        yield from self.items


class Told(Nothing):
    """A source that says what the test wants, and counts how often."""

    tells = True

    def __init__(self) -> None:
        self.asked = 0
        self.failed: dict[str, str] = {}
        self.time = START + 20
        self.gate = asyncio.Event()
        self.gate.set()

    def part(self, placed: Placed) -> str:
        return placed.node

    async def usage(self, placed: Sequence[Placed]) -> Reading:
        self.asked += 1
        await self.gate.wait()
        sample = Sample(self.time, 4096, rate=0.5)
        found = {(item.twin.namespace, item.twin.pod): {"main": sample} for item in placed}
        return Reading(found, failed=dict(self.failed))


class Kubelets(Told):
    """The same, with pages."""

    has_pages = True

    def __init__(self) -> None:
        super().__init__()
        self.details_asked = asyncio.Event()
        self.missing: dict[str, str] = {}
        self.read: list[str] = []

    async def details(self, placed: Sequence[Placed]) -> Mapping[str, Object]:
        self.details_asked.set()
        return {item.uid: {"network": {"rxBytes": 1}} for item in placed}

    async def pages(self, path: str, placed: Sequence[Placed]) -> Pages:
        self.read.append(path)
        series = [f'some_total{{pod="{item.name}"}} 1' for item in placed if item.node not in self.missing]
        return [{"some_total": Family(["# TYPE some_total counter"], series)}], self.missing


class Clock:
    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


def usage(twins: Twins, source: Nothing, clock: Clock) -> Usage:
    return Usage(twins, "far", source, interval=INTERVAL, clock=clock, now=lambda: START + clock.at)


def lines(pieces: Sequence[bytes]) -> list[str]:
    return [line for line in b"".join(pieces).decode().splitlines() if not line.startswith("#")]


def test_many_who_ask_cost_one_look() -> None:
    async def main() -> None:
        source, clock = Told(), Clock()
        live = usage(Twins(placed()), source, clock)
        source.gate.clear()
        asking = [asyncio.create_task(live.resource(packed=bool(number % 2))) for number in range(10)]
        asking += [asyncio.create_task(live.cadvisor()), asyncio.create_task(live.summary(only_cpu_and_memory=True))]
        await asyncio.sleep(0.01)
        source.gate.set()
        answers = await asyncio.gather(*asking)
        assert source.asked == 1
        assert gzip.decompress(b"".join(answers[1])) == b"".join(answers[0])
        clock.at += INTERVAL - 0.1
        await live.resource()
        assert source.asked == 1
        clock.at += 0.2
        await live.resource()
        assert source.asked == 2
        await live.close()

    asyncio.run(main())


def test_who_gives_up_takes_nothing_from_the_others() -> None:
    async def main() -> None:
        source, clock = Told(), Clock()
        live = usage(Twins(placed()), source, clock)
        source.gate.clear()
        impatient, patient = asyncio.create_task(live.resource()), asyncio.create_task(live.resource())
        await asyncio.sleep(0.01)
        impatient.cancel()
        source.gate.set()
        assert 'container_start_time_seconds{container="main",namespace="shop",pod="web"} 1.7e+09' in lines(
            await patient
        )
        assert source.asked == 1
        await live.close()

    asyncio.run(main())


def test_a_node_that_fails_blanks_nothing_else_and_ages_out() -> None:
    async def main() -> None:
        source, clock = Told(), Clock()
        near, far = placed("near", uid="n", node="one"), placed("far", uid="f", node="two")
        live = usage(Twins(near, far), source, clock)

        async def told() -> tuple[set[str], float]:
            clock.at += INTERVAL + 0.1
            source.time += INTERVAL
            found = lines(await live.resource())
            pods = {line.split('pod="')[1].split('"')[0] for line in found if line.startswith("pod_cpu")}
            return pods, float(found[-1].split()[1])

        assert await told() == ({"near", "far"}, 0)
        source.failed = {"two": "no answer within 5 s"}
        assert await told() == ({"near", "far"}, 0)
        before = [line for line in lines(await live.resource()) if line.startswith("pod_cpu")]
        assert len({line.rsplit(" ", 1)[1] for line in before}) == 2, "what is told on has its old time"
        assert [await told() for _ in range(3)][-1] == ({"near"}, 1)
        source.failed = {}
        assert await told() == ({"near", "far"}, 0)
        await live.close()

    asyncio.run(main())


def test_nothing_answers_from_the_start() -> None:
    async def main() -> None:
        source, clock = Told(), Clock()
        source.failed = {"far-1": "gone"}
        live = usage(Twins(placed()), source, clock)
        assert lines(await live.resource()) == ["resource_scrape_error 1"]
        assert lines(await live.cadvisor()) == ["container_scrape_error 1"]
        await live.close()

    asyncio.run(main())


def test_pages_do_not_wait_for_what_pods_use() -> None:
    """A node that hangs costs its time once: one after the other would be more than a scraper waits for."""

    async def main() -> None:
        source, clock = Kubelets(), Clock()
        live = usage(Twins(placed()), source, clock)
        source.gate.clear()
        assert lines(await live.cadvisor()) == ['some_total{pod="web"} 1', "container_scrape_error 0"]
        assert lines(await live.probes())[0] == 'some_total{pod="web"} 1'
        assert source.asked == 0
        whole = asyncio.create_task(live.summary(only_cpu_and_memory=False))
        await source.details_asked.wait()
        assert source.asked == 1
        source.gate.set()
        assert b"rxBytes" in b"".join(await whole)
        await live.close()

    asyncio.run(main())


def test_a_node_that_is_missing_on_a_page_is_said_and_the_answer_kept() -> None:
    async def main() -> None:
        source, clock = Kubelets(), Clock()
        live = usage(Twins(placed("near", uid="n", node="one"), placed("far", uid="f", node="two")), source, clock)
        source.missing = {"two": "no answer within 5 s"}
        assert lines(await live.cadvisor()) == ['some_total{pod="near"} 1', "container_scrape_error 1"]
        source.missing |= {"one": "no answer within 5 s"}
        clock.at += INTERVAL - 0.1
        assert lines(await live.cadvisor()) == ['some_total{pod="near"} 1', "container_scrape_error 1"]
        clock.at += 0.2
        assert lines(await live.cadvisor()) == ["container_scrape_error 1"]
        assert source.read == ["metrics/cadvisor"] * 2
        await live.close()

    asyncio.run(main())


def test_an_answer_that_took_longer_than_its_interval_is_kept_for_a_moment() -> None:
    async def main() -> None:
        source, clock = Told(), Clock()
        live = usage(Twins(placed()), source, clock)
        source.gate.clear()
        asking = asyncio.create_task(live.resource())
        await asyncio.sleep(0.01)
        clock.at += 2 * INTERVAL
        source.gate.set()
        assert await asking is await live.resource()
        await live.close()

    asyncio.run(main())


def test_who_was_not_asked_for_long_begins_anew() -> None:
    """A Farlet that leads, waits while another does, and leads again: its old sums are above those told meanwhile."""

    async def main() -> None:
        source, clock = Told(), Clock()
        live = usage(Twins(placed()), source, clock)

        async def told(pause: float) -> float:
            clock.at += pause
            source.time += pause
            found = lines(await live.resource())
            return next(float(line.split()[1]) for line in found if line.startswith("container_cpu"))

        sums = [await told(60) for _ in range(4)]
        assert sums == sorted(sums)
        assert sums[-1] > 80
        assert await told(3600) < 1
        assert await told(15) < 8
        await live.close()

    asyncio.run(main())


def test_caches_that_are_not_complete() -> None:
    async def main() -> None:
        source, clock = Told(), Clock()
        twins = Twins(placed())
        twins.complete = False
        live = usage(twins, source, clock)
        assert lines(await live.resource()) == ["resource_scrape_error 1"]
        assert source.asked == 0
        twins.complete = True
        clock.at += 1.1
        assert lines(await live.resource())[-1] == "resource_scrape_error 0"
        await live.close()

    asyncio.run(main())


def test_no_pods_is_not_nothing() -> None:
    async def main() -> None:
        live = usage(Twins(), Told(), Clock())
        found = lines(await live.resource())
        assert [line.split()[0] for line in found] == [
            "node_cpu_usage_seconds_total", "node_memory_working_set_bytes", "resource_scrape_error",
        ]  # fmt: skip
        assert all(float(line.split()[1]) > 0 for line in found[:2])
        await live.close()

    asyncio.run(main())


def test_without_a_source_there_are_no_figures() -> None:
    async def main() -> None:
        live = usage(Twins(placed()), Nothing(), Clock())
        assert lines(await live.resource()) == ["resource_scrape_error 0"]
        assert lines(await live.cadvisor()) == ["container_scrape_error 0"]
        text = b"".join(await live.summary(only_cpu_and_memory=False))
        assert b'"name":"web"' in text
        assert b"cpu" not in text
        assert [line.split()[0] for line in lines(await live.probes())] == ["process_start_time_seconds"]
        await live.close()

    asyncio.run(main())


def test_pods_go_and_are_forgotten_and_the_node_does_not_fall() -> None:
    async def main() -> None:
        source, clock = Kubelets(), Clock()
        twins = Twins(placed("a", uid="a"), placed("b", uid="b"))
        live = usage(twins, source, clock)

        async def node() -> float:
            clock.at += INTERVAL + 0.1
            source.time += INTERVAL
            found = lines(await live.resource())
            return next(float(line.split()[1]) for line in found if line.startswith("node_cpu"))

        before = [await node(), await node()]
        twins.items.pop()
        after = [await node(), await node()]
        assert sorted(before + after) == before + after
        assert len(live._counters) == 1
        assert b"rxBytes" in b"".join(await live.summary(only_cpu_and_memory=False))
        assert b"rxBytes" not in b"".join(await live.summary(only_cpu_and_memory=True))
        await live.close()

    asyncio.run(main())
