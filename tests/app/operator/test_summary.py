"""What a NamespaceOffloading says of itself."""

from __future__ import annotations

import pytest

from app.namespaces.offloading import Entry
from app.operator.summary import awaited, condition, summary


def told(node: str, reason: str) -> Entry:
    return Entry(node=node, cluster="c", ready=reason == "NamespaceReady", reason=reason)


GOOD, BAD, GOING = "NamespaceReady", "Conflict", "Terminating"


@pytest.mark.parametrize(
    ("selected", "entries", "deleting", "expected"),
    [
        ([], [], False, (False, "NoClusterSelected")),
        (["a"], [], False, (False, "InProgress")),
        (["a"], [told("a", GOOD)], False, (True, "Ready")),
        (["a", "b"], [told("a", GOOD)], False, (False, "InProgress")),
        (["a", "b"], [told("a", GOOD), told("b", GOING)], False, (False, "InProgress")),
        (["a", "b"], [told("a", GOOD), told("b", BAD)], False, (False, "SomeFailed")),
        (["a", "b"], [told("a", BAD), told("b", BAD)], False, (False, "AllFailed")),
        # one that is being left does not count
        (["a"], [told("a", GOOD), told("b", "Draining")], False, (True, "Ready")),
        (["a"], [told("a", GOOD)], True, (False, "Terminating")),
    ],
)
def test_reasons(selected: list[str], entries: list[Entry], deleting: bool, expected: tuple[bool, str]) -> None:
    assert summary(selected, entries, deleting=deleting)[:2] == expected


def test_who_extended_nothing_is_not_waited_for() -> None:
    every = [told("a", "Draining"), told("b", "NotGiven"), told("c", BAD)]
    assert [entry.node for entry in awaited(every)] == ["a", "c"]
    assert summary(["a", "b", "c"], every, deleting=True)[2] == "waiting for a (Draining), c (Conflict)"
    assert summary(["b"], every[1:2], deleting=True)[2] == "nothing is left to wait for"


def test_a_condition_keeps_its_time_while_its_status_is_the_same() -> None:
    first = condition(False, "InProgress", "x", 1, None, "then")
    second = condition(False, "AllFailed", "y", 2, first, "now")
    assert second["lastTransitionTime"] == "then"
    assert condition(True, "Ready", "z", 2, second, "now")["lastTransitionTime"] == "now"
