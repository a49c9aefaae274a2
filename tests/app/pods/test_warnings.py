from __future__ import annotations

from typing import Any

import pytest

from app.kube.objects import Object
from app.pods.warnings import Mode, event_patch, local_event
from tests.app.pods.samples import local_pod


def remote_event(**fields: Any) -> Object:
    about = {"kind": "Pod", "namespace": "shop-far", "name": "web-x1", "uid": "remote-1"}
    return {
        "metadata": {"name": "web-x1.17a", "namespace": "shop-far", "uid": "event-uid"},
        "involvedObject": about | {"fieldPath": "spec.containers{main}", "resourceVersion": "5"},
        "type": "Warning",
        "reason": "BackOff",
        "message": "Back-off restarting failed container main in pod web-x1_shop-far",
        "firstTimestamp": "2026-02-01T10:00:00Z",
        "lastTimestamp": "2026-02-01T10:05:00Z",
        "eventTime": None,
        "count": 7,
        "source": {"component": "kubelet", "host": "far-1"},
    } | fields


def told(event: Object, mode: Mode = "warnings") -> Object:
    found = local_event(event, local_pod(), mode=mode)
    assert found is not None
    return found


def test_a_warning_of_the_remote_pod() -> None:
    found = told(remote_event())
    assert found.pop("metadata") == {"name": "web.e75cf04d879ee729", "namespace": "shop"}
    assert found == {
        "apiVersion": "v1",
        "kind": "Event",
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "shop",
            "name": "web",
            "uid": "local-uid",
            "fieldPath": "spec.containers{main}",
        },
        "type": "Warning",
        "reason": "BackOff",
        "message": "Back-off restarting failed container main in pod web-x1_shop-far",
        "firstTimestamp": "2026-02-01T10:00:00Z",
        "lastTimestamp": "2026-02-01T10:05:00Z",
        "count": 7,
        "source": {"component": "farlet"},
        "reportingComponent": "farlet",
        "reportingInstance": "",
    }


@pytest.mark.parametrize(
    ("mode", "kind", "carried"),
    [
        ("warnings", "Warning", True),
        ("warnings", "Normal", False),
        ("all", "Warning", True),
        ("all", "Normal", True),
        ("none", "Warning", False),
        ("none", "Normal", False),
    ],
)
def test_modes(mode: Mode, kind: str, carried: bool) -> None:
    assert (local_event(remote_event(type=kind), local_pod(), mode=mode) is not None) is carried


@pytest.mark.parametrize(("kind", "carried"), [("ReplicaSet", True), ("Job", True), ("Pod", True), ("Node", False)])
def test_what_it_is_about(kind: str, carried: bool) -> None:
    event = remote_event(involvedObject={"kind": kind, "name": "web"}, reason="FailedCreate")
    found = local_event(event, local_pod())
    assert (found is not None) is carried
    if found:
        assert found["involvedObject"]["kind"] == "Pod"
        assert "fieldPath" not in found["involvedObject"]


def test_events_of_the_newer_api() -> None:
    """The scheduler's: a series instead of a count, times with fractions."""
    event = remote_event(
        firstTimestamp=None,
        lastTimestamp=None,
        count=None,
        eventTime="2026-02-01T10:00:00.123456Z",
        series={"count": 3, "lastObservedTime": "2026-02-01T10:09:00.000001Z"},
    )
    found = told(event)
    assert found["count"] == 3
    assert (found["firstTimestamp"], found["lastTimestamp"]) == ("2026-02-01T10:00:00Z", "2026-02-01T10:09:00Z")
    found = told(remote_event(firstTimestamp=None, lastTimestamp=None, eventTime="2026-02-01T10:00:00.1Z", count=0))
    assert (found["count"], found["lastTimestamp"]) == (1, "2026-02-01T10:00:00Z")


def test_a_long_name() -> None:
    local = local_pod()
    local["metadata"]["name"] = "a" * 235 + "." + "b" * 17
    found = local_event(remote_event(), local)
    assert found is not None
    name = found["metadata"]["name"]
    assert len(name) <= 253
    assert ".." not in name


def test_told_again() -> None:
    stored = told(remote_event())
    assert event_patch(stored, told(remote_event())) is None
    assert event_patch(stored, told(remote_event(count=6))) is None, "a late one"
    more = told(remote_event(count=8, lastTimestamp="2026-02-01T10:06:00Z"))
    assert more["metadata"] == stored["metadata"]
    assert event_patch(stored, more) == {"count": 8, "lastTimestamp": "2026-02-01T10:06:00Z"}


def refused(pod: str, quota: str = "one", **fields: Any) -> Object:
    about = {"kind": "ReplicaSet", "namespace": "shop-far", "name": "web-abc", "uid": "set-1"}
    message = f'Error creating: pods "{pod}" is forbidden: exceeded quota: {quota}'
    return remote_event(reason="FailedCreate", message=message, involvedObject=about) | fields


def test_pods_that_were_never_made_are_told_as_one() -> None:
    one = told(refused("web-abc-x1y2z"))
    assert one["message"] == 'Error creating: pods "web-abc-*" is forbidden: exceeded quota: one'
    other = refused("web-abc-9k4wq", metadata={"name": "e", "uid": "another"})
    assert told(other) == one
    combined = other | {"message": f"(combined from similar events): {other['message']}"}
    assert told(combined) == one


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(refused("web-abc-x1y2z", "two"), id="another reason"),
        pytest.param(refused("db-abc-x1y2z"), id="another name"),
        pytest.param(refused("x", involvedObject={"kind": "Job", "name": "web-abc", "uid": "2"}), id="another twin"),
        pytest.param(refused("web-abc-x1y2z", reason="BackOff"), id="another thing that happened"),
    ],
)
def test_what_is_told_on_its_own(event: Object) -> None:
    assert told(event)["metadata"] != told(refused("web-abc-x1y2z"))["metadata"]
