"""The time that a pod of a ReplicaSet may run, and how it ends when that is over."""

from __future__ import annotations

import datetime

import pytest

from app import names
from app.kube.objects import Object
from app.pods import status
from app.pods.addresses import IpMap
from app.pods.deadline import MESSAGE, seconds_left
from app.pods.patch import status_patch
from tests.app.pods.samples import EARLIER, NOW, fresh_pod, local_pod, remote_pod, running, terminated

MOMENT = datetime.datetime.fromisoformat(NOW)
"""An hour after EARLIER."""


@pytest.mark.parametrize(
    ("policy", "deadline", "told", "left"),
    [
        ("Always", None, {"startTime": EARLIER}, None),
        ("Always", 60, {}, None),
        ("Always", 3700, {"startTime": EARLIER}, 100),
        ("Always", 3600, {"startTime": EARLIER}, 0),
        ("Always", 60, {"startTime": EARLIER}, 0),
        ("Always", 9999, {"startTime": EARLIER, "reason": names.DEADLINE_EXCEEDED}, 0),
        ("Always", 3700, {"startTime": EARLIER, "reason": names.REMOTE_REPLACED}, 100),
        ("Never", 60, {"startTime": EARLIER}, None),
        ("OnFailure", 60, {"startTime": EARLIER}, None),
    ],
)
def test_seconds_left(policy: str, deadline: int | None, told: Object, left: float | None) -> None:
    pod = local_pod(policy=policy, status=told, activeDeadlineSeconds=deadline)
    assert seconds_left(pod, MOMENT) == left


def shown() -> Object:
    told = {"phase": "Running", "startTime": EARLIER, "containerStatuses": [running()]}
    return local_pod(status=told, activeDeadlineSeconds=60)


def expired(local: Object, remote: Object | None, *, over: bool) -> Object:
    found = status.expired_status(local, remote, over=over, now=NOW, ip_map=IpMap())
    assert (found["reason"], found["message"]) == (names.DEADLINE_EXCEEDED, MESSAGE)
    return found


def state(told: Object) -> Object:
    found: Object = told["containerStatuses"][0]["state"]
    return found


def test_it_is_not_failed_while_something_runs() -> None:
    told = expired(shown(), remote_pod(deleting=True), over=False)
    assert told["phase"] == "Running"
    assert "running" in state(told)


@pytest.mark.parametrize("remote", [None, fresh_pod(), remote_pod(terminated(code=143), phase="Failed")])
def test_nothing_to_tell_of_yet(remote: Object | None) -> None:
    """No remote pod, one that no kubelet has, or one that ended beside another that runs."""
    told = expired(shown(), remote, over=False)
    assert told["phase"] == "Running"
    assert "running" in state(told)


def test_the_exit_code_is_told() -> None:
    told = expired(shown(), remote_pod(terminated(code=143), phase="Failed", ready=False), over=True)
    assert told["phase"] == "Failed"
    assert state(told)["terminated"]["exitCode"] == 143
    ready = {each["type"]: each["status"] for each in told["conditions"]}
    assert (ready["Ready"], ready["ContainersReady"]) == ("False", "False")


def test_a_pod_that_stopped_in_good_order_has_failed_too() -> None:
    told = expired(shown(), remote_pod(terminated(code=0), phase="Succeeded", ready=False), over=True)
    assert told["phase"] == "Failed"


def test_nobody_saw_it_end() -> None:
    told = expired(shown(), None, over=True)
    assert told["phase"] == "Failed"
    assert state(told)["terminated"]["exitCode"] == 137


def test_it_stays_as_it_ended() -> None:
    local = shown()
    local["status"] = expired(local, None, over=True)
    for remote in (None, remote_pod()):
        assert status_patch(local, status.expired_status(local, remote, over=True, now=NOW), {}) is None
