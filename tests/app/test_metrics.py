"""Figures of the worker, as a scraper reads them."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from app.kube.client import Client
from app.kube.config import Connection
from app.kube.informer import Informer
from app.kube.queue import Result, WorkQueue, done
from app.kube.resources import PODS
from app.metrics import ClientCollector, InformerCollector, QueueCollector


def _figures(*collectors: object) -> dict[tuple[str, ...], float]:
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)  # type: ignore[arg-type]
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def test_a_queue() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue("pods")

        async def reconcile(key: str) -> Result:
            if key == "bad":
                raise ValueError("no")
            queue.stop()
            return done()

        for key in ("bad", "good", "waiting"):
            queue.add(key)
        assert _figures(QueueCollector([queue]))["farlet_queue_depth", "pods"] == 3
        await queue.run(reconcile, 1)
        figures = _figures(QueueCollector([queue]))
        assert figures["farlet_queue_depth", "pods"] == 1
        assert figures["farlet_queue_runs_total", "pods"] == 2
        assert figures["farlet_queue_retries_total", "pods"] == 1
        assert figures["farlet_queue_delayed", "pods"] == 1
        assert figures["farlet_queue_oldest_age_seconds", "pods"] >= 0

    asyncio.run(main())


def test_informers_and_clients() -> None:
    async def main() -> None:
        client = Client(Connection(server="https://nowhere.test", source="a test"), name="remote")
        informers = [Informer(client, PODS), Informer(client, PODS)]
        informers[0].counts.errors = 2
        informers[1].counts.errors = 3
        client.limiter.in_flight = 4
        figures = _figures(InformerCollector("remote", informers), ClientCollector([client]))
        assert figures["farlet_informer_errors_total", "remote", "pods"] == 5, "two of a kind are one series"
        assert figures["farlet_informer_synced", "remote", "pods"] == 0
        assert figures["farlet_client_in_flight", "remote"] == 4
        assert figures["farlet_client_limit", "remote"] == 16

    asyncio.run(main())
