"""Several informers that look like one: the objects of one kind in some namespaces, where all may not be read.

What uses a cache takes a :class:`Cache`, and never knows which of the two it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from app.kube.informer import Counts, Informer, OnChange
from app.kube.objects import Envelope, Key
from app.kube.resources import Resource


class Cache(Protocol):
    """A copy of the objects of one kind, kept up to date."""

    resource: Resource

    @property
    def counts(self) -> Counts:
        """What was done so far."""

    @property
    def synced(self) -> bool:
        """Whether everything has been read once."""

    @property
    def error(self) -> Exception | None:
        """Why the copy is not up to date; None while it is."""

    def __len__(self) -> int: ...

    def get(self, key: Key) -> Envelope | None: ...

    def list(self) -> Sequence[Envelope]: ...

    def by_index(self, name: str, value: str) -> Sequence[Envelope]: ...

    def each_by_index(self, name: str, values: Sequence[str]) -> Sequence[tuple[Envelope, ...]]: ...

    def has_reached(self, namespace: str, resource_version: str) -> bool:
        """Whether it knows all that happened in a namespace up to this version."""

    def listen(self, on_change: OnChange) -> None: ...

    async def run(self) -> None: ...


class Informers:
    """The objects of one kind in these namespaces, with an informer for each."""

    def __init__(self, resource: Resource, namespaces: Sequence[str], informer: Callable[[str], Informer]) -> None:
        """*informer* makes the one of a namespace."""
        self.resource = resource
        self._informers = {namespace: informer(namespace) for namespace in namespaces}

    @property
    def counts(self) -> Counts:
        each = [informer.counts for informer in self._informers.values()]
        return Counts(
            lists=sum(counts.lists for counts in each),
            watches=sum(counts.watches for counts in each),
            changes=sum(counts.changes for counts in each),
            errors=sum(counts.errors for counts in each),
        )

    @property
    def synced(self) -> bool:
        return all(informer.synced for informer in self._informers.values())

    @property
    def error(self) -> Exception | None:
        """That of one which has never been complete, if there is such a one: it is what is waited for."""
        troubled = [informer for informer in self._informers.values() if informer.error is not None]
        return min(troubled, key=lambda informer: informer.synced).error if troubled else None

    def __len__(self) -> int:
        return sum(len(informer) for informer in self._informers.values())

    def get(self, key: Key) -> Envelope | None:
        informer = self._informers.get(key.namespace)
        return informer.get(key) if informer is not None else None

    def list(self) -> Sequence[Envelope]:
        return [envelope for informer in self._informers.values() for envelope in informer.list()]

    def by_index(self, name: str, value: str) -> Sequence[Envelope]:
        return [envelope for informer in self._informers.values() for envelope in informer.by_index(name, value)]

    def each_by_index(self, name: str, values: Sequence[str]) -> Sequence[tuple[Envelope, ...]]:
        every: Sequence[tuple[Envelope, ...]] = [()] * len(values)
        for informer in self._informers.values():
            every = [had + found for had, found in zip(every, informer.each_by_index(name, values), strict=True)]
        return every

    def has_reached(self, namespace: str, resource_version: str) -> bool:
        informer = self._informers.get(namespace)
        return informer is not None and informer.has_reached(namespace, resource_version)

    def listen(self, on_change: OnChange) -> None:
        for informer in self._informers.values():
            informer.listen(on_change)

    async def run(self) -> None:
        """Follow all of them until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in self._informers.values():
                group.create_task(informer.run())
