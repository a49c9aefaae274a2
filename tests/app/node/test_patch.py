"""A node is brought up to date, nothing is written when it is, and what others put on it stays."""

from __future__ import annotations

import copy
import datetime
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kube.objects import Object
from app.names import ANNOTATION_APPLIED, LABEL_REMOTE_CLUSTER, LABEL_TYPE, TAINT_KEY, TAINT_UNREACHABLE
from app.node.conditions import conditions, healthy, unreachable
from app.node.object import LABEL_ARCH, NodeOptions, forge_node
from app.node.patch import metadata_patch, status_patch
from devcluster.cluster import Cluster

NOW = datetime.datetime(2026, 7, 30, 12, 0, tzinfo=datetime.UTC)
LATER = NOW + datetime.timedelta(minutes=5)
CAPACITY = {"cpu": "90", "memory": "256Gi", "pods": "99", "nvidia.com/gpu": "2"}


def forged(
    capacity: dict[str, str] = CAPACITY,
    *,
    keep_away: bool = False,
    when: datetime.datetime = NOW,
    state: list[Object] | None = None,
    remote_nodes: list[Object] | None = None,
    **more: Any,
) -> Object:
    options = {"name": "far", "remote_cluster_id": "abc", "local_version": "v1.36.3", "addresses": ["10.0.0.1"]} | more
    found = conditions(when, healthy()) if state is None else state
    return forge_node(NodeOptions(**options), remote_nodes or [], capacity, found, keep_away=keep_away)


def stored(node: Object) -> Object:
    """As the API server would have it after creation."""
    result = copy.deepcopy(node)
    result["metadata"] |= {"uid": "u1", "resourceVersion": "7"}
    return result


def patched(node: Object, patch: Object | None) -> Object:
    """Labels, annotations and taints after a strategic merge patch, as far as these need one."""
    result = copy.deepcopy(node)
    for part in ("labels", "annotations"):
        for key, value in ((patch or {}).get("metadata", {}).get(part) or {}).items():
            if value is None:
                result["metadata"][part].pop(key, None)
            else:
                result["metadata"].setdefault(part, {})[key] = value
    if patch and "spec" in patch:
        result["spec"]["taints"] = patch["spec"]["taints"]
    return result


def test_nothing_to_do_is_no_write() -> None:
    node = forged(labels={"team": "a"}, annotations={"note": "b"})
    assert metadata_patch(stored(node), node) is None
    assert status_patch(stored(node), node) is None


def test_labels_that_are_no_longer_wanted_go_and_those_of_an_admin_stay() -> None:
    node = stored(forged(labels={"team": "a", "old": "x"}))
    node["metadata"]["labels"]["admin"] = "mine"
    patch = metadata_patch(node, forged(labels={"team": "b"}))
    assert patch is not None
    assert patch["metadata"]["labels"] == {"team": "b", "old": None}
    assert patch["metadata"]["uid"] == "u1"
    assert "resourceVersion" not in patch["metadata"]
    assert "spec" not in patch


@pytest.mark.parametrize(
    ("key", "value", "stays"),
    [
        ("team", "admin-changed-it", True),
        (LABEL_ARCH, "riscv64", True),
        (LABEL_TYPE, "something-else", False),
        (LABEL_REMOTE_CLUSTER, "other", False),
    ],
)
def test_whoever_changes_a_label_owns_it_unless_the_node_needs_it(key: str, value: str, stays: bool) -> None:
    desired = forged(labels={"team": "a"})
    node = stored(desired)
    node["metadata"]["labels"][key] = value
    after = patched(node, metadata_patch(node, desired))
    assert (after["metadata"]["labels"][key] == value) is stays
    assert metadata_patch(after, desired) is None
    without = patched(after, metadata_patch(after, forged()))
    assert (without["metadata"]["labels"].get(key) == value) is stays, "and it stays when the flag goes"


def test_a_label_that_was_there_before_us_is_not_ours() -> None:
    node = stored(forged())
    node["metadata"]["labels"]["team"] = "admin"
    after = patched(node, metadata_patch(node, forged(labels={"team": "flag"})))
    assert after["metadata"]["labels"]["team"] == "admin"


def test_a_label_of_ours_that_someone_took_away_comes_back() -> None:
    node = stored(forged())
    del node["metadata"]["labels"][LABEL_TYPE]
    patch = metadata_patch(node, forged())
    assert patch is not None
    assert patch["metadata"]["labels"] == {LABEL_TYPE: "virtual-kubelet"}


@pytest.mark.parametrize(
    "record", [None, "", "{", "[]", '{"labels": 3}', '{"taints": [1]}', '{"labels": {"admin": "x"}}']
)
def test_a_lost_or_spoilt_record_takes_nothing_away(record: str | None) -> None:
    desired = forged()
    node = stored(desired)
    node["metadata"]["labels"]["admin"] = "mine"
    if record is None:
        del node["metadata"]["annotations"][ANNOTATION_APPLIED]
    else:
        node["metadata"]["annotations"][ANNOTATION_APPLIED] = record
    after = patched(node, metadata_patch(node, desired))
    assert after["metadata"]["labels"] == node["metadata"]["labels"]
    assert metadata_patch(after, desired) is None


def test_annotations_as_labels() -> None:
    node = stored(forged(annotations={"a": "1", "b": "2"}))
    node["metadata"]["annotations"]["node.alpha.kubernetes.io/ttl"] = "0"
    after = patched(node, metadata_patch(node, forged(annotations={"a": "3"})))
    kept = {k: v for k, v in after["metadata"]["annotations"].items() if k != ANNOTATION_APPLIED}
    assert kept == {"a": "3", "node.alpha.kubernetes.io/ttl": "0"}


def test_taints_of_others_stay_where_they_are_and_the_patch_is_for_this_version_only() -> None:
    theirs = {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute", "timeAdded": "2026-07-30T12:00:00Z"}
    node = stored(forged())
    node["spec"]["taints"].insert(0, theirs)
    patch = metadata_patch(node, forged(taint_key="example.com/far", keep_away=True))
    assert patch is not None
    assert patch["spec"]["taints"] == [
        theirs,
        {"key": "example.com/far", "value": "abc", "effect": "NoSchedule"},
        {"key": TAINT_UNREACHABLE, "effect": "NoSchedule"},
    ]
    assert patch["metadata"]["resourceVersion"] == "7"
    back = patched(patched(node, patch), metadata_patch(patched(node, patch), forged(taint_effect=None)))
    assert back["spec"]["taints"] == [theirs]


@pytest.mark.parametrize("taints", [[], [{"key": TAINT_KEY, "value": "wrong", "effect": "NoSchedule"}]])
def test_our_taint_is_put_right(taints: list[Object]) -> None:
    node = stored(forged())
    node["spec"]["taints"] = taints
    patch = metadata_patch(node, forged())
    assert patch is not None
    assert patch["spec"]["taints"] == [{"key": TAINT_KEY, "value": "abc", "effect": "NoSchedule"}]


def test_a_cordon_and_what_else_is_in_the_spec_are_not_looked_at() -> None:
    node = stored(forged())
    node["spec"] |= {"unschedulable": True, "podCIDR": "10.1.0.0/24", "providerID": "x://y"}
    assert metadata_patch(node, forged()) is None


KEYS = st.sampled_from(["a", "b", "c", LABEL_TYPE, LABEL_ARCH])
LABELS = st.dictionaries(KEYS, st.sampled_from(["1", "2", "3"]))
GIVEN = st.dictionaries(st.sampled_from(["a", "b", "c", LABEL_ARCH]), st.sampled_from(["1", "2", "3"]))
TAINTS = st.lists(
    st.builds(
        lambda key, value, effect: {"key": key, "value": value, "effect": effect},
        st.sampled_from(["x", "y", TAINT_KEY, TAINT_UNREACHABLE]),
        st.sampled_from(["1", "abc"]),
        st.sampled_from(["NoSchedule", "NoExecute"]),
    ),
    unique_by=lambda taint: (taint["key"], taint["effect"]),
)


@given(first=GIVEN, second=GIVEN, hand=LABELS, taints=TAINTS, keep_away=st.booleans())
def test_it_settles_after_one_patch_and_never_takes_what_it_did_not_bring(
    first: dict[str, str], second: dict[str, str], hand: dict[str, str], taints: list[Object], keep_away: bool
) -> None:
    node = stored(forged(labels=first))
    node["metadata"]["labels"] |= hand
    node["spec"]["taints"] = taints
    desired = forged(labels=second, keep_away=keep_away)
    after = patched(node, metadata_patch(node, desired))
    assert metadata_patch(after, desired) is None
    brought = forged(labels=first)["metadata"]["labels"]
    theirs = {key: value for key, value in hand.items() if brought.get(key) != value and key != LABEL_TYPE}
    assert after["metadata"]["labels"].items() >= theirs.items()
    own = {taint["key"] for taint in forged(keep_away=True)["spec"]["taints"]}
    assert [t for t in after["spec"]["taints"] if t["key"] not in own] == [t for t in taints if t["key"] not in own]
    assert all(taint in after["spec"]["taints"] for taint in desired["spec"]["taints"])


def test_heartbeat_times_alone_are_no_difference() -> None:
    node = stored(forged())
    later = forged(state=conditions(LATER, healthy(), node["status"]["conditions"]), when=LATER)
    assert status_patch(node, later) is None
    patch = status_patch(node, later, heartbeat=True)
    assert patch is not None
    assert list(patch["status"]) == ["conditions"]
    assert {c["lastHeartbeatTime"] for c in patch["status"]["conditions"]} == {"2026-07-30T12:05:00Z"}
    assert {c["lastTransitionTime"] for c in patch["status"]["conditions"]} == {"2026-07-30T12:00:00Z"}
    assert patch["metadata"] == {"uid": "u1"}


def test_capacity_that_changes_and_resources_that_vanish() -> None:
    node = stored(forged())
    patch = status_patch(node, forged({"cpu": "180", "memory": "256Gi", "pods": "99"}))
    assert patch is not None
    assert patch["status"]["capacity"] == patch["status"]["allocatable"] == {"cpu": "180", "nvidia.com/gpu": None}


def test_the_same_amount_in_other_words_is_no_difference() -> None:
    node = stored(forged({"cpu": "90000m", "memory": "262144Mi", "pods": "99", "nvidia.com/gpu": "2"}))
    assert status_patch(node, forged()) is None


def test_addresses_are_replaced_as_a_whole() -> None:
    patch = status_patch(stored(forged()), forged(addresses=["10.0.0.2", "fd00::2"]))
    assert patch is not None
    assert patch["status"]["addresses"] == [
        {"type": "InternalIP", "address": "10.0.0.2"},
        {"type": "InternalIP", "address": "fd00::2"},
        {"type": "Hostname", "address": "far"},
        {"$patch": "replace"},
    ]


def test_what_the_server_or_others_add_to_the_status_is_no_difference() -> None:
    node = stored(forged())
    node["status"]["nodeInfo"]["swap"] = {"capacity": 1}
    node["status"]["images"] = [{"names": ["x"]}]
    node["status"]["conditions"].insert(0, {"type": "NetworkUnavailable", "status": "False"})
    assert status_patch(node, forged()) is None


def test_a_condition_that_changes() -> None:
    node = stored(forged())
    state = conditions(LATER, unreachable(LATER, "connection refused", "not-ready"), node["status"]["conditions"])
    patch = status_patch(node, forged(state=state))
    assert patch is not None
    assert patch["status"] == {"conditions": state}


def test_a_condition_of_ours_that_is_no_longer_said_is_removed() -> None:
    node = stored(forged())
    fewer = [c for c in conditions(NOW, healthy()) if c["type"] != "RemoteReachable"]
    patch = status_patch(node, forged(state=fewer))
    assert patch is not None
    assert patch["status"]["conditions"][-1] == {"$patch": "delete", "type": "RemoteReachable"}


@pytest.mark.parametrize(
    ("stored_features", "patched_features"), [(None, None), (["A"], ["A", "B"]), (["A", "B"], None)]
)
def test_declared_features_of_a_server_that_has_them(
    stored_features: list[str] | None, patched_features: list[str] | None
) -> None:
    desired = forged(remote_nodes=[{"metadata": {"name": "n"}, "status": {"declaredFeatures": ["B", "A"]}}])
    node = stored(desired)
    node["status"].pop("declaredFeatures")
    if stored_features:
        node["status"]["declaredFeatures"] = stored_features
    patch = status_patch(node, desired)
    assert (patch or {"status": {}})["status"].get("declaredFeatures") == patched_features


def test_a_node_without_any_status_gets_all_of_it() -> None:
    bare = {"metadata": {"name": "far"}}
    patch = status_patch(bare, forged())
    assert patch is not None
    assert set(patch["status"]) == {"capacity", "allocatable", "addresses", "daemonEndpoints", "nodeInfo", "conditions"}


@pytest.mark.cluster
def test_a_real_api_server_agrees(local: Cluster, virtual_node: str) -> None:
    """Created as forged, nothing is left to write; then all at once is changed, by us and by others."""
    path = f"/api/v1/nodes/{virtual_node}"

    def patch(body: Object | None, *more: str) -> None:
        assert body is not None
        local.kubectl("patch", "node", virtual_node, *more, "--type=strategic", "-p", json.dumps(body))

    features = [{"metadata": {"name": "n"}, "status": {"declaredFeatures": ["B", "A"]}}]
    first = forged(name=virtual_node, labels={"team": "a", "old": "x"}, remote_nodes=features, keep_away=True)
    local.api.post("/api/v1/nodes", first)
    try:
        node = local.api.get(path)
        assert metadata_patch(node, first) is None
        assert status_patch(node, first) is None

        local.kubectl("label", "node", virtual_node, "admin=mine", "team=theirs", "--overwrite")
        local.kubectl("taint", "node", virtual_node, "example.com/mine=1:PreferNoSchedule")
        local.kubectl("cordon", virtual_node)
        network = {"type": "NetworkUnavailable", "status": "False", "reason": "RouteCreated", "message": "by another"}
        patch({"status": {"conditions": [network]}}, "--subresource=status")

        second = forged(
            {"cpu": "45500m", "memory": "115964116992", "pods": "10k"},
            name=virtual_node,
            addresses=["10.0.0.2", "fd00::2"],
            state=conditions(LATER, unreachable(LATER, "refused", "not-ready"), node["status"]["conditions"]),
        )
        node = local.api.get(path)
        patch(metadata_patch(node, second))
        patch(status_patch(node, second), "--subresource=status")

        node = local.api.get(path)
        assert metadata_patch(node, second) is None
        assert status_patch(node, second) is None
        wanted = second["metadata"]["labels"] | {"admin": "mine", "team": "theirs"}
        assert node["metadata"]["labels"].items() >= wanted.items()
        assert "old" not in node["metadata"]["labels"]
        assert node["spec"]["unschedulable"] is True
        keys = [taint["key"] for taint in node["spec"]["taints"]]
        assert {TAINT_KEY, "example.com/mine"} <= set(keys)
        assert TAINT_UNREACHABLE not in keys
        assert node["status"]["capacity"] == node["status"]["allocatable"] == second["status"]["capacity"]
        assert node["status"]["addresses"] == second["status"]["addresses"]
        found = {c["type"]: c["status"] for c in node["status"]["conditions"]}
        assert found == {c["type"]: c["status"] for c in second["status"]["conditions"]} | {
            "NetworkUnavailable": "False"
        }
    finally:
        local.api.delete(path)
