"""A copy of the objects of a kind that the API server may not serve, or not show to us: then there are none.

A custom resource may be installed while we run, and rights may be granted, so it is looked for now and then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from app.kube.access import may
from app.kube.client import Client
from app.kube.errors import ApiError, Forbidden, KubeError, NotFound
from app.kube.informer import Counts, Informer, OnChange
from app.kube.objects import Envelope, Key

log = logging.getLogger(__name__)

_LOOK = 10.0


class OptionalInformer:
    """An informer that waits for its kind."""

    def __init__(self, client: Client, informer: Informer, path: str, *, look: float = _LOOK) -> None:
        """*path*: where the objects are listed."""
        self.resource = informer.resource
        self.readable = True
        """Whether we may read the objects, or there are none to be read; True until the contrary is known."""
        self._client = client
        self._informer = informer
        self._path = path
        self._look = look
        self._looked = False

    @property
    def counts(self) -> Counts:
        return self._informer.counts

    @property
    def synced(self) -> bool:
        """Whether all objects are known, or that there are none for us."""
        return self._looked or self._informer.synced

    @property
    def error(self) -> Exception | None:
        return self._informer.error

    def __len__(self) -> int:
        return len(self._informer)

    def get(self, key: Key) -> Envelope | None:
        return self._informer.get(key)

    def list(self) -> Sequence[Envelope]:
        return self._informer.list()

    def by_index(self, name: str, value: str) -> Sequence[Envelope]:
        return self._informer.by_index(name, value)

    def each_by_index(self, name: str, values: Sequence[str]) -> Sequence[tuple[Envelope, ...]]:
        return self._informer.each_by_index(name, values)

    def has_reached(self, namespace: str, resource_version: str) -> bool:
        return self._informer.has_reached(namespace, resource_version)

    def listen(self, on_change: OnChange) -> None:
        self._informer.listen(on_change)

    async def run(self) -> None:
        """Wait until the kind is there, then follow it."""
        while not await self._is_there():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(self._look)
        if self._looked:
            log.info("%s are served now", self.resource.plural)
        await self._informer.run()

    async def _is_there(self) -> bool:
        try:
            await self._client.request("GET", self._path, params={"limit": "1"})
            self.readable = await may(self._client, "watch", self.resource.plural, group=self.resource.group)
        except NotFound:
            self._looked = self.readable = True
            return False
        except Forbidden:
            self.readable = False
        except KubeError as error:
            if isinstance(error, ApiError):
                log.warning("%s: %s", self._path, error)
            return False
        if not self.readable:
            self._looked = True
        return self.readable
