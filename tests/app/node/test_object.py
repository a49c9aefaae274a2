"""The Node that is forged: complete, honest about the remote cluster, and refused early where it cannot be."""

from __future__ import annotations

import datetime
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kube.objects import Object
from app.names import LABEL_REMOTE_PROVIDER, TAINT_UNREACHABLE
from app.node.conditions import conditions, healthy
from app.node.object import (
    NodeError,
    NodeOptions,
    check_label,
    check_node_name,
    forge_node,
    is_ours,
    kubelet_version,
    why_not_ours,
)

NOW = datetime.datetime(2026, 7, 30, 12, 0, tzinfo=datetime.UTC)
CAPACITY = {"cpu": "90", "memory": "256Gi", "pods": "99"}
REGION, ZONE = "topology.kubernetes.io/region", "topology.kubernetes.io/zone"


def options(**more: Any) -> NodeOptions:
    return NodeOptions(**{"name": "far", "remote_cluster_id": "abc", "local_version": "v1.36.3"} | more)


def remote(name: str = "n", version: str = "v1.36.3", provider: str = "", **labels: str) -> Object:
    spec = {"providerID": provider} if provider else {}
    info = {"kubeletVersion": version, "kernelVersion": "6.8.0"}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"nodeInfo": info}}


def with_labels(*all_labels: dict[str, str]) -> list[Object]:
    return [remote(f"n{i}", **labels) for i, labels in enumerate(all_labels)]


def forge(nodes: list[Object] | None = None, *, keep_away: bool = False, **more: Any) -> Object:
    return forge_node(options(**more), nodes or [], CAPACITY, conditions(NOW, healthy()), keep_away=keep_away)


def test_the_whole_object() -> None:
    nodes = with_labels(
        {"kubernetes.io/os": "linux", "kubernetes.io/arch": "arm64", ZONE: "a", REGION: "eu"},
        {"kubernetes.io/os": "linux", "kubernetes.io/arch": "arm64", ZONE: "b", REGION: "eu"},
    )
    node = forge(nodes, addresses=["10.0.0.1", "fd00::1"], labels={"team": "a"}, kubelet_port=10300)
    assert node["metadata"]["name"] == "far"
    assert node["metadata"]["labels"] == {
        "kubernetes.io/hostname": "far",
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "arm64",
        REGION: "eu",
        "team": "a",
        "type": "virtual-kubelet",
        "farlet.dev/virtual-node": "true",
        "farlet.dev/remote-cluster": "abc",
        "node.kubernetes.io/exclude-from-external-load-balancers": "true",
    }
    assert node["spec"] == {"taints": [{"key": "farlet.dev/virtual-node", "value": "abc", "effect": "NoSchedule"}]}
    status = node["status"]
    assert status["capacity"] == status["allocatable"] == CAPACITY
    assert status["addresses"] == [
        {"type": "InternalIP", "address": "10.0.0.1"},
        {"type": "InternalIP", "address": "fd00::1"},
        {"type": "Hostname", "address": "far"},
    ]
    assert status["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 10300}}
    assert status["conditions"][-1]["type"] == "Ready"
    assert (status["nodeInfo"]["architecture"], status["nodeInfo"]["operatingSystem"]) == ("arm64", "linux")


@pytest.mark.parametrize("nodes", [[], [remote()], [{"metadata": {"name": "bare"}}]])
def test_no_string_of_the_node_info_is_empty(nodes: list[Object]) -> None:
    info = forge(nodes)["status"]["nodeInfo"]
    required = "architecture bootID containerRuntimeVersion kernelVersion kubeProxyVersion kubeletVersion machineID"
    assert set(info) == {*required.split(), "operatingSystem", "osImage", "systemUUID"}
    assert all(info.values())
    assert (info["operatingSystem"], info["architecture"]) == ("linux", "amd64")


def test_a_restart_forges_the_same_and_another_node_is_another_machine() -> None:
    assert forge() == forge()
    ids = [forge(name=name)["status"]["nodeInfo"]["machineID"] for name in ("far", "near")]
    assert ids[0] != ids[1]


LABEL_CASES: list[tuple[str, list[dict[str, str]], dict[str, str | None]]] = [
    ("all agree", [{ZONE: "a", REGION: "eu"}, {ZONE: "a", REGION: "eu"}], {ZONE: "a", REGION: "eu"}),
    ("one differs", [{ZONE: "a", REGION: "eu"}, {ZONE: "b", REGION: "eu"}], {ZONE: None, REGION: "eu"}),
    ("one has none", [{ZONE: "a"}, {}], {ZONE: None}),
    ("a topology of their own", [{"topology.kubernetes.io/rack": "1"}], {"topology.kubernetes.io/rack": "1"}),
    ("asked for", [{"gpu": "a100"}, {"gpu": "a100"}], {"gpu": "a100"}),
    ("instance types", [{"node.kubernetes.io/instance-type": "m5"}], {"node.kubernetes.io/instance-type": None}),
    ("autoscalers' labels", [{"karpenter.sh/nodepool": "x"}], {"karpenter.sh/nodepool": None}),
    ("roles", [{"node-role.kubernetes.io/worker": ""}], {"node-role.kubernetes.io/worker": None}),
    ("names", [{"kubernetes.io/hostname": "n0"}], {"kubernetes.io/hostname": "far"}),
    (
        "mixed machines: the most frequent",
        [{"kubernetes.io/arch": "amd64"}, {"kubernetes.io/arch": "arm64"}, {"kubernetes.io/arch": "arm64"}],
        {"kubernetes.io/arch": "arm64"},
    ),
    (
        "a draw is always decided alike",
        [{"kubernetes.io/arch": "arm64"}, {"kubernetes.io/arch": "amd64"}],
        {"kubernetes.io/arch": "amd64"},
    ),
]


@pytest.mark.parametrize(
    ("all_labels", "expected"), [case[1:] for case in LABEL_CASES], ids=[c[0] for c in LABEL_CASES]
)
def test_labels_from_the_remote_nodes(all_labels: list[dict[str, str]], expected: dict[str, str | None]) -> None:
    labels = forge(with_labels(*all_labels), common_labels=["gpu"])["metadata"]["labels"]
    assert {key: labels.get(key) for key in expected} == expected


def test_what_the_user_says_goes_before_what_the_nodes_say() -> None:
    given_labels = {"kubernetes.io/arch": "s390x", ZONE: "mine"}
    node = forge(with_labels({"kubernetes.io/arch": "arm64", ZONE: "a"}), labels=given_labels)
    assert node["metadata"]["labels"].items() >= given_labels.items()
    assert node["status"]["nodeInfo"]["architecture"] == "s390x"


@pytest.mark.parametrize(
    ("ids", "provider"),
    [
        (["aws:///eu-1a/i-1", "aws:///eu-1b/i-2"], "aws"),
        (["kind://docker/a/b"], "kind"),
        (["aws:///eu-1a/i-1", "gce://p/z/n"], None),
        (["aws:///eu-1a/i-1", ""], None),
        (["no scheme"], None),
        ([], None),
    ],
)
def test_the_provider_that_all_nodes_have(ids: list[str], provider: str | None) -> None:
    node = forge([remote(f"n{i}", provider=text) for i, text in enumerate(ids)])
    assert node["metadata"]["labels"].get(LABEL_REMOTE_PROVIDER) == provider


def test_taints() -> None:
    assert forge(taint_effect=None)["spec"]["taints"] == []
    assert forge(taint_key="example.com/far", taint_effect="NoExecute", keep_away=True)["spec"]["taints"] == [
        {"key": "example.com/far", "value": "abc", "effect": "NoExecute"},
        {"key": TAINT_UNREACHABLE, "effect": "NoSchedule"},
    ]


VERSIONS = [
    # local API server, remote kubelets, shown
    ("v1.36.3", [], "v1.36.3"),
    ("v1.36.3", ["v1.36.3"], "v1.36.3"),
    ("v1.36.3", ["v1.37.0"], "v1.36.3"),  # never newer than the API server
    ("v1.36.3", ["v1.36.4", "v1.36.1"], "v1.36.1"),
    ("v1.36.3", ["v1.35.2", "v1.34.9"], "v1.34.9"),  # what the oldest can do, all can
    ("v1.36.3", ["v1.33.0"], "v1.33.0"),
    ("v1.36.3", ["v1.32.9"], "v1.33.0"),  # not older than Kubernetes supports beside this API server
    ("v1.36.3", ["v1.9.0", "v1.10.0"], "v1.33.0"),
    ("v1.36.3+k3s1", [], "v1.36.3"),
    ("v1.36.3", ["v1.35.2+k3s1"], "v1.35.2"),
    ("v1.30.4-eks-a737599", ["v1.30.4-eks-036c24b"], "v1.30.4-eks-a737599"),
    ("v1.37.0-alpha.1.12+abcdef", ["v1.38.0"], "v1.37.0-alpha.1.12"),
    ("v1.36.3", ["", "strange"], "v1.36.3"),
]


@pytest.mark.parametrize(("local", "kubelets", "shown"), VERSIONS)
def test_the_kubelet_version_breaks_no_skew_gate(local: str, kubelets: list[str], shown: str) -> None:
    nodes = [remote(version=version) for version in kubelets]
    assert kubelet_version(options(local_version=local), nodes) == shown


def test_where_nodes_cannot_be_read_the_remote_api_server_speaks_for_them() -> None:
    assert kubelet_version(options(remote_version="v1.35.1")) == "v1.35.1"
    assert kubelet_version(options(remote_version="v1.35.1"), [remote(version="v1.34.0")]) == "v1.34.0"
    assert kubelet_version(options(remote_version="?")) == "v1.36.3"


MINORS = st.builds(lambda minor, patch: f"v1.{minor}.{patch}", st.integers(20, 50), st.integers(0, 20))


@given(MINORS, st.lists(MINORS))
def test_the_kubelet_version_is_always_supported(local: str, kubelets: list[str]) -> None:
    def numbers(version: str) -> list[int]:
        return [int(part) for part in version[1:].split(".")]

    shown = numbers(kubelet_version(options(local_version=local), [remote(version=v) for v in kubelets]))
    assert shown <= numbers(local)
    assert shown[1] >= numbers(local)[1] - 3


def test_declared_features_are_those_of_every_node() -> None:
    nodes = [{"metadata": {"name": "n"}, "status": {"declaredFeatures": f}} for f in (["C", "A", "B"], ["B", "C"])]
    assert forge(nodes)["status"]["declaredFeatures"] == ["B", "C"]
    assert "declaredFeatures" not in forge([*nodes, remote()])["status"]


@pytest.mark.parametrize("name", ["a", "far", "far.example.com", "1-2", "x" * 63])
def test_names_that_are_good(name: str) -> None:
    check_node_name(name)


@pytest.mark.parametrize("name", ["", "Far", "-a", "a-", "a..b", ".a", "a_b", "a b", "ä", "x" * 64, "far\n"])
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(NodeError, match="node name"):
        options(name=name)


@pytest.mark.parametrize(("key", "value"), [("a", ""), ("example.com/a_b.c-D", "V_1.0-x"), ("a" * 63, "b" * 63)])
def test_labels_that_are_good(key: str, value: str) -> None:
    check_label(key, value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("", "x"),
        ("/a", "x"),
        ("a/", "x"),
        ("a/b/c", "x"),
        ("A.b/c", "x"),
        ("a" * 64, "x"),
        ("a", "-x"),
        ("a", "x" * 64),
        ("a", "x y"),
    ],
)
def test_labels_that_are_refused_by_name(key: str, value: str) -> None:
    with pytest.raises(NodeError):
        options(labels={key: value})


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"labels": {"type": "x"}}, "label type is set by Farlet"),
        ({"labels": {"kubernetes.io/hostname": "x"}}, "label kubernetes.io/hostname is set by Farlet"),
        ({"annotations": {"farlet.dev/applied": "{}"}}, "annotation farlet.dev/applied is set by Farlet"),
        ({"annotations": {"a b": "{}"}}, "'a b' is not a label key"),
        ({"remote_cluster_id": "not a label"}, "'not a label' is not a label value"),
        ({"taint_key": "a b"}, "'a b' is not a label key"),
        ({"kubelet_port": 0}, "0 is no port"),
        ({"local_version": "1.36"}, "'1.36' is not a version of Kubernetes"),
    ],
)
def test_options_that_cannot_be_are_refused_at_once(more: dict[str, Any], why: str) -> None:
    with pytest.raises(NodeError, match=why):
        options(**more)


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ({}, "exists and was not made by Farlet"),
        ({"type": "virtual-kubelet"}, "exists and was not made by Farlet"),
        ({"farlet.dev/remote-cluster": "abc"}, "exists and was not made by Farlet"),
        ({"farlet.dev/virtual-node": "true", "farlet.dev/remote-cluster": "xyz"}, "cluster 'xyz'.* leads to 'abc'"),
        ({"farlet.dev/virtual-node": "true"}, "cluster None"),
    ],
)
def test_a_node_that_is_not_ours_is_refused_with_the_way_out(labels: dict[str, str], why: str) -> None:
    node = {"metadata": {"name": "far", "labels": labels}}
    assert not is_ours(node, "abc")
    reason = why_not_ours(node, "abc") or ""
    assert "node far" in reason
    assert "--node-name" in reason
    assert re.search(why, reason), reason


def test_what_we_forge_is_ours() -> None:
    assert is_ours(forge(), "abc")
    assert not is_ours(forge(), "abd")
