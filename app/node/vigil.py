"""Looks after a node whose remote cluster does not answer while Farlet starts: its Lease, and what it says of itself.

A Farlet that ended instead would take its node along: after some 50 s nobody would know of it, five minutes later its
pods would be evicted, and when the remote cluster is back, what ran there would be deleted. Nothing else is done here,
and nothing is decided on pods: for that both clusters must be seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
from collections.abc import AsyncIterator
from typing import Final

from app.kube.client import Client, PatchKind
from app.kube.election import LeaderLock
from app.kube.errors import KubeError, NotFound, ServerError, Unreachable
from app.kube.objects import Object
from app.kube.resources import NODES
from app.names import LABEL_VIRTUAL_NODE
from app.node import conditions
from app.node.heartbeat import Heartbeat
from app.node.patch import status_patch
from app.node.reachability import Prober, Reach
from app.settings import OnUnreachable, RunSettings

AWAY: Final = (Unreachable, ServerError)
"""How a remote cluster fails that will be back; a gateway in front of it answers 502 or 503."""
PROMPT: Final = 10.0
"""Seconds after which a node is looked after whose remote cluster has not been seen yet."""
_LOOK: Final = 10.0
"""Seconds between two looks at the Node: the node controller may have written it off before we came."""

log = logging.getLogger(__name__)


class Vigil:
    """One node; it must be there already, and is never made here."""

    def __init__(
        self,
        settings: RunSettings,
        policy: OnUnreachable,
        local: Client,
        remote: Client,
        lock: LeaderLock,
        *,
        failures: int,
    ) -> None:
        """*failures*: how many probes in a row must fail before the node says so."""
        self._node = settings.node_name
        self._local = local.fenced(lock.check)
        self._policy = policy
        self._lock = lock
        self._uid: str | None = None
        self._reach: Reach | None = None
        self._wake = asyncio.Event()
        self._heartbeat = Heartbeat(self._local, self._node, node_uid=lambda: self._uid, may_write=lock.held)
        self.prober = Prober(
            remote,
            interval=settings.probe_interval,
            timeout=settings.probe_timeout,
            threshold=failures,
            on_change=self._on_reach,
        )
        """Of the remote cluster; whoever waits for it has it probe."""

    @contextlib.asynccontextmanager
    async def keeping(self) -> AsyncIterator[None]:
        """While the block runs the node is looked after, by whoever has the lock."""
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self._lock.run(self._run))
            yield
            task.cancel()

    def _on_reach(self, reach: Reach) -> None:
        """What is known of the remote cluster now; that it answers is for others to say."""
        self._reach = None if reach.reachable else reach
        self._wake.set()

    async def _run(self) -> None:
        await self._look()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._heartbeat.run())
            group.create_task(self._follow())

    async def _follow(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK):
                    await self._wake.wait()
            self._wake.clear()
            await self._look()

    async def _look(self) -> None:
        try:
            await self._sync()
        except KubeError as error:
            log.warning("node %s could not be looked after: %s", self._node, error)

    async def _sync(self) -> None:
        path = NODES.path(name=self._node)
        found = await existing(self._local, self._node)
        self._uid = found["metadata"]["uid"] if found is not None else None
        if found is not None and (body := due(found, self._reach, self._policy, _now())) is not None:
            with contextlib.suppress(NotFound):
                await self._local.patch(f"{path}/status", body, PatchKind.STRATEGIC)


async def existing(local: Client, node: str) -> Object | None:
    """The Node of that name, if it is there and a virtual one."""
    try:
        found = await local.get(NODES.path(name=node))
    except NotFound:
        return None
    return found if LABEL_VIRTUAL_NODE in (found["metadata"].get("labels") or {}) else None


def due(node: Object, reach: Reach | None, policy: OnUnreachable, now: datetime.datetime) -> Object | None:
    """A patch for what the Node has to say; None if it says so already, since before us perhaps."""
    if reach is None:
        return None
    before: Object = node.get("status") or {}
    previous = before.get("conditions") or []
    said = {found["type"]: found["status"] for found in previous}
    ready = "True" if policy is OnUnreachable.KEEP else "False"
    if (said.get(conditions.REMOTE_REACHABLE), said.get(conditions.READY)) == ("False", ready):
        return None
    health = conditions.unreachable(reach.since, reach.error, policy)
    unchanged = {key: before.get(key) or {} for key in ("capacity", "allocatable", "daemonEndpoints", "nodeInfo")}
    status = before | unchanged | {"addresses": before.get("addresses")}
    return status_patch(node, {"status": status | {"conditions": conditions.conditions(now, health, previous)}})


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
