"""Makes the twins of local pods, or says why there is none.

A pod that runs once is marked before its twin is made: whatever happens in between, it is never run again. The mark is
taken back only where it is certain that nothing was started.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from app import names
from app.kube.client import Client
from app.kube.errors import AlreadyExists, ApiError, KubeError
from app.kube.events import EventRecorder
from app.kube.objects import Object
from app.kube.queue import Result, done, requeue_after
from app.namespaces.controller import NamespaceController, NotMapped
from app.pods import forge, status
from app.pods.known import TWINS, Known, content
from app.pods.latency import Latency
from app.pods.policy import daemon_set, losses, refusal
from app.pods.status_writer import StatusWriter

_REFUSED_AGAIN: Final = 60.0
"""Seconds after which a pod that could not be offloaded is looked at again, besides when something changes."""
_DAEMON_SETS: Final = 1024
"""DaemonSets that are remembered to have been told that their pods stay."""


class Offloader:
    """Makes the twins of one virtual node."""

    def __init__(
        self,
        *,
        remote: Client,
        known: Known,
        statuses: StatusWriter,
        namespaces: NamespaceController,
        options: forge.ForgeOptions,
        recorder: EventRecorder,
        latency: Latency,
        announce: bool,
    ) -> None:
        """*announce*: whether each pod that is offloaded gets an event that says so."""
        self._remote = remote
        self._known = known
        self._statuses = statuses
        self._namespaces = namespaces
        self._options = options
        self._recorder = recorder
        self._latency = latency
        self._announce = announce
        self._daemon_sets: OrderedDict[str, None] = OrderedDict()
        """UIDs of DaemonSets that were told that their pods stay, the oldest first."""

    async def offload(self, local: Object) -> Result:
        """Make the twin of a pod that has none."""
        uid = local["metadata"]["uid"]
        if reason := refusal(local, self._options):
            await self._stays(local, names.NOT_OFFLOADED, reason)
            return done()  # only a change of the pod, or of the options, could make a difference
        kind = forge.twin_resource(local)
        if kind == "Job" and self._was_started(local):
            return await self._lost(local)
        try:
            namespace = await self._namespaces.resolve(local["metadata"]["namespace"])
        except NotMapped as error:
            await self._stays(local, names.NOT_OFFLOADED, str(error))
            return requeue_after(error.again or _REFUSED_AGAIN)
        except ApiError as error:
            return await self._failed(local, error)
        revocable = False
        if kind == "Job":
            local = await self._mark(local)
            revocable = not self._known.starting.get(uid, True)
            self._known.starting[uid] = True
        twin = forge.forge_twin(local, namespace, self._options)
        resource = TWINS[kind]
        try:
            made = await self._remote.create(resource.path(namespace), twin)
            self._known.carried[uid] = (content(local), "")
        except AlreadyExists:
            made = await self._remote.get(resource.path(namespace, twin["metadata"]["name"]))
            if not _same_twin(made, twin):
                path = f"{namespace}/{twin['metadata']['name']}"
                message = f"remote {kind} {path} exists and is not ours: it is left alone"
                if revocable:
                    await self._unmark(local)
                await self._stays(local, names.OFFLOAD_FAILED, message)
                return requeue_after(_REFUSED_AGAIN)
        except KubeError as error:
            if isinstance(error, ApiError) and error.has_no_namespace():
                self._namespaces.forget(namespace)
            if revocable and not error.may_be_done():
                await self._unmark(local)
            if isinstance(error, ApiError):
                return await self._failed(local, error)
            raise
        self._known.made(uid, made)
        self._latency.made(uid)
        if self._announce:
            text = f"{kind} {namespace}/{twin['metadata']['name']} made in the remote cluster"
            self._recorder.record(local, "Normal", names.OFFLOADED, text)
        for loss in losses(local):
            self._recorder.record(local, "Warning", names.NOT_OFFLOADED, loss)
        return done()

    # ------------------------------------------------------------------ pods that run once

    def _was_started(self, local: Object) -> bool:
        uid, annotations = local["metadata"]["uid"], local["metadata"].get("annotations", {})
        started = uid in self._known.started or names.ANNOTATION_STARTED in annotations
        return started and uid not in self._known.starting

    async def _lost(self, local: Object) -> Result:
        """It was there once: whatever it did must not be done again behind the user's back."""
        message = "the twin of this pod was deleted in the remote cluster; a pod that runs once is not run again"
        await self._statuses.write(local, status.failed_status(local, names.REMOTE_TWIN_LOST, message))
        self._recorder.record(local, "Warning", names.REMOTE_TWIN_LOST, message)
        return done()

    async def _mark(self, local: Object) -> Object:
        """Write down that a pod which runs once is about to be started, before it is: kill -9 may come in between."""
        body: Object = {
            "metadata": {"uid": local["metadata"]["uid"], "annotations": {names.ANNOTATION_STARTED: "true"}}
        }
        self._known.starting.setdefault(local["metadata"]["uid"], False)
        return await self._patch_mark(local, body)

    async def _unmark(self, local: Object) -> None:
        """Take that back where it is certain that nothing was started; the cache may show the mark for a while yet."""
        uid = local["metadata"]["uid"]
        self._known.starting[uid] = False
        await self._patch_mark(local, {"metadata": {"uid": uid, "annotations": {names.ANNOTATION_STARTED: None}}})

    async def _patch_mark(self, local: Object, body: Object) -> Object:
        """Such a write is no news: else a pod that is refused would wake itself, however long it is to wait."""
        stored = await self._statuses.patch(local, body)
        self._known.wrote(local, stored)
        return stored

    # ------------------------------------------------------------------ what is said

    async def _failed(self, local: Object, error: ApiError) -> Result:
        """The remote API server refused, or failed: the pod says so, and it is tried again with backoff."""
        message = f"the remote cluster {'failed' if error.status >= 500 else 'refused'}: {error.message}"
        await self._statuses.write(local, status.pending_status(local, names.OFFLOAD_FAILED, message))
        self._recorder.record(local, "Warning", names.OFFLOAD_FAILED, message)
        raise error

    async def _stays(self, local: Object, reason: str, message: str) -> None:
        """Say why a pod is not offloaded: once, and again only when the reason is another one."""
        said, owner = local.get("status") or {}, daemon_set(local)
        self._latency.stays(local["metadata"]["uid"])
        # what the pod says was told, also by the Farlet before this one
        news = (said.get("reason"), said.get("message")) != (reason, message)
        await self._statuses.write(local, status.pending_status(local, reason, message))
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


def _same_twin(existing: Object, wanted: Object) -> bool:
    """Whether an object of the twin's name is the twin: made by us, for this very pod."""
    have = existing["metadata"].get("labels", {})
    labels = wanted["metadata"]["labels"]
    return all(have.get(key) == labels[key] for key in (names.LABEL_ORIGIN, names.LABEL_NODE, names.LABEL_POD_UID))
