"""Which namespaces are followed: opened as they are extended, closed and cleaned when that is certainly over."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from app import names
from app.kube.client import Client
from app.kube.errors import Forbidden, KubeError, NotFound
from app.kube.events import EventRecorder
from app.kube.informer import Informer
from app.kube.objects import Envelope
from app.kube.queue import Result, WorkQueue, done, requeue_after
from app.kube.resources import NAMESPACES
from app.reflection.copies import Owner
from app.reflection.extensions import Extension, Extensions
from app.reflection.kind import Kind
from app.reflection.known import Known
from app.reflection.leftovers import copies_of
from app.reflection.remote import RemoteCopies
from app.reflection.space import Past, Space

log = logging.getLogger(__name__)

MAX_SPACES: Final = 200
"""Local namespaces that are followed, each with two watches for a kind."""
_LEFT_AGAIN: Final = 2.0
_TURNED_AWAY_AGAIN: Final = 60.0
_IN_USE_AGAIN: Final = 5.0
_FLICKER: Final = 5.0
"""Seconds for which a namespace must not have been extended before its copies go."""
_STRAYS_AGAIN: Final = 10.0


class Spaces:
    """The extended namespaces of one virtual node."""

    def __init__(
        self,
        *,
        local: Client,
        remote: Client,
        owner: Owner,
        kinds: Sequence[Kind],
        extensions: Extensions,
        in_use: Callable[[str], bool],
        recorder: EventRecorder,
        may_write: Callable[[], bool],
        known: Known,
        copies: RemoteCopies,
        make: Callable[[Extension], Space],
        remote_namespaces: Sequence[str] | None,
        most: int,
    ) -> None:
        """*make* makes the space of an extension; the rest is as for the :class:`Reflector`."""
        self.queue: WorkQueue[Extension] = WorkQueue(name="reflection-namespaces")
        self._local = local
        self._remote = remote
        self._owner = owner
        self._kinds = kinds
        self._extensions = extensions
        self._in_use = in_use
        self._recorder = recorder
        self._may_write = may_write
        self._known = known
        self._copies = copies
        self._make = make
        self._remote_namespaces = remote_namespaces
        self._most = most
        self._spaces: dict[Extension, Space] = {}
        """A namespace whose remote one is another from now on has two, until the last pod has left the old one."""
        self._tasks: dict[Extension, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._ending: dict[Extension, float] = {}
        """Extensions that seem to have ended: from when on that counts, by the loop's clock."""
        self._turned_away: set[str] = set()
        """Local namespaces that are too many, and were told so."""
        self._past: dict[tuple[str, bool], Past] = {}
        """What informers counted that are no more, by kind and whether they were remote ones."""
        extensions.listen(self._on_extensions)

    def __iter__(self) -> Iterator[Space]:
        return iter(self._spaces.values())

    def get(self, extension: Extension) -> Space | None:
        return self._spaces.get(extension)

    def keeps(self, remote_namespace: str) -> bool:
        """Whether copies in a remote namespace are kept like their local objects, or on their way out."""
        return any(each.remote_namespace == remote_namespace for each in (*self._spaces, *self._ending))

    def lost(self, extension: Extension) -> None:
        """Take note that a remote namespace was not there when something was written to it."""
        if self._is_extended(extension):
            self._extensions.lost(extension.namespace)

    # ------------------------------------------------------------------ for figures

    def informers(self, *, remote: bool) -> list[Informer]:
        """Those of one side; other threads may ask."""
        past = [counted for (_, there), counted in list(self._past.items()) if there == remote]
        pairs = [pair for space in list(self._spaces.values()) for pair in space.pairs.values()]
        return [*past, *(pair.remote if remote else pair.local for pair in pairs)]

    def _forget(self, extension: Extension) -> None:
        """Follow it no more; what was counted stays counted."""
        space = self._spaces.pop(extension)
        for name, pair in space.pairs.items():
            for remote, informer in ((False, pair.local), (True, pair.remote)):
                client = self._remote if remote else self._local
                self._past.setdefault((name, remote), Past(client, informer.resource)).add(informer.counts)

    # ------------------------------------------------------------------ running

    def start(self, group: asyncio.TaskGroup) -> None:
        """Work until the group ends."""
        self._group = group
        self._on_extensions()
        group.create_task(self.queue.run(self.reconcile, 4))
        group.create_task(self._look_for_strays())

    def stopped(self) -> None:
        """The group has ended."""
        self._group = None
        for extension in list(self._spaces):
            self._forget(extension)
        self._tasks.clear()

    def _on_extensions(self) -> None:
        if self._group is None:
            return  # all are looked at when it runs
        for extension in self._spaces:
            self.queue.add(extension)
        for namespace, remote in self._extensions.current().items():
            self.queue.add(Extension(namespace, remote))

    # ------------------------------------------------------------------ one namespace

    async def reconcile(self, extension: Extension) -> Result:
        """Follow a namespace that is extended; clean up after one that is not."""
        namespace, remote_namespace = extension
        space = self._spaces.get(extension)
        if self._is_extended(extension):
            self._ending.pop(extension, None)
            return await self._open(extension) if space is None else done()
        self._turned_away.discard(namespace)
        if not self._may_write():
            return requeue_after(1.0)
        now = asyncio.get_running_loop().time()
        if (left := self._ending.setdefault(extension, now + _FLICKER) - now) > 0:
            return requeue_after(left)
        if self._in_use(remote_namespace) or not await self._extensions.has_ended(namespace, remote_namespace):
            if space is None and self._has_room(namespace) and self._extensions.runs_in(namespace, remote_namespace):
                await self._open(extension)  # a Farlet before us followed it, and the pods that stayed there need it
            return requeue_after(_IN_USE_AGAIN)
        if space is not None:
            await self._close(space)
        found = await self._clean(extension)
        if found:
            log.info("namespace %s is no longer extended to %s: %d copies are removed", *extension, found)
        if found or space is not None:
            return requeue_after(_LEFT_AGAIN)  # what was on its way when it was closed has arrived by then
        self._ending.pop(extension, None)
        return done()

    def _is_extended(self, extension: Extension) -> bool:
        return self._extensions.current().get(extension.namespace) == extension.remote_namespace

    def _has_room(self, namespace: str) -> bool:
        followed = {each.namespace for each in self._spaces}
        return namespace in followed or len(followed) < self._most

    async def _open(self, extension: Extension) -> Result:
        if not self._has_room(extension.namespace):
            await self._turn_away(extension.namespace)
            return requeue_after(_TURNED_AWAY_AGAIN)
        self._turned_away.discard(extension.namespace)
        if self._group is None:
            return done()
        space = self._spaces[extension] = self._make(extension)
        self._tasks[extension] = self._group.create_task(space.run(), name=f"reflection {extension}")
        return done()

    async def _turn_away(self, namespace: str) -> None:
        if namespace in self._turned_away:
            return
        message = f"what is in this namespace is not reflected: {self._most} others are, which is the most"
        try:
            about = await self._local.get(NAMESPACES.path(name=namespace))
        except (Forbidden, NotFound) as error:
            log.info("namespace %s cannot be told: %s", namespace, error.message)
        else:
            self._recorder.record(about, "Warning", names.REFLECTION_FAILED, message)
        self._turned_away.add(namespace)
        log.error("namespace %s: %s", namespace, message)

    async def _close(self, space: Space) -> None:
        self._forget(space.extension)
        task = self._tasks.pop(space.extension)
        task.cancel()
        await asyncio.wait((task,))
        self._known.forget(space.extension)

    async def _clean(self, extension: Extension) -> int:
        """Remove what we put into a remote namespace for a local one; returns how much there was."""
        found = 0
        for kind in self._kinds:
            try:
                place = extension.remote_namespace
                items = [item async for item in copies_of(self._remote, self._owner, kind.resource, place)]
            except (Forbidden, NotFound):
                continue
            for envelope in items:
                # an answer may have taken as long as the link was cut, and what was true then need not be now
                if self._is_extended(extension) or self._in_use(extension.remote_namespace):
                    return found
                if _stands_for(envelope, kind) == extension.namespace:
                    found += 1
                    await self._copies.delete(kind, envelope)
        return found

    # ------------------------------------------------------------------ what a Farlet before us left

    async def _look_for_strays(self) -> None:
        """Copies in namespaces that ceased to be extended while no Farlet looked, or that others took the place of."""
        places: Sequence[str | None] = [None] if self._remote_namespaces is None else list(self._remote_namespaces)
        for kind in self._kinds:
            for place in places:
                await self._look_for_strays_in(kind, place)

    async def _look_for_strays_in(self, kind: Kind, place: str | None) -> None:
        while True:
            try:
                async for envelope in copies_of(self._remote, self._owner, kind.resource, place):
                    if namespace := _stands_for(envelope, kind):
                        self.queue.add(Extension(namespace, envelope.key.namespace))
            except (Forbidden, NotFound) as error:
                log.info("leftover copies are not looked for: %s", error.message)
                return
            except KubeError:
                await asyncio.sleep(_STRAYS_AGAIN * random.uniform(1.0, 1.5))
            else:
                return


def _stands_for(remote: Envelope, kind: Kind) -> str | None:
    """The local namespace that a copy is of; None if it is not where, or called what, we would have made it."""
    annotations = remote.metadata.annotations or {}
    name = annotations.get(names.ANNOTATION_LOCAL_NAME)
    if name is None or kind.remote_name(name) != remote.key.name:
        return None
    return annotations.get(names.ANNOTATION_LOCAL_NAMESPACE)
