"""The background worker: puts the clients, caches and controllers of one virtual node together, and ends them in order.

Nothing is decided before every cache is complete and the leader lock is held. When the lock is lost, the controllers
end and the worker waits for it again, with its caches warm; when any part ends with an error, so does the worker: a
fresh start on what the two clusters hold is the one recovery that always works.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from app import __version__, names
from app.health import HealthServer
from app.kube import config
from app.kube.client import Client
from app.kube.election import LeaderLock
from app.kube.errors import ApiError, Forbidden, KubeError
from app.kube.events import EventRecorder
from app.kube.informer import Informer
from app.kube.objects import Object
from app.kube.resources import JOBS, NAMESPACES, NODES, PODS, REPLICA_SETS
from app.namespaces.controller import NamespaceController
from app.namespaces.mapping import NamespaceMap, parse
from app.node import stated
from app.node.controller import Claims, NodeController, Sizes
from app.node.object import NodeError, NodeOptions
from app.node.placement import Placement
from app.node.reachability import Prober, Reach
from app.pods.controller import BY_POD_UID, BY_UID, PodController, by_pod_uid, by_uid
from app.pods.forge import ForgeOptions
from app.pods.remote_events import RemoteEvents
from app.settings import OnShutdown, OnUnreachable, RunSettings

log = logging.getLogger(__name__)

LOCK_NAMESPACE = "kube-node-lease"
"""Beside the node's own Lease, so that one Role in one namespace covers both."""

_SYNC_TIMEOUT = 120.0
_STALE = 30.0


class WorkerError(Exception):
    """The worker cannot go on; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found at start."""

    local_version: str
    remote_version: str
    local_id: str
    remote_id: str
    address: str
    """This machine's address towards the local API server."""


def main(settings: RunSettings) -> None:
    """Run until SIGTERM or SIGINT."""
    _set_up_logging(settings.log_format)
    asyncio.run(_run_until_signalled(settings))


async def _run_until_signalled(settings: RunSettings) -> None:
    task = asyncio.create_task(Worker(settings).run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


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
            except* (KubeError, WorkerError, NodeError) as errors:
                raise WorkerError(str(_first(errors))) from None

    async def _compose(self, local: Client, remote: Client, facts: Facts) -> None:
        settings, node = self._settings, self._settings.node_name
        lock = LeaderLock(local, LOCK_NAMESPACE, names.lock_name(node), f"{socket.gethostname()}-{os.getpid()}")
        # no write of ours leaves once the lock is lost, on whichever side
        fenced_local, fenced_remote = local.fenced(lock.check), remote.fenced(lock.check)
        own = {names.LABEL_ORIGIN: facts.local_id, names.LABEL_NODE: node}
        ours = ",".join(f"{key}={value}" for key, value in own.items())
        placement = _placement(settings)
        fixed = stated.parse_flag(settings.capacity) if settings.capacity else None

        local_pods = Informer(
            local,
            PODS,
            field_selector=f"spec.nodeName={node}",
            indexers={BY_UID: by_uid},
            on_change=lambda *change: pods.on_local_pod(*change),
        )
        local_namespaces = Informer(local, NAMESPACES, on_change=lambda *change: pods.on_namespace(*change))
        own_node = Informer(
            local, NODES, field_selector=f"metadata.name={node}", on_change=lambda *change: nodes.on_change(*change)
        )
        remote_pods, replica_sets, jobs = (
            Informer(
                remote,
                resource,
                label_selector=ours,
                indexers={BY_POD_UID: by_pod_uid},
                on_change=lambda *change: pods.on_remote_object(*change),
            )
            for resource in (PODS, REPLICA_SETS, JOBS)
        )
        self._informers = [own_node, local_namespaces, local_pods, remote_pods, replica_sets, jobs]
        claims = remote_nodes = None
        if fixed is None:
            claims = Claims(own, lambda: nodes.wake())
            remote_nodes = Informer(remote, NODES, on_change=lambda *change: nodes.on_change(*change))
            self._informers.append(remote_nodes)
            # everything but our own pods, which are many and known already
            others = (
                f"{names.LABEL_ORIGIN}!={facts.local_id}",
                f"{names.LABEL_ORIGIN}={facts.local_id},{names.LABEL_NODE}!={node}",
            )
            for selector in others:
                self._informers.append(
                    Informer(
                        remote,
                        PODS,
                        label_selector=selector,
                        field_selector="status.phase!=Succeeded,status.phase!=Failed",
                        on_change=claims.on_pod,
                    )
                )

        async with EventRecorder(fenced_local, "farlet", instance=node) as recorder:
            pods = PodController(
                local=fenced_local,
                remote=fenced_remote,
                local_pods=local_pods,
                remote_pods=remote_pods,
                replica_sets=replica_sets,
                jobs=jobs,
                namespaces=NamespaceController(
                    fenced_remote, local_namespaces, NamespaceMap(facts.local_id, parse(settings.namespaces))
                ),
                options=_forge_options(settings, facts, placement),
                recorder=recorder,
                may_write=lock.held,
            )
            nodes = NodeController(
                fenced_local,
                _node_options(settings, facts),
                Sizes(fixed=fixed, share=settings.share, placement=placement),
                own_node=own_node,
                local_pods=local_pods,
                remote_nodes=remote_nodes,
                claims=claims,
                on_unreachable=settings.on_unreachable,
                may_write=lock.held,
            )
            events = RemoteEvents(
                local=fenced_local,
                remote=remote,
                local_pods=local_pods,
                remote_pods=remote_pods,
                replica_sets=replica_sets,
                jobs=jobs,
                mode=settings.events,
            )
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
            if settings.on_unreachable is OnUnreachable.NOT_READY:
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
                await _all_synced(self._informers)
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
        waiting = [informer.resource.plural for informer in self._informers if not informer.synced]
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


async def discover(local: Client, remote: Client, settings: RunSettings) -> Facts:
    """Who the two clusters are; refuses what cannot work."""
    local_version, remote_version = await asyncio.gather(local.server_version(), remote.server_version())
    local_id = settings.cluster_id or await cluster_id(local)
    remote_id = await cluster_id(remote)
    if local_id == remote_id:
        raise WorkerError("both kubeconfigs lead to the same cluster: a cluster cannot be a node of itself")
    address = await asyncio.to_thread(_source_address, (await local.access()).server)
    return Facts(local_version["gitVersion"], remote_version["gitVersion"], local_id, remote_id, address)


def _source_address(server: str) -> str:
    """The address that this machine has towards a server; nothing is sent."""
    url = urlsplit(server)
    with socket.socket(socket.AF_INET6 if ":" in (url.hostname or "") else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((url.hostname, url.port or 443))
        return str(probe.getsockname()[0])


async def cluster_id(client: Client) -> str:
    """A short hash of the UID of kube-system, which no two clusters share; of the address where that is hidden."""
    try:
        uid = (await client.get(NAMESPACES.path(name="kube-system")))["metadata"]["uid"]
    except ApiError:
        uid = (await client.access()).server
    return hashlib.sha256(uid.encode()).hexdigest()[:8]


def describe(settings: RunSettings, facts: Facts) -> str:
    """What a person wants to know at start, in a few lines."""
    node = settings.node_name
    where = (
        f"namespaces {', '.join(settings.namespaces)}"
        if settings.namespaces
        else f"every namespace with the label {names.LABEL_ENABLED}=true"
    )
    return "\n".join(
        [
            f"farlet {__version__}: node {node} = remote cluster {facts.remote_id}",
            f"  local {facts.local_version} (id {facts.local_id}), remote {facts.remote_version}",
            f"  offloads from {where}",
            f"  send a pod there: runtimeClassName: {names.RUNTIME_CLASS}, or nodeName: {node}, or tolerate "
            f"{names.TAINT_KEY} and select type={names.TYPE_VIRTUAL_KUBELET}",
        ]
    )


async def _all_synced(informers: Iterable[Informer]) -> None:
    """Wait until every cache is complete; a right that is missing is said at once, with the way out."""
    waiting = list(informers)
    deadline = time.monotonic() + _SYNC_TIMEOUT
    while missing := [informer for informer in waiting if not informer.synced]:
        for informer in missing:
            if isinstance(informer.error, Forbidden):
                raise WorkerError(f"a right is missing: {informer.error.message} (manifests/ has the roles to apply)")
        if time.monotonic() > deadline:
            problems = [f"{informer.resource.plural}: {informer.error or 'no answer'}" for informer in missing]
            raise WorkerError(f"could not read everything within {_SYNC_TIMEOUT:.0f} s: {'; '.join(problems)}")
        await asyncio.sleep(0.05)


def _pairs(options: Iterable[str]) -> dict[str, str]:
    return dict(option.split("=", 1) for option in options)


def _toleration(text: str) -> Object:
    """``KEY[=VALUE][:EFFECT]`` as a toleration."""
    rest, _, effect = text.partition(":")
    key, equals, value = rest.partition("=")
    toleration: Object = (
        {"key": key, "operator": "Equal", "value": value} if equals else {"key": key, "operator": "Exists"}
    )
    return toleration | ({"effect": effect} if effect else {})


def _placement(settings: RunSettings) -> Placement:
    return Placement(
        tolerations=[_toleration(text) for text in settings.remote_tolerations],
        node_selector=_pairs(settings.remote_node_selector),
    )


def _forge_options(settings: RunSettings, facts: Facts, placement: Placement) -> ForgeOptions:
    return ForgeOptions(
        origin=facts.local_id,
        node=settings.node_name,
        remote_minor=int(facts.remote_version.split(".")[1]),
        node_selector=placement.node_selector,
        tolerations=placement.tolerations,
        runtime_class=settings.remote_runtime_class,
        priority_class=settings.remote_priority_class,
        allow_host=settings.allow_host,
    )


def _node_options(settings: RunSettings, facts: Facts) -> NodeOptions:
    return NodeOptions(
        name=settings.node_name,
        remote_cluster_id=facts.remote_id,
        local_version=facts.local_version,
        remote_version=facts.remote_version,
        addresses=(settings.node_address or facts.address,),
        labels=_pairs(settings.node_labels),
    )


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def _set_up_logging(style: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(_JsonFormatter() if style == "json" else text)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
