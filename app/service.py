"""``farlet run`` as a process: its logging, its signals, and which parts of Farlet it holds.

The kubelet API has the main thread and its event loop. The worker has a thread and a loop of its own, so that a storm
of streams never delays a heartbeat; the API finds pods in the worker's caches.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from app import logs, options
from app.caches import Caches, all_synced, waiting_for
from app.facts import Facts, StartError, describe, discover, unreachable_policy
from app.health import Check, HealthServer
from app.kube import config
from app.kube.client import Client
from app.kubelet import Kubelet
from app.metrics import ClientCollector, InfoCollector, InformerCollector, TwinCollector, page
from app.node.vigil import AWAY, PROMPT, Vigil, existing
from app.process import one_error, run_until_signalled
from app.settings import Role, RunSettings
from app.thread import in_own_thread
from app.twins import CachedTwins
from app.worker import Worker, leader_lock

log = logging.getLogger(__name__)

_COLLECT_EVERY = 20_000
"""Objects made before Python looks for cycles. Each event that is decoded makes hundreds, none of them in a cycle."""


def main(settings: RunSettings) -> None:
    """Run until SIGTERM or SIGINT."""
    logs.set_up(settings.log_format)
    gc.set_threshold(_COLLECT_EVERY)
    run_until_signalled(_run(settings))


async def _run(settings: RunSettings) -> None:
    with one_error():
        async with (
            Client(config.load(settings.kubeconfig, settings.context), name="local") as local,
            Client(config.load(settings.remote_kubeconfig, settings.remote_context), name="remote") as remote,
        ):
            facts = await _discover(settings, local, remote)
            _say(describe(settings, facts))
            match settings.role:
                case Role.WORKER:
                    await _worker(settings, facts)
                case Role.API:
                    await _api(settings, facts, local, remote)
                case Role.ALL:
                    await _all(settings, facts, local, remote)


async def _discover(settings: RunSettings, local: Client, remote: Client) -> Facts:
    """What is found of both clusters; where the node is there already, a remote cluster that is away is waited for."""
    looking = asyncio.create_task(discover(local, remote, settings))
    try:
        await asyncio.wait((looking,), timeout=PROMPT)
        if settings.role is Role.API or (looking.done() and not isinstance(looking.exception(), AWAY)):
            return await looking
        if await existing(local, settings.node_name) is None:
            return await looking
        return await _look_after_node(settings, local, remote, looking)
    finally:
        looking.cancel()


async def _look_after_node(settings: RunSettings, local: Client, remote: Client, looking: asyncio.Task[Facts]) -> Facts:
    """Keep the node as its policy says until everything is found; its pods wait."""
    node = settings.node_name
    policy, _ = await unreachable_policy(local, settings)
    vigil = Vigil(settings, policy, local, remote, leader_lock(local, node), failures=1)
    prober = vigil.prober
    ready: dict[str, Check] = {"remote": lambda: f"waiting for the remote cluster: {prober.reach.error or 'no answer'}"}
    exposition = page([InfoCollector(node=node, role=settings.role.value)])
    async with _health(settings, {}, ready, exposition), vigil.keeping():
        attempt: Awaitable[Facts] = looking
        while True:
            try:
                return await attempt
            except AWAY as error:
                log.warning("node %s is looked after (%s) until the remote answers: %s", node, policy.value, error)
            await prober.probe()
            await asyncio.sleep(settings.probe_interval)
            while not prober.reach.reachable:
                await prober.probe()
                await asyncio.sleep(settings.probe_interval)
            attempt = discover(local, remote, settings)


async def _all(settings: RunSettings, facts: Facts, local: Client, remote: Client) -> None:
    """Both parts. Whichever ends, the other does."""
    worker = Worker(settings, facts)
    twins = CachedTwins(lambda: worker.caches)
    collectors = _collectors(settings, worker, local, remote)
    kubelet = Kubelet(settings, facts, local=local, remote=remote, twins=twins, collectors=collectors)
    await kubelet.start()
    worker.kubelet_port = kubelet.port
    checks = worker.ready | kubelet.ready
    async with _health(settings, worker.live, checks, kubelet.exposition), asyncio.TaskGroup() as group:
        group.create_task(in_own_thread(worker.run, "worker"))
        group.create_task(kubelet.run())
        group.create_task(_try_out(kubelet, worker))


async def _worker(settings: RunSettings, facts: Facts) -> None:
    worker = Worker(settings, facts)
    exposition = page(_collectors(settings, worker))
    async with _health(settings, worker.live, worker.ready, exposition):
        await in_own_thread(worker.run, "worker")


async def _api(settings: RunSettings, facts: Facts, local: Client, remote: Client) -> None:
    """The kubelet API alone: any number of these serve one node, each with caches of its own."""
    caches = Caches(local, remote, facts, settings.node_name, options.watch_timing(settings))
    collectors = [
        InfoCollector(node=settings.node_name, role=settings.role.value),
        TwinCollector(lambda: caches),
        ClientCollector(lambda: (local, remote)),
        InformerCollector(
            lambda: {"local": [caches.local_pods], "remote": [caches.remote_pods, caches.replica_sets, caches.jobs]}
        ),
    ]
    twins = CachedTwins(lambda: caches)
    kubelet = Kubelet(settings, facts, local=local, remote=remote, twins=twins, collectors=collectors)
    followed = caches.pods()
    await kubelet.start()

    def synced() -> str | None:
        waiting = waiting_for(followed)
        return f"waiting for {', '.join(waiting)}" if waiting else None

    checks = {"caches": synced} | kubelet.ready
    async with _health(settings, {}, checks, kubelet.exposition), asyncio.TaskGroup() as group:
        for informer in followed:
            group.create_task(informer.run())
        group.create_task(kubelet.run())
        await all_synced(followed)
        _say(await kubelet.try_out())


async def _try_out(kubelet: Kubelet, worker: Worker) -> None:
    """Say whether people will be able to reach into pods, as soon as that can be known."""
    while not worker.has_node():  # noqa: ASYNC110 - it belongs to another loop
        await asyncio.sleep(0.2)
    _say(f"  {await kubelet.try_out()}")


@contextlib.asynccontextmanager
async def _health(
    settings: RunSettings, live: Mapping[str, Check], ready: Mapping[str, Check], exposition: Callable[[], bytes]
) -> AsyncIterator[None]:
    server = HealthServer(live=live, ready=ready, metrics=exposition if settings.health_metrics else None)
    try:
        await server.start(settings.health_address)
    except OSError as error:
        raise StartError(
            f"/livez and /readyz cannot be served on {settings.health_address}: {error.strerror or error}; "
            "give another with --health-address HOST:PORT"
        ) from error
    try:
        yield
    finally:
        await server.stop()


def _collectors(settings: RunSettings, worker: Worker, *clients: Client) -> list[Collector]:
    """What a process with a worker tells; *clients* are those that are not the worker's own."""
    return [
        InfoCollector(node=settings.node_name, role=settings.role.value),
        TwinCollector(lambda: worker.caches),
        ClientCollector(lambda: (*clients, *worker.clients)),
        _Figures(worker),
    ]


class _Figures(Collector):
    """The worker's figures, once it has some."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def collect(self) -> Iterator[Metric]:
        for collector in self._worker.collectors:
            yield from collector.collect()


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - for the person who started it
