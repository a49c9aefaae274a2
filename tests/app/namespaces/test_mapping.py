"""Which remote namespace a local one has."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.namespaces.mapping import NamespaceMap, Target, parse, remote_name

NAMES = st.from_regex(re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"), fullmatch=True)


@pytest.mark.parametrize(
    ("named", "namespace", "labels", "target"),
    [
        ({}, "shop", {"farlet.dev/enabled": "true"}, Target("shop-0a1b", False)),
        ({}, "shop", {"farlet.dev/enabled": "false"}, None),
        ({}, "shop", {}, None),
        ({"shop": None}, "shop", {}, Target("shop-0a1b", False)),
        ({"shop": "far"}, "shop", {}, Target("far", True)),
        # names that were given are the whole list: the label does not add to it
        ({"shop": None}, "other", {"farlet.dev/enabled": "true"}, None),
    ],
)
def test_target(named: dict[str, str | None], namespace: str, labels: dict[str, str], target: Target | None) -> None:
    assert NamespaceMap("0a1b", named).target(namespace, labels) == target


def test_the_way_out_is_named() -> None:
    assert "kubectl label namespace shop farlet.dev/enabled=true" in NamespaceMap("0a1b", {}).why_not("shop")
    assert "--namespace shop" in NamespaceMap("0a1b", {"other": None}).why_not("shop")


@given(NAMES)
def test_a_remote_name_is_valid_and_carries_the_origin(namespace: str) -> None:
    name = remote_name(namespace, "0a1b2c3d")
    assert len(name) <= 63
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)
    assert name.endswith("-0a1b2c3d")


@given(NAMES, NAMES)
def test_two_namespaces_never_meet(one: str, other: str) -> None:
    if one != other:
        assert remote_name(one, "0a1b2c3d") != remote_name(other, "0a1b2c3d")


def test_parse() -> None:
    assert parse([]) == {}
    assert parse(["a", "b=c"]) == {"a": None, "b": "c"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["A"], "'A' is not the name of a namespace"),
        (["a="], "'' is not the name"),
        (["a", "a=b"], "'a' is given twice"),
        (["a=c", "b=c"], "two local namespaces are mapped to one"),
    ],
)
def test_parse_refuses(options: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(options)
