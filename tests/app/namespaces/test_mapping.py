"""Which remote namespace a local one has."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.namespaces.mapping import RESERVED, Asked, By, NamespaceMap, Target, parse, remote_name
from app.namespaces.offloading import Entry, MappingStrategy, Offloading, entries

NAMES = st.from_regex(re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"), fullmatch=True)


@pytest.mark.parametrize(
    ("named", "namespace", "labels", "target"),
    [
        ({}, "shop", {"farlet.dev/enabled": "true"}, Target("shop-0a1b", False, By.LABEL)),
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


NORTH = ({"matchExpressions": [{"key": "region", "operator": "In", "values": ["north"]}]},)
ENABLED = {"farlet.dev/enabled": "true"}
BY_OPERATOR = {"farlet.dev/enabled-by": "offloading"}


@pytest.mark.parametrize(
    ("asked", "target"),
    [
        (Asked("shop", offloading=Offloading("shop")), Target("shop-0a1b", False, By.OFFLOADING)),
        (
            Asked("shop", offloading=Offloading("shop", mapping=MappingStrategy.ENFORCE_SAME_NAME)),
            Target("shop", False, By.OFFLOADING),
        ),
        (
            Asked("shop", offloading=Offloading("shop", mapping=MappingStrategy.SELECTED_NAME, remote_name="far")),
            Target("far", False, By.OFFLOADING),
        ),
        (
            Asked("shop", offloading=Offloading("shop", terms=NORTH), node_labels={"region": "north"}),
            Target("shop-0a1b", False, By.OFFLOADING),
        ),
        (Asked("shop", ENABLED, offloading=Offloading("shop", terms=NORTH)), None),
        (Asked("shop", offloading=Offloading("shop", terms=())), None),
        # an object that goes leaves what a person's own label asks for
        (Asked("shop", offloading=Offloading("shop", deleting=True)), None),
        (Asked("shop", ENABLED, offloading=Offloading("shop", deleting=True)), Target("shop-0a1b", False, By.LABEL)),
        # the operator's label means nothing without the object, which may not have been seen yet
        (Asked("shop", ENABLED, BY_OPERATOR), None),
        (Asked("shop", ENABLED, going=True), None),
    ],
)
def test_an_object_is_stronger_than_the_label(asked: Asked, target: Target | None) -> None:
    assert NamespaceMap("0a1b", {}, "node").decide(asked) == target
    assert NamespaceMap("0a1b", {"shop": "given"}, "node").decide(asked) == Target("given", True)


@pytest.mark.parametrize("namespace", [*sorted(RESERVED), "home"])
def test_the_clusters_own_namespaces_extend_only_if_they_are_named(namespace: str) -> None:
    by_label, by_object = Asked(namespace, ENABLED), Asked(namespace, offloading=Offloading(namespace))
    found = NamespaceMap("0a1b", {}, "node", own="home")
    for asked in (by_label, by_object):
        assert found.decide(asked) is None
        assert f"--namespace {namespace} offloads it" in found.why_not(namespace, asked)
        named = NamespaceMap("0a1b", {namespace: None}, "node", own="home")
        assert named.decide(asked) == Target(f"{namespace}-0a1b", False)
    assert NamespaceMap("0a1b", {}, "node").decide(Asked("home", ENABLED)) is not None


def test_an_object_without_anything_asks_for_what_the_label_does() -> None:
    content = {"metadata": {"name": "offloading", "namespace": "shop"}, "spec": {}}
    assert Offloading.of(content) == Offloading("shop")


def test_entries_survive_the_way_there_and_back() -> None:
    entry = Entry(node="n", cluster="c", remote_namespace="far", ready=False, reason="Conflict", message="x")
    assert entries({"status": {"clusters": [entry.object()]}}) == [entry]
    assert entries({}) == []
