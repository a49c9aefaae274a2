"""Keeps NamespaceOffloading objects true: their finalizer, the label of their namespace, and what they say of
themselves. Namespaces and pods in the remote clusters are each ``farlet run``'s own concern.

The finalizer ends when every cluster has let go, when the virtual node of the ones that did not is gone, or when a
person says so (annotation ``farlet.dev/abandon=true``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from app import names
from app.kube.client import Client, PatchKind
from app.kube.errors import Conflict, NotFound
from app.kube.informers import Cache
from app.kube.objects import Envelope, Key, Object
from app.kube.queue import Result, WorkQueue, done, requeue_after
from app.kube.resources import NAMESPACE_OFFLOADINGS, NAMESPACES, NODES
from app.namespaces.offloading import Entry, Offloading, PodStrategy, entries
from app.operator.review import disabling_patch, enabling_patch
from app.operator.summary import awaited, condition, summary, timestamp

log = logging.getLogger(__name__)

_STRAY: Final = 20.0
"""Seconds after which a namespace that was labelled for an object that never came loses the label."""
_WAITING: Final = 5.0
_AT_ONCE: Final = 0.2
_MANAGER: Final = {"fieldManager": names.FIELD_MANAGER_OPERATOR}


class OffloadingController:
    """One reconciler for all namespaces; only the leader runs it."""

    def __init__(self, local: Client, *, namespaces: Cache, offloadings: Cache, nodes: Cache) -> None:
        self.queue: WorkQueue[str] = WorkQueue(name="offloadings")
        self._local = local
        self._namespaces = namespaces
        self._offloadings = offloadings
        self._nodes = nodes
        self._strays: dict[str, float] = {}

    def on_namespace(self, key: Key, _old: Envelope | None, _new: Envelope | None) -> None:
        self.queue.add(key.name)

    def on_offloading(self, key: Key, _old: Envelope | None, _new: Envelope | None) -> None:
        self.queue.add(key.namespace)

    def on_node(self, _key: Key, old: Envelope | None, new: Envelope | None) -> None:
        """Selectors look at labels; a node that is gone is waited for no longer."""
        if (old.metadata.labels if old else None) != (new.metadata.labels if new else None):
            for envelope in self._offloadings.list():
                self.queue.add(envelope.key.namespace)

    async def run(self) -> None:
        """Work until cancelled; the caches are complete by now."""
        for namespace in self._namespaces.list():
            self.queue.add(namespace.key.name)
        await self.queue.run(self.reconcile, 4)

    async def reconcile(self, namespace: str) -> Result:
        envelope = self._offloadings.get(Key(namespace, names.OFFLOADING))
        if envelope is None:
            return await self._without(namespace)
        self._strays.pop(namespace, None)
        content = envelope.object()
        offloading = Offloading.of(content)
        if offloading.deleting:
            return await self._end(content, offloading)
        if names.FINALIZER_OFFLOADING not in (content["metadata"].get("finalizers") or []):
            await self._set_finalizers(
                content, [*(content["metadata"].get("finalizers") or []), names.FINALIZER_OFFLOADING]
            )
            return done()  # the change comes back as an event
        known = self._namespaces.get(Key("", namespace))
        if known is not None:
            await self._label(known.object(), enabled=offloading.pods is not PodStrategy.LOCAL)
        dead = await self._dead(entries(content))
        await self._tell(content, offloading, dead)
        return done()

    async def _without(self, namespace: str) -> Result:
        """No object: a label that was put there for one goes, after a while, for it may just be on its way."""
        known = self._namespaces.get(Key("", namespace))
        if known is None or names.ANNOTATION_ENABLED_BY not in (known.metadata.annotations or {}):
            self._strays.pop(namespace, None)
            return done()
        since = self._strays.setdefault(namespace, time.monotonic())
        left = since + _STRAY - time.monotonic()
        if left > 0:
            return requeue_after(left)
        try:
            await self._local.get(NAMESPACE_OFFLOADINGS.path(namespace, names.OFFLOADING))
            return requeue_after(_WAITING)  # the cache lags behind
        except NotFound:
            if not await self._unlabel(namespace):
                return requeue_after(_AT_ONCE)
        self._strays.pop(namespace, None)
        return done()

    async def _label(self, namespace: Object, *, enabled: bool) -> bool:
        """Give a namespace the label, or take it back; False if it was changed meanwhile."""
        metadata = namespace["metadata"]
        if metadata.get("deletionTimestamp"):
            return True
        labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
        patch = enabling_patch(labels, annotations) if enabled else disabling_patch(labels, annotations)
        if patch is None:
            return True
        patch["metadata"]["resourceVersion"] = metadata["resourceVersion"]
        try:
            await self._local.patch(NAMESPACES.path(name=metadata["name"]), patch, PatchKind.MERGE, _MANAGER)
        except NotFound:
            return True
        except Conflict:
            return False  # its event brings us back
        return True

    async def _unlabel(self, namespace: str) -> bool:
        """Take the label back from the namespace as it is now: nobody comes back to what a cache did not show yet."""
        try:
            found = await self._local.get(NAMESPACES.path(name=namespace))
        except NotFound:
            return True
        return await self._label(found, enabled=False)

    async def _dead(self, every: list[Entry]) -> set[str]:
        """Virtual nodes that have something to say and are gone, by the word of the API server."""
        missing = sorted({entry.node for entry in every if self._nodes.get(Key("", entry.node)) is None})
        gone = await asyncio.gather(*(self._is_gone(node) for node in missing))
        return {node for node, is_gone in zip(missing, gone, strict=True) if is_gone}

    async def _is_gone(self, node: str) -> bool:
        try:
            await self._local.get(NODES.path(name=node))
        except NotFound:
            return True
        return False

    async def _end(self, content: Object, offloading: Offloading) -> Result:
        metadata = content["metadata"]
        finalizers = metadata.get("finalizers") or []
        if names.FINALIZER_OFFLOADING not in finalizers:
            return done()
        every = entries(content)
        dead = await self._dead(every)
        waiting = [entry for entry in awaited(every) if entry.node not in dead]
        abandoned = (metadata.get("annotations") or {}).get(names.ANNOTATION_ABANDON) == "true"
        if waiting and not abandoned:
            await self._tell(content, offloading, dead)
            return requeue_after(_WAITING)
        if not await self._unlabel(offloading.namespace):
            return requeue_after(_AT_ONCE)  # it must not outlive the object
        if waiting:
            nodes = ", ".join(entry.node for entry in waiting)
            log.warning(
                "namespace %s: let go although %s did not finish, as its annotation says", offloading.namespace, nodes
            )
        await self._set_finalizers(content, [name for name in finalizers if name != names.FINALIZER_OFFLOADING])
        return done()

    async def _set_finalizers(self, content: Object, finalizers: list[str]) -> None:
        metadata = content["metadata"]
        body: Object = {"metadata": {"resourceVersion": metadata["resourceVersion"], "finalizers": finalizers}}
        path = NAMESPACE_OFFLOADINGS.path(metadata["namespace"], metadata["name"])
        try:
            await self._local.patch(path, body, PatchKind.MERGE, _MANAGER)
        except (Conflict, NotFound):
            return

    async def _tell(self, content: Object, offloading: Offloading, dead: set[str]) -> None:
        """Write the condition if it differs, and take out the words of nodes that are gone."""
        status = content.get("status") or {}
        every = [entry for entry in entries(content) if entry.node not in dead]
        nodes = [(node.key.name, node.metadata.labels or {}) for node in self._nodes.list()]
        selected = [name for name, labels in nodes if offloading.selects(name, labels)]
        before = next((c for c in status.get("conditions") or [] if c.get("type") == "Ready"), None)
        ready, reason, message = summary(selected, every, deleting=offloading.deleting)
        wanted = condition(ready, reason, message, offloading.generation, before, timestamp())
        body: Object = {"metadata": {"resourceVersion": content["metadata"]["resourceVersion"]}, "status": {}}
        if wanted != before or status.get("observedGeneration") != offloading.generation:
            others = [c for c in status.get("conditions") or [] if c.get("type") != "Ready"]
            body["status"] |= {"conditions": [*others, wanted], "observedGeneration": offloading.generation}
        if dead:
            body["status"]["clusters"] = [c for c in status.get("clusters") or [] if c.get("node") not in dead]
        if not body["status"]:
            return
        path = NAMESPACE_OFFLOADINGS.path(offloading.namespace, names.OFFLOADING, "status")
        try:
            await self._local.patch(path, body, PatchKind.MERGE, _MANAGER)
        except (Conflict, NotFound):
            return
