"""What a node says while Farlet starts and its remote cluster does not answer."""

from __future__ import annotations

import datetime

import pytest

from app.kube.objects import Object
from app.names import REMOTE_UNREACHABLE
from app.node import conditions
from app.node.reachability import Reach
from app.node.vigil import due
from app.settings import OnUnreachable

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
AWAY = Reach(False, NOW, 1, "connection refused")
KEEP, NOT_READY = OnUnreachable.KEEP, OnUnreachable.NOT_READY


def node(health: conditions.Health, **statuses: str) -> Object:
    """A Node as Farlet left it, and with statuses that the node controller wrote since."""
    found = conditions.conditions(NOW, health)
    for condition in found:
        condition["status"] = statuses.get(condition["type"], condition["status"])
    status = {"capacity": {"cpu": "1"}, "allocatable": {"cpu": "1"}, "addresses": [], "conditions": found}
    return {"metadata": {"name": "far", "uid": "u"}, "status": status}


@pytest.mark.parametrize(
    ("before", "policy", "ready"),
    [
        (node(conditions.healthy()), KEEP, ("True", "RemoteUnreachableKept")),
        (node(conditions.healthy()), NOT_READY, ("False", REMOTE_UNREACHABLE)),
        (node(conditions.healthy(), Ready="Unknown"), KEEP, ("True", "RemoteUnreachableKept")),
        (node(conditions.unreachable(NOW, "x", KEEP), Ready="Unknown"), KEEP, ("True", "RemoteUnreachableKept")),
        (node(conditions.unreachable(NOW, "x", KEEP)), NOT_READY, ("False", REMOTE_UNREACHABLE)),
        (node(conditions.stopped(NOW)), NOT_READY, ("False", REMOTE_UNREACHABLE)),
    ],
)
def test_what_is_due(before: Object, policy: OnUnreachable, ready: tuple[str, str]) -> None:
    body = due(before, AWAY, policy, NOW)
    assert body is not None
    assert set(body["status"]) == {"conditions"}, "its size and its addresses are left alone"
    assert body["metadata"] == {"uid": "u"}
    said = {found["type"]: found for found in body["status"]["conditions"]}
    assert (said["Ready"]["status"], said["Ready"]["reason"]) == ready
    assert said["RemoteReachable"]["status"] == "False"
    assert "connection refused" in said["Ready"]["message"]


@pytest.mark.parametrize("policy", [KEEP, NOT_READY])
def test_what_is_said_already_is_not_said_again(policy: OnUnreachable) -> None:
    told = node(conditions.unreachable(NOW - datetime.timedelta(hours=1), "long before", policy))
    assert due(told, AWAY, policy, NOW) is None


def test_nothing_is_said_before_it_is_known() -> None:
    assert due(node(conditions.healthy()), None, KEEP, NOW) is None
