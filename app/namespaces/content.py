"""What is in a remote namespace of ours, and whose it is: a namespace is deleted with everything in it.

Looked at is what runs, what holds data, and what is reflected. What only governs a namespace (roles, quotas, policies)
goes with it, and so do custom resources: to see all of those, every right there is would be needed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from app import names
from app.kube.client import METADATA_LIST, Client
from app.kube.errors import Conflict, Forbidden, NotFound
from app.kube.objects import Envelope, decode_list
from app.kube.resources import (
    CONFIG_MAPS,
    CRON_JOBS,
    DAEMON_SETS,
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    JOBS,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    REPLICA_SETS,
    SECRETS,
    SERVICES,
    STATEFUL_SETS,
    Resource,
)

TWINS: Final = (PODS, REPLICA_SETS, JOBS)
"""What stands for pods: of ours, it is waited for."""
COPIES: Final = (CONFIG_MAPS, SECRETS, SERVICES, ENDPOINT_SLICES)
_LOOKED_AT: Final = (
    *TWINS,
    PERSISTENT_VOLUME_CLAIMS,
    DEPLOYMENTS,
    STATEFUL_SETS,
    DAEMON_SETS,
    CRON_JOBS,
    *COPIES,
)
EVERY_NAMESPACE_HAS: Final = frozenset(
    {
        ("", "serviceaccounts", "default"),
        ("", "configmaps", names.ROOT_CA),
        ("", "configmaps", "openshift-service-ca.crt"),
        ("", "configmaps", "istio-ca-root-cert"),
    }
)
"""Group, plural and name of what Kubernetes, or what is widely installed, makes in each."""
_TOKEN_OF: Final = "kubernetes.io/service-account.name"
_PAGE: Final = "100"


@dataclass(frozen=True, slots=True)
class Content:
    """Something that keeps a namespace."""

    what: str
    ours: bool
    """Of this local cluster, whichever virtual node it belongs to."""


def is_somebodys(kind: Resource, item: Envelope) -> bool:
    """Whether an object that is not ours is anybody's, and not just there as in every namespace."""
    if (kind.group, kind.plural, item.key.name) in EVERY_NAMESPACE_HAS:
        return False
    metadata = item.metadata
    if kind is SECRETS:
        return (metadata.annotations or {}).get(_TOKEN_OF) != "default"
    if kind is ENDPOINT_SLICES:
        return not metadata.ownerReferences  # else it follows from its Service
    return True


class RemoteContent:
    """Looks into remote namespaces."""

    def __init__(self, remote: Client, origin: str) -> None:
        self._remote = remote
        self._origin = origin

    async def find(self, namespace: str) -> Content | None:
        """What keeps a namespace: first of ours, which should be on its way out, then of others; None if nothing."""
        try:
            for kind in TWINS:
                async for item in self._items(kind, namespace, "="):
                    return Content(f"{kind.kind} {item.key.name} is in it", ours=True)
            for kind in _LOOKED_AT:
                async for item in self._items(kind, namespace, "!="):
                    if is_somebodys(kind, item):
                        return Content(f"{kind.kind} {item.key.name} is in it and not ours", ours=False)
        except Forbidden as error:
            return Content(f"what is in it cannot be seen: {error.message}", ours=False)
        return None

    async def remove_copies(self, namespace: str, local_namespace: str) -> int:
        """Remove what any virtual node of this local cluster reflected there; returns how much there was."""
        found = 0
        for kind in COPIES:
            try:
                items = [item async for item in self._items(kind, namespace, "=")]
            except (Forbidden, NotFound):
                continue
            for item in items:
                annotations = item.metadata.annotations or {}
                stands_for = annotations.get(names.ANNOTATION_LOCAL_NAMESPACE)
                if names.ANNOTATION_REFLECTED in annotations and stands_for == local_namespace:
                    found += 1
                    await self._remove(kind, item)
        return found

    async def _remove(self, kind: Resource, item: Envelope) -> None:
        try:
            await self._remote.delete(
                kind.path(item.key.namespace, item.key.name), uid=item.metadata.uid, missing_ok=True
            )
        except Conflict:
            return  # not the one that was looked at

    async def _items(self, kind: Resource, namespace: str, relation: str) -> AsyncIterator[Envelope]:
        """The metadata of objects whose origin is ours, or is not."""
        params = {"labelSelector": f"{names.LABEL_ORIGIN}{relation}{self._origin}", "limit": _PAGE}
        while True:
            answer = await self._remote.request("GET", kind.path(namespace), params=params, accept=METADATA_LIST)
            page = decode_list(answer)
            for item in page.items:
                yield item
            if not page.continue_token:
                return
            params["continue"] = page.continue_token
