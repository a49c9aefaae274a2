"""The background worker: puts the caches and controllers of one virtual node together, and ends them in order.

Nothing is decided before every cache is complete and the leader lock is held. When the lock is lost, the controllers
end and the worker waits for it again, with its caches warm; when any part ends with an error, so does the worker: a
fresh start on what the two clusters hold is the one recovery that always works.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time

from app import names, options
from app.caches import Caches, all_synced, waiting_for
from app.facts import Facts, StartError, describe, discover
from app.health import HealthServer
from app.kube import config
from app.kube.client import Client
from app.kube.election import LeaderLock
from app.kube.errors import KubeError
from app.kube.events import EventRecorder
from app.kube.informer import Informer
from app.kube.resources import NODES, PODS
from app.namespaces.controller import NamespaceController
from app.namespaces.mapping import NamespaceMap, parse
from app.node import stated
from app.node.controller import Claims, NodeController, Sizes
from app.node.object import NodeError
from app.node.reachability import Prober, Reach
from app.pods.controller import PodController
from app.pods.remote_events import RemoteEvents
from app.settings import EventMode, OnShutdown, OnUnreachable, RunSettings

log = logging.getLogger(__name__)

_STALE = 30.0


class Worker:
    """One virtual node."""

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self._informers: list[Informer] = []
        self._turned = time.monotonic()

    async def run(self) -> None:
        """Connect, look, wait for the lock, work."""
        settings = self._settings
        async with (
            Client(config.load(settings.kubeconfig, settings.context), name="local") as local,
            Client(config.load(settings.remote_kubeconfig, settings.remote_context), name="remote") as remote,
        ):
            facts = await discover(local, remote, settings)
            try:
                await self._compose(local, remote, facts)
            except* (KubeError, StartError, NodeError) as errors:
                raise StartError(str(_first(errors))) from None

    async def _compose(self, local: Client, remote: Client, facts: Facts) -> None:
        settings, node = self._settings, self._settings.node_name
        lock = LeaderLock(local, names.LOCK_NAMESPACE, names.lock_name(node), f"{socket.gethostname()}-{os.getpid()}")
        # no write of ours leaves once the lock is lost, on whichever side
        fenced_local, fenced_remote = local.fenced(lock.check), remote.fenced(lock.check)
        caches = Caches(local, remote, facts, node)
        placement = options.placement(settings)
        fixed = stated.parse_flag(settings.capacity) if settings.capacity else None
        claims = remote_nodes = None
        self._informers = caches.all()
        if fixed is None:
            claims = Claims({names.LABEL_ORIGIN: facts.local_id, names.LABEL_NODE: node})
            remote_nodes = Informer(remote, NODES)
            # everything but our own pods, which are many and known already
            others = [
                Informer(
                    remote,
                    PODS,
                    label_selector=selector,
                    field_selector="status.phase!=Succeeded,status.phase!=Failed",
                    on_change=claims.on_pod,
                )
                for selector in (
                    f"{names.LABEL_ORIGIN}!={facts.local_id}",
                    f"{names.LABEL_ORIGIN}={facts.local_id},{names.LABEL_NODE}!={node}",
                )
            ]
            self._informers += [remote_nodes, *others]

        async with EventRecorder(fenced_local, "farlet", instance=node) as recorder:
            pods = PodController(
                local=fenced_local,
                remote=fenced_remote,
                local_pods=caches.local_pods,
                remote_pods=caches.remote_pods,
                replica_sets=caches.replica_sets,
                jobs=caches.jobs,
                namespaces=NamespaceController(
                    fenced_remote, caches.local_namespaces, NamespaceMap(facts.local_id, parse(settings.namespaces))
                ),
                options=options.forge_options(settings, facts),
                recorder=recorder,
                may_write=lock.held,
                announce=settings.events is EventMode.ALL,
            )
            nodes = NodeController(
                fenced_local,
                options.node_options(settings, facts),
                Sizes(fixed=fixed, share=settings.share, placement=placement),
                own_node=caches.own_node,
                local_pods=caches.local_pods,
                remote_nodes=remote_nodes,
                claims=claims,
                on_unreachable=settings.on_unreachable or OnUnreachable.NOT_READY,
                may_write=lock.held,
            )
            events = RemoteEvents(
                local=fenced_local,
                remote=remote,
                local_pods=caches.local_pods,
                remote_pods=caches.remote_pods,
                replica_sets=caches.replica_sets,
                jobs=caches.jobs,
                mode=settings.events.value,
            )
            caches.local_pods.listen(pods.on_local_pod)
            caches.local_namespaces.listen(pods.on_namespace)
            caches.own_node.listen(nodes.on_change)
            for informer in (caches.remote_pods, caches.replica_sets, caches.jobs):
                informer.listen(pods.on_remote_object)
            if claims is not None and remote_nodes is not None:
                claims.listen(nodes.wake)
                remote_nodes.listen(nodes.on_change)
            await self._serve(lock, nodes, pods, events, remote, facts)

    async def _serve(
        self,
        lock: LeaderLock,
        nodes: NodeController,
        pods: PodController,
        events: RemoteEvents,
        remote: Client,
        facts: Facts,
    ) -> None:
        settings = self._settings
        health = HealthServer(
            live={"loop": self._loop_turns, "lease": lambda: _lease_fresh(nodes, lock)},
            ready={"caches": self._caches_synced},
        )
        await health.start(settings.health_address)
        print(describe(settings, facts), flush=True)  # noqa: T201 - what a person sees first

        def on_reach(reach: Reach) -> None:
            nodes.on_reach(reach)
            if settings.on_unreachable in (None, OnUnreachable.NOT_READY):
                pods.on_reach(None if reach.reachable else reach)

        prober = Prober(
            remote,
            interval=settings.probe_interval,
            timeout=settings.probe_timeout,
            threshold=settings.probe_failures,
            on_change=on_reach,
        )

        async def lead() -> None:
            await nodes.start()
            log.info("node %s is looked after", settings.node_name)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(nodes.run())
                    group.create_task(prober.run())
                    group.create_task(pods.run(settings.workers))
                    group.create_task(events.run())
            finally:
                if settings.on_shutdown is OnShutdown.NOT_READY and lock.held():
                    await nodes.stopped()

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._turn())]
                tasks += [group.create_task(informer.run()) for informer in self._informers]
                await all_synced(self._informers)
                await lock.run(lead)
                for task in tasks:
                    task.cancel()
        finally:
            await health.stop()

    async def _turn(self) -> None:
        """Notes that the loop turns."""
        while True:
            self._turned = time.monotonic()
            await asyncio.sleep(1)

    def _loop_turns(self) -> str | None:
        late = time.monotonic() - self._turned
        return f"the event loop has not turned for {late:.0f} s" if late > _STALE else None

    def _caches_synced(self) -> str | None:
        waiting = waiting_for(self._informers)
        return f"waiting for {', '.join(waiting)}" if waiting or not self._informers else None


def _lease_fresh(nodes: NodeController, lock: LeaderLock) -> str | None:
    age = nodes.lease_age()
    if lock.held() and age is not None and age > _STALE:
        return f"the node's lease was last renewed {age:.0f} s ago"
    return None


def _first(errors: BaseExceptionGroup[Exception]) -> BaseException:
    """The first of the errors that a group of tasks ended with."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
