"""Keeps the Node object true: made if it is missing, sized by the remote cluster, saying whether that can be reached.

The Node belongs to many, so only what is ours on it is ever written, and only when it differs; every five minutes the
conditions are said again, as a kubelet does. The heartbeat is a Lease, and has a task of its own.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from app.kube.client import Client, PatchKind
from app.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from app.kube.informers import Cache
from app.kube.objects import Envelope, Key, Object
from app.kube.resources import NODES
from app.node import conditions
from app.node.capacity import Capacity, total_requests
from app.node.damping import Damping, Sizing, resize, settles_at
from app.node.heartbeat import Heartbeat
from app.node.object import NodeError, NodeOptions, forge_node, why_not_ours
from app.node.patch import metadata_patch, status_patch
from app.node.reachability import Reach
from app.node.sources import Source
from app.settings import OnUnreachable

log = logging.getLogger(__name__)

REPORT = 300.0
"""Seconds after which the conditions are said again although nothing changed."""
_RETRY = 2.0
_QUIET = 0.2
"""Seconds to wait after something changed: changes come in flocks."""


class NodeController:
    """One virtual node."""

    def __init__(
        self,
        local: Client,
        options: NodeOptions,
        source: Source,
        *,
        damping: Damping,
        own_node: Cache,
        local_pods: Cache,
        on_unreachable: OnUnreachable,
        may_write: Callable[[], bool],
    ) -> None:
        self._local = local
        self._options = options
        self._source = source
        self._damping = damping
        self._own_node = own_node
        self._local_pods = local_pods
        self._policy = on_unreachable
        self._health = conditions.healthy()
        self._keep_away = False
        self._wake = asyncio.Event()
        self._sizing = Sizing()
        self._reported = 0.0
        self._made_uid: str | None = None
        """Of a Node that was made and that the cache has not shown yet."""
        self._heartbeat = Heartbeat(local, options.name, node_uid=self.uid, may_write=may_write)

    def uid(self) -> str | None:
        """The UID of the Node as it is now."""
        envelope = self._own_node.get(Key("", self._options.name))
        return envelope.metadata.uid if envelope else self._made_uid

    def lease_age(self) -> float | None:
        """Seconds since the last heartbeat."""
        return self._heartbeat.age()

    # ------------------------------------------------------------------ what wakes it

    def wake(self) -> None:
        self._wake.set()

    def on_change(self, _key: Key, _old: Envelope | None, _new: Envelope | None) -> None:
        self._wake.set()

    def set_address(self, address: str) -> None:
        """Where the node is reached from now on."""
        log.warning("node %s is at %s now, not at %s", self._options.name, address, ", ".join(self._options.addresses))
        self._options = replace(self._options, addresses=(address,))
        self._wake.set()

    def on_reach(self, reach: Reach) -> None:
        if reach.reachable:
            self._health, self._keep_away = conditions.healthy(), False
        else:
            self._health = conditions.unreachable(reach.since, reach.error, self._policy)
            self._keep_away = self._policy is OnUnreachable.KEEP
        self._wake.set()

    # ------------------------------------------------------------------ work

    async def start(self) -> None:
        """Make the Node, or take up the one that is ours; raises NodeError if it is somebody else's."""
        path = NODES.path(name=self._options.name)
        try:
            existing = await self._local.get(path)
        except NotFound:
            pass
        else:
            if problem := why_not_ours(existing, self._options.remote_cluster_id):
                raise NodeError(problem)
            self._sizing = _settled(existing.get("status", {}).get("allocatable") or {})
        await self._sync()

    async def run(self) -> None:
        """Keep it true until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._heartbeat.run())
            group.create_task(self._follow())

    async def _follow(self) -> None:
        while True:
            await self._wait()
            try:
                await self._sync()
            except NodeError as error:
                log.error("%s", error)
                await asyncio.sleep(_RETRY * 10)
            except KubeError as error:
                log.warning("node %s was not brought up to date: %s", self._options.name, error)
                await asyncio.sleep(_RETRY)
                self._wake.set()

    async def _wait(self) -> None:
        """Until something changed, growth has settled, or it is time to report."""
        due = self._reported + REPORT
        settles = settles_at(self._sizing, self._damping)
        timeout = max(0.0, min(due, settles if settles is not None else due) - time.monotonic())
        try:
            async with asyncio.timeout(timeout):
                await self._wake.wait()
                await asyncio.sleep(_QUIET)
        except TimeoutError:
            pass
        self._wake.clear()

    async def stopped(self, timeout: float) -> None:
        """Say that nobody looks after this node any more; a courtesy, so that it never fails, nor takes longer."""
        self._health = conditions.stopped(_now())
        try:
            async with asyncio.timeout(timeout):
                await self._sync()
        except (KubeError, NodeError, TimeoutError) as error:
            why = str(error) or f"no answer within {timeout:g} s"
            log.warning("node %s could not say that Farlet was stopped: %s", self._options.name, why)

    async def _sync(self) -> None:
        envelope = self._own_node.get(Key("", self._options.name))
        existing = envelope.object() if envelope else None
        if existing is not None and (problem := why_not_ours(existing, self._options.remote_cluster_id)):
            raise NodeError(problem)
        desired = self._desired(existing)
        if existing is None:
            await self._create(desired)
            return
        if existing["metadata"].get("deletionTimestamp"):
            return
        await self._update(existing, desired)

    async def _create(self, desired: Object) -> None:
        try:
            made = await self._local.create(NODES.path(), desired)
        except AlreadyExists:  # the cache will show it
            return
        log.info("node %s made", self._options.name)
        self._reported = time.monotonic()
        self._made_uid = made["metadata"]["uid"]
        self._heartbeat.beat()

    async def _update(self, existing: Object, desired: Object) -> None:
        path = NODES.path(name=self._options.name)
        if (body := metadata_patch(existing, desired)) is not None:
            try:
                await self._local.patch(path, body, PatchKind.STRATEGIC)
            except (Conflict, NotFound):  # somebody else was quicker: look again when the cache has it
                self._wake.set()
                return
        heartbeat = time.monotonic() - self._reported >= REPORT
        if (body := status_patch(existing, desired, heartbeat=heartbeat)) is not None:
            try:
                await self._local.patch(f"{path}/status", body, PatchKind.STRATEGIC)
            except NotFound:
                self._wake.set()
                return
        if heartbeat or body is not None:
            self._reported = time.monotonic()

    def _desired(self, existing: Object | None) -> Object:
        previous = (existing or {}).get("status", {}).get("conditions", [])
        measured = self._source.measure()
        return forge_node(
            self._options,
            measured.nodes,
            self._sized(measured.capacity),
            conditions.conditions(_now(), self._health, previous),
            keep_away=self._keep_away,
        )

    def _sized(self, measured: Capacity) -> Capacity:
        sizing = self._sizing
        if not self._source.damped or not sizing.published:
            self._sizing = _settled(measured)
        elif not measured == sizing.published == sizing.candidate:
            in_use = total_requests(envelope.object() for envelope in self._local_pods.list())
            self._sizing = resize(sizing, measured, time.monotonic(), in_use=in_use, damping=self._damping)
        return self._sizing.published


def _settled(capacity: Capacity) -> Sizing:
    """A size that nothing has moved yet."""
    return Sizing(published=capacity, candidate=capacity, since=time.monotonic())


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
