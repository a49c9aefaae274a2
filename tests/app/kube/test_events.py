"""Events as people see them, on a real API server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from app.kube.client import Client
from app.kube.config import Connection, load
from app.kube.events import NORMAL, WARNING, EventRecorder, Reference, Stats, _shortened
from app.kube.objects import Envelope, Object
from app.kube.resources import CONFIG_MAPS, EVENTS, PODS, Resource
from devcluster.cluster import Cluster

POD: Object = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "namespace": "shop", "uid": "0b8d", "resourceVersion": "17"},
}
NODE: Object = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "virtual.example", "uid": "91fe"}}


@pytest.mark.parametrize(
    ("about", "resource", "field_path", "expected"),
    [
        pytest.param(
            POD,
            None,
            "spec.containers{web}",
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": "shop",
                "name": "web",
                "uid": "0b8d",
                "resourceVersion": "17",
                "fieldPath": "spec.containers{web}",
            },
            id="a part of a pod",
        ),
        pytest.param(
            NODE,
            None,
            "",
            {"apiVersion": "v1", "kind": "Node", "name": "virtual.example", "uid": "91fe"},
            id="cluster-wide",
        ),
        pytest.param(
            {"metadata": {"name": "web", "namespace": "shop"}},
            PODS,
            "",
            {"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web"},
            id="an item of a list",
        ),
    ],
)
def test_reference(about: Object, resource: Resource | None, field_path: str, expected: Object) -> None:
    assert Reference.to(about, resource=resource, field_path=field_path).object() == expected
    assert Reference.to(Envelope.of(about), resource=resource, field_path=field_path).object() == expected


def test_a_later_version_of_an_object_is_the_same_object() -> None:
    later = {**POD, "metadata": {**POD["metadata"], "resourceVersion": "18"}}
    assert Reference.to(POD) == Reference.to(later)
    assert hash(Reference.to(POD)) == hash(Reference.to(later))


@pytest.mark.parametrize("message", ["", "short", "x" * 1024, "x" * 1025, "é" * 600, "\U0001f600" * 300])
def test_message_is_shortened_to_what_the_api_allows(message: str) -> None:
    short = _shortened(message)
    assert len(short.encode()) <= 1024
    assert short == message or (short.endswith("…") and message.startswith(short[:-1]))


# ---------------------------------------------------------------------- on a real API server


@contextlib.asynccontextmanager
async def recording(cluster: Cluster, **options: Any) -> AsyncIterator[tuple[EventRecorder, Client]]:
    async with (
        Client(load(cluster.kubeconfig), name="local") as client,
        EventRecorder(client, "farlet-test", **options) as recorder,
    ):
        yield recorder, client


async def config_map(client: Client, namespace: str, name: str = "subject") -> Object:
    wanted = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}}
    return await client.create(CONFIG_MAPS.path(namespace), wanted)


async def events(client: Client, namespace: str, **fields: str) -> list[Object]:
    selector = ",".join(f"{name.replace('__', '.')}={value}" for name, value in fields.items())
    answer = await client.get(EVENTS.path(namespace), params={"fieldSelector": selector})
    items: list[Object] = answer["items"]
    return items


async def until(condition: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - what is waited for knows of no events
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"{what}: not within 20 s") from None


@pytest.mark.cluster
def test_event_of_a_pod_is_what_kubectl_describe_shows(local: Cluster, namespace: str) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {"containers": [{"name": "web", "image": "pause"}], "nodeName": "nowhere-at-all"},
    }

    async def scenario() -> list[Object]:
        async with recording(local, instance="worker-1") as (recorder, client):
            made = await client.create(PODS.path(namespace), pod)
            recorder.record(made, WARNING, "OffloadFailed", "no room there", field_path="spec.containers{web}")
            await recorder.close()
            return await events(client, namespace, reason="OffloadFailed")

    (event,) = asyncio.run(scenario())
    name, _, stamp = event["metadata"]["name"].rpartition(".")
    assert name == "web"
    int(stamp, 16)
    about = event["involvedObject"]
    assert about.pop("uid")
    assert about.pop("resourceVersion")
    assert about == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": namespace,
        "name": "web",
        "fieldPath": "spec.containers{web}",
    }
    assert event["type"] == "Warning"
    assert event["message"] == "no room there"
    assert event["source"] == {"component": "farlet-test", "host": "worker-1"}
    assert (event["reportingComponent"], event["reportingInstance"]) == ("farlet-test", "worker-1")
    assert event["count"] == 1
    assert event["firstTimestamp"] == event["lastTimestamp"]
    described = local.kubectl("-n", namespace, "describe", "pod", "web").stdout
    assert "no room there" in described
    local.kubectl("-n", namespace, "delete", "pod", "web", "--grace-period=0", "--force")


@pytest.mark.cluster
def test_event_of_a_node_is_in_the_default_namespace(local: Cluster, virtual_node: str) -> None:
    async def scenario() -> list[Object]:
        async with recording(local) as (recorder, client):
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": virtual_node, "uid": str(uuid.uuid4())}}
            recorder.record(node, NORMAL, "RemoteUnreachable", "the link is cut")
            await recorder.close()
            return await events(client, "default", involvedObject__name=virtual_node)

    (event,) = asyncio.run(scenario())
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["involvedObject"]
    local.kubectl("-n", "default", "delete", "event", event["metadata"]["name"])


@pytest.mark.cluster
def test_the_same_again_is_a_count(local: Cluster, namespace: str) -> None:
    async def scenario() -> tuple[list[Object], list[Object], list[Object], Stats]:
        async with recording(local, interval=1.0) as (recorder, client):
            about = await config_map(client, namespace)
            recorder.record(about, WARNING, "OffloadFailed", "quota exceeded")
            await until(lambda: recorder.stats().written == 1, "the first is written at once")
            for _ in range(50):
                recorder.record(about, WARNING, "OffloadFailed", "quota exceeded")
            recorder.record(about, WARNING, "OffloadFailed", "another reason")
            at_first = await events(client, namespace, involvedObject__name="subject")
            await until(lambda: recorder.stats().written == 3, "the count follows after the interval")
            counted = await events(client, namespace, involvedObject__name="subject")
            recorder.record(about, WARNING, "OffloadFailed", "quota exceeded")
            await recorder.close()
            at_last = await events(client, namespace, involvedObject__name="subject")
            return at_first, counted, at_last, recorder.stats()

    at_first, counted, at_last, stats = asyncio.run(scenario())
    assert [event["count"] for event in at_first if event["message"] == "quota exceeded"] == [1]
    assert {event["message"]: event["count"] for event in counted} == {"quota exceeded": 51, "another reason": 1}
    assert {event["message"]: event["count"] for event in at_last} == {"quota exceeded": 52, "another reason": 1}
    assert stats == Stats(written=4, dropped=0, waiting=0)


@pytest.mark.cluster
def test_an_event_that_expired_is_made_again_with_its_count(local: Cluster, namespace: str) -> None:
    async def scenario() -> list[Object]:
        async with recording(local, interval=0.0) as (recorder, client):
            about = await config_map(client, namespace)
            recorder.record(about, NORMAL, "Offloaded", "to the remote")
            await until(lambda: recorder.stats().written == 1, "written")
            (event,) = await events(client, namespace, involvedObject__name="subject")
            await client.delete(EVENTS.path(namespace, event["metadata"]["name"]))
            recorder.record(about, NORMAL, "Offloaded", "to the remote")
            await recorder.close()
            return await events(client, namespace, involvedObject__name="subject")

    (event,) = asyncio.run(scenario())
    assert event["count"] == 2


@pytest.mark.cluster
def test_events_in_a_namespace_that_goes_away_are_dropped_quietly(
    local: Cluster, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It terminates (403) for as long as an object has a finalizer, then it is gone (404)."""
    doomed = f"{namespace}-doomed"
    local.kubectl("create", "namespace", doomed)

    async def scenario() -> Stats:
        async with recording(local) as (recorder, client):
            about = await config_map(client, doomed)
            hold = json.dumps({"metadata": {"finalizers": ["farlet.dev/test"]}})
            local.kubectl("-n", doomed, "patch", "configmap", "subject", "--type=merge", "-p", hold)
            local.kubectl("delete", "namespace", doomed, "--wait=false")
            recorder.record(about, WARNING, "OffloadFailed", "terminating")
            await until(lambda: recorder.stats().dropped == 1, "dropped while it terminates")
            free = json.dumps({"metadata": {"finalizers": None}})
            local.kubectl("-n", doomed, "patch", "configmap", "subject", "--type=merge", "-p", free)
            gone = {"metadata": {"name": "subject", "namespace": "never-was"}}
            recorder.record(gone, WARNING, "OffloadFailed", "gone", resource=CONFIG_MAPS)
            await until(lambda: recorder.stats().dropped == 2, "dropped when there is no such namespace")
            return recorder.stats()

    with caplog.at_level(logging.DEBUG, logger="app.kube.events"):
        stats = asyncio.run(scenario())
    assert stats.written == 0
    told = [record for record in caplog.records if "was not written" in record.getMessage()]
    assert [record.levelno for record in told] == [logging.DEBUG, logging.DEBUG]
    assert "being terminated" in told[0].getMessage()


@pytest.mark.cluster
def test_more_events_than_are_remembered_or_sent(local: Cluster, namespace: str) -> None:
    """Memory is bounded, recording never waits, and the newest are kept."""

    async def scenario() -> tuple[Stats, list[Object]]:
        async with recording(local, waiting=20, remembered=30) as (recorder, client):
            about = await config_map(client, namespace)
            for number in range(500):
                recorder.record(about, NORMAL, "Offloaded", f"number {number}")
            assert len(recorder._series) == 30
            assert recorder.stats().waiting == 20
            await recorder.close(timeout=20)
            recorder.record(about, NORMAL, "Offloaded", "after the end")
            return recorder.stats(), await events(client, namespace, involvedObject__name="subject")

    stats, found = asyncio.run(scenario())
    assert stats == Stats(written=20, dropped=481, waiting=0)
    assert {event["message"] for event in found} == {f"number {number}" for number in range(480, 500)}


def test_closing_is_bounded_when_nobody_answers(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> tuple[Stats, float]:
        deaf = Connection("https://127.0.0.1:1", "a port where nobody listens")
        async with Client(deaf) as client, EventRecorder(client, "farlet-test") as recorder:
            for number in range(10):
                recorder.record(POD, WARNING, "OffloadFailed", f"nobody hears it ({number})")
            await asyncio.sleep(0.1)
            before = asyncio.get_running_loop().time()
            await recorder.close(timeout=0.5)
            took = asyncio.get_running_loop().time() - before
            assert asyncio.all_tasks() == {asyncio.current_task()}
            return recorder.stats(), took

    with caplog.at_level(logging.INFO):
        stats, took = asyncio.run(scenario())
    assert stats == Stats(written=0, dropped=10, waiting=0)
    assert took < 20, "a request may take 30"
    assert "10 events could not be written" in caplog.text
