"""The background worker: puts the caches and controllers of one virtual node together, and ends them in order.

Nothing is decided before every cache is complete and the leader lock is held. When the lock is lost, the controllers
end and the worker waits for it again, with its caches warm; when any part ends with an error, so does the worker: a
fresh start on what the two clusters hold is the one recovery that always works.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

from prometheus_client.registry import Collector

from app import names, options
from app.caches import Caches, all_synced, waiting_for
from app.facts import Facts, describe_node
from app.health import Check
from app.kube import config
from app.kube.client import Client
from app.kube.election import LeaderLock, NotLeading
from app.kube.errors import Conflict, KubeError, ServerError, TooManyRequests, Unreachable
from app.kube.events import EventRecorder
from app.kube.informer import OnChange
from app.kube.informers import Cache
from app.kube.objects import Envelope, Key
from app.kube.queue import WorkQueue
from app.kube.resources import PODS
from app.metrics import (
    EventCollector,
    InformerCollector,
    LatencyCollector,
    QueueCollector,
    StateCollector,
    WriteCollector,
)
from app.namespaces.cleanup import NamespaceCleaner
from app.namespaces.controller import NamespaceController
from app.namespaces.extended import ExtendedNamespaces
from app.namespaces.mapping import NamespaceMap, parse
from app.namespaces.wishes import Wishes, own_namespace
from app.node.capacity import CapacityError
from app.node.controller import NodeController
from app.node.damping import Damping
from app.node.object import NodeError, why_not_ours
from app.node.reachability import Prober, Reach
from app.node.sources import Source, source
from app.node.vigil import PROMPT, Vigil, existing
from app.pods.controller import PodController
from app.pods.remote_events import RemoteEvents
from app.process import one_error
from app.reflection.configmaps import ConfigMaps
from app.reflection.copies import Owner
from app.reflection.endpointslices import EndpointSlices
from app.reflection.engine import Reflector
from app.reflection.kind import Kind
from app.reflection.rules import Policy
from app.reflection.secrets import Secrets
from app.reflection.services import Services
from app.scope import ScopeError, check_in_sight
from app.settings import EventMode, OnShutdown, OnUnreachable, RunSettings
from certs.address import follow_address

log = logging.getLogger(__name__)

_STALE = 30.0
_LAST_WORD = 3.0
"""Seconds that the node has to say that Farlet was stopped."""
_LAST_EVENTS = 2.0
"""Seconds that the last events have."""
_RETRY = 2.0
"""Seconds until an API server that was not well is asked again."""
_PASSING = (Conflict, NotLeading, ServerError, TooManyRequests, Unreachable)
"""Errors that say nothing of what was asked for."""


class Worker:
    """One virtual node."""

    def __init__(self, settings: RunSettings, facts: Facts) -> None:
        self._settings = settings
        self._facts = facts
        self._informers: list[Cache] = []
        self._turned = time.monotonic()
        self._leads = False
        self._has_led = False
        self._prober: Prober | None = None
        self._heartbeat: Callable[[], str | None] = lambda: None
        self.kubelet_port = int(settings.kubelet_address.rpartition(":")[2])
        """Where the node says that its kubelet API is."""
        self.caches: Caches | None = None
        """Once there are some; other threads may read them."""
        self.clients: tuple[Client, ...] = ()
        """To both clusters; other threads may read their figures."""
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
        with one_error(ScopeError, NodeError, CapacityError):
            async with (
                Client(config.load(settings.kubeconfig, settings.context), name="local") as local,
                Client(config.load(settings.remote_kubeconfig, settings.remote_context), name="remote") as remote,
            ):
                await self._compose(local, remote, self._facts)

    async def _compose(self, local: Client, remote: Client, facts: Facts) -> None:
        settings, node = self._settings, self._settings.node_name
        lock = leader_lock(local, node)
        # no write of ours leaves once the lock is lost, on whichever side
        fenced_local, fenced_remote = local.fenced(lock.check), remote.fenced(lock.check)
        timing = options.watch_timing(settings)
        caches = self.caches = Caches(local, remote, facts, node, timing)
        own = {names.LABEL_ORIGIN: facts.local_id, names.LABEL_NODE: node}
        sizes = source(settings, remote, own, options.placement(settings), timing)
        self._informers = [*caches.all(), *sizes.informers()]

        async with EventRecorder(fenced_local, "farlet", instance=node) as recorder:
            wishes = Wishes(
                NamespaceMap(facts.local_id, parse(settings.namespaces), node, own_namespace()),
                local=local,
                namespaces=caches.local_namespaces,
                offloadings=caches.offloadings,
                own_node=caches.own_node,
            )
            namespaces = NamespaceController(fenced_remote, wishes)
            cleaner = NamespaceCleaner(
                local=fenced_local,
                remote=fenced_remote,
                local_namespaces=caches.local_namespaces,
                namespaces=namespaces,
                wishes=wishes,
                places=caches.places,
                local_pod=caches.local_pod,
                reflected=lambda remote_namespace: reflector.keeps(remote_namespace),
                recorder=recorder,
                grace=settings.unmap_grace,
            )
            extensions = ExtendedNamespaces(
                local=fenced_local,
                cluster=facts.remote_id,
                wishes=wishes,
                namespaces=namespaces,
                local_namespaces=caches.local_namespaces,
                offloadings=caches.offloadings,
                places=caches.places,
                departures=cleaner,
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
            reflector = Reflector(
                local=local,
                remote=fenced_remote,
                owner=Owner(facts.local_id, node),
                kinds=_reflected(settings, facts),
                remote_cluster=facts.remote_id,
                extensions=extensions,
                in_use=caches.in_use,
                recorder=recorder,
                may_write=lock.held,
                timing=timing,
                remote_namespaces=facts.remote_namespaces,
            )
            self._figures(local, remote, caches, sizes, pods, cleaner, extensions, reflector, events, recorder)
            caches.local_pods.listen(pods.on_local_pod)
            caches.local_namespaces.listen(
                _each(pods.on_namespace, cleaner.on_local_namespace, extensions.on_local_namespace)
            )
            caches.offloadings.listen(extensions.on_offloading)
            caches.own_node.listen(_each(nodes.on_change, extensions.on_own_node))
            if caches.remote_namespaces is not None:
                caches.remote_namespaces.listen(extensions.on_remote_namespace)
            cleaner.listen(extensions.wake)
            extensions.listen(pods.wake_waiting)
            for informer in (caches.remote_pods, caches.replica_sets, caches.jobs):
                informer.listen(pods.on_remote_object)
            sizes.listen(nodes.wake)
            await self._serve(
                lock, nodes, sizes, pods, events, cleaner, extensions, reflector, recorder, local, remote, facts
            )

    async def _serve(
        self,
        lock: LeaderLock,
        nodes: NodeController,
        sizes: Source,
        pods: PodController,
        events: RemoteEvents,
        cleaner: NamespaceCleaner,
        extensions: ExtendedNamespaces,
        reflector: Reflector,
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
            if reach.reachable:
                reflector.on_reachable()

        prober = self._prober = Prober(
            remote,
            interval=settings.probe_interval,
            timeout=settings.probe_timeout,
            threshold=settings.probe_failures,
            on_change=on_reach,
        )

        async def take_up() -> None:
            if facts.remote_namespaces is not None:
                await check_in_sight(local, settings.node_name, facts.local_id, parse(settings.namespaces))
            await nodes.start()

        async def lead() -> None:
            await self._patiently(take_up)
            log.info("node %s is looked after", settings.node_name)
            self._leads = self._has_led = True
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(nodes.run())
                    group.create_task(prober.run())
                    group.create_task(pods.run(settings.workers))
                    group.create_task(events.run())
                    group.create_task(extensions.run())
                    group.create_task(reflector.run())
                    if facts.remote_namespaces is None:  # with confined rights none was made
                        group.create_task(cleaner.run())
            finally:
                self._leads = False
                pods.latency.stopped()
                if lock.held():  # an orderly end; nothing can be written after it
                    if settings.on_shutdown is OnShutdown.NOT_READY:
                        await nodes.stopped(_LAST_WORD)
                    await recorder.close(_LAST_EVENTS)

        self._heartbeat = lambda: _lease_fresh(nodes, lock)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._turn())]
            tasks.append(
                group.create_task(
                    follow_address(settings.node_address, os.environ, local, facts.address, nodes.set_address)
                )
            )
            tasks += [group.create_task(informer.run()) for informer in self._informers]
            await self._see_everything(local, remote, facts)
            await sizes.start()
            tasks.append(group.create_task(sizes.run()))
            print(describe_node(settings, facts, sizes.measure().capacity, sizes.what), flush=True)  # noqa: T201
            await lock.run(lead)
            for task in tasks:
                task.cancel()

    async def _patiently(self, take_up: Callable[[], Awaitable[None]]) -> None:
        """Do it, for however long the API server is not well. One that was well with it before is believed not to be
        when it refuses: having just started, it knows nobody's rights."""
        while True:
            try:
                return await take_up()
            except KubeError as error:
                if not (self._has_led or isinstance(error, _PASSING)):
                    raise
                log.warning("node %s cannot be looked after yet: %s", self._settings.node_name, error)
            await asyncio.sleep(_RETRY)

    async def _see_everything(self, local: Client, remote: Client, facts: Facts) -> None:
        """Wait until every cache is complete. A node that is there already is looked after meanwhile, for however long
        the remote cluster is away: with its Farlet it would go, and its pods with it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PROMPT):
                return await all_synced(self._informers)
        settings = self._settings
        if not await _is_ours(local, settings.node_name, facts.remote_id):
            return await all_synced(self._informers, waited=PROMPT)
        policy, waiting = facts.on_unreachable, ", ".join(waiting_for(self._informers))
        log.warning("node %s is looked after (%s) until all is read: %s", settings.node_name, policy.value, waiting)
        lock = leader_lock(local, settings.node_name)  # not ours: who holds that one is taken to work
        vigil = Vigil(settings, policy, local, remote, lock, failures=settings.probe_failures)
        async with vigil.keeping(), asyncio.TaskGroup() as group:
            probing = group.create_task(vigil.prober.run())
            await all_synced(self._informers, waited=PROMPT, patient=True)
            probing.cancel()

    def _figures(
        self,
        local: Client,
        remote: Client,
        caches: Caches,
        sizes: Source,
        pods: PodController,
        cleaner: NamespaceCleaner,
        extensions: ExtendedNamespaces,
        reflector: Reflector,
        events: RemoteEvents,
        recorder: EventRecorder,
    ) -> None:
        # The pods that size the node are others than the twins': mixed, neither could be told.
        sizing = [informer for informer in sizes.informers() if informer.resource is not PODS]
        own: list[Cache] = [caches.own_node, caches.local_namespaces, caches.offloadings, caches.local_pods]
        theirs = [caches.remote_pods, caches.replica_sets, caches.jobs, *sizing]
        queues: list[WorkQueue[Any]] = [pods.queue, extensions.queue, events.queue]
        queues += [reflector.queue, reflector.spaces_queue]
        if caches.remote_namespaces is not None:  # with confined rights nobody cleans
            theirs.append(caches.remote_namespaces)
            queues.append(cleaner.queue)

        def followed() -> dict[str, list[Cache]]:
            return {
                "local": [*own, *reflector.informers(remote=False)],
                "remote": [*theirs, *reflector.informers(remote=True)],
            }

        key = Key("", self._settings.node_name)
        self.clients = (local, remote)
        self.collectors = [
            LatencyCollector(pods.latency, lambda: self._leads),
            QueueCollector(queues, lambda: self._leads),
            InformerCollector(followed),
            WriteCollector(reflector.writes),
            EventCollector({"farlet": recorder.stats, "remote": lambda: events.counts}),
            StateCollector(
                leads=lambda: self._leads, reachable=self._reachable, own_node=lambda: caches.own_node.get(key)
            ),
        ]

    def _reachable(self) -> bool | None:
        """Whether the remote cluster answers; None where nobody asks it, as with a worker that waits."""
        return self._prober.reach.reachable if self._leads and self._prober is not None else None

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


def leader_lock(local: Client, node: str) -> LeaderLock:
    """Who holds it works for the node."""
    return LeaderLock(local, names.LOCK_NAMESPACE, names.lock_name(node), f"{socket.gethostname()}-{os.getpid()}")


async def _is_ours(local: Client, node: str, remote_id: str) -> bool:
    """Whether a Node is there and stands for the remote cluster; not, where the local API server does not say."""
    try:
        found = await existing(local, node)
    except KubeError:
        return False
    return found is not None and why_not_ours(found, remote_id) is None


def _reflected(settings: RunSettings, facts: Facts) -> list[Kind]:
    """The kinds that are reflected."""
    owner, rules = Owner(facts.local_id, settings.node_name), options.reflection_rules(settings)
    slices = EndpointSlices(
        owner, rules, seen_remotely=options.local_ip_map(settings), seen_locally=options.ip_map(settings)
    )
    every: list[Kind] = [ConfigMaps(owner, rules), Secrets(owner, rules), Services(owner, rules), slices]
    return [kind for kind in every if rules.policy(kind.resource.plural) is not Policy.OFF]


def _each(*listeners: OnChange) -> OnChange:
    """Tell several of a change, as an informer tells one."""

    def tell(key: Key, old: Envelope | None, new: Envelope | None) -> None:
        for listener in listeners:
            listener(key, old, new)

    return tell


def _lease_fresh(nodes: NodeController, lock: LeaderLock) -> str | None:
    age = nodes.lease_age()
    if lock.held() and age is not None and age > _STALE:
        return f"the node's lease was last renewed {age:.0f} s ago"
    return None
