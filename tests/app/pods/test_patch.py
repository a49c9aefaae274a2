from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.kube.objects import Object
from app.pods.patch import dropped_fields, is_stored, status_patch
from tests.app.pods.samples import condition, local_pod, running, waiting

KEYS = {"conditions": "type", "podIPs": "ip", "hostIPs": "ip"}


def apply(status: Object, patch: Object) -> Object:
    """What an API server does with a strategic merge patch of a pod's status; tests/cluster asks a real one."""
    result = copy.deepcopy(status)
    for field, value in patch.items():
        if field.startswith("$setElementOrder/"):
            continue
        if value is None:
            result.pop(field, None)
        elif field in KEYS:
            result[field] = _merge(result.get(field) or [], value, KEYS[field])
            if order := patch.get(f"$setElementOrder/{field}"):
                places = [item[KEYS[field]] for item in order]
                result[field].sort(key=lambda item, k=KEYS[field], p=places: p.index(item[k]))
        elif isinstance(value, dict):
            assert "$patch" not in value, "a server that has no such map throws it away"
            result[field] = apply(result.get(field) or {}, value)
        else:
            result[field] = value
    return {field: value for field, value in result.items() if value not in ([], {})}


def _merge(old: list[Object], changes: list[Object], key: str) -> list[Object]:
    items = {item[key]: item for item in old}
    for change in changes:
        if change.get("$patch") == "delete":
            items.pop(change[key], None)
        else:
            found = items.get(change[key], {}) | change
            items[change[key]] = {name: value for name, value in found.items() if value is not None}
    return list(items.values())


def patched(old: Object, new: Object) -> Object:
    """The part of the patch that is about the status."""
    local = local_pod()
    local["status"] = old
    body = status_patch(local, new, {})
    assert body is not None
    assert body["metadata"] == {"uid": "local-uid"}
    found: Object = body["status"]
    return found


def test_nothing_differs() -> None:
    local = local_pod(annotations={"a": "b"})
    assert status_patch(local, copy.deepcopy(local["status"]), {"a": "b"}) is None


def test_nulls_and_order_of_conditions_are_no_difference() -> None:
    local = local_pod()
    local["status"] = {"conditions": [condition("A") | {"lastProbeTime": None}, condition("B")]}
    assert status_patch(local, {"conditions": [condition("B"), condition("A")], "podIPs": []}, {}) is None


def test_annotations_alone() -> None:
    local = local_pod(annotations={"a": "b"})
    body = status_patch(local, local["status"], {"a": "b", "c": "d"})
    assert body == {"metadata": {"uid": "local-uid", "annotations": {"c": "d"}}}


def test_a_condition_that_no_longer_has_a_reason() -> None:
    old = {"type": "Ready", "status": "False", "reason": "R", "message": "m"}
    new = {"type": "Ready", "status": "True"}
    changes = patched({"conditions": [old, condition("Theirs")]}, {"conditions": [new, condition("Theirs")]})
    assert changes == {"conditions": [{"type": "Ready", "status": "True", "reason": None, "message": None}]}


def test_a_condition_that_is_gone() -> None:
    changes = patched({"conditions": [condition("Gone"), condition("Theirs")]}, {"conditions": [condition("Theirs")]})
    assert changes == {"conditions": [{"$patch": "delete", "type": "Gone"}]}


def test_addresses_that_change() -> None:
    old = {"podIP": "1.1.1.1", "podIPs": [{"ip": "1.1.1.1"}, {"ip": "fd00::1"}]}
    new = {"podIP": "2.2.2.2", "podIPs": [{"ip": "2.2.2.2"}, {"ip": "fd00::1"}]}
    assert patched(old, new) == {
        "podIP": "2.2.2.2",
        "podIPs": [{"ip": "2.2.2.2"}, {"$patch": "delete", "ip": "1.1.1.1"}],
        "$setElementOrder/podIPs": [{"ip": "2.2.2.2"}, {"ip": "fd00::1"}],
    }


def test_addresses_that_go() -> None:
    changes = patched({"podIP": "1.1.1.1", "podIPs": [{"ip": "1.1.1.1"}]}, {})
    assert changes == {"podIP": None, "podIPs": [{"$patch": "delete", "ip": "1.1.1.1"}]}


def test_what_is_never_written() -> None:
    local = local_pod()
    desired = {**local["status"], "qosClass": "Guaranteed", "nominatedNodeName": "x", "resourceClaimStatuses": [{}]}
    assert status_patch(local, desired, {}) is None


def test_fields_that_the_local_server_does_not_know() -> None:
    """A newer remote cluster: the difference must not be written again and again."""
    entry = running(weather={"wind": 3})
    sent = {"phase": "Running", "volumeHealth": [{"ok": True}], "containerStatuses": [entry], "hostIPs": []}
    stored = {"phase": "Running", "qosClass": "BestEffort", "containerStatuses": [running()]}
    unknown = dropped_fields(sent, stored)
    assert unknown == {("volumeHealth",), ("containerStatuses", "weather")}
    local = local_pod()
    local["status"] = stored
    assert status_patch(local, sent, {}) is not None
    assert status_patch(local, sent, {}, unknown=unknown) is None
    assert dropped_fields(stored, sent | {"more": 1}) == {("qosClass",)}


IPS = st.lists(st.sampled_from([{"ip": ip} for ip in ("1.1.1.1", "2.2.2.2", "fd00::1")]), max_size=2, unique_by=str)
CONDITIONS = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from("ABC"), "status": st.sampled_from(["True", "False"])},
        optional={"reason": st.sampled_from("xy"), "message": st.sampled_from("mn")},
    ),
    max_size=3,
    unique_by=lambda item: item["type"],
)
QUANTITIES = st.dictionaries(st.sampled_from(["cpu", "memory"]), st.sampled_from(["1", "2"]), min_size=1)
STATUSES = st.fixed_dictionaries(
    {},
    optional={
        "phase": st.sampled_from(["Pending", "Running"]),
        "reason": st.sampled_from(["R", "S"]),
        "observedGeneration": st.integers(1, 3),
        "podIPs": IPS,
        "hostIPs": IPS,
        "conditions": CONDITIONS,
        "containerStatuses": st.lists(st.sampled_from([running(), waiting()]), min_size=1, max_size=1),
        "resources": st.dictionaries(st.sampled_from(["requests", "limits"]), QUANTITIES, min_size=1),
        "allocatedResources": QUANTITIES,
    },
)


@given(old=STATUSES, new=STATUSES)
def test_the_patch_leads_from_one_to_the_other(old: Object, new: Object) -> None:
    local = local_pod()
    local["status"] = old
    body = status_patch(local, new, {})
    after = old if body is None else apply(old, body["status"])
    assert _sorted(after) == _sorted(new)
    local["status"] = after
    assert status_patch(local, new, {}) is None


def _sorted(status: Object) -> dict[str, Any]:
    by_type = sorted(status.get("conditions") or [], key=lambda item: str(item["type"]))
    return {key: value for key, value in (status | {"conditions": by_type}).items() if value}


def test_a_merged_list_that_comes_back_in_another_order_lost_nothing() -> None:
    sent = {"conditions": [{"type": "Ready", "observedGeneration": 1}, {"type": "PodScheduled"}]}
    stored = {"conditions": [{"type": "PodScheduled"}, {"type": "Other"}, {"type": "Ready", "observedGeneration": 1}]}
    assert dropped_fields(sent, stored) == frozenset()
    older = {"conditions": [{"type": "Ready"}, {"type": "PodScheduled"}]}
    assert dropped_fields(sent, older) == {("conditions", "observedGeneration")}


def test_what_was_stored_is_what_was_sent() -> None:
    sent = {"phase": "Running", "conditions": [condition("A"), condition("B")], "podIP": "10.0.0.1"}
    null = condition("A") | {"lastProbeTime": None}
    assert is_stored(sent, sent | {"conditions": [condition("B"), null], "qosClass": "Burstable"})


def test_what_another_wrote_in_between_is_seen() -> None:
    sent = {"phase": "Running", "conditions": [condition("A")], "future": 1}
    for other in (
        {"conditions": [condition("A"), condition("example.com/gate")]},
        {"conditions": [condition("A", "False")]},
        {"phase": "Failed"},
        {"message": "new"},
    ):
        assert not is_stored(sent, sent | other)
    assert not is_stored(sent, {"phase": "Running", "conditions": [condition("A")]}), "it was not kept"
