"""Remote namespaces, made when they are needed.

A namespace that Farlet made carries its origin; one that does not is somebody else's and is never used by accident.
Only a name that was given with a flag may be an existing namespace, and that one is used as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Iterator

from app.kube.client import Client
from app.kube.errors import AlreadyExists, Forbidden, NotFound
from app.kube.objects import Object
from app.kube.resources import NAMESPACES
from app.names import ANNOTATION_LOCAL_NAMESPACE, ANNOTATION_MAPPED_BY, LABEL_ORIGIN
from app.namespaces.mapping import By, Target
from app.namespaces.offloading import CONFLICT, NOT_GIVEN, TERMINATING
from app.namespaces.wishes import Wishes

log = logging.getLogger(__name__)

_GONE_SOON = 3.0
_SETTLE = 1.0
"""Seconds between seeing that a namespace is gone and making it again. API servers may still have the old one in mind
and refuse whatever is to be made in the new one; Kubernetes' own controllers take that for final, so that it would have
no ServiceAccount ``default``, and no pod could be made in it."""


class NotMapped(Exception):
    """A local namespace has no remote one (yet); the message says what to do."""

    def __init__(self, message: str, *, reason: str = NOT_GIVEN, again: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        """One word for it, as in the status of a NamespaceOffloading."""
        self.again = again
        """Seconds after which it is worth another try, if it is known."""


class NamespaceController:
    """Answers which remote namespace a local one has, and makes sure that it is there."""

    def __init__(self, remote: Client, wishes: Wishes) -> None:
        self._remote = remote
        self._wishes = wishes
        self._origin = wishes.map.origin
        self._ready: set[str] = set()
        """Remote namespaces that were seen to be there and usable."""
        self._doubts = 0
        """How often something said of any remote namespace that it is not there."""
        self._missing: dict[str, float] = {}
        """Remote namespaces that were there, and since when they are seen not to be, by the loop's clock."""
        self._closed: set[str] = set()
        """Remote namespaces that are about to be deleted."""

    async def resolve(self, namespace: str) -> str:
        """The remote namespace for a local one; raises NotMapped."""
        asked = self._wishes.asked(namespace)
        target = self._wishes.map.decide(asked)
        if target is None:
            raise NotMapped(self._wishes.map.why_not(namespace, asked))
        while target.name not in self._ready:
            if target.name in self._closed:
                raise _going(target)
            before = self._doubts
            await self._ensure(namespace, target)
            if self._doubts == before:  # else what was seen may have been before that
                self._ready.add(target.name)
        return target.name

    def forget(self, remote_namespace: str) -> None:
        """Look again the next time: something said that it is not there."""
        self._ready.discard(remote_namespace)
        self._doubts += 1

    @contextlib.contextmanager
    def closed(self, remote_namespace: str) -> Iterator[None]:
        """While this lasts, no pod is sent there; afterwards it is looked at anew."""
        self._closed.add(remote_namespace)
        self.forget(remote_namespace)
        try:
            yield
        finally:
            self._closed.discard(remote_namespace)
            self._missing.pop(remote_namespace, None)  # of those that go for good nothing is kept

    async def _ensure(self, namespace: str, target: Target) -> None:
        try:
            existing = await self._remote.get(NAMESPACES.path(name=target.name))
        except NotFound:
            self._check_settled(target)
            existing = await self._create(namespace, target)
        except Forbidden:
            if target.given:  # rights confined to the given namespaces: it is taken at its word
                return
            raise
        if not target.given and not self._is_ours(existing, namespace):
            way_out = (
                "choose another name in the NamespaceOffloading, or have it removed there"
                if target.by is By.OFFLOADING
                else f"name one with --namespace {namespace}=REMOTE"
            )
            raise NotMapped(f"remote namespace {target.name} exists and is not ours: {way_out}", reason=CONFLICT)
        self._missing[target.name] = math.inf
        if existing["metadata"].get("deletionTimestamp"):
            raise _going(target)

    def _check_settled(self, target: Target) -> None:
        """Raise NotMapped if a namespace that was there is gone only just now."""
        if target.name in self._missing:
            now = asyncio.get_running_loop().time()
            since = self._missing[target.name] = min(self._missing[target.name], now)
            if now < since + _SETTLE:
                raise _going(target, since + _SETTLE - now)

    async def _create(self, namespace: str, target: Target) -> Object:
        annotations = {ANNOTATION_LOCAL_NAMESPACE: namespace}
        if target.by is not By.FLAG:
            annotations[ANNOTATION_MAPPED_BY] = target.by.value
        wanted: Object = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": target.name, "labels": {LABEL_ORIGIN: self._origin}, "annotations": annotations},
        }
        try:
            made = await self._remote.create(NAMESPACES.path(), wanted)
        except AlreadyExists:
            return await self._remote.get(NAMESPACES.path(name=target.name))
        log.info("made remote namespace %s for %s", target.name, namespace)
        return made

    def _is_ours(self, existing: Object, namespace: str) -> bool:
        metadata = existing["metadata"]
        origin = (metadata.get("labels") or {}).get(LABEL_ORIGIN)
        local_name = (metadata.get("annotations") or {}).get(ANNOTATION_LOCAL_NAMESPACE)
        return bool(origin == self._origin and local_name == namespace)


def _going(target: Target, again: float = _GONE_SOON) -> NotMapped:
    message = f"remote namespace {target.name} is being deleted"
    return NotMapped(message, reason=TERMINATING, again=again)
