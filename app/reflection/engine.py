"""The engine of reflection: keeps every remote copy like its local object, one object at a time.

Level-based: a reconciliation is given the name of a local object, looks at what both clusters hold of it, and does
the next thing. What a copy should be is decided by the modules of the kinds, which namespaces are followed by
``spaces``; ``copier`` makes one copy what it should be. A copy that is so costs no write.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from app import names
from app.kube.client import Client
from app.kube.events import EventRecorder
from app.kube.informer import Informer, Timing
from app.kube.objects import Envelope, Key
from app.kube.queue import Result, WorkQueue, done, requeue_after
from app.kube.resources import ENDPOINT_SLICES, NODES, SERVICES
from app.reflection import copies
from app.reflection.copier import Copier
from app.reflection.copies import Owner
from app.reflection.endpointslices import service_of
from app.reflection.extensions import Extension, Extensions
from app.reflection.kind import Around, Kind
from app.reflection.known import Item, Known
from app.reflection.remote import RemoteCopies
from app.reflection.space import BY_SERVICE, Space
from app.reflection.spaces import MAX_SPACES, Spaces

_FINISH: Final = 5.0


class Reflector:
    """Reflects the objects of all extended namespaces of one virtual node."""

    def __init__(
        self,
        *,
        local: Client,
        remote: Client,
        owner: Owner,
        kinds: Sequence[Kind],
        remote_cluster: str,
        extensions: Extensions,
        in_use: Callable[[str], bool],
        recorder: EventRecorder,
        may_write: Callable[[], bool],
        timing: Timing,
        remote_namespaces: Sequence[str] | None = None,
        workers: int = 8,
        most: int = MAX_SPACES,
    ) -> None:
        """*in_use* tells whether pods of ours are in a remote namespace: while they are, their configuration stays.

        *remote_namespaces*: where rights are confined to these. *most* namespaces are followed.
        """
        self.queue: WorkQueue[Item] = WorkQueue(name="reflection", on_room=self._add_all)
        self._local = local
        self._remote = remote
        self._owner = owner
        self._kinds = {kind.resource.plural: kind for kind in kinds}
        self._may_write = may_write
        self._timing = timing
        self._workers = workers
        self._nodes = Informer(
            local,
            NODES,
            label_selector=f"{names.LABEL_REMOTE_CLUSTER}={remote_cluster}",
            on_change=self._on_node,
            transform=lambda node: msgspec.structs.replace(node, spec=b"", status=b""),
            timing=timing,
        )
        self._known = Known()
        remote_copies = RemoteCopies(remote)
        self._spaces = Spaces(
            local=local,
            remote=remote,
            owner=owner,
            kinds=kinds,
            extensions=extensions,
            in_use=in_use,
            recorder=recorder,
            may_write=may_write,
            known=self._known,
            copies=remote_copies,
            make=self._space,
            remote_namespaces=remote_namespaces,
            most=most,
        )
        self._copier = Copier(
            local=local,
            remote=remote_copies,
            owner=owner,
            nodes=self._nodes,
            known=self._known,
            recorder=recorder,
            on_lost=self._spaces.lost,
            wake_slices=self._add_slices,
        )
        self.spaces_queue: WorkQueue[Extension] = self._spaces.queue
        self.writes: Counter[tuple[str, str]] = remote_copies.writes
        """By kind and verb."""

    def keeps(self, remote_namespace: str) -> bool:
        """Whether copies in a remote namespace are kept like their local objects, or on their way out."""
        return self._spaces.keeps(remote_namespace)

    def informers(self, *, remote: bool) -> list[Informer]:
        """All informers of one side; other threads may ask."""
        return [*([] if remote else [self._nodes]), *self._spaces.informers(remote=remote)]

    async def run(self) -> None:
        """Work until cancelled."""
        if not self._kinds:
            return
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._nodes.run())
                await self._nodes.wait_synced()
                self._spaces.start(group)
                group.create_task(self.queue.run(self.reconcile, self._workers, grace=_FINISH))
        finally:
            self._spaces.stopped()
            self._known.written.clear()

    def _space(self, extension: Extension) -> Space:
        return Space(
            extension,
            list(self._kinds.values()),
            local=self._local,
            remote=self._remote,
            timing=self._timing,
            on_local=self._on_local,
            on_remote=self._on_remote,
            on_synced=lambda space, kind: self._add_kind(space, kind.resource.plural),
        )

    # ------------------------------------------------------------------ what wakes a key

    def on_reachable(self) -> None:
        """The remote cluster is back: what waits for a retry need not wait on."""
        self._add_all()

    def _on_node(self, _key: Key, _old: Envelope | None, new: Envelope | None) -> None:
        """Slices leave out what runs on nodes of the remote cluster; copies of one that is gone are ours to keep."""
        self._add_all(ENDPOINT_SLICES.plural if new is not None else None)

    def _on_local(self, space: Space, kind: Kind, key: Key, _old: Envelope | None, _new: Envelope | None) -> None:
        self.queue.add(Item(kind.resource.plural, space.extension, key.name))
        if kind.resource is SERVICES:
            self._add_slices(space, key.name)

    def _on_remote(self, space: Space, kind: Kind, key: Key, old: Envelope | None, new: Envelope | None) -> None:
        for name in {copies.local_name(envelope) for envelope in (old, new) if envelope is not None} - {None}:
            item = Item(kind.resource.plural, space.extension, str(name))
            self._known.written.pop(item, None)  # from here on the cache knows better
            self.queue.add(item)
        if kind.resource is SERVICES:
            self._add_slices(space, key.name)

    def _add_slices(self, space: Space, service: str) -> None:
        pair = space.pairs.get(ENDPOINT_SLICES.plural)
        for envelope in pair.local.by_index(BY_SERVICE, service) if pair is not None else ():
            self.queue.add(Item(ENDPOINT_SLICES.plural, space.extension, envelope.key.name))

    def _add_all(self, kind: str | None = None) -> None:
        for space in self._spaces:
            for name in self._kinds if kind is None else (kind,):
                self._add_kind(space, name)

    def _add_kind(self, space: Space, kind: str) -> None:
        pair = space.pairs.get(kind)
        if pair is None:
            return
        for envelope in pair.local.list():
            self.queue.add(Item(kind, space.extension, envelope.key.name))
        for envelope in pair.remote.list():
            if name := copies.local_name(envelope):
                self.queue.add(Item(kind, space.extension, name))

    # ------------------------------------------------------------------ one object

    async def reconcile(self, item: Item) -> Result:
        """Do the next thing for one object."""
        space, kind = self._spaces.get(item.extension), self._kinds[item.kind]
        if space is None or not self._all_known(space, item.kind):
            return done()  # looked at when everything is known
        if not self._may_write():
            return requeue_after(1.0)
        local = space.get_local(item.kind, item.name)
        remote = self._known.written.get(item) or space.get_remote(item.kind, kind.remote_name(item.name))
        copy = None
        if local is not None:
            copy = kind.forge(local, self._around(space, local))
            if item.kind == ENDPOINT_SLICES.plural and copy is not None:
                foreign = Item(SERVICES.plural, item.extension, service_of(local)) in self._known.conflicts
                if foreign:
                    copy = None  # it would lead somebody else's traffic to our pods
                elif space.get_remote(SERVICES.plural, service_of(local)) is None:
                    return done()  # its Service comes first
        if copy is None or local is None:
            return await self._copier.remove(item, space, kind, local, remote)
        return await self._copier.align(item, space, kind, local, copy, remote)

    def _all_known(self, space: Space, kind: str) -> bool:
        if kind == ENDPOINT_SLICES.plural and not space.synced(SERVICES.plural):
            return False
        return space.synced(kind)

    def _around(self, space: Space, local: Envelope) -> Around:
        service = service_of(local)
        if not service or SERVICES.plural not in space.pairs:
            return Around()
        inside = frozenset({self._owner.node, *(node.key.name for node in self._nodes.list())})
        return Around(space.get_local(SERVICES.plural, service), inside)
