"""Writes the status of local pods: only where it differs, and never that of another pod of the same name."""

from __future__ import annotations

from app.kube.client import Client, PatchKind
from app.kube.errors import Conflict, Invalid, NotFound
from app.kube.objects import Object
from app.kube.resources import PODS
from app.pods import status
from app.pods.latency import Latency
from app.pods.patch import Paths, dropped_fields, is_stored


class StatusWriter:
    """The status of the pods of one virtual node."""

    def __init__(self, local: Client, latency: Latency) -> None:
        self._local = local
        self._latency = latency
        self._unknown: Paths = frozenset()
        """Fields of a status that the local API server does not keep: a remote one may be newer."""

    async def write(self, local: Object, desired: Object, remote: Object | None = None) -> Object | None:
        """Write a status if it differs; the pod as it is then, if its status is what we wrote and nothing else."""
        annotations = status.restart_annotations(local, remote)
        body = status.status_patch(local, desired, annotations, unknown=self._unknown)
        if body is None:
            return None
        try:
            stored = await self.patch(local, body)
        except NotFound:  # it is gone; the cache will say so
            return None
        except (Invalid, Conflict) as error:
            if error.is_another_object():
                return None
            raise
        self._latency.told(local["metadata"]["uid"], ready=_is_ready(desired))
        if is_stored(desired, stored.get("status") or {}):
            return stored
        self._unknown |= dropped_fields(desired, stored.get("status") or {})
        return None

    async def patch(self, local: Object, body: Object) -> Object:
        """Send a patch, which names the pod's UID."""
        metadata = local["metadata"]
        path = PODS.path(metadata["namespace"], metadata["name"], "status")
        return await self._local.patch(path, body, PatchKind.STRATEGIC)


def _is_ready(status: Object) -> bool:
    return any(found["type"] == "Ready" and found["status"] == "True" for found in status.get("conditions") or ())
