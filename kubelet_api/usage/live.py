"""Usage as it is served: one look at the source for all who ask within an interval, one text for all of them.

What a part of the remote cluster said last is told on for a while if it does not answer, with the time it was
measured at; then it is left out, and the answer says that something is missing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from kubelet_api.cache import Answers
from kubelet_api.twins import Placed, Twins
from kubelet_api.usage import exposition
from kubelet_api.usage.counters import Counters
from kubelet_api.usage.relabel import Family, merged
from kubelet_api.usage.snapshot import PodUsage, Reading, Sample, Snapshot
from kubelet_api.usage.sources import Nothing, Source
from kubelet_api.usage.summary import Details, summary

log = logging.getLogger(__name__)

_STALE: Final = 30.0
"""Seconds for which what was said last is told on, at least."""
_TURN: Final = 128
"""Pods after which others get a turn."""
_NOT_YET: Final = 1.0
"""Seconds after which a node whose pods are not all known yet is looked at again; also those for which an answer that
took longer than its interval is kept, so that many who ask do not each wait as long."""
_ALONE: Final = 300.0
"""Seconds after which, if nobody asked, somebody else may have been: the counters begin anew."""

_NO_SAMPLES: Final[Mapping[str, Sample]] = {}

Pieces = Sequence[bytes]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Look:
    snapshot: Snapshot
    placed: Sequence[Placed]
    until: float
    """When it is time for the next one."""


class Usage:
    """What the pods of one virtual node use. Belongs to one event loop."""

    def __init__(
        self,
        twins: Twins,
        node: str,
        source: Source | None = None,
        *,
        interval: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._twins = twins
        self._node = node
        self._source: Source = source or Nothing()
        self._interval = interval
        self._stale = max(3 * interval, _STALE)
        self._clock, self._now = clock, now
        self.started = now()
        """Since the epoch; what a kubelet says on its pages of metrics."""
        self._counters = Counters()
        self._answers: Answers[str, _Look] = Answers(size=1, clock=clock)
        self._texts: Answers[tuple[str, bool], Pieces] = Answers(size=16, clock=clock)
        self._last: dict[str, PodUsage] = {}
        self._answered: dict[str, float] = {}
        self._failing: dict[str, set[str]] = {}
        """By what is read: the parts of the remote cluster that did not give it."""
        self._looked = clock()
        self.looks = 0
        """How often the source was asked."""

    async def close(self) -> None:
        await self._texts.close()
        await self._answers.close()
        await self._source.close()

    # ------------------------------------------------------------------ what is served

    async def resource(self, *, packed: bool = False) -> Pieces:
        """``/metrics/resource``."""

        async def make() -> tuple[Iterator[bytes], float]:
            look = await self._current()
            return exposition.resource(look.snapshot), look.until

        return await self._text("resource", packed, make)

    async def cadvisor(self, *, packed: bool = False) -> Pieces:
        """``/metrics/cadvisor``: the remote kubelets' own, of our pods, where these are the source."""

        async def make() -> tuple[Iterator[bytes], float]:
            if not self._source.has_pages:
                look = await self._current()
                return exposition.cadvisor(look.snapshot), look.until
            pages, missing, until = await self._pages("metrics/cadvisor")
            return _both(merged(pages), exposition.scrape_error("container_scrape_error", failed=missing)), until

        return await self._text("cadvisor", packed, make)

    async def probes(self, *, packed: bool = False) -> Pieces:
        """``/metrics/probes``: what probes of our pods came to, where the remote kubelets are the source."""

        async def make() -> tuple[Iterator[bytes], float]:
            start = exposition.process_start(self.started)
            if not self._source.has_pages:
                return iter([start]), self._clock() + self._interval
            pages, _, until = await self._pages("metrics/probes")
            return _both(merged(pages), start), until

        return await self._text("probes", packed, make)

    async def summary(self, *, only_cpu_and_memory: bool) -> Pieces:
        """``/stats/summary``."""

        async def make() -> tuple[Iterator[bytes], float]:
            with_details = self._source.has_pages and not only_cpu_and_memory
            look, details = await asyncio.gather(self._current(), self._details() if with_details else _nothing())
            told = {pod.placed.uid for pod in look.snapshot.pods}
            pieces = summary(
                look.snapshot,
                node=self._node,
                started=self.started,
                unknown=[pod for pod in look.placed if pod.uid not in told],
                details=details,
            )
            return pieces, look.until

        return await self._text("summary-short" if only_cpu_and_memory else "summary", False, make)

    async def _text(
        self, name: str, packed: bool, make: Callable[[], Awaitable[tuple[Iterator[bytes], float]]]
    ) -> Pieces:
        async def ask() -> tuple[Pieces, float]:
            content, until = await make()
            pieces = exposition.gathered(content)
            made = await _in_turns(exposition.zipped(pieces) if packed else pieces)
            return made, max(until - self._clock(), _NOT_YET)

        return await self._texts.get((name, packed), ask)

    # ------------------------------------------------------------------ pages of the remote kubelets

    # They are asked for while, not after, what pods use is: one node that hangs costs its time once, as whoever scrapes
    # waits for about twice that.

    async def _pages(self, path: str) -> tuple[Sequence[Mapping[str, Family]], bool, float]:
        """What the remote kubelets have on a page, whether something is missing, and until when that is told."""
        until = self._clock() + self._interval
        if not self._twins.synced():
            return (), True, self._clock() + _NOT_YET
        pages, failed = await self._source.pages(path, await _in_turns(self._twins.placed()))
        self._say(f"/{path}", failed)
        return pages, bool(failed), until

    async def _details(self) -> Details:
        return await self._source.details(await _in_turns(self._twins.placed()))

    # ------------------------------------------------------------------ a look

    async def _current(self) -> _Look:
        return await self._answers.get("look", self._look)

    async def _look(self) -> tuple[_Look, float]:
        if not self._twins.synced():
            return _Look(Snapshot(), (), self._clock() + _NOT_YET), _NOT_YET
        placed = await _in_turns(self._twins.placed())
        until = self._clock() + self._interval
        if not self._source.tells:
            return _Look(Snapshot(complete=True), placed, until), self._interval
        self.looks += 1
        if self._clock() - self._looked > _ALONE:
            self._counters = Counters()
        self._looked = self._clock()
        reading = await self._source.usage(placed)
        asked = self._clock()
        parts = [self._source.part(item) for item in placed]
        self._note(reading.failed, asked, {*parts, *reading.failed, ""})
        usages: list[PodUsage] = []
        for start in range(0, len(placed), _TURN):
            usages += self._taken(placed[start : start + _TURN], parts[start : start + _TURN], reading, asked)
            await asyncio.sleep(0)
        self._counters.forget({item.uid for item in placed})
        self._last = {usage.placed.uid: usage for usage in usages}
        late = [part for part in reading.failed if asked - self._answered.get(part, float("-inf")) > self._stale]
        node = self._counters.node(usages, self._now()) if usages or not late else None
        snapshot = Snapshot(usages, node, complete=not late, failed=reading.failed)
        return _Look(snapshot, placed, until), max(until - asked, _NOT_YET)

    def _taken(
        self, placed: Sequence[Placed], parts: Sequence[str], reading: Reading, asked: float
    ) -> Iterator[PodUsage]:
        """What there is to be told of some pods, after a reading."""
        failed, containers, pods, count = reading.failed, reading.containers, reading.pods, self._counters.pod
        for item, part in zip(placed, parts, strict=True):
            if part in failed:
                usage = self._kept(item, asked - self._answered.get(part, float("-inf")))
            else:
                key = (item.twin.namespace, item.twin.pod)
                try:
                    samples = containers[key]
                except KeyError:
                    samples = _NO_SAMPLES
                usage = count(item, samples, pods.get(key) if pods else None)
            if usage is not None:
                yield usage

    def _kept(self, placed: Placed, age: float) -> PodUsage | None:
        """What was told of a pod last, if that may still be told."""
        last = self._last.get(placed.uid)
        if last is None or age > self._stale or last.placed.twin != placed.twin:
            return None
        running = {container.name for container in placed.containers}
        return last if running >= {container.name for container in last.containers} else None

    def _note(self, failed: dict[str, str], asked: float, parts: set[str]) -> None:
        """Remember who answered, and say when that changes."""
        for part in parts - failed.keys():
            self._answered[part] = asked
        self._answered = {part: at for part, at in self._answered.items() if part in parts}
        self._say("usage of pods", failed)

    def _say(self, what: str, failed: Mapping[str, str]) -> None:
        before = self._failing.get(what, set())
        for part in failed.keys() - before:
            log.warning("%s cannot be read%s: %s", what, f" ({part})" if part else "", failed[part])
        for part in before - failed.keys():
            log.info("%s can be read again%s", what, f" ({part})" if part else "")
        self._failing[what] = set(failed)


async def _nothing() -> Details:
    return {}


def _both(parts: Iterator[bytes], last: bytes) -> Iterator[bytes]:
    yield from parts
    yield last


async def _in_turns(items: Iterator[T]) -> list[T]:
    """All of them, with a turn for others now and then; what is empty is left out."""
    found: list[T] = []
    for number, item in enumerate(items, 1):
        if item:
            found.append(item)
        if isinstance(item, bytes) or number % _TURN == 0:
            await asyncio.sleep(0)
    return found
