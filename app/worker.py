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
from collections.abc import Callable

from prometheus_client.registry import Collector

from app import names, options
from app.caches import Caches, all_synced, waiting_for
from app.facts import Facts, StartError, describe_node, first_of
from app.health import Check
from app.kube import config
from app.kube.client import Client
from app.kube.election import LeaderLock
from app.kube.errors import KubeError
from app.kube.events import EventRecorder
from app.kube.informer import OnChange
from app.kube.informers import Cache
from app.kube.objects import Envelope, Key
from app.metrics import ClientCollector, InformerCollector, QueueCollector
from app.namespaces.cleanup import NamespaceCleaner
from app.namespaces.controller import NamespaceController
from app.namespaces.mapping import NamespaceMap, parse
from app.node.capacity import CapacityError
from app.node.controller import NodeController
from app.node.damping import Damping
from app.node.object import NodeError
from app.node.reachability import Prober, Reach
from app.node.sources import Source, source
from app.pods.controller import PodController
from app.pods.remote_events import RemoteEvents
from app.scope import ScopeError, check_in_sight
from app.settings import EventMode, OnShutdown, OnUnreachable, RunSettings

log = logging.getLogger(__name__)

_STALE = 30.0


class Worker:
    """One virtual node."""

    def __init__(self, settings: RunSettings, facts: Facts) -> None:
        self._settings = settings
        self._facts = facts
        self._informers: list[Cache] = []
        self._turned = time.monotonic()
        self._leads = False
        self._heartbeat: Callable[[], str | None] = lambda: None
        self.kubelet_port = int(settings.kubelet_address.rpartition(":")[2])
        """Where the node says that its kubelet API is."""
        self.caches: Caches | None = None
        """Once there are some; other threads may read them."""
        self.collectors: list[Collector] = []
        """Of its figures; other threads may read them."""
        self.live: dict[str, Check] = {"loop": self._loop_turns, "lease": lambda: self._heartbeat()}
        self.ready: dict[str, Check] = {"caches": self._caches_synced}
        """Named checks, for ``/livez`` and ``/readyz``."""

    def has_node(self) -> bool:
        """Whether the node is there and looked after by this worker; to be asked from any thread."""
        key = Key("", self._settings.node_name)
        return self._leads and self.caches is not None and self.caches.own_node.get(key) is not None

    async def run(self) -> None:
        """Connect, look, wait for the lock, work."""
        settings = self._settings
        failure: BaseException | None = None
        try:
            async with (
                Client(config.load(settings.kubeconfig, settings.context), name="local") as local,
                Client(config.load(settings.remote_kubeconfig, settings.remote_context), name="remote") as remote,
            ):
                await self._compose(local, remote, self._facts)
        except* (KubeError, StartError, ScopeError, NodeError, CapacityError) as errors:
            failure = first_of(errors)
        if failure is not None:  # raised within `except*` it would be one of a group again
            raise StartError(str(failure)) from None

    async def _compose(self, local: Client, remote: Client, facts: Facts) -> None:
        settings, node = self._settings, self._settings.node_name
        lock = LeaderLock(local, names.LOCK_NAMESPACE, names.lock_name(node), f"{socket.gethostname()}-{os.getpid()}")
        # no write of ours leaves once the lock is lost, on whichever side
        fenced_local, fenced_remote = local.fenced(lock.check), remote.fenced(lock.check)
        timing = options.watch_timing(settings)
        caches = self.caches = Caches(local, remote, facts, node, timing)
        own = {names.LABEL_ORIGIN: facts.local_id, names.LABEL_NODE: node}
        sizes = source(settings, remote, own, options.placement(settings), timing)
        self._informers = [*caches.all(), *sizes.informers()]

        async with EventRecorder(fenced_local, "farlet", instance=node) as recorder:
            namespace_map = NamespaceMap(facts.local_id, parse(settings.namespaces))
            namespaces = NamespaceController(fenced_remote, caches.local_namespaces, namespace_map)
            cleaner = NamespaceCleaner(
                local=local,
                remote=fenced_remote,
                local_namespaces=caches.local_namespaces,
                namespaces=namespaces,
                namespace_map=namespace_map,
            )
            pods = PodController(
                local=fenced_local,
                remote=fenced_remote,
                local_pods=caches.local_pods,
                remote_pods=caches.remote_pods,
                replica_sets=caches.replica_sets,
                jobs=caches.jobs,
                namespaces=namespaces,
                options=options.forge_options(settings, facts),
                recorder=recorder,
                may_write=lock.held,
                ip_map=options.ip_map(settings),
                announce=settings.events is EventMode.ALL,
            )
            nodes = NodeController(
                fenced_local,
                options.node_options(settings, facts, self.kubelet_port),
                sizes,
                damping=Damping(settle_seconds=settings.capacity_settle),
                own_node=caches.own_node,
                local_pods=caches.local_pods,
                on_unreachable=facts.on_unreachable,
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
                namespaces=facts.remote_namespaces,
            )
            self._figures(local, remote, caches, pods, cleaner)
            caches.local_pods.listen(pods.on_local_pod)
            caches.local_namespaces.listen(_both(pods.on_namespace, cleaner.on_local_namespace))
            caches.own_node.listen(nodes.on_change)
            for informer in (caches.remote_pods, caches.replica_sets, caches.jobs):
                informer.listen(pods.on_remote_object)
            sizes.listen(nodes.wake)
            await self._serve(lock, nodes, sizes, pods, events, cleaner, recorder, local, remote, facts)

    async def _serve(
        self,
        lock: LeaderLock,
        nodes: NodeController,
        sizes: Source,
        pods: PodController,
        events: RemoteEvents,
        cleaner: NamespaceCleaner,
        recorder: EventRecorder,
        local: Client,
        remote: Client,
        facts: Facts,
    ) -> None:
        settings = self._settings

        def on_reach(reach: Reach) -> None:
            nodes.on_reach(reach)
            if facts.on_unreachable is OnUnreachable.NOT_READY:
                pods.on_reach(None if reach.reachable else reach)

        prober = Prober(
            remote,
            interval=settings.probe_interval,
            timeout=settings.probe_timeout,
            threshold=settings.probe_failures,
            on_change=on_reach,
        )

        async def lead() -> None:
            if facts.remote_namespaces is not None:
                await check_in_sight(local, settings.node_name, facts.local_id, parse(settings.namespaces))
            await nodes.start()
            log.info("node %s is looked after", settings.node_name)
            self._leads = True
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(nodes.run())
                    group.create_task(prober.run())
                    group.create_task(pods.run(settings.workers))
                    group.create_task(events.run())
                    if facts.remote_namespaces is None:  # with confined rights none was made
                        group.create_task(cleaner.run())
            finally:
                self._leads = False
                if lock.held():  # an orderly end; nothing can be written after it
                    if settings.on_shutdown is OnShutdown.NOT_READY:
                        await nodes.stopped()
                    await recorder.close()

        self._heartbeat = lambda: _lease_fresh(nodes, lock)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._turn())]
            tasks += [group.create_task(informer.run()) for informer in self._informers]
            await all_synced(self._informers)
            await sizes.start()
            tasks.append(group.create_task(sizes.run()))
            print(describe_node(settings, facts, sizes.measure().capacity, sizes.what), flush=True)  # noqa: T201
            await lock.run(lead)
            for task in tasks:
                task.cancel()

    def _figures(
        self, local: Client, remote: Client, caches: Caches, pods: PodController, cleaner: NamespaceCleaner
    ) -> None:
        self.collectors = [
            QueueCollector([pods.queue, cleaner.queue]),
            InformerCollector("local", [caches.own_node, caches.local_namespaces, caches.local_pods]),
            InformerCollector("remote", [caches.remote_pods, caches.replica_sets, caches.jobs]),
            ClientCollector([local, remote]),
        ]

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


def _both(one: OnChange, other: OnChange) -> OnChange:
    """Tell two of a change, as an informer tells one."""

    def tell(key: Key, old: Envelope | None, new: Envelope | None) -> None:
        one(key, old, new)
        other(key, old, new)

    return tell


def _lease_fresh(nodes: NodeController, lock: LeaderLock) -> str | None:
    age = nodes.lease_age()
    if lock.held() and age is not None and age > _STALE:
        return f"the node's lease was last renewed {age:.0f} s ago"
    return None
