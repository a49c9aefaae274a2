"""How far rights reach, and which twins would be out of sight."""

from __future__ import annotations

from typing import Any

import pytest

from app import names
from app.namespaces.mapping import NamespaceMap
from app.scope import MAX_NAMESPACES, ScopeError, confined_to, out_of_sight, recorded


@pytest.mark.parametrize(
    ("given", "spaces"),
    [
        (["b"], ("b",)),
        (["b", "a"], ("b", "a")),
        (["b", "b"], ("b",)),
        ([f"n{index}" for index in range(MAX_NAMESPACES)], tuple(f"n{index}" for index in range(MAX_NAMESPACES))),
    ],
)
def test_confined_to(given: list[str | None], spaces: tuple[str, ...]) -> None:
    assert confined_to(given) == spaces


@pytest.mark.parametrize(
    ("given", "way_out"),
    [
        ([], "--namespace LOCAL=REMOTE"),
        ([None], "--namespace LOCAL=REMOTE"),
        (["b", None], "--namespace LOCAL=REMOTE"),
        ([f"n{index}" for index in range(MAX_NAMESPACES + 1)], "50 is the most"),
    ],
)
def test_not_confined_to(given: list[str | None], way_out: str) -> None:
    with pytest.raises(ScopeError, match=way_out):
        confined_to(given)


def pod(namespace: str, owner: str | None = None) -> dict[str, Any]:
    owners = [{"kind": owner, "controller": True}] if owner else []
    return {"metadata": {"name": "box", "namespace": namespace, "ownerReferences": owners}}


@pytest.mark.parametrize(
    ("before", "now", "pods", "lost"),
    [
        ({"a": "b"}, {"a": "b"}, [pod("a")], []),
        ({"a": "b"}, {"a": "c"}, [pod("a"), pod("a")], ["a=b"]),
        ({"a": "b"}, {"a": "c"}, [], []),
        ({"a": "b", "x": "y"}, {"x": "y"}, [pod("a"), pod("x")], ["a=b"]),
        # it was not mapped, so nothing runs for its pods
        ({"a": "b"}, {"a": "b"}, [pod("other")], []),
        ({"a": "b"}, {"a": "b", "other": "o"}, [pod("other")], []),
        # where no remote name was given it was computed
        ({"a": None}, {"a": "b"}, [pod("a")], ["a=a-0a1b"]),
        ({"a": None}, {"a": "a-0a1b"}, [pod("a")], []),
        # by label: any namespace may have had it
        ({}, {"a": "b"}, [pod("a"), pod("x")], ["a=a-0a1b", "x=x-0a1b"]),
        # never offloaded
        ({"a": "b"}, {"a": "c"}, [pod("a", "DaemonSet"), pod("a", "Node")], []),
        ({"a": "b"}, {"a": "c"}, [pod("a", "ReplicaSet")], ["a=b"]),
    ],
)
def test_out_of_sight(
    before: dict[str, str | None], now: dict[str, str | None], pods: list[dict[str, Any]], lost: list[str]
) -> None:
    assert out_of_sight(pods, NamespaceMap("0a1b", before), now) == lost


def test_recorded() -> None:
    def node(text: str) -> dict[str, Any]:
        return {"metadata": {"annotations": {names.ANNOTATION_NAMESPACES: text}}}

    assert recorded(None) is None
    assert recorded({"metadata": {}}) is None
    assert recorded(node("a=b,c")) == {"a": "b", "c": None}
    with pytest.raises(ScopeError, match=names.ANNOTATION_NAMESPACES):
        recorded(node("A B"))
