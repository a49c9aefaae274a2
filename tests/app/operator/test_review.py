"""What the API server asks, and the answers."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from app.namespaces.offloading import Offloading, PodStrategy
from app.operator import review
from app.operator.review import NotAReview, Request, decode, review_offloading, review_pod


def request(operation: str = "CREATE", **fields: Any) -> Request:
    body = {"request": {"uid": "u", "operation": operation, "namespace": "shop", "unknown": 1, **fields}}
    return decode(json.dumps(body).encode())


def response(body: bytes) -> dict[str, Any]:
    content = json.loads(body)
    assert content["kind"] == "AdmissionReview"
    found: dict[str, Any] = content["response"]
    assert found["uid"] == "u"
    return found


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"request": 1}', b'{"request": {}}', b"\xff"])
def test_what_is_no_review(body: bytes) -> None:
    with pytest.raises(NotAReview):
        decode(body)


def test_a_pod_is_patched_and_warned_of() -> None:
    pod = {"metadata": {}, "spec": {"hostNetwork": True}}
    asked = request(object=pod)
    found = response(review_pod(asked, Offloading("shop", pods=PodStrategy.REMOTE), allow_host=False, taint_key="t"))
    assert found["allowed"] is True
    assert found["patchType"] == "JSONPatch"
    patch = json.loads(base64.b64decode(found["patch"]))
    assert patch[0]["value"] == [{"key": "t", "operator": "Exists"}]
    assert found["warnings"][0].startswith("farlet: it needs hostNetwork")
    plain = response(review_pod(asked, None, allow_host=False, taint_key="t"))
    assert plain == {"uid": "u", "allowed": True}


def offloading(strategy: str = "LocalAndRemote") -> dict[str, Any]:
    return {"metadata": {"namespace": "shop"}, "spec": {"podOffloadingStrategy": strategy}}


@pytest.mark.parametrize(
    ("asked", "enable"),
    [
        (request(object=offloading()), True),
        (request(object=offloading("Remote")), True),
        (request(object=offloading("Local")), False),
        (request(object=offloading(), dryRun=True), False),
        (request("DELETE", oldObject=offloading()), False),
    ],
)
def test_which_namespaces_are_enabled_at_once(asked: Request, enable: bool) -> None:
    body, enabled = review_offloading(asked, "farlet")
    assert response(body)["allowed"] is True
    assert enabled is enable


@pytest.mark.parametrize("namespace", ["kube-system", "farlet"])
def test_the_clusters_own_namespaces_are_refused(namespace: str) -> None:
    body, enabled = review_offloading(request(object=offloading(), namespace=namespace), "farlet")
    assert response(body)["allowed"] is False
    assert not enabled


@pytest.mark.parametrize(
    ("old", "new", "warned"),
    [
        ("LocalAndRemote", "Local", True),
        ("LocalAndRemote", "Remote", True),
        ("Remote", "Local", True),
        ("Remote", "LocalAndRemote", False),
        ("Local", "Local", False),
    ],
)
def test_tightening_is_warned_of(old: str, new: str, warned: bool) -> None:
    body, _ = review_offloading(request("UPDATE", object=offloading(new), oldObject=offloading(old)), "farlet")
    assert ("warnings" in response(body)) is warned


NORTH, SOUTH = ({"matchExpressions": [{"key": "region", "operator": "In", "values": [v]}]} for v in ("north", "south"))


@pytest.mark.parametrize(
    ("old", "new", "warned"),
    [
        (None, None, False),
        (None, [NORTH], True),
        ([NORTH], None, False),
        ([NORTH], [NORTH], False),
        ([NORTH], [SOUTH, NORTH], False),
        ([NORTH], [SOUTH], True),
        ([NORTH, SOUTH], [SOUTH], True),
    ],
)
def test_a_selector_that_may_leave_clusters_is_warned_of(old: list[Any], new: list[Any], warned: bool) -> None:
    found = []
    for terms in (old, new):
        content = offloading()
        if terms is not None:
            content["spec"]["clusterSelector"] = {"nodeSelectorTerms": terms}
        found.append(content)
    body, _ = review_offloading(request("UPDATE", oldObject=found[0], object=found[1]), "farlet")
    warnings = response(body).get("warnings", [])
    assert [text.endswith("the namespace there is deleted") for text in warnings] == ([True] if warned else [])


def test_a_persons_label_is_left_to_the_person() -> None:
    mine = review.enabling_patch({}, {})
    assert mine is not None
    labels, annotations = mine["metadata"]["labels"], mine["metadata"]["annotations"]
    assert review.enabling_patch(labels, annotations) is None
    assert review.disabling_patch(labels, annotations) is not None
    assert review.disabling_patch(labels, {}) is None
