"""One extended namespace: informers on both sides for each kind that may be read there.

They begin and end with the extension, so rights in the namespaces that are extended are enough. Where a right is
missing, that kind is not followed there, is said once, and is asked for again every half minute.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from app import names
from app.kube.client import Client
from app.kube.errors import ApiError, Forbidden, KubeError, NotFound
from app.kube.informer import Counts, Informer, Timing
from app.kube.objects import Envelope, Key
from app.kube.resources import ENDPOINT_SLICES
from app.reflection.endpointslices import service_of
from app.reflection.extensions import Extension
from app.reflection.kind import Kind

log = logging.getLogger(__name__)

BY_SERVICE: Final = "service"
_REFUSED_AGAIN: Final = 30.0
_UNREACHABLE_AGAIN: Final = 5.0

OnChange = Callable[["Space", Kind, Key, Envelope | None, Envelope | None], None]


@dataclass(frozen=True, slots=True)
class Pair:
    """The informers of one kind."""

    kind: Kind
    local: Informer
    remote: Informer

    @property
    def synced(self) -> bool:
        return self.local.synced and self.remote.synced


class Past(Informer):
    """What informers of one kind counted that are no more; it is never run. A figure that counts must not fall."""

    @property
    def synced(self) -> bool:
        return True

    def add(self, counts: Counts) -> None:
        for each in fields(Counts):
            setattr(self.counts, each.name, getattr(self.counts, each.name) + getattr(counts, each.name))


class Space:
    """A local namespace and its remote one."""

    def __init__(
        self,
        extension: Extension,
        kinds: Sequence[Kind],
        *,
        local: Client,
        remote: Client,
        timing: Timing,
        on_local: OnChange,
        on_remote: OnChange,
        on_synced: Callable[[Space, Kind], None],
    ) -> None:
        self.extension = extension
        self.namespace, self.remote_namespace = extension
        self._local = local
        self._remote = remote
        self._on_synced = on_synced
        self.pairs: Mapping[str, Pair] = {
            kind.resource.plural: self._pair(kind, timing, on_local, on_remote) for kind in kinds
        }

    def _pair(self, kind: Kind, timing: Timing, on_local: OnChange, on_remote: OnChange) -> Pair:
        def told(listener: OnChange) -> Callable[[Key, Envelope | None, Envelope | None], None]:
            return lambda key, old, new: listener(self, kind, key, old, new)

        return Pair(
            kind,
            Informer(
                self._local,
                kind.resource,
                namespace=self.namespace,
                field_selector=kind.field_selector,
                on_change=told(on_local),
                transform=kind.slim_local,
                indexers={BY_SERVICE: service_of} if kind.resource is ENDPOINT_SLICES else None,
                timing=timing,
            ),
            Informer(
                self._remote,
                kind.resource,
                namespace=self.remote_namespace,
                label_selector=f"{names.LABEL_ORIGIN}={kind.owner.origin}",
                on_change=told(on_remote),
                transform=kind.slim,
                timing=timing,
            ),
        )

    def synced(self, kind: str) -> bool:
        """Whether what both clusters have of a kind is known."""
        pair = self.pairs.get(kind)
        return pair is not None and pair.synced

    def get_local(self, kind: str, name: str) -> Envelope | None:
        return self.pairs[kind].local.get(Key(self.namespace, name))

    def get_remote(self, kind: str, name: str) -> Envelope | None:
        """A remote object of our cluster, by its own name."""
        return self.pairs[kind].remote.get(Key(self.remote_namespace, name))

    async def run(self) -> None:
        """Follow both namespaces until cancelled."""
        async with asyncio.TaskGroup() as group:
            for pair in self.pairs.values():
                group.create_task(self._follow(pair), name=f"reflection {self.namespace} {pair.kind.resource.plural}")

    async def _follow(self, pair: Pair) -> None:
        await self._until_readable(pair)
        async with asyncio.TaskGroup() as group:
            group.create_task(pair.local.run())
            group.create_task(pair.remote.run())
            await pair.local.wait_synced()
            await pair.remote.wait_synced()
            self._on_synced(self, pair.kind)

    async def _until_readable(self, pair: Pair) -> None:
        """An informer would go on asking, and saying so: rights that are missing are missing for long."""
        said = ""
        resource = pair.kind.resource
        while True:
            try:
                for client, namespace in ((self._local, self.namespace), (self._remote, self.remote_namespace)):
                    await client.request("GET", resource.path(namespace), params={"limit": "1"})
            except KubeError as error:
                refused = isinstance(error, Forbidden | NotFound)
                words = error.message if isinstance(error, ApiError) else str(error)
                if said != words:
                    log.warning("%s of namespace %s are not reflected: %s", resource.kind, self.namespace, words)
                    said = words
                await asyncio.sleep((_REFUSED_AGAIN if refused else _UNREACHABLE_AGAIN) * random.uniform(0.8, 1.2))
            else:
                return
