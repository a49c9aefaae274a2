"""Takes away what runs for local pods that are to go, are over, or are not there (any more).

What to delete, and with which grace, is decided by ``deletion``. A local pod goes last, when nothing runs for it.
"""

from __future__ import annotations

import logging

from app import names
from app.kube.client import Client
from app.kube.errors import Conflict, NotFound
from app.kube.events import EventRecorder
from app.kube.queue import Result, done, requeue_after
from app.kube.resources import PODS
from app.pods import deadline, forge, status
from app.pods.addresses import IpMap
from app.pods.deletion import Removal, ended, plan_clean_up, plan_removal
from app.pods.known import TWINS, Known, View
from app.pods.latency import Latency
from app.pods.status_writer import StatusWriter

log = logging.getLogger(__name__)


class Remover:
    """Removes the twins, remote pods and, at last, local pods of one virtual node."""

    def __init__(
        self,
        *,
        local: Client,
        remote: Client,
        known: Known,
        statuses: StatusWriter,
        recorder: EventRecorder,
        latency: Latency,
        ip_map: IpMap,
    ) -> None:
        self._local = local
        self._remote = remote
        self._known = known
        self._statuses = statuses
        self._recorder = recorder
        self._latency = latency
        self._ip_map = ip_map

    async def remove(self, view: View) -> Result:
        """The local pod is to go: first what runs remotely, then the local object."""
        local = view.local
        assert local is not None
        if view.uid in self._known.deleted:
            return done()  # the cache has not heard yet
        removal = plan_removal(local["metadata"].get("deletionGracePeriodSeconds"), view.twins, view.remote)
        await self._execute(removal)
        if removal.finished:
            if not status.is_terminal(local):
                await self._statuses.write(local, status.ended_status(local))
            await self._local.delete(
                PODS.path(local["metadata"]["namespace"], local["metadata"]["name"]),
                uid=view.uid,
                grace=0,
                missing_ok=True,
            )
            self._forget(view.uid)
            self._known.deleted.add(view.uid)
            return done()
        remote = status.choose(view.remote, view.twin)
        if remote is not None:
            desired = status.leaving_status(local, remote, view.twin, ip_map=self._ip_map)
            await self._statuses.write(local, desired, remote)
        return done()

    async def expire(self, view: View) -> Result:
        """The pod's time is over: say so, end what runs remotely, and when nothing does the pod has Failed."""
        local = view.local
        assert local is not None
        remote = status.choose(view.remote, view.twin)
        over = not view.twins and all(map(ended, view.remote))
        desired = status.expired_status(local, remote, over=over, ip_map=self._ip_map)
        if (local.get("status") or {}).get("reason") != names.DEADLINE_EXCEEDED:
            self._recorder.record(local, "Warning", names.DEADLINE_EXCEEDED, deadline.MESSAGE)
        await self._statuses.write(local, desired, remote)
        await self._execute(plan_removal(None, view.twins, view.remote))
        return done()

    async def clean_up(self, view: View) -> Result:
        """The pod is over: nothing may go on running for it."""
        assert view.local is not None
        self._latency.forget(view.uid)
        runs_once = forge.twin_resource(view.local) == "Job"
        await self._execute(plan_clean_up(view.twins, view.remote, runs_once=runs_once))
        return done()

    async def orphan(self, view: View) -> Result:
        """Something of ours stands for a local pod that the cache does not have."""
        if not view.twins and not view.remote:
            self._forget(view.uid)
            return done()
        removal = plan_removal(None, view.twins, view.remote)
        if not removal.deletions:
            return done()  # all of it is going already
        if await self._exists(view):
            return requeue_after(5.0)  # the cache lags behind
        await self._execute(removal)
        return done()

    async def _exists(self, view: View) -> bool:
        """Ask the local API server itself: a list from a lagging cache can miss a live pod."""
        annotations = (view.twins or view.remote)[0]["metadata"].get("annotations", {})
        namespace = annotations.get(names.ANNOTATION_LOCAL_NAMESPACE)
        name = annotations.get(names.ANNOTATION_LOCAL_NAME)
        if not namespace or not name:
            return True  # not what we write: leave it alone
        try:
            pod = await self._local.get(PODS.path(namespace, name))
        except NotFound:
            return False
        return bool(pod["metadata"]["uid"] == view.uid)

    async def _execute(self, removal: Removal) -> None:
        for deletion in removal.deletions:
            resource = TWINS.get(deletion.kind, PODS)
            try:
                await self._remote.delete(
                    resource.path(deletion.namespace, deletion.name),
                    uid=deletion.uid,
                    grace=deletion.grace,
                    propagation=deletion.propagation,
                    missing_ok=True,
                )
            except Conflict:
                log.info("%s %s/%s is not the one we knew", deletion.kind, deletion.namespace, deletion.name)

    def _forget(self, uid: str) -> None:
        self._latency.forget(uid)
        self._known.forget(uid)
