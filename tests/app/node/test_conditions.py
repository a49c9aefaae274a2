"""Conditions say what is, in words for people, and their times move only when they should."""

from __future__ import annotations

import datetime

import pytest

from app.node.conditions import OWN, Health, conditions, healthy, ready_condition, stopped, timestamp, unreachable
from app.settings import OnUnreachable

NOW = datetime.datetime(2026, 7, 30, 12, 0, 0, 999_999, tzinfo=datetime.UTC)
SINCE = NOW - datetime.timedelta(minutes=2)
LATER = NOW + datetime.timedelta(seconds=10)


@pytest.mark.parametrize(
    ("health", "ready", "reachable"),
    [
        (healthy(), "True", "True"),
        (unreachable(SINCE, "refused", OnUnreachable.NOT_READY), "False", "False"),
        (unreachable(SINCE, "refused", OnUnreachable.KEEP), "True", "False"),
        (stopped(NOW), "False", "True"),
    ],
)
def test_what_is_said_in_each_state(health: Health, ready: str, reachable: str) -> None:
    found = conditions(NOW, health)
    assert [c["type"] for c in found] == list(OWN)
    assert found[-1]["type"] == "Ready"
    assert {c["type"]: c["status"] for c in found} == {
        "MemoryPressure": "False",
        "DiskPressure": "False",
        "PIDPressure": "False",
        "RemoteReachable": reachable,
        "Ready": ready,
    }
    for c in found:
        assert c["reason"].isalpha(), "reasons are CamelCase words"
        assert c["message"]


@pytest.mark.parametrize("policy", ["not-ready", "keep"])
def test_an_unreachable_remote_is_told_with_what_failed_since_when_and_how(policy: str) -> None:
    health = unreachable(SINCE, "no route\n  to host", OnUnreachable(policy))
    for message in (health.message, health.reachable_message):
        assert "cannot be reached since 2026-07-30T11:58:00Z: GET /readyz: no route to host" in message
    assert health.reason.startswith("RemoteUnreachable")


def test_a_long_error_is_cut() -> None:
    assert len(unreachable(SINCE, "x" * 10_000, OnUnreachable.KEEP).message) < 1000


def test_an_error_without_text_is_still_a_sentence() -> None:
    assert "no reason given" in unreachable(SINCE, " ", OnUnreachable.KEEP).message


def test_a_transition_is_a_flip_of_the_status_and_nothing_else() -> None:
    first = conditions(NOW, healthy())
    same = conditions(LATER, healthy(), first)
    assert {c["lastTransitionTime"] for c in same} == {timestamp(NOW)}
    assert {c["lastHeartbeatTime"] for c in same} == {timestamp(LATER)}
    reworded = ready_condition(LATER, True, "Other", "other words", first)
    assert (reworded["lastTransitionTime"], reworded["reason"]) == (timestamp(NOW), "Other")
    flipped = conditions(LATER, unreachable(SINCE, "refused", OnUnreachable.NOT_READY), same)
    assert {c["type"]: c["lastTransitionTime"] for c in flipped} == {
        "MemoryPressure": timestamp(NOW),
        "DiskPressure": timestamp(NOW),
        "PIDPressure": timestamp(NOW),
        "RemoteReachable": timestamp(LATER),
        "Ready": timestamp(LATER),
    }


def test_after_the_node_controller_said_unknown_it_is_a_transition() -> None:
    previous = [{"type": "Ready", "status": "Unknown", "lastTransitionTime": timestamp(SINCE)}]
    assert ready_condition(NOW, True, "R", "m", previous)["lastTransitionTime"] == timestamp(NOW)


def test_times_are_utc_and_whole_seconds() -> None:
    zone = datetime.timezone(datetime.timedelta(hours=2))
    assert timestamp(NOW.astimezone(zone)) == "2026-07-30T12:00:00Z"
