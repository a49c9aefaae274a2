"""Takes away remote namespaces that Farlet made, when their local ones are gone and nothing lives in them.

Deleting a namespace deletes all that is in it, so everything speaks against it until it is proven: the local
namespace is asked for at the API server itself, and the remote one is looked into. A namespace that somebody else
made, or that was given by name, is never touched; neither is that of a local namespace that only lost its label.

Level-based: looked at are all namespaces of our origin at the start, and later that of each local one that goes.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from app import names
from app.kube.client import Client
from app.kube.errors import Conflict, Forbidden, NotFound
from app.kube.informers import Cache
from app.kube.objects import Envelope, Key, Object, decode_list
from app.kube.queue import Result, WorkQueue, done, requeue_after
from app.kube.resources import JOBS, NAMESPACES, PERSISTENT_VOLUME_CLAIMS, PODS, REPLICA_SETS
from app.namespaces.controller import NamespaceController
from app.namespaces.mapping import NamespaceMap, remote_name

log = logging.getLogger(__name__)

_CONTENT: Final = (PODS, REPLICA_SETS, JOBS, PERSISTENT_VOLUME_CLAIMS)
"""What must not be in a namespace that is deleted: what runs, and what holds data."""
_ALL: Final = ""
"""The key that stands for looking which namespaces there are."""
_OURS_GO: Final = 3.0
_OURS_STAY: Final = 120.0
_OTHERS_STAY: Final = 600.0
"""Seconds after which a namespace with something in it is looked at again: ours, which should be on its way out, and
each time later if it is not; somebody else's."""


@dataclass(frozen=True, slots=True)
class _Content:
    what: str
    ours: bool
    """Of this local cluster, whichever virtual node it belongs to."""


class NamespaceCleaner:
    """Deletes remote namespaces whose time is over."""

    def __init__(
        self,
        *,
        local: Client,
        remote: Client,
        local_namespaces: Cache,
        namespaces: NamespaceController,
        namespace_map: NamespaceMap,
    ) -> None:
        self.queue: WorkQueue[str] = WorkQueue(name="namespaces")
        self._local = local
        self._remote = remote
        self._local_namespaces = local_namespaces
        self._namespaces = namespaces
        self._map = namespace_map
        self._said: dict[str, str] = {}
        """What was last logged of a namespace that stays."""
        self._waits: dict[str, float] = {}
        """The next wait for a namespace with something of ours in it."""
        self._may_delete = True

    def on_local_namespace(self, key: Key, _old: Envelope | None, new: Envelope | None) -> None:
        if new is None:
            self.queue.add(remote_name(key.name, self._map.origin))

    async def run(self) -> None:
        """Work until cancelled; the cache of local namespaces is complete by now."""
        self.queue.add(_ALL)
        await self.queue.run(self.reconcile, 1)

    async def _look_for_all(self) -> None:
        """Namespaces whose local ones went while no Farlet looked."""
        params = {"labelSelector": f"{names.LABEL_ORIGIN}={self._map.origin}", "limit": "500"}
        try:
            while True:
                page = decode_list(await self._remote.request("GET", NAMESPACES.path(), params=params))
                for namespace in page.items:
                    self.queue.add(namespace.key.name)
                if not page.continue_token:
                    return
                params["continue"] = page.continue_token
        except Forbidden as error:
            log.info("remote namespaces are not looked for: %s", error.message)

    async def reconcile(self, name: str) -> Result:
        """Delete one remote namespace if it is ours, its local one is gone, and nothing is in it."""
        if name == _ALL:
            await self._look_for_all()
            return done()
        try:
            namespace = await self._remote.get(NAMESPACES.path(name=name))
        except (NotFound, Forbidden):
            self._forget(name)
            return done()
        local_name = self._made_for(namespace)
        if local_name is None or not self._may_delete or not self._is_gone(local_name):
            return done()
        # from here on no pod is sent there, so that what is found out stays true
        with self._namespaces.closed(name):
            if await self._exists(local_name):
                return done()
            if content := await self._content(name):
                return self._stays(name, content)
            await self._delete(namespace)
        return done()

    def _made_for(self, namespace: Object) -> str | None:
        """The local namespace that we made a remote one for; None if we did not, or if it is going already."""
        metadata = namespace["metadata"]
        labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
        local_name = annotations.get(names.ANNOTATION_LOCAL_NAMESPACE)
        if metadata.get("deletionTimestamp") or labels.get(names.LABEL_ORIGIN) != self._map.origin or not local_name:
            return None
        given = metadata["name"] in self._map.named.values()
        ours = metadata["name"] == remote_name(local_name, self._map.origin)
        return str(local_name) if ours and not given else None

    def _is_gone(self, local_name: str) -> bool:
        return self._local_namespaces.synced and self._local_namespaces.get(Key("", local_name)) is None

    async def _exists(self, local_name: str) -> bool:
        """Ask the API server itself: a cache can lag behind. Where it does not say, the namespace exists."""
        try:
            await self._local.get(NAMESPACES.path(name=local_name))
        except NotFound:
            return False
        except Forbidden:
            return True
        return True

    async def _content(self, name: str) -> _Content | None:
        """Something that lives in a namespace; None if nothing does."""
        for resource in _CONTENT:
            try:
                page = decode_list(await self._remote.request("GET", resource.path(name), params={"limit": "1"}))
            except Forbidden as error:
                return _Content(f"what is in it cannot be seen: {error.message}", ours=False)
            for item in page.items:
                ours = item.metadata.labels.get(names.LABEL_ORIGIN) == self._map.origin
                return _Content(f"{resource.kind} {item.key.name} is in it", ours)
        return None

    def _stays(self, name: str, content: _Content) -> Result:
        if content.ours:
            wait = self._waits.get(name, _OURS_GO)
            self._waits[name] = min(2 * wait, _OURS_STAY)
            return requeue_after(wait)
        if self._said.get(name) != content.what:
            log.info("remote namespace %s stays although its local one is gone: %s", name, content.what)
            self._said[name] = content.what
        return requeue_after(_OTHERS_STAY)

    async def _delete(self, namespace: Object) -> None:
        metadata = namespace["metadata"]
        try:
            await self._remote.delete(NAMESPACES.path(name=metadata["name"]), uid=metadata["uid"], missing_ok=True)
        except Conflict:
            return  # not the one that was looked at: its own change is looked at, if it is ours
        except Forbidden as error:
            self._may_delete = False
            log.info("remote namespaces stay when their local ones are gone: %s", error.message)
            return
        self._forget(metadata["name"])
        log.info("deleted remote namespace %s: its local one is gone, and nothing was in it", metadata["name"])

    def _forget(self, name: str) -> None:
        self._said.pop(name, None)
        self._waits.pop(name, None)
