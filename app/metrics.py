"""What Farlet tells of itself, for whoever scrapes it: pods, queues, caches, requests, certificates.

Nothing is counted twice: each part of Farlet keeps its own figures, and these collectors read them when they are asked
for. That may be in another thread than the one that works.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from app import __version__
from app.caches import Caches
from app.kube.client import Client
from app.kube.figures import NO_ANSWER, VERBS, Histogram
from app.kube.informers import Cache
from app.kube.objects import Envelope, Key
from app.kube.queue import Stats, WorkQueue
from app.names import LABEL_POD_UID
from app.pods.latency import Latency

_TRIES = 5

_AGES: Final = frozenset({"oldest_age", "longest_running"})
"""Figures of a queue that mean something only while it is worked on."""

NO_POD: Final = "NoPod"
"""In place of the phase of a pod that does not exist."""
_PHASES: Final = frozenset({"Pending", "Running", "Succeeded", "Failed", "Unknown"})


def page(collectors: Iterable[Collector]) -> Callable[[], bytes]:
    """What a process tells that has no kubelet API to tell it on: all of it in the text format, each time anew."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    for collector in collectors:
        registry.register(collector)
    return lambda: generate_latest(registry)


class _Labelled(msgspec.Struct):
    labels: dict[str, str] = {}


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""


class _PodStatus(msgspec.Struct):
    phase: str = ""


class _NodeStatus(msgspec.Struct):
    conditions: list[_Condition] = []


_LABELS: Final = msgspec.json.Decoder(_Labelled)
_POD_STATUS: Final = msgspec.json.Decoder(_PodStatus)
_NODE_STATUS: Final = msgspec.json.Decoder(_NodeStatus)


class QueueCollector(Collector):
    """Depth, age and retries of work queues.

    Those of a worker that waits fill up, and nobody is late: how long keys have waited is told by the one that works.
    """

    def __init__(self, queues: Iterable[WorkQueue[Any]], leads: Callable[[], bool] = lambda: True) -> None:
        self._queues = list(queues)
        self._leads = leads

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
        leads = self._leads()
        for queue in self._queues:
            stats = _stats(queue)
            for name, gauge in gauges.items():
                if name not in _AGES or leads:
                    gauge.add_metric([queue.name], getattr(stats, name))
            for name, counter in counters.items():
                counter.add_metric([queue.name], getattr(stats, name))
        yield from gauges.values()
        yield from counters.values()


class InformerCollector(Collector):
    """Size and history of caches, by the cluster that they are copies of."""

    def __init__(self, informers: Callable[[], Mapping[str, Iterable[Cache]]]) -> None:
        """*informers* are asked for each time: those of namespaces come and go."""
        self._informers = informers

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
        for (cluster, resource), informers in self._by_resource().items():
            values = [cluster, resource]
            held.add_metric(values, sum(len(informer) for informer in informers))
            synced.add_metric(values, all(informer.synced for informer in informers))
            current.add_metric(values, all(informer.error is None for informer in informers))
            for name, family in counters.items():
                family.add_metric(values, sum(getattr(informer.counts, name) for informer in informers))
        yield from (held, synced, current, *counters.values())

    def _by_resource(self) -> dict[tuple[str, str], list[Cache]]:
        """Some kinds have two: one series each would have the same labels."""
        found: dict[tuple[str, str], list[Cache]] = {}
        for cluster, informers in self._informers().items():
            for informer in informers:
                found.setdefault((cluster, informer.resource.plural), []).append(informer)
        return found


class WriteCollector(Collector):
    """What reflection wrote to the remote cluster."""

    def __init__(self, writes: Mapping[tuple[str, str], int]) -> None:
        self._writes = writes

    def collect(self) -> Iterator[Metric]:
        family = _counter("farlet_reflection_writes", "Writes to remote copies.", "resource", "verb")
        for (resource, verb), count in list(self._writes.items()):
            family.add_metric([resource, verb], count)
        yield family


class Told(Protocol):
    """What a writer of events counts."""

    @property
    def written(self) -> int: ...

    @property
    def dropped(self) -> int: ...


class EventCollector(Collector):
    """Events on local objects, by whose word they are: ``farlet``'s own, or the ``remote`` cluster's."""

    def __init__(self, sources: Mapping[str, Callable[[], Told]]) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        family = _counter("farlet_events", "Events that were written, or dropped.", "source", "result")
        for source, counts in self._sources.items():
            told = counts()
            family.add_metric([source, "written"], told.written)
            family.add_metric([source, "dropped"], told.dropped)
        yield family


class ClientCollector(Collector):
    """Requests to API servers, and until when their credentials hold.

    The worker and the kubelet API have clients of their own for the same clusters: what they say is added up.
    """

    def __init__(self, clients: Callable[[], Iterable[Client]]) -> None:
        self._clients = clients

    def collect(self) -> Iterator[Metric]:
        clients: dict[str, list[Client]] = {}
        for client in self._clients():
            clients.setdefault(client.name, []).append(client)
        yield from self._now(clients)
        yield from self._so_far(clients)
        yield from self._credentials(clients)

    def _now(self, clients: Mapping[str, Sequence[Client]]) -> Iterator[Metric]:
        in_flight = _gauge("farlet_client_in_flight", "Requests that are under way.", "cluster")
        waiting = _gauge("farlet_client_waiting", "Requests that wait for their turn.", "cluster")
        limit = _gauge("farlet_client_limit", "How many may be under way, as the server's 429s have it.", "cluster")
        for cluster, each in clients.items():
            in_flight.add_metric([cluster], sum(client.limiter.in_flight for client in each))
            waiting.add_metric([cluster], sum(client.limiter.waiting for client in each))
            limit.add_metric([cluster], sum(client.limiter.limit for client in each))
        yield from (in_flight, waiting, limit)

    def _so_far(self, clients: Mapping[str, Sequence[Client]]) -> Iterator[Metric]:
        sent = _counter("farlet_client_requests", "Requests that were sent, retries too.", "cluster", "verb", "code")
        seconds = HistogramMetricFamily(
            "farlet_client_request_duration_seconds",
            "How long they took, each for itself; of a watch, until its answer begins.",
            labels=("cluster", "verb"),
        )
        for cluster, each in clients.items():
            counts: Counter[tuple[str, int]] = Counter()
            for client in each:
                counts.update(client.requests.counts())
            for (method, status), count in sorted(counts.items()):
                code = "none" if status == NO_ANSWER else str(status)
                sent.add_metric([cluster, VERBS[method], code], count)
            for method in {method: None for method, _ in sorted(counts)}:
                buckets, total = _added([client.requests.seconds[method] for client in each])
                seconds.add_metric([cluster, VERBS[method]], buckets, total)
        yield from (sent, seconds)

    def _credentials(self, clients: Mapping[str, Sequence[Client]]) -> Iterator[Metric]:
        ends = _gauge(
            "farlet_credentials_expiry_timestamp_seconds",
            "When the credentials for an API server end, where that is known; what renews itself gets a later one.",
            *("cluster", "kind"),
        )
        for cluster, each in clients.items():
            found: dict[str, float] = {}
            for client in each:
                for kind, moment in client.expiries().items():
                    found[kind] = min(moment, found.get(kind, moment))
            for kind, moment in sorted(found.items()):
                ends.add_metric([cluster, kind], moment)
        yield ends


class LatencyCollector(Collector):
    """How long pods wait for us: those that wait now, only while this is the worker that they wait for."""

    def __init__(self, latency: Latency, leads: Callable[[], bool] = lambda: True) -> None:
        self._latency = latency
        self._leads = leads

    def collect(self) -> Iterator[Metric]:
        latency = self._latency
        yield _histogram(
            "farlet_pod_offload_seconds", "From when a pod was seen until its twin was made.", latency.offload
        )
        yield _histogram(
            "farlet_pod_ready_seconds", "From when a pod was seen until it was told that it is Ready.", latency.ready
        )
        yield _histogram(
            "farlet_pod_status_lag_seconds",
            "From when a change of a remote pod was seen until the local status was written.",
            latency.status,
        )
        if not self._leads():
            return
        yield GaugeMetricFamily(
            "farlet_pod_offload_waiting_seconds",
            "How long the pod that has waited longest has no twin.",
            value=latency.longest_without_twin(),
        )
        yield GaugeMetricFamily(
            "farlet_pod_status_waiting_seconds",
            "How old the oldest change is that the local status does not tell yet.",
            value=latency.longest_untold(),
        )


class TwinCollector(Collector):
    """Twins by their kind and by the phase of the pod that each has."""

    def __init__(self, caches: Callable[[], Caches | None]) -> None:
        self._caches = caches
        self._known: dict[Key, tuple[str, str, str]] = {}
        """Of each remote pod: its version, the local pod that it stands for, its phase. Most are as the last time."""

    def collect(self) -> Iterator[Metric]:
        twins = _gauge("farlet_twins", "Twins in the remote cluster, by the phase of their pod.", "kind", "phase")
        caches = self._caches()
        if caches is not None:
            phases = self._phases(caches.remote_pods)
            counts: Counter[tuple[str, str]] = Counter()
            for kind, cache in (("ReplicaSet", caches.replica_sets), ("Job", caches.jobs)):
                for twin in cache.list():
                    labels = _LABELS.decode(twin.raw_metadata).labels
                    counts[kind, phases.get(labels.get(LABEL_POD_UID, ""), NO_POD)] += 1
            for (kind, phase), count in sorted(counts.items()):
                twins.add_metric([kind, phase], count)
        yield twins

    def _phases(self, pods: Cache) -> dict[str, str]:
        """Of each local pod, the phase of its remote one."""
        before, self._known = self._known, {}
        for pod in pods.list():
            known = before.get(pod.key)
            if known is None or known[0] != pod.resource_version:
                uid = _LABELS.decode(pod.raw_metadata).labels.get(LABEL_POD_UID, "")
                known = (pod.resource_version, uid, _POD_STATUS.decode(pod.status or b"{}").phase)
            self._known[pod.key] = known
        return {uid: phase if phase in _PHASES else "Unknown" for _, uid, phase in self._known.values()}


class StateCollector(Collector):
    """The virtual node, and this worker's part in it. What only the leader knows is left out where there is none."""

    def __init__(
        self,
        *,
        leads: Callable[[], bool],
        reachable: Callable[[], bool | None],
        own_node: Callable[[], Envelope | None],
    ) -> None:
        self._leads = leads
        self._reachable = reachable
        self._own_node = own_node

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "farlet_leader", "1 while this is the worker that works; others wait.", value=self._leads()
        )
        reachable = self._reachable()
        if reachable is not None:
            text = "1 while the remote cluster's API server answers."
            yield GaugeMetricFamily("farlet_remote_reachable", text, value=reachable)
        node = self._own_node()
        if node is not None:
            conditions = _NODE_STATUS.decode(node.status or b"{}").conditions
            ready = any(found.type == "Ready" and found.status == "True" for found in conditions)
            yield GaugeMetricFamily("farlet_node_ready", "1 while the virtual node says that it is Ready.", value=ready)


class CertificateCollector(Collector):
    """The life of the kubelet API's serving certificate, as seconds of the epoch: (begins, ends)."""

    def __init__(self, life: Callable[[], tuple[float, float] | None]) -> None:
        self._life = life

    def collect(self) -> Iterator[Metric]:
        life = self._life()
        if life is not None:
            for what, text, moment in zip(("start", "expiry"), ("begins", "ends"), life, strict=True):
                name = f"farlet_serving_certificate_{what}_timestamp_seconds"
                yield GaugeMetricFamily(name, f"When the kubelet API's certificate {text} to be valid.", value=moment)


class InfoCollector(Collector):
    """Which virtual node all of this is about: to be joined by whoever looks at several."""

    def __init__(self, *, node: str, role: str) -> None:
        self._labels = {"virtual_node": node, "role": role, "version": __version__}

    def collect(self) -> Iterator[Metric]:
        info = _gauge("farlet_info", "1; which virtual node this is, and which Farlet.", *self._labels)
        info.add_metric(list(self._labels.values()), 1)
        yield info


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


def _histogram(name: str, text: str, histogram: Histogram) -> HistogramMetricFamily:
    buckets, total = _added([histogram])
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=total)


def _added(histograms: Sequence[Histogram]) -> tuple[list[tuple[str, float]], float]:
    """Several of the same bounds as one: its buckets and its sum."""
    each = [histogram.buckets() for histogram in histograms]
    buckets = [(same[0][0], sum(count for _, count in same)) for same in zip(*each, strict=True)]
    return buckets, sum(histogram.total for histogram in histograms)
