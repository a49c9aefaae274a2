"""What a person reads at start."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.facts import Facts, describe, describe_node
from app.settings import OnUnreachable, RunSettings, load

FACTS = Facts("v1.36.3", "v1.35.0", "here", "there", "10.0.0.1")
SIZE = {"cpu": "3600m", "memory": "15032385536", "pods": "99"}


def settings(**flags: object) -> RunSettings:
    return load({"remote_kubeconfig": Path("remote"), "node_name": "far", **flags}, {}, None)


def test_the_clusters_and_what_is_missing() -> None:
    facts = Facts("v1.36.3", "v1.35.0", "here", "there", "10.0.0.1", losses=("missing: this",))
    first, second, third = describe(settings(), facts).splitlines()
    assert first.endswith("node far = remote cluster there")
    assert second == "  local v1.36.3 (id here), remote v1.35.0"
    assert third == "  missing: this"


def test_the_node() -> None:
    assert describe_node(settings(), FACTS, SIZE, "90 % of what is free").splitlines() == [
        "  offers cpu 3600m, memory 14Gi, pods 99 (90 % of what is free)",
        "  offloads from every namespace with the label farlet.dev/enabled=true",
        "  if the remote is unreachable: the node becomes NotReady "
        "(no local node has a providerID; --on-unreachable says otherwise)",
        "  send a pod there: runtimeClassName: farlet, or nodeName: far, or tolerate farlet.dev/virtual-node and "
        "select type=virtual-kubelet",
    ]


@pytest.mark.parametrize(
    ("facts", "flags", "says"),
    [
        (Facts("v1.1.1", "v1.1.1", "a", "b", "c", OnUnreachable.KEEP, "n1"), {}, "stays Ready (local node n1 has"),
        (
            Facts("v1.1.1", "v1.1.1", "a", "b", "c", OnUnreachable.KEEP),
            {"on_unreachable": "keep"},
            "the node stays Ready\n",
        ),
        (FACTS, {"namespaces": ("a", "b=c")}, "offloads from namespaces a, b=c\n"),
        (FACTS, {"node_taint": "none"}, "(the node has no taint)"),
        (FACTS, {"node_taint": "me/mine:NoExecute"}, "send a pod there: nodeName: far, or tolerate me/mine and"),
        (FACTS, {"node_taint": "me/mine:NoExecute"}, "once its toleration names me/mine"),
    ],
)
def test_what_depends_on_settings(facts: Facts, flags: dict[str, object], says: str) -> None:
    assert says in describe_node(settings(**flags), facts, SIZE, "source")


def test_a_size_without_memory_is_pointed_out() -> None:
    text = describe_node(settings(), FACTS, {"cpu": "1", "pods": "5"}, "a quota")
    assert "  offers no memory: pods that ask for it are not scheduled there" in text.splitlines()


def test_many_resources_are_cut_short() -> None:
    many = {**SIZE, **{f"example.com/r{index}": "1" for index in range(10)}}
    assert "example.com/r4 1 and 5 more (" in describe_node(settings(), FACTS, many, "source")
