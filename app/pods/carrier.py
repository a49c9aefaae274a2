"""Carries changes of a local pod to what runs for it. Which they are is decided by ``changes``."""

from __future__ import annotations

from typing import Final

from app import names
from app.kube.client import Client, PatchKind
from app.kube.errors import ApiError
from app.kube.events import EventRecorder
from app.kube.objects import Object
from app.kube.resources import PODS
from app.pods.changes import Step, Target, is_from_template, live_changes
from app.pods.forge import ForgeOptions
from app.pods.known import TWINS, Known, content

_REFUSALS: Final = frozenset({400, 403, 413, 422})
"""How a change is refused that would be refused again: not valid, too large, or by a webhook that says no."""


class Carrier:
    """Changes the twins and remote pods of one virtual node."""

    def __init__(self, remote: Client, known: Known, options: ForgeOptions, recorder: EventRecorder) -> None:
        self._remote = remote
        self._known = known
        self._options = options
        self._recorder = recorder

    async def carry(self, local: Object, remote: Object, twin: Object) -> None:
        """Have a remote pod and its twin follow what has changed of the local pod since they were made."""
        uid = local["metadata"]["uid"]
        seen = (content(local), remote["metadata"]["uid"])
        carried = self._known.carried.get(uid)
        if carried == seen:
            return
        if carried == (seen[0], "") and is_from_template(remote, twin):
            self._known.carried[uid] = seen  # nothing has changed since the twin was made, and this pod is its first
            return
        changes = live_changes(local, remote, twin, self._options)
        for step in changes.steps:
            await self._send(local, step, remote, twin)
        for text in changes.warnings:
            self._recorder.record(local, "Warning", names.OFFLOAD_FAILED, text)
        self._known.carried[uid] = seen

    async def _send(self, local: Object, step: Step, remote: Object, twin: Object) -> None:
        """Send the patches of one change; what the remote refuses is said, and the other changes go on."""
        for patch in step.patches:
            item = twin if patch.target is Target.TWIN else remote
            resource = TWINS[twin["kind"]] if patch.target is Target.TWIN else PODS
            path = resource.path(item["metadata"]["namespace"], item["metadata"]["name"], patch.subresource)
            try:
                await self._remote.patch(path, patch.body, PatchKind.STRATEGIC)
            except ApiError as error:
                if error.status not in _REFUSALS:
                    raise
                text = f"a change of {step.what} was not carried to the remote cluster: {error.message}"
                self._recorder.record(local, "Warning", names.OFFLOAD_FAILED, text)
                return
