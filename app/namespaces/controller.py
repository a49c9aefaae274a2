"""Remote namespaces, made when the first pod needs one.

A namespace that Farlet made carries its origin; one that does not is somebody else's and is never used by accident.
Only a name that the user gave may be an existing namespace, and that one is used as it is.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from app.kube.client import Client
from app.kube.errors import AlreadyExists, Forbidden, NotFound
from app.kube.informer import Informer
from app.kube.objects import Key, Object
from app.kube.resources import NAMESPACES
from app.names import ANNOTATION_LOCAL_NAMESPACE, LABEL_ORIGIN
from app.namespaces.mapping import NamespaceMap, Target

log = logging.getLogger(__name__)

_GONE_SOON = 3.0


class NotMapped(Exception):
    """A local namespace has no remote one (yet); the message says what to do."""

    def __init__(self, message: str, *, again: float | None = None) -> None:
        super().__init__(message)
        self.again = again
        """Seconds after which it is worth another try, if it is known."""


class NamespaceController:
    """Answers which remote namespace a local one has, and makes sure that it is there."""

    def __init__(self, remote: Client, local_namespaces: Informer, namespace_map: NamespaceMap) -> None:
        self._remote = remote
        self._local = local_namespaces
        self._map = namespace_map
        self._ready: set[str] = set()
        """Remote namespaces that were seen to be there and usable."""
        self._closed: set[str] = set()
        """Remote namespaces that are about to be deleted."""

    async def resolve(self, namespace: str) -> str:
        """The remote namespace for a local one; raises NotMapped."""
        envelope = self._local.get(Key("", namespace))
        labels = envelope.metadata.labels if envelope else {}
        target = self._map.target(namespace, labels or {})
        if target is None:
            raise NotMapped(self._map.why_not(namespace))
        if target.name in self._closed:
            raise _going(target)
        if target.name not in self._ready:
            await self._ensure(namespace, target)
            if target.name in self._closed:
                raise _going(target)
            self._ready.add(target.name)
        return target.name

    def forget(self, remote_namespace: str) -> None:
        """Look again the next time: something said that it is not there."""
        self._ready.discard(remote_namespace)

    @contextlib.contextmanager
    def closed(self, remote_namespace: str) -> Iterator[None]:
        """While this lasts, no pod is sent there; afterwards it is looked at anew."""
        self._closed.add(remote_namespace)
        self.forget(remote_namespace)
        try:
            yield
        finally:
            self._closed.discard(remote_namespace)

    async def _ensure(self, namespace: str, target: Target) -> None:
        try:
            existing = await self._remote.get(NAMESPACES.path(name=target.name))
        except NotFound:
            existing = await self._create(namespace, target)
        except Forbidden:
            if target.given:  # rights confined to the given namespaces: it is taken at its word
                return
            raise
        if not target.given and not self._is_ours(existing, namespace):
            raise NotMapped(
                f"remote namespace {target.name} exists and is not ours: name one with --namespace {namespace}=REMOTE"
            )
        if existing["metadata"].get("deletionTimestamp"):
            raise _going(target)

    async def _create(self, namespace: str, target: Target) -> Object:
        wanted: Object = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": target.name,
                "labels": {LABEL_ORIGIN: self._map.origin},
                "annotations": {ANNOTATION_LOCAL_NAMESPACE: namespace},
            },
        }
        try:
            made = await self._remote.create(NAMESPACES.path(), wanted)
        except AlreadyExists:
            return await self._remote.get(NAMESPACES.path(name=target.name))
        log.info("made remote namespace %s for %s", target.name, namespace)
        return made

    def _is_ours(self, existing: Object, namespace: str) -> bool:
        metadata = existing["metadata"]
        origin = metadata.get("labels", {}).get(LABEL_ORIGIN)
        local_name = metadata.get("annotations", {}).get(ANNOTATION_LOCAL_NAMESPACE)
        return bool(origin == self._map.origin and local_name == namespace)


def _going(target: Target) -> NotMapped:
    return NotMapped(f"remote namespace {target.name} is being deleted", again=_GONE_SOON)
