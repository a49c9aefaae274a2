"""Keeps every local pod of the virtual node and its twin in step.

Level-based: a reconciliation is given a local pod's UID, looks at what both clusters hold under it, and does the
next thing. What to write is decided by the pure modules (``forge``, ``changes``, ``status``); this one only moves
objects.
"""

from __future__ import annotations

import datetime
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from app import names
from app.kube.client import Client, PatchKind
from app.kube.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound
from app.kube.events import EventRecorder
from app.kube.informers import Cache
from app.kube.objects import Envelope, Key, Object
from app.kube.queue import Result, WorkQueue, done, requeue_after
from app.kube.resources import JOBS, PODS, REPLICA_SETS, Resource
from app.namespaces.controller import NamespaceController, NotMapped
from app.node.reachability import Reach
from app.pods import deadline, forge, status
from app.pods.addresses import IpMap
from app.pods.changes import Step, Target, is_from_template, live_changes
from app.pods.deletion import Removal, ended, plan_clean_up, plan_removal
from app.pods.forge import WRITTEN_BACK
from app.pods.news import is_news
from app.pods.patch import Paths, dropped_fields
from app.pods.policy import daemon_set, losses, refusal

log = logging.getLogger(__name__)

BY_UID, BY_POD_UID = "uid", "pod-uid"
_TWINS: dict[str, Resource] = {"ReplicaSet": REPLICA_SETS, "Job": JOBS}
_REFUSED_AGAIN = 60.0
"""Seconds after which a pod that could not be offloaded is looked at again, besides when something changes."""
_DAEMON_SETS = 1024
"""DaemonSets that are remembered to have been told that their pods stay."""

_FINISH = 5.0
"""Seconds that what is in flight has at the end. A pod that runs once and was about to be started would be lost."""


def by_uid(envelope: Envelope) -> list[str]:
    """Index of local pods."""
    return [envelope.metadata.uid]


def by_pod_uid(envelope: Envelope) -> list[str]:
    """Index of everything of ours in the remote cluster: the local pod that it stands for."""
    uid = (envelope.metadata.labels or {}).get(names.LABEL_POD_UID)
    return [uid] if uid else []


@dataclass(frozen=True, slots=True)
class View:
    """What both clusters hold of one local pod."""

    uid: str
    local: Object | None
    twins: list[Object]
    remote: list[Object]

    @property
    def twin(self) -> Object | None:
        """The twin; of several (a crash between two writes) the oldest."""
        return min(self.twins, key=lambda twin: twin["metadata"]["creationTimestamp"]) if self.twins else None


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
        options: forge.ForgeOptions,
        recorder: EventRecorder,
        may_write: Callable[[], bool],
        ip_map: IpMap | None = None,
        announce: bool = False,
    ) -> None:
        """*announce*: whether each pod that is offloaded gets an event that says so.

        That is one more write for each pod, and the annotation that its status brings tells as much.
        """
        self.queue: WorkQueue[str] = WorkQueue(name="pods")
        self._local = local
        self._remote = remote
        self._local_pods = local_pods
        self._remote_pods = remote_pods
        self._twins = {"ReplicaSet": replica_sets, "Job": jobs}
        self._namespaces = namespaces
        self._options = options
        self._recorder = recorder
        self._may_write = may_write
        self._ip_map = ip_map or IpMap()
        self._announce = announce
        self._made: dict[str, Object] = {}
        """Twins that were made and that the informers have not shown yet."""
        self._starting: set[str] = set()
        """Pods that run once, marked by this process, of whose twin it is not known yet that it was made."""
        self._carried: dict[str, tuple[int, str]] = {}
        """Local pods whose changes have been carried over: UID -> a hash of what it was, and to which remote pod.

        None yet (empty) if the twin was forged from it just now.
        """
        self._daemon_sets: OrderedDict[str, None] = OrderedDict()
        """UIDs of DaemonSets that were told that their pods stay, the oldest first."""
        self._deleted: set[str] = set()
        """Local pods that were deleted at last and that the informer still shows."""
        self._unreachable: Reach | None = None
        self._unknown: Paths = frozenset()
        """Fields of a status that the local API server does not keep: a remote one may be newer."""

    # ------------------------------------------------------------------ what wakes a key

    def on_local_pod(self, _key: Key, old: Envelope | None, new: Envelope | None) -> None:
        envelope = new or old
        if envelope is not None:
            self.queue.add(envelope.metadata.uid)

    def on_remote_object(self, _key: Key, old: Envelope | None, new: Envelope | None) -> None:
        envelope = new or old
        for uid in by_pod_uid(envelope) if envelope is not None else ():
            made = None
            if envelope is not None and envelope.kind in _TWINS:
                made = self._made.pop(uid, None)  # from here on the cache knows better, also that it is gone again
                if old is not None and new is not None and not is_news(old, new):
                    continue
            if made is None or new is None or made["metadata"]["resourceVersion"] != new.resource_version:
                self.queue.add(uid)

    def on_namespace(self, key: Key, _old: Envelope | None, new: Envelope | None) -> None:
        """A namespace that was mapped just now: its pods have been waiting."""
        if new is not None:
            for envelope in self._local_pods.list():
                if envelope.metadata.namespace == key.name:
                    self.queue.add(envelope.metadata.uid)

    def on_reach(self, reach: Reach | None) -> None:
        """The remote cluster went away (and pods are to say so), or is back (None)."""
        self._unreachable = reach
        for envelope in self._local_pods.list():
            self.queue.add(envelope.metadata.uid)

    async def run(self, workers: int) -> None:
        """Work until cancelled; the informers must be synced by now: nothing is decided on half a picture."""
        await self.queue.run(self.reconcile, workers, grace=_FINISH)

    # ------------------------------------------------------------------ one pod

    async def reconcile(self, uid: str) -> Result:
        """Do the next thing for one local pod."""
        if not self._may_write():
            return requeue_after(1.0)
        view = self._view(uid)
        if view.local is None:
            return await self._orphan(view)
        if self._unreachable is not None and not status.is_terminal(view.local):
            desired = status.unreachable_status(view.local, self._unreachable.describe())
            await self._write_status(view.local, desired)
            return done()
        if view.local["metadata"].get("deletionTimestamp"):
            return await self._remove(view)
        if status.is_terminal(view.local):
            return await self._clean_up(view)
        left = deadline.seconds_left(view.local, datetime.datetime.now(datetime.UTC))
        if left == 0:
            return await self._expire(view)
        if view.twin is not None:
            await self._keep_in_step(view)
            return done() if left is None else requeue_after(left)
        if reason := refusal(view.local, self._options):
            await self._stays(view.local, names.NOT_OFFLOADED, reason)
            return done()  # only a change of the pod, or of the options, could make a difference
        return await self._offload(view)

    def _view(self, uid: str) -> View:
        twins = [
            envelope.object() | {"apiVersion": _TWINS[kind].api_version, "kind": kind}
            for kind, informer in self._twins.items()
            for envelope in informer.by_index(BY_POD_UID, uid)
        ]
        if twins:
            self._made.pop(uid, None)
        elif uid in self._made:
            twins = [self._made[uid]]
        local = self._local_pods.by_index(BY_UID, uid)
        return View(
            uid=uid,
            local=local[0].object() if local else None,
            twins=twins,
            remote=[envelope.object() for envelope in self._remote_pods.by_index(BY_POD_UID, uid)],
        )

    # ------------------------------------------------------------------ out

    async def _offload(self, view: View) -> Result:
        local = view.local
        assert local is not None
        kind = forge.twin_resource(local)
        annotations = local["metadata"].get("annotations", {})
        if kind == "Job" and names.ANNOTATION_STARTED in annotations and view.uid not in self._starting:
            # it was there once: whatever it did must not be done again behind the user's back
            message = "the twin of this pod was deleted in the remote cluster; a pod that runs once is not run again"
            await self._write_status(local, status.failed_status(local, names.REMOTE_TWIN_LOST, message))
            self._recorder.record(local, "Warning", names.REMOTE_TWIN_LOST, message)
            return done()
        try:
            namespace = await self._namespaces.resolve(local["metadata"]["namespace"])
        except NotMapped as error:
            await self._stays(local, names.NOT_OFFLOADED, str(error))
            return requeue_after(error.again or _REFUSED_AGAIN)
        except ApiError as error:
            return await self._failed(local, error)
        if kind == "Job":
            local = await self._mark(local)
        twin = forge.forge_twin(local, namespace, self._options)
        resource = _TWINS[kind]
        try:
            made = await self._remote.create(resource.path(namespace), twin)
            self._carried[view.uid] = (_content(local), "")
        except AlreadyExists:
            made = await self._remote.get(resource.path(namespace, twin["metadata"]["name"]))
            if not _same_twin(made, twin):
                path = f"{namespace}/{twin['metadata']['name']}"
                message = f"remote {kind} {path} exists and is not ours: it is left alone"
                await self._stays(local, names.OFFLOAD_FAILED, message)
                return requeue_after(_REFUSED_AGAIN)
        except (NotFound, Forbidden, Invalid, Conflict) as error:
            if isinstance(error, NotFound):
                self._namespaces.forget(namespace)
            if kind == "Job":
                await self._unmark(local)  # a refusal is certain: nothing was started
            return await self._failed(local, error)
        self._made[view.uid] = made
        self._starting.discard(view.uid)
        if self._announce:
            text = f"{kind} {namespace}/{twin['metadata']['name']} made in the remote cluster"
            self._recorder.record(local, "Normal", names.OFFLOADED, text)
        for loss in losses(local):
            self._recorder.record(local, "Warning", names.NOT_OFFLOADED, loss)
        return done()

    async def _mark(self, local: Object) -> Object:
        """Write down that a pod which runs once is about to be started, before it is: kill -9 may come in between."""
        body: Object = {
            "metadata": {"uid": local["metadata"]["uid"], "annotations": {names.ANNOTATION_STARTED: "true"}}
        }
        self._starting.add(local["metadata"]["uid"])
        return await self._patch_status(local, body)

    async def _unmark(self, local: Object) -> None:
        uid = local["metadata"]["uid"]
        await self._patch_status(local, {"metadata": {"uid": uid, "annotations": {names.ANNOTATION_STARTED: None}}})
        self._starting.discard(uid)

    async def _failed(self, local: Object, error: ApiError) -> Result:
        """The remote API server refused: the pod says so, and it is tried again with backoff."""
        message = f"the remote cluster refused: {error.message}"
        await self._write_status(local, status.pending_status(local, names.OFFLOAD_FAILED, message))
        self._recorder.record(local, "Warning", names.OFFLOAD_FAILED, message)
        raise error

    async def _stays(self, local: Object, reason: str, message: str) -> None:
        """Say why a pod is not offloaded: once, and again only when the reason is another one."""
        said, owner = local.get("status") or {}, daemon_set(local)
        # what the pod says was told, also by the Farlet before this one
        news = (said.get("reason"), said.get("message")) != (reason, message)
        await self._write_status(local, status.pending_status(local, reason, message))
        if owner is None:
            if news:
                self._recorder.record(local, "Warning", reason, message)
        elif self._is_new(owner["metadata"]["uid"]) and news:
            self._recorder.record(owner, "Warning", reason, message)

    def _is_new(self, daemon_set_uid: str) -> bool:
        """Whether nothing was heard of a DaemonSet yet: the pods that replace its pod have the same to say."""
        known = daemon_set_uid in self._daemon_sets
        self._daemon_sets[daemon_set_uid] = None
        self._daemon_sets.move_to_end(daemon_set_uid)
        if len(self._daemon_sets) > _DAEMON_SETS:
            self._daemon_sets.popitem(last=False)
        return not known

    # ------------------------------------------------------------------ in step

    async def _keep_in_step(self, view: View) -> None:
        local, twin = view.local, view.twin
        assert local is not None
        assert twin is not None
        remote = status.choose(view.remote, twin)
        if remote is not None:
            await self._carry_changes(local, remote, twin)
        await self._write_status(local, status.local_status(local, remote, twin, ip_map=self._ip_map), remote)

    async def _carry_changes(self, local: Object, remote: Object, twin: Object) -> None:
        uid = local["metadata"]["uid"]
        seen = (_content(local), remote["metadata"]["uid"])
        carried = self._carried.get(uid)
        if carried == seen:
            return
        if carried == (seen[0], "") and is_from_template(remote, twin):
            self._carried[uid] = seen  # nothing has changed since the twin was made, and this pod is its first
            return
        changes = live_changes(local, remote, twin, self._options)
        for step in changes.steps:
            await self._carry(local, step, remote, twin)
        for text in changes.warnings:
            self._recorder.record(local, "Warning", names.OFFLOAD_FAILED, text)
        self._carried[uid] = seen

    async def _carry(self, local: Object, step: Step, remote: Object, twin: Object) -> None:
        """Send the patches of one change; what the remote refuses is said, and the other changes go on."""
        for patch in step.patches:
            item = twin if patch.target is Target.TWIN else remote
            resource = _TWINS[twin["kind"]] if patch.target is Target.TWIN else PODS
            path = resource.path(item["metadata"]["namespace"], item["metadata"]["name"], patch.subresource)
            try:
                await self._remote.patch(path, patch.body, PatchKind.STRATEGIC)
            except (Invalid, Forbidden) as error:
                text = f"a change of {step.what} was not carried to the remote cluster: {error.message}"
                self._recorder.record(local, "Warning", names.OFFLOAD_FAILED, text)
                return

    async def _write_status(self, local: Object, desired: Object, remote: Object | None = None) -> None:
        annotations = status.restart_annotations(local, remote)
        body = status.status_patch(local, desired, annotations, unknown=self._unknown)
        if body is None:
            return
        try:
            stored = await self._patch_status(local, body)
        except NotFound:  # it is gone; the cache will say so
            return
        except (Invalid, Conflict) as error:
            if error.is_another_object():
                return
            raise
        self._unknown |= dropped_fields(desired, stored.get("status") or {})

    async def _patch_status(self, local: Object, body: Object) -> Object:
        metadata = local["metadata"]
        path = PODS.path(metadata["namespace"], metadata["name"], "status")
        return await self._local.patch(path, body, PatchKind.STRATEGIC)

    # ------------------------------------------------------------------ away

    async def _remove(self, view: View) -> Result:
        """The local pod is to go: first what runs remotely, then the local object."""
        local = view.local
        assert local is not None
        if view.uid in self._deleted:
            return done()  # the cache has not heard yet
        removal = plan_removal(local["metadata"].get("deletionGracePeriodSeconds"), view.twins, view.remote)
        await self._execute(removal)
        if removal.finished:
            if not status.is_terminal(local):
                await self._write_status(local, status.ended_status(local))
            await self._local.delete(
                PODS.path(local["metadata"]["namespace"], local["metadata"]["name"]),
                uid=view.uid,
                grace=0,
                missing_ok=True,
            )
            self._forget(view.uid)
            self._deleted.add(view.uid)
            return done()
        remote = status.choose(view.remote, view.twin)
        if remote is not None:
            desired = status.leaving_status(local, remote, view.twin, ip_map=self._ip_map)
            await self._write_status(local, desired, remote)
        return done()

    async def _expire(self, view: View) -> Result:
        """The pod's time is over: say so, end what runs remotely, and when nothing does the pod has Failed."""
        local = view.local
        assert local is not None
        remote = status.choose(view.remote, view.twin)
        over = not view.twins and all(map(ended, view.remote))
        desired = status.expired_status(local, remote, over=over, ip_map=self._ip_map)
        if (local.get("status") or {}).get("reason") != names.DEADLINE_EXCEEDED:
            self._recorder.record(local, "Warning", names.DEADLINE_EXCEEDED, deadline.MESSAGE)
        await self._write_status(local, desired, remote)
        await self._execute(plan_removal(None, view.twins, view.remote))
        return done()

    async def _clean_up(self, view: View) -> Result:
        """The pod is over: nothing may go on running for it."""
        assert view.local is not None
        runs_once = forge.twin_resource(view.local) == "Job"
        await self._execute(plan_clean_up(view.twins, view.remote, runs_once=runs_once))
        return done()

    async def _orphan(self, view: View) -> Result:
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
            resource = _TWINS.get(deletion.kind, PODS)
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
        self._made.pop(uid, None)
        self._starting.discard(uid)
        self._carried.pop(uid, None)
        self._deleted.discard(uid)


def _content(local: Object) -> int:
    """A hash of what of a local pod can change and be carried; what we write there ourselves does not count."""
    metadata = local["metadata"]
    annotations = {k: v for k, v in (metadata.get("annotations") or {}).items() if k not in WRITTEN_BACK}
    return hash(str((metadata.get("generation"), metadata.get("labels"), annotations)))


def _same_twin(existing: Object, wanted: Object) -> bool:
    """Whether an object of the twin's name is the twin: made by us, for this very pod."""
    have = existing["metadata"].get("labels", {})
    labels = wanted["metadata"]["labels"]
    return all(have.get(key) == labels[key] for key in (names.LABEL_ORIGIN, names.LABEL_NODE, names.LABEL_POD_UID))
