"""Makes one remote copy what it should be: creates it, changes it, takes it away, or says why it cannot.

Somebody else's object in its place is never touched.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final

import msgspec

from app import names
from app.kube.client import Client
from app.kube.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound, ServerError
from app.kube.events import EventRecorder
from app.kube.informer import Informer
from app.kube.objects import Envelope, Key
from app.kube.queue import Result, done, requeue_after
from app.kube.resources import ENDPOINT_SLICES, NODES, SERVICES, Resource
from app.reflection import copies
from app.reflection.copies import Copy, Holder, Owner
from app.reflection.endpointslices import service_of
from app.reflection.extensions import Extension
from app.reflection.kind import Kind
from app.reflection.known import Item, Known
from app.reflection.remote import RemoteCopies
from app.reflection.space import Space

log = logging.getLogger(__name__)

_LAG: Final = 0.5
_CACHE_LAG: Final = 5.0
_NAMESPACE_AGAIN: Final = 2.0
_REFUSED_AGAIN: Final = 60.0
_CONFLICT_FIRST, _CONFLICT_MOST = 5.0, 60.0
"""Seconds between two looks at somebody else's object that is in the way: it is in no cache of ours."""


class Copier:
    """Writes the copies of one virtual node."""

    def __init__(
        self,
        *,
        local: Client,
        remote: RemoteCopies,
        owner: Owner,
        nodes: Informer,
        known: Known,
        recorder: EventRecorder,
        on_lost: Callable[[Extension], None],
        wake_slices: Callable[[Space, str], None],
    ) -> None:
        """
        :param nodes: the local nodes that stand for the remote cluster.
        :param on_lost: told of an extension whose remote namespace is not there.
        :param wake_slices: has the EndpointSlices of a Service looked at.
        """
        self._local = local
        self._remote = remote
        self._owner = owner
        self._nodes = nodes
        self._known = known
        self._recorder = recorder
        self._on_lost = on_lost
        self._wake_slices = wake_slices

    async def align(
        self, item: Item, space: Space, kind: Kind, local: Envelope, copy: Copy, remote: Envelope | None
    ) -> Result:
        """There is to be this copy; *remote* is what was seen in its place."""
        if problem := copies.too_large(copy):
            return self._refused(item, kind, local, problem)
        if remote is None:
            return await self._create(item, space, kind, local, copy)
        return await self._keep(item, space, kind, local, copy, remote)

    async def remove(
        self, item: Item, space: Space, kind: Kind, local: Envelope | None, remote: Envelope | None
    ) -> Result:
        """There is to be no copy."""
        if self._known.unwanted(item) and kind.resource is SERVICES:
            self._wake_slices(space, item.name)
        if remote is None or remote.metadata.deletionTimestamp:
            return done()
        if await self._holder(item, remote) is not Holder.OURS:
            return done()
        if local is None:
            if await self._exists(kind.resource, item.namespace, item.name):
                return requeue_after(_CACHE_LAG)
        elif kind.resource is ENDPOINT_SLICES and space.get_local(SERVICES.plural, service_of(local)) is None:
            service = service_of(local)
            if service and await self._exists(SERVICES, item.namespace, service):
                return requeue_after(_CACHE_LAG)
        await self._remote.delete(kind, remote)
        self._known.written.pop(item, None)
        return done()

    async def _create(self, item: Item, space: Space, kind: Kind, local: Envelope, copy: Copy) -> Result:
        if item in self._known.conflicts:
            found = await self._remote.look(kind, space.remote_namespace, copy.name)
            if found is not None:
                return await self._keep(item, space, kind, local, copy, found)
        now = asyncio.get_running_loop().time()
        if (again := self._known.lost.get(item.extension, now)) > now:
            return requeue_after((again - now) * random.uniform(1.0, 1.5))
        try:
            answer = await self._remote.create(kind, space.remote_namespace, copy)
        except AlreadyExists:
            found = await self._remote.look(kind, space.remote_namespace, copy.name)
            if found is None:
                return requeue_after(_LAG)
            return await self._keep(item, space, kind, local, copy, found)
        except ApiError as error:
            if error.has_no_namespace():
                return self._lost_namespace(item.extension)
            return self._failed(item, kind, local, error)
        self._known.lost.pop(item.extension, None)
        self._known.wrote(item, kind, copy, answer, space.get_remote(item.kind, copy.name))
        return done()

    def _lost_namespace(self, extension: Extension) -> Result:
        """The remote namespace is not there, or going: one is made, and nothing is sent until it may be there."""
        self._known.lost[extension] = asyncio.get_running_loop().time() + _NAMESPACE_AGAIN
        self._on_lost(extension)
        return requeue_after(_NAMESPACE_AGAIN)

    async def _keep(
        self, item: Item, space: Space, kind: Kind, local: Envelope, copy: Copy, remote: Envelope
    ) -> Result:
        """A copy is there: make it what it should be."""
        known = self._known
        if (holder := await self._holder(item, remote)) is not Holder.OURS:
            return self._left_alone(item, space, kind, local, remote, holder)
        known.conflicts.pop(item, None)
        if remote.metadata.deletionTimestamp:
            return done()  # when it is gone, it is made anew
        if copies.same_metadata(copy, remote) and known.same_content(item, kind, copy, remote):
            known.told.pop(item, None)
            return done()
        if kind.must_replace(copy.content, remote):
            await self._remote.delete(kind, remote)
            known.written.pop(item, None)
            return await self._create(item, space, kind, local, copy)
        try:
            answer = await self._remote.change(kind, space.remote_namespace, copy, remote)
        except (Conflict, NotFound):
            known.written.pop(item, None)
            return requeue_after(_LAG)  # it was changed meanwhile: the cache will show how
        except ApiError as error:
            return self._failed(item, kind, local, error)
        known.wrote(item, kind, copy, answer, space.get_remote(item.kind, copy.name))
        return done()

    # ------------------------------------------------------------------ whose it is

    async def _holder(self, item: Item, remote: Envelope) -> Holder:
        """Whose a remote object is. What a virtual node left behind that is no more is ours to look after."""
        found = copies.holder(remote, self._owner, item.namespace, item.name)
        return Holder.OURS if found is Holder.SIBLING and await self._is_left_behind(remote) else found

    async def _is_left_behind(self, remote: Envelope) -> bool:
        """Whether no virtual node of our cluster keeps a copy."""
        node = (remote.metadata.labels or {}).get(names.LABEL_NODE)
        if not node:
            return True
        return self._nodes.get(Key("", node)) is None and not await self._exists(NODES, None, node)

    def _left_alone(
        self, item: Item, space: Space, kind: Kind, local: Envelope, found: Envelope, holder: Holder
    ) -> Result:
        """Somebody else's is never touched; a sibling's is as good as ours."""
        conflicts = self._known.conflicts
        if holder is Holder.SIBLING:
            conflicts.pop(item, None)
            return done()  # when it goes, the cache says so
        what = f"{kind.resource.kind} {space.remote_namespace}/{found.key.name}"
        message = f"remote {what} exists and is not ours: it is left alone, and this one is not reflected"
        self._tell(item, kind, local, names.REFLECTION_CONFLICT, message)
        wait = conflicts.get(item, _CONFLICT_FIRST)
        if item not in conflicts and kind.resource is SERVICES:
            self._wake_slices(space, item.name)
        conflicts[item] = min(2 * wait, _CONFLICT_MOST)
        return requeue_after(wait)

    async def _exists(self, resource: Resource, namespace: str | None, name: str) -> bool:
        """Ask the local API server itself: a list from a lagging cache can miss what is there."""
        try:
            await self._local.request("GET", resource.path(namespace, name))
        except NotFound:
            return False
        return True

    # ------------------------------------------------------------------ what is said

    def _failed(self, item: Item, kind: Kind, local: Envelope, error: ApiError) -> Result:
        """What the remote cluster refuses for good is said, and tried again now and then; the rest is the queue's."""
        too_large = error.status == 413 or (isinstance(error, ServerError) and "too large" in error.message)
        if not (isinstance(error, Invalid | Forbidden) or error.status == 400 or too_large):
            raise error
        return self._refused(item, kind, local, f"the remote cluster refused its copy: {error.message}")

    def _refused(self, item: Item, kind: Kind, local: Envelope, message: str) -> Result:
        self._tell(item, kind, local, names.REFLECTION_FAILED, message)
        return requeue_after(_REFUSED_AGAIN)

    def _tell(self, item: Item, kind: Kind, local: Envelope, reason: str, message: str) -> None:
        if self._known.told.get(item) == message:
            return
        self._known.told[item] = message
        log.warning("%s is not reflected: %s", item, message)
        bare = msgspec.structs.replace(local, spec=b"", status=b"", extra=b"")
        self._recorder.record(bare, "Warning", reason, message, resource=kind.resource)
