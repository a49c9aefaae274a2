from __future__ import annotations

import pytest

from app.kube.objects import Object
from app.pods.conditions import from_remote, merged
from tests.app.pods.samples import EARLIER, NOW, condition, local_pod, remote_pod

GATE = "example.com/in-the-load-balancer"


def ready(local: Object, remote: Object) -> Object:
    return next(each for each in from_remote(local, remote) if each["type"] == "Ready")


@pytest.mark.parametrize(
    ("gate", "containers", "expected", "reason"),
    [
        (None, True, "False", "ReadinessGatesNotReady"),
        ("False", True, "False", "ReadinessGatesNotReady"),
        ("True", True, "True", None),
        ("True", False, "False", "ContainersNotReady"),
    ],
)
def test_readiness_gates_of_the_local_pod(
    gate: str | None, containers: bool, expected: str, reason: str | None
) -> None:
    local = local_pod(readinessGates=[{"conditionType": GATE}])
    if gate:
        local["status"]["conditions"].append(condition(GATE, gate))
    remote = remote_pod(ready=containers)
    for each in remote["status"]["conditions"]:
        if each["status"] == "False":
            each["reason"] = "ContainersNotReady"
    found = ready(local, remote)
    assert (found["status"], found.get("reason")) == (expected, reason)


def test_a_gate_tells_what_it_waits_for() -> None:
    local = local_pod(readinessGates=[{"conditionType": GATE}])
    assert (
        ready(local, remote_pod())["message"]
        == f'corresponding condition of pod readiness gate "{GATE}" does not exist.'
    )
    local["status"]["conditions"].append(condition(GATE, "False"))
    assert (
        ready(local, remote_pod())["message"] == f'the status of pod readiness gate "{GATE}" is not "True", but False'
    )


def test_a_remote_node_that_is_lost() -> None:
    """The remote's node controller clears Ready and leaves ContainersReady."""
    remote = remote_pod()
    next(each for each in remote["status"]["conditions"] if each["type"] == "Ready")["status"] = "False"
    assert ready(local_pod(), remote)["status"] == "False"


@pytest.mark.parametrize(
    ("old", "new", "time"),
    [
        (("True", "2026-01-01T00:00:00Z"), ("True", EARLIER), "2026-01-01T00:00:00Z"),
        (("False", "2026-01-01T00:00:00Z"), ("True", EARLIER), EARLIER),
        (("False", "2026-02-01T11:30:00Z"), ("True", EARLIER), NOW),
        (("False", "2026-01-01T00:00:00Z"), ("True", None), NOW),
        (None, ("True", EARLIER), EARLIER),
        (None, ("True", None), NOW),
    ],
)
def test_transition_times(old: tuple[str, str] | None, new: tuple[str, str | None], time: str) -> None:
    local = local_pod()
    if old:
        local["status"]["conditions"] = [{"type": "Ready", "status": old[0], "lastTransitionTime": old[1]}]
    wanted = {"type": "Ready", "status": new[0], "lastTransitionTime": new[1]}
    found = merged(local, [wanted], drop=True, generation=0, now=NOW)
    assert [each["lastTransitionTime"] for each in found if each["type"] == "Ready"] == [time]


def test_generations_never_fall() -> None:
    local = local_pod()
    local["status"]["conditions"] = [condition("Ready") | {"observedGeneration": 5}]
    assert merged(local, [condition("Ready")], drop=True, generation=3, now=NOW)[0]["observedGeneration"] == 5
    assert merged(local, [condition("Ready")], drop=True, generation=6, now=NOW)[0]["observedGeneration"] == 6


def test_a_resize_condition_that_speaks_of_an_older_spec() -> None:
    old = condition("PodResizeInProgress") | {"observedGeneration": 2}
    local = local_pod(status={"conditions": [old]})
    remote = remote_pod(conditions=[condition("PodResizeInProgress") | {"observedGeneration": 6}])
    found = merged(local, from_remote(local, remote), drop=True, generation=3, now=NOW)
    assert found[0]["observedGeneration"] == 2
