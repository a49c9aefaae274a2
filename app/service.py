"""``farlet run`` as a process: its logging, its signals, and which parts of Farlet it holds.

The kubelet API has the main thread and its event loop. The worker has a thread and a loop of its own, so that a storm
of streams never delays a heartbeat; the API finds pods in the worker's caches.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Iterator, Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from app import logs, options
from app.caches import Caches, all_synced, waiting_for
from app.facts import Facts, StartError, describe, discover, first_of
from app.health import Check, HealthServer
from app.kube import config
from app.kube.client import Client
from app.kube.errors import KubeError
from app.kubelet import Kubelet
from app.settings import Role, RunSettings
from app.thread import in_own_thread
from app.twins import CachedTwins
from app.worker import Worker


def main(settings: RunSettings) -> None:
    """Run until SIGTERM or SIGINT."""
    logs.set_up(settings.log_format)
    asyncio.run(_run_until_signalled(settings))


async def _run_until_signalled(settings: RunSettings) -> None:
    task = asyncio.create_task(_run(settings))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _run(settings: RunSettings) -> None:
    failure: BaseException | None = None
    try:
        async with (
            Client(config.load(settings.kubeconfig, settings.context), name="local") as local,
            Client(config.load(settings.remote_kubeconfig, settings.remote_context), name="remote") as remote,
        ):
            facts = await discover(local, remote, settings)
            _say(describe(settings, facts))
            match settings.role:
                case Role.WORKER:
                    await _worker(settings, facts)
                case Role.API:
                    await _api(settings, facts, local, remote)
                case Role.ALL:
                    await _all(settings, facts, local, remote)
    except* (KubeError, StartError) as errors:
        failure = first_of(errors)
    if failure is not None:  # raised within `except*` it would be one of a group again
        raise StartError(str(failure)) from None


async def _all(settings: RunSettings, facts: Facts, local: Client, remote: Client) -> None:
    """Both parts. Whichever ends, the other does."""
    worker = Worker(settings, facts)
    twins = CachedTwins(lambda: worker.caches)
    figures = _Figures(worker)
    kubelet = Kubelet(settings, facts, local=local, remote=remote, twins=twins, collectors=[figures])
    await kubelet.start()
    worker.kubelet_port = kubelet.port
    async with _health(settings, worker.live, worker.ready | kubelet.ready), asyncio.TaskGroup() as group:
        group.create_task(in_own_thread(worker.run, "worker"))
        group.create_task(kubelet.run())
        group.create_task(_try_out(kubelet, worker))


async def _worker(settings: RunSettings, facts: Facts) -> None:
    worker = Worker(settings, facts)
    async with _health(settings, worker.live, worker.ready):
        await in_own_thread(worker.run, "worker")


async def _api(settings: RunSettings, facts: Facts, local: Client, remote: Client) -> None:
    """The kubelet API alone: any number of these serve one node, each with caches of its own."""
    caches = Caches(local, remote, facts, settings.node_name, options.watch_timing(settings))
    kubelet = Kubelet(settings, facts, local=local, remote=remote, twins=CachedTwins(lambda: caches))
    followed = caches.pods()
    await kubelet.start()

    def synced() -> str | None:
        waiting = waiting_for(followed)
        return f"waiting for {', '.join(waiting)}" if waiting else None

    async with _health(settings, {}, {"caches": synced} | kubelet.ready), asyncio.TaskGroup() as group:
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
async def _health(settings: RunSettings, live: Mapping[str, Check], ready: Mapping[str, Check]) -> AsyncIterator[None]:
    server = HealthServer(live=live, ready=ready)
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


class _Figures(Collector):
    """The worker's figures, once it has some."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def collect(self) -> Iterator[Metric]:
        for collector in self._worker.collectors:
            yield from collector.collect()


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - for the person who started it
