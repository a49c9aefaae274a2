"""Figures of the worker, as a scraper reads them."""

from __future__ import annotations

import asyncio
import base64
import datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from app import __version__
from app.kube.client import Client
from app.kube.config import Connection, User
from app.kube.events import Stats
from app.kube.informer import Informer
from app.kube.objects import Envelope
from app.kube.queue import Result, WorkQueue, done
from app.kube.resources import PODS
from app.metrics import (
    CertificateCollector,
    ClientCollector,
    EventCollector,
    InfoCollector,
    InformerCollector,
    LatencyCollector,
    QueueCollector,
    StateCollector,
    TwinCollector,
)
from app.names import LABEL_POD_UID
from app.pods.latency import Latency
from app.pods.remote_events import Counts
from certs.pair import self_signed

if TYPE_CHECKING:
    from app.caches import Caches


def _figures(*collectors: object) -> dict[tuple[str, ...], float]:
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)  # type: ignore[arg-type]
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (s.name, *s.labels.values()): s.value for family in families for s in family.samples
    }  # labels in the order of their names


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
        # the bad one's time may have come again by now
        assert figures["farlet_queue_depth", "pods"] + figures["farlet_queue_delayed", "pods"] == 2
        assert figures["farlet_queue_runs_total", "pods"] == 2
        assert figures["farlet_queue_retries_total", "pods"] == 1
        assert figures["farlet_queue_oldest_age_seconds", "pods"] >= 0
        waits = _figures(QueueCollector([queue], leads=lambda: False))
        ages = {("farlet_queue_oldest_age_seconds", "pods"), ("farlet_queue_longest_running_seconds", "pods")}
        assert figures.keys() - waits.keys() == ages, "nobody is late where nobody works"

    asyncio.run(main())


def _client(name: str) -> Client:
    return Client(Connection(server="https://nowhere.test", source="a test"), name=name)


def test_informers() -> None:
    async def main() -> None:
        informers = [Informer(_client("remote"), PODS), Informer(_client("remote"), PODS)]
        informers[0].counts.errors = 2
        informers[1].counts.errors = 3
        figures = _figures(InformerCollector(lambda: {"local": informers[:1], "remote": informers}))
        assert figures["farlet_informer_errors_total", "remote", "pods"] == 5, "two of a kind are one series"
        assert figures["farlet_informer_errors_total", "local", "pods"] == 2
        assert figures["farlet_informer_synced", "remote", "pods"] == 0

    asyncio.run(main())


def test_clients_of_one_cluster_are_added_up() -> None:
    async def main() -> None:
        worker, api, local = _client("remote"), _client("remote"), _client("local")
        worker.limiter.in_flight = 4
        worker.requests.count("PATCH", 200, 0.02)
        api.fenced(lambda: None).requests.count("PATCH", 200, 7)
        api.requests.count("PATCH", 409, 0.02)
        local.requests.count("watch", 0, 30)
        figures = _figures(ClientCollector(lambda: [worker, api, local]))
        assert figures["farlet_client_in_flight", "remote"] == 4
        assert figures["farlet_client_limit", "remote"] == 32
        assert figures["farlet_client_requests_total", "remote", "200", "patch"] == 2, "a fenced client is the same one"
        assert figures["farlet_client_requests_total", "remote", "409", "patch"] == 1
        assert figures["farlet_client_requests_total", "local", "none", "watch"] == 1
        name = "farlet_client_request_duration_seconds"
        assert figures[f"{name}_bucket", "remote", "0.025", "patch"] == 2
        assert figures[f"{name}_bucket", "remote", "5.0", "patch"] == 2
        assert figures[f"{name}_count", "remote", "patch"] == 3
        assert figures[f"{name}_sum", "remote", "patch"] == pytest.approx(7.04)
        assert not [key for key in figures if key[1] == "local" and "patch" in key], "nothing of what was never sent"

    asyncio.run(main())


def test_pods() -> None:
    now = 100.0
    latency = Latency(clock=lambda: now)
    latency.seen("a")
    now = 102.0
    figures = _figures(LatencyCollector(latency))
    assert figures["farlet_pod_offload_waiting_seconds",] == 2
    latency.made("a")
    latency.changed("a")
    now = 107.0
    assert _figures(LatencyCollector(latency))["farlet_pod_status_waiting_seconds",] == 5
    assert not [key for key in _figures(LatencyCollector(latency, leads=lambda: False)) if "waiting" in key[0]]
    latency.looked("a")
    latency.told("a", ready=True)
    figures = _figures(LatencyCollector(latency))
    assert figures["farlet_pod_offload_seconds_sum",] == 2
    assert figures["farlet_pod_ready_seconds_sum",] == 7
    assert figures["farlet_pod_status_lag_seconds_sum",] == 5
    assert figures["farlet_pod_status_waiting_seconds",] == 0
    assert figures["farlet_pod_status_lag_seconds_bucket", "2.5"] == 0
    assert figures["farlet_pod_status_lag_seconds_bucket", "+Inf"] == 1


def test_events() -> None:
    remote = Counts(written=3, dropped=1)
    assert _figures(EventCollector({"farlet": lambda: Stats(7, 0, 2), "remote": lambda: remote})) == {
        ("farlet_events_total", "written", "farlet"): 7,
        ("farlet_events_total", "dropped", "farlet"): 0,
        ("farlet_events_total", "written", "remote"): 3,
        ("farlet_events_total", "dropped", "remote"): 1,
    }


def test_what_waited_when_leadership_was_lost_is_not_measured_when_it_is_back() -> None:
    now = 100.0
    latency = Latency(clock=lambda: now)
    latency.seen("a")
    latency.changed("b")
    latency.changed("c")
    latency.looked("c")
    latency.stopped()
    now = 5000.0
    latency.made("a")
    latency.looked("b")
    for uid in "abc":
        latency.told(uid, ready=True)
    figures = _figures(LatencyCollector(latency))
    assert not [key for key, value in figures.items() if value], figures


class _Held:
    """A cache that holds these."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        self.objects = [Envelope.of(item) for item in objects]

    def list(self) -> list[Envelope]:
        return self.objects


def _object(kind: str, uid: str, version: str, phase: str | None = None) -> dict[str, Any]:
    metadata = {"name": uid, "namespace": "x", "resourceVersion": version, "labels": {LABEL_POD_UID: uid}}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "status": {"phase": phase} if phase else {}}


def test_twins() -> None:
    pods = _Held(_object("Pod", "a", "1", "Running"), _object("Pod", "b", "1", "Pending"), _object("Pod", "d", "1"))
    sets = _Held(*(_object("ReplicaSet", uid, "1") for uid in "abcd"))
    caches = SimpleNamespace(remote_pods=pods, replica_sets=sets, jobs=_Held(_object("Job", "e", "1")))
    collector = TwinCollector(lambda: cast("Caches", caches))
    assert _figures(collector) == {
        ("farlet_twins", "ReplicaSet", "Running"): 1,
        ("farlet_twins", "ReplicaSet", "Pending"): 1,
        ("farlet_twins", "ReplicaSet", "NoPod"): 1,
        ("farlet_twins", "ReplicaSet", "Unknown"): 1,
        ("farlet_twins", "Job", "NoPod"): 1,
    }
    pods.objects = [Envelope.of(_object("Pod", "b", "2", "Running"))]
    assert _figures(collector)["farlet_twins", "ReplicaSet", "Running"] == 1, "only b is left, in its new version"
    assert not _figures(TwinCollector(lambda: None))


@pytest.mark.parametrize(
    ("leads", "reachable", "ready", "expected"),
    [
        (True, True, "True", {"farlet_leader": 1, "farlet_remote_reachable": 1, "farlet_node_ready": 1}),
        (True, False, "False", {"farlet_leader": 1, "farlet_remote_reachable": 0, "farlet_node_ready": 0}),
        (False, None, "True", {"farlet_leader": 0, "farlet_node_ready": 1}),
        (False, None, None, {"farlet_leader": 0}),
    ],
    ids=["leads", "unreachable", "waits", "no node yet"],
)
def test_state(*, leads: bool, reachable: bool | None, ready: str | None, expected: dict[str, float]) -> None:
    conditions = [{"type": "MemoryPressure", "status": "True"}, {"type": "Ready", "status": ready}]
    node = Envelope.of({"kind": "Node", "metadata": {"name": "n"}, "status": {"conditions": conditions}})
    collector = StateCollector(
        leads=lambda: leads, reachable=lambda: reachable, own_node=lambda: node if ready is not None else None
    )
    assert {key[0]: value for key, value in _figures(collector).items()} == expected


def test_certificate_and_info() -> None:
    assert not _figures(CertificateCollector(lambda: None))
    assert _figures(CertificateCollector(lambda: (10.0, 20.0))) == {
        ("farlet_serving_certificate_start_timestamp_seconds",): 10,
        ("farlet_serving_certificate_expiry_timestamp_seconds",): 20,
    }
    assert _figures(InfoCollector(node="n", role="all")) == {("farlet_info", "all", __version__, "n"): 1}


def test_expiry_of_credentials() -> None:
    async def main() -> None:
        ends = self_signed("n", ["10.0.0.1"], datetime.timedelta(days=3))
        claims = base64.urlsafe_b64encode(b'{"exp": 1234}').decode().rstrip("=")
        user = User(certificate=ends.certificate + ends.key, token=f"x.{claims}.y")
        client = Client(Connection(server="https://nowhere.test", source="a test", user=user), name="remote")
        await client.access()
        figures = _figures(ClientCollector(lambda: [client, _client("local")]))
        name = "farlet_credentials_expiry_timestamp_seconds"
        assert figures[name, "remote", "certificate"] == ends.not_after
        assert figures[name, "remote", "token"] == 1234
        assert not [key for key in figures if key[:2] == (name, "local")], "what is not known is not said"

    asyncio.run(main())
