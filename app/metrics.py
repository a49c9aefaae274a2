"""What the worker tells of itself, for whoever scrapes it: queues, caches, requests to the API servers.

Nothing is counted twice: each part of Farlet keeps its own figures, and these collectors read them when they are asked
for. That may be in another thread than the one that works.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from app.kube.client import Client
from app.kube.informers import Cache
from app.kube.queue import Stats, WorkQueue

_TRIES = 5


class QueueCollector(Collector):
    """Depth, age and retries of work queues."""

    def __init__(self, queues: Iterable[WorkQueue[Any]]) -> None:
        self._queues = list(queues)

    def collect(self) -> Iterator[Metric]:
        gauges = {
            "depth": _gauge("farlet_queue_depth", "Keys that wait for a worker.", "queue"),
            "oldest_age": _gauge("farlet_queue_oldest_age_seconds", "How long the first of them has waited.", "queue"),
            "in_flight": _gauge("farlet_queue_in_flight", "Keys that are worked on.", "queue"),
            "longest_running": _gauge(
                "farlet_queue_longest_running_seconds", "How long the oldest run that goes on has lasted.", "queue"
            ),
            "delayed": _gauge("farlet_queue_delayed", "Keys that wait for their time.", "queue"),
        }
        counters = {
            "runs": _counter("farlet_queue_runs", "Runs that were started.", "queue"),
            "retries": _counter("farlet_queue_retries", "Runs that failed and are tried again.", "queue"),
            "refused": _counter("farlet_queue_refused", "Keys not taken because the queue was full.", "queue"),
        }
        for queue in self._queues:
            stats = _stats(queue)
            for name, gauge in gauges.items():
                gauge.add_metric([queue.name], getattr(stats, name))
            for name, counter in counters.items():
                counter.add_metric([queue.name], getattr(stats, name))
        yield from gauges.values()
        yield from counters.values()


class InformerCollector(Collector):
    """Size and history of caches. *cluster* says of which cluster they are copies."""

    def __init__(self, cluster: str, informers: Iterable[Cache]) -> None:
        self._cluster = cluster
        self._informers = list(informers)

    def collect(self) -> Iterator[Metric]:
        labels = ("cluster", "resource")
        held = _gauge("farlet_informer_objects", "Objects that are held.", *labels)
        synced = _gauge("farlet_informer_synced", "1 if every first list was complete.", *labels)
        current = _gauge("farlet_informer_current", "1 while nothing is known to be out of date.", *labels)
        counters = {
            "lists": _counter("farlet_informer_lists", "Lists that came to their end.", *labels),
            "watches": _counter("farlet_informer_watches", "Watches that were accepted.", *labels),
            "changes": _counter("farlet_informer_changes", "Changes that were reported.", *labels),
            "errors": _counter("farlet_informer_errors", "Lists and watches that failed.", *labels),
        }
        for resource, informers in self._by_resource().items():
            values = [self._cluster, resource]
            held.add_metric(values, sum(len(informer) for informer in informers))
            synced.add_metric(values, all(informer.synced for informer in informers))
            current.add_metric(values, all(informer.error is None for informer in informers))
            for name, family in counters.items():
                family.add_metric(values, sum(getattr(informer.counts, name) for informer in informers))
        yield from (held, synced, current, *counters.values())

    def _by_resource(self) -> dict[str, list[Cache]]:
        """Some kinds have two: one series each would have the same labels."""
        found: dict[str, list[Cache]] = {}
        for informer in self._informers:
            found.setdefault(informer.resource.plural, []).append(informer)
        return found


class ClientCollector(Collector):
    """Requests to API servers that are under way."""

    def __init__(self, clients: Iterable[Client]) -> None:
        self._clients = list(clients)

    def collect(self) -> Iterator[Metric]:
        in_flight = _gauge("farlet_client_in_flight", "Requests that are under way.", "cluster")
        waiting = _gauge("farlet_client_waiting", "Requests that wait for their turn.", "cluster")
        limit = _gauge("farlet_client_limit", "How many may be under way, as the server's 429s have it.", "cluster")
        for client in self._clients:
            in_flight.add_metric([client.name], client.limiter.in_flight)
            waiting.add_metric([client.name], client.limiter.waiting)
            limit.add_metric([client.name], client.limiter.limit)
        yield from (in_flight, waiting, limit)


def _stats(queue: WorkQueue[Any]) -> Stats:
    """A queue belongs to the thread that works; what changes while it is read here is read again."""
    for _ in range(_TRIES - 1):
        try:
            return queue.stats()
        except (IndexError, KeyError, RuntimeError, ValueError):
            continue
    return queue.stats()


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=labels)


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, labels=labels)
