"""The node's Lease: its heartbeat, renewed every ten seconds as a kubelet does, whatever else is going on.

The node controller calls a node dead when its Lease was not renewed for about 50 seconds, so this is the one write that
must never wait behind others: it has a task of its own, and every renewal has a short timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import random
import time
from collections.abc import Callable

from app.kube.client import Client
from app.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from app.kube.objects import Object
from app.kube.resources import LEASES

NAMESPACE = "kube-node-lease"
DURATION = 40
INTERVAL = 10.0
_JITTER = 0.04
_TIMEOUT = 5.0
_RETRIES = 5
_BACKOFF = (0.1, 0.2, 0.4, 0.8, 1.6)

log = logging.getLogger(__name__)


class Heartbeat:
    """Renews the Lease of one node while it may."""

    def __init__(
        self, client: Client, node: str, *, node_uid: Callable[[], str | None], may_write: Callable[[], bool]
    ) -> None:
        self._client = client
        self._node = node
        self._node_uid = node_uid
        self._may_write = may_write
        self._lease: Object | None = None
        self._renewed: float | None = None
        self._due = asyncio.Event()

    def beat(self) -> None:
        """Renew now: the Node was made anew, and its old Lease went with the old one."""
        self._due.set()

    def age(self) -> float | None:
        """Seconds since the last renewal; None before the first."""
        return None if self._renewed is None else time.monotonic() - self._renewed

    async def run(self) -> None:
        """Renew until cancelled."""
        while True:
            await self._renew_with_retries()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(INTERVAL * random.uniform(1 - _JITTER, 1 + _JITTER)):
                    await self._due.wait()
            self._due.clear()

    async def _renew_with_retries(self) -> None:
        for attempt in range(_RETRIES):
            if not self._may_write() or self._node_uid() is None:
                return
            try:
                await self.renew()
                return
            except KubeError as error:
                self._lease = None
                log.warning("lease of node %s was not renewed (try %d): %s", self._node, attempt + 1, error)
                await asyncio.sleep(_BACKOFF[attempt])

    async def renew(self) -> None:
        """One renewal: usually a single write with what was read last."""
        path = LEASES.path(NAMESPACE, self._node)
        if self._lease is None or not self._owned(self._lease):
            self._lease = await self._read_or_create(path)
        desired = {**self._lease, "spec": {**self._lease.get("spec", {}), **self._spec()}}
        desired["metadata"] = {**self._lease["metadata"], "ownerReferences": self._owner()}
        try:
            self._lease = await self._client.replace(path, desired, timeout=_TIMEOUT, urgent=True)
        except (Conflict, NotFound):
            self._lease = None
            raise
        self._renewed = time.monotonic()

    async def _read_or_create(self, path: str) -> Object:
        try:
            return await self._client.get(path, timeout=_TIMEOUT, urgent=True)
        except NotFound:
            pass
        lease: Object = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": self._node, "namespace": NAMESPACE, "ownerReferences": self._owner()},
            "spec": self._spec(),
        }
        try:
            return await self._client.create(LEASES.path(NAMESPACE), lease, urgent=True)
        except AlreadyExists:
            return await self._client.get(path, timeout=_TIMEOUT, urgent=True)

    def _owned(self, lease: Object) -> bool:
        """Whether the Lease belongs to the Node as it is now; one that was made anew has another UID."""
        owners = lease["metadata"].get("ownerReferences", [])
        return any(owner["uid"] == self._node_uid() for owner in owners)

    def _owner(self) -> list[Object]:
        return [{"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._node_uid()}]

    def _spec(self) -> Object:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {"holderIdentity": self._node, "leaseDurationSeconds": DURATION, "renewTime": now}
