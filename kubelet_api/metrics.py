"""What the kubelet API tells of itself on ``/metrics``, and the registry that everything on it is in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

_DURATIONS: Final = (0.05, 0.25, 1, 5, 30, 120, 600, 3600, 4 * 3600)

disable_created_metrics()  # type: ignore[no-untyped-call]  # twice the series, for nothing that anybody asks


class Metrics:
    """The figures of one server."""

    def __init__(self, collectors: Iterable[Collector] = ()) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self.registry)
        for collector in collectors:
            self.registry.register(collector)
        registry = self.registry
        self.requests = Counter(
            "farlet_requests_total",
            "Requests to the kubelet API, by the first part of the route.",
            ["path", "method", "code"],
            registry=registry,
        )
        tasks = Gauge("farlet_tasks", "What the event loop of the kubelet API has under way.", registry=registry)
        tasks.set_function(_tasks)
        self.connections = Gauge("farlet_connections", "Connections to the kubelet API.", registry=registry)
        self.sessions = Gauge("farlet_sessions_open", "Streams that are open.", ["kind"], registry=registry)
        self.sessions_ended = Counter(
            "farlet_sessions_total", "Streams that have ended, and how.", ["kind", "result"], registry=registry
        )
        self.session_seconds = Histogram(
            "farlet_session_duration_seconds", "How long streams were open.", ["kind"], buckets=_DURATIONS,
            registry=registry,
        )  # fmt: skip
        self.session_bytes = Counter(
            "farlet_session_bytes_total", "Bytes that passed in streams.", ["kind", "direction"], registry=registry
        )
        self.refusals = Counter(
            "farlet_refusals_total", "What was refused at the kubelet API, and why.", ["reason"], registry=registry
        )

    def exposition(self) -> bytes:
        """All of it, in the text format."""
        return generate_latest(self.registry)


def _tasks() -> float:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:  # asked for outside of it
        return 0
