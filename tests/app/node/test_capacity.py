"""What is left of a remote cluster for us, to the last byte."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import quantity
from app.kube.objects import Object
from app.node.capacity import from_quota, least, most, quota_use, share, shared, total_requests, with_pods
from app.node.claims import add, is_own
from app.node.placement import Placement
from app.settings import Rounding

OWN = {"farlet.dev/origin": "here", "farlet.dev/node": "far"}
OTHERS = {"farlet.dev/origin": "elsewhere", "farlet.dev/node": "far"}


def node(name: str = "n1", *, ready: bool = True, **allocatable: str) -> Object:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    found = {name.replace("_", "-"): text for name, text in allocatable.items()}
    return {"metadata": {"name": name}, "spec": {}, "status": {"allocatable": found, "conditions": conditions}}


def pod(
    requests: dict[str, str],
    *,
    node: str = "n1",
    labels: dict[str, str] | None = None,
    phase: str = "Running",
    limits: dict[str, str] | None = None,
) -> Object:
    container = {"name": "c", "resources": {"requests": requests, "limits": limits or {}}}
    return {
        "metadata": {"name": "p", "labels": labels or {}},
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": phase},
    }


def sized(nodes: list[Object], pods: list[Object], **more: Any) -> dict[str, str]:
    return shared(nodes, pods, own_selector=OWN, **more)


@pytest.mark.parametrize(
    ("cores", "used", "shown"),
    [
        (["100"], [], "90"),
        (["100"], ["50"], "45"),
        (["100", "100"], [], "180"),
    ],
    ids=["of 100 vCPUs, 90", "50 used by others: 45", "the cluster doubles: 180"],
)
def test_the_examples_of_the_first_specification(cores: list[str], used: list[str], shown: str) -> None:
    nodes = [node(f"n{i}", cpu=text) for i, text in enumerate(cores)]
    pods = [pod({"cpu": text}, node="n0") for text in used]
    assert sized(nodes, pods)["cpu"] == shown


def test_every_resource_is_shared_the_same_way() -> None:
    machine = node(cpu="4", memory="16Gi", pods="110", ephemeral_storage="100Gi")
    machine["status"]["allocatable"] |= {"nvidia.com/gpu": "10", "hugepages-2Mi": "20Mi", "example.com/odd": "3"}
    busy = pod({"cpu": "100m", "memory": "1Gi", "nvidia.com/gpu": "1", "unknown.com/x": "5"})
    assert sized([machine], [busy]) == {
        "cpu": "3510m",
        "memory": "13824Mi",
        "pods": "98",
        "ephemeral-storage": "90Gi",
        "nvidia.com/gpu": "8",
        "hugepages-2Mi": "18Mi",
        "example.com/odd": "2",
    }


@pytest.mark.parametrize(
    ("labels", "phase", "left"),
    [
        ({}, "Running", "90"),
        ({}, "Pending", "90"),
        ({}, "Succeeded", "100"),
        ({}, "Failed", "100"),
        (OWN, "Running", "100"),
        (OTHERS, "Running", "90"),
    ],
)
def test_our_own_pods_and_finished_ones_take_nothing(labels: dict[str, str], phase: str, left: str) -> None:
    assert sized([node(cpu="100")], [pod({"cpu": "10"}, labels=labels, phase=phase)], share_percent=100)["cpu"] == left


def test_pods_on_nodes_that_do_not_count_take_nothing_from_those_that_do() -> None:
    nodes = [node("n1", cpu="10"), node("n2", cpu="10", ready=False)]
    pods = [pod({"cpu": "4"}, node="n2"), pod({"cpu": "1"}, node="gone"), pod({"cpu": "1"}, node="n1")]
    assert sized(nodes, pods, share_percent=100)["cpu"] == "9"


def test_one_overdrawn_resource_of_one_node_is_zero_and_nothing_else_is() -> None:
    nodes = [node("n1", cpu="4", memory="8Gi"), node("n2", cpu="4", memory="8Gi")]
    pods = [pod({"cpu": "6", "memory": "1Gi"}, node="n1")]
    assert sized(nodes, pods, share_percent=100) == {"cpu": "4", "memory": "15Gi", "pods": "0"}


def test_a_cluster_without_nodes_says_zero() -> None:
    assert sized([], []) == {"cpu": "0", "memory": "0", "pods": "0"}


def test_only_nodes_that_our_pods_can_go_to_count() -> None:
    gpu = node("gpu", cpu="8")
    gpu["metadata"]["labels"] = {"pool": "gpu"}
    assert sized([gpu, node("n1", cpu="4")], [], share_percent=100)["cpu"] == "12"
    only = Placement(node_selector={"pool": "gpu"})
    assert sized([gpu, node("n1", cpu="4")], [], share_percent=100, placement=only)["cpu"] == "8"


@pytest.mark.parametrize(
    ("count", "percent", "rounding", "shown"),
    [
        ("1", 90, Rounding.DOWN, "0"),
        ("1", 90, Rounding.UP, "1"),
        ("1", 90, Rounding.NEAREST, "1"),
        ("1", 50, Rounding.NEAREST, "1"),
        ("1", 49, Rounding.NEAREST, "0"),
        ("1", 1, Rounding.UP, "1"),
        ("0", 90, Rounding.UP, "0"),
        ("3", 90, Rounding.DOWN, "2"),
        ("3", 90, Rounding.NEAREST, "3"),
        ("10", 90, Rounding.UP, "9"),
        ("8", 100, Rounding.DOWN, "8"),
        ("8", 0, Rounding.UP, "0"),
    ],
)
def test_how_small_numbers_round(count: str, percent: int, rounding: Rounding, shown: str) -> None:
    machine = node(cpu="4")
    machine["status"]["allocatable"]["nvidia.com/gpu"] = count
    assert sized([machine], [], share_percent=percent, rounding=rounding)["nvidia.com/gpu"] == shown


@pytest.mark.parametrize("rounding", ["down", Rounding.UP, "nearest"])
def test_cpu_and_bytes_never_round_up(rounding: Rounding) -> None:
    result = sized([node(cpu="1", memory="1001")], [], share_percent=33, rounding=rounding)
    assert (result["cpu"], result["memory"]) == ("330m", "330")


def test_huge_pages_stay_whole_pages() -> None:
    machine = node()
    machine["status"]["allocatable"] = {"hugepages-1Gi": "3Gi", "hugepages-odd": "7"}
    assert sized([machine], [])["hugepages-1Gi"] == "2Gi"


def test_large_clusters_keep_their_last_byte_and_absurd_ones_are_capped() -> None:
    nodes = [node(f"n{i}", memory="4503599627370497") for i in range(3)]
    assert sized(nodes, [], share_percent=100)["memory"] == str(3 * 4503599627370497)
    assert sized([node("a", memory="7Ei"), node("b", memory="7Ei")], [], share_percent=100)["memory"] == str(2**63 - 1)


def test_a_share_below_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 %"):
        share({}, -1)


AMOUNT = st.integers(0, 2**50)


@given(
    st.lists(st.tuples(AMOUNT, st.lists(AMOUNT, max_size=3)), max_size=4),
    st.integers(0, 100),
    st.sampled_from(Rounding),
    st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]),
)
def test_never_below_zero_never_more_than_there_is_and_canonical(
    machines: list[tuple[int, list[int]]], percent: int, rounding: Rounding, resource: str
) -> None:
    nodes, pods, free = [], [], 0
    for index, (amount, used) in enumerate(machines):
        machine = node(f"n{index}")
        machine["status"]["allocatable"] = {resource: quantity.format_quantity(amount, resource)}
        nodes.append(machine)
        pods += [pod({resource: quantity.format_quantity(u, resource)}, node=f"n{index}") for u in used]
        free += max(amount - sum(used), 0)
    text = sized(nodes, pods, share_percent=percent, rounding=rounding).get(resource, "0")
    value = quantity.parse(text)
    assert 0 <= value <= free
    assert abs(value - quantity.parse(str(free)) * percent / 100) < 1
    assert quantity.format_quantity(value, resource) == text


@given(st.lists(AMOUNT, max_size=5), st.data())
def test_whatever_is_ours_changes_nothing(amounts: list[int], data: st.DataObject) -> None:
    pods = [pod({"memory": str(amount)}) for amount in amounts]
    ours = [pod({"memory": str(data.draw(AMOUNT))}, labels=OWN) for _ in range(2)]
    nodes = [node(memory="1Ti", pods="110")]
    assert sized(nodes, pods + ours) == sized(nodes, pods)


# --- quota ---


def quota(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> Object:
    return {"metadata": {"name": "q"}, "spec": {"hard": hard, **spec}, "status": {"used": used or {}}}


MINE = pod({"cpu": "2", "memory": "1Gi"}, labels=OWN, limits={"cpu": "4"})
FINISHED = pod({"cpu": "2"}, labels=OWN, phase="Succeeded")
UNBOUND = pod({"cpu": "1"}, labels=OWN, phase="Pending", node="")
THEIRS = pod({"cpu": "3"})

QUOTAS: list[tuple[str, Object, list[Object], dict[str, str]]] = [
    (
        "names of a quota are those of a node",
        quota({"requests.cpu": "10", "requests.memory": "20Gi", "pods": "50", "requests.nvidia.com/gpu": "2"}),
        [],
        {"cpu": "10", "memory": "20Gi", "nvidia.com/gpu": "2", "pods": "50"},
    ),
    (
        "short names, storage, huge pages",
        quota({"cpu": "10", "memory": "1Gi", "requests.ephemeral-storage": "5Gi", "hugepages-2Mi": "4Mi"}),
        [],
        {"cpu": "10", "ephemeral-storage": "5Gi", "hugepages-2Mi": "4Mi", "memory": "1Gi"},
    ),
    (
        "what is no resource of a node",
        quota({"services": "5", "requests.storage": "1Ti", "count/secrets": "9", "persistentvolumeclaims": "4"}),
        [],
        {},
    ),
    ("what others use is gone", quota({"cpu": "10"}, {"cpu": "3"}), [THEIRS], {"cpu": "7"}),
    ("what we use is ours", quota({"cpu": "10"}, {"cpu": "5"}), [THEIRS, MINE], {"cpu": "7"}),
    ("bound or not", quota({"requests.cpu": "10"}, {"requests.cpu": "1"}), [UNBOUND], {"cpu": "10"}),
    ("finished ones use nothing", quota({"cpu": "10"}, {"cpu": "3"}), [FINISHED], {"cpu": "7"}),
    ("used is not counted yet", quota({"cpu": "10"}, {"cpu": "0"}), [MINE], {"cpu": "10"}),
    ("overdrawn", quota({"cpu": "2", "memory": "1Gi"}, {"cpu": "9"}), [], {"cpu": "0", "memory": "1Gi"}),
    ("limits bound requests", quota({"limits.cpu": "6"}, {"limits.cpu": "5"}), [MINE], {"cpu": "5"}),
    ("the tightest holds", quota({"requests.cpu": "8", "limits.cpu": "6", "cpu": "7"}), [], {"cpu": "6"}),
    ("numbers of pods", quota({"pods": "9", "count/pods": "8"}, {"pods": "3"}), [MINE], {"pods": "7"}),
    ("count/pods has finished ones", quota({"count/pods": "8"}, {"count/pods": "3"}), [MINE, FINISHED], {"pods": "7"}),
    ("scopes are about some pods", quota({"cpu": "1"}, scopes=["BestEffort"]), [], {}),
    ("scope selectors too", quota({"cpu": "1"}, scopeSelector={"matchExpressions": [{}]}), [], {}),
    ("not filled in yet", {"metadata": {"name": "q"}}, [], {}),
]


@pytest.mark.parametrize(("found", "pods", "expected"), [c[1:] for c in QUOTAS], ids=[c[0] for c in QUOTAS])
def test_what_a_quota_leaves(found: Object, pods: list[Object], expected: dict[str, str]) -> None:
    ours: Counter[str] = Counter()
    for mine in (p for p in pods if is_own(p, OWN)):
        add(ours, quota_use(mine))
    assert from_quota(found, ours) == expected


def test_a_quota_can_be_shared_too() -> None:
    assert from_quota(quota({"cpu": "10"}), {}, share_percent=90) == {"cpu": "9"}


def test_a_share_of_a_quota_rounds_as_asked() -> None:
    one_gpu = quota({"requests.nvidia.com/gpu": "1"})
    assert from_quota(one_gpu, {}, share_percent=90, rounding=Rounding.UP) == {"nvidia.com/gpu": "1"}


def test_of_several_bounds_the_smallest_holds() -> None:
    assert least({"cpu": "2", "memory": "1Gi"}, {"cpu": "1500m", "pods": "5"}, {"cpu": "10"}) == {
        "cpu": "1500m",
        "memory": "1Gi",
        "pods": "5",
    }
    assert least() == {}


def test_of_two_measurements_the_larger() -> None:
    assert most({"cpu": "2", "memory": "1Gi"}, {"cpu": "1500m", "pods": "5"}) == {
        "cpu": "2",
        "memory": "1Gi",
        "pods": "5",
    }
    assert most({}, {}) == {}


def test_a_number_of_pods_is_there_even_if_nobody_stated_one() -> None:
    assert with_pods({"cpu": "1"}) == {"cpu": "1", "pods": "10k"}
    assert with_pods({"pods": "5"}) == {"pods": "5"}


def test_what_pods_ask_for_together() -> None:
    assert total_requests([MINE, THEIRS, FINISHED]) == {"cpu": "5", "memory": "1Gi", "pods": "2"}
    assert total_requests([pod({"memory": "1500m"})]) == {"memory": "1", "pods": "1"}
