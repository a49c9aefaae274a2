"""Keeps every local pod of the virtual node and its twin in step.

Level-based: a reconciliation is given a local pod's UID, looks at what both clusters hold under it (``known``), and
does the next thing: the twin is made (``offloader``), follows the local pod (``carrier``), tells how it is
(``status_writer``), or goes (``remover``). What to write is decided by the pure modules (``forge``, ``changes``,
``status``, ``deletion``); this one decides whose turn it is.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from typing import Final

from app.kube.client import Client
from app.kube.events import EventRecorder
from app.kube.informers import Cache
from app.kube.objects import Envelope, Key
from app.kube.queue import Result, WorkQueue, done, requeue_after
from app.namespaces.controller import NamespaceController
from app.node.reachability import Reach
from app.pods import deadline, status
from app.pods.addresses import IpMap
from app.pods.carrier import Carrier
from app.pods.forge import ForgeOptions
from app.pods.known import TWINS, Known, View, by_pod_uid
from app.pods.latency import Latency
from app.pods.news import is_news
from app.pods.offloader import Offloader
from app.pods.remover import Remover
from app.pods.status_writer import StatusWriter

_UNSEEN: Final = 10.0
"""Seconds between two looks at pods whose twins were made and not seen yet. Where a watch hung and all was listed
again, nothing tells of a twin that came and went meanwhile."""

_FINISH: Final = 5.0
"""Seconds that what is in flight has at the end. A pod that runs once and was about to be started would be lost."""


class PodController:
    """Offloads the pods of one virtual node."""

    def __init__(
        self,
        *,
        local: Client,
        remote: Client,
        local_pods: Cache,
        remote_pods: Cache,
        replica_sets: Cache,
        jobs: Cache,
        namespaces: NamespaceController,
        options: ForgeOptions,
        recorder: EventRecorder,
        may_write: Callable[[], bool],
        ip_map: IpMap | None = None,
        announce: bool = False,
    ) -> None:
        """*announce*: whether each pod that is offloaded gets an event that says so.

        That is one more write for each pod, and the annotation that its status brings tells as much.
        """
        self.queue: WorkQueue[str] = WorkQueue(name="pods")
        self.latency = Latency()
        self._local_pods = local_pods
        self._may_write = may_write
        self._ip_map = ip_map or IpMap()
        self._unreachable: Reach | None = None
        self._known = Known(local_pods=local_pods, remote_pods=remote_pods, replica_sets=replica_sets, jobs=jobs)
        self._statuses = StatusWriter(local, self.latency)
        self._carrier = Carrier(remote, self._known, options, recorder)
        self._offloader = Offloader(
            remote=remote,
            known=self._known,
            statuses=self._statuses,
            namespaces=namespaces,
            options=options,
            recorder=recorder,
            latency=self.latency,
            announce=announce,
        )
        self._remover = Remover(
            local=local,
            remote=remote,
            known=self._known,
            statuses=self._statuses,
            recorder=recorder,
            latency=self.latency,
            ip_map=self._ip_map,
        )

    # ------------------------------------------------------------------ what wakes a key

    def on_local_pod(self, _key: Key, old: Envelope | None, new: Envelope | None) -> None:
        envelope = new or old
        if envelope is None:
            return
        uid = envelope.metadata.uid
        if old is None and self._may_write():
            self.latency.seen(uid)
        if not self._known.is_echo(uid, new):
            self.queue.add(uid)

    def on_remote_object(self, _key: Key, old: Envelope | None, new: Envelope | None) -> None:
        envelope = new or old
        for uid in by_pod_uid(envelope) if envelope is not None else ():
            made = None
            if envelope is not None and envelope.kind in TWINS:
                made = self._known.shown(uid, envelope.kind, new)
                if old is not None and new is not None and not is_news(old, new):
                    continue
            elif new is not None and self._unreachable is None and self._known.waits_for_word(uid, new):
                continue
            elif self._may_write():
                self.latency.changed(uid)
            if made is None or new is None or made["metadata"]["resourceVersion"] != new.resource_version:
                self.queue.add(uid)

    def on_namespace(self, key: Key, _old: Envelope | None, new: Envelope | None) -> None:
        """A namespace that was mapped just now: its pods have been waiting."""
        if new is not None:
            for envelope in self._local_pods.list():
                if envelope.metadata.namespace == key.name:
                    self.queue.add(envelope.metadata.uid)

    def wake_waiting(self) -> None:
        """Namespaces were mapped, or their remote ones are there: look at the pods that have nothing there yet."""
        for envelope in self._local_pods.list():
            if not self._known.has_twin(uid := envelope.metadata.uid):
                self.queue.add(uid)

    def on_reach(self, reach: Reach | None) -> None:
        """The remote cluster went away (and pods are to say so), or is back (None)."""
        self._unreachable = reach
        for envelope in self._local_pods.list():
            self.queue.add(envelope.metadata.uid)

    async def run(self, workers: int) -> None:
        """Work until cancelled; the informers must be synced by now: nothing is decided on half a picture."""
        looking = asyncio.create_task(self._look_for_unseen())
        try:
            await self.queue.run(self.reconcile, workers, grace=_FINISH)
        finally:
            looking.cancel()

    async def _look_for_unseen(self) -> None:
        while True:
            await asyncio.sleep(_UNSEEN)
            for uid in self._known.unseen():
                self.queue.add(uid)

    # ------------------------------------------------------------------ one pod

    async def reconcile(self, uid: str) -> Result:
        """Do the next thing for one local pod."""
        if not self._may_write():
            return requeue_after(1.0)
        self._known.expect_no_echo(uid)  # what is decided now may rest on what was before that write: look again then
        self.latency.looked(uid)
        result = await self._next(self._known.view(uid))
        self.latency.settled(uid)
        return result

    async def _next(self, view: View) -> Result:
        if view.local is None:
            return await self._remover.orphan(view)
        if self._unreachable is not None and not status.is_terminal(view.local):
            desired = status.unreachable_status(view.local, self._unreachable.describe())
            await self._statuses.write(view.local, desired)
            return done()
        if view.local["metadata"].get("deletionTimestamp"):
            return await self._remover.remove(view)
        if status.is_terminal(view.local):
            return await self._remover.clean_up(view)
        left = deadline.seconds_left(view.local, datetime.datetime.now(datetime.UTC))
        if left == 0:
            return await self._remover.expire(view)
        if view.twin is not None:
            self.latency.stays(view.uid)
            await self._keep_in_step(view)
            return done() if left is None else requeue_after(left)
        return await self._offloader.offload(view.local)

    async def _keep_in_step(self, view: View) -> None:
        """Changes go out, the status comes back."""
        local, twin = view.local, view.twin
        assert local is not None
        assert twin is not None
        remote = status.choose(view.remote, twin)
        if remote is not None:
            await self._carrier.carry(local, remote, twin)
        desired = status.local_status(local, remote, twin, ip_map=self._ip_map)
        stored = await self._statuses.write(local, desired, remote)
        if stored is not None:
            self._known.wrote(local, stored)
