"""Names of twins, and hostnames."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kube.objects import Object
from app.pods.naming import hostname_fields, short_hash, twin_name
from tests.app.pods.pods import local_pod

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
pod_names = st.from_regex(
    r"[a-z0-9]([-a-z0-9]{0,80}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?){0,3}", fullmatch=True
)


@given(name=pod_names, uid=st.uuids().map(str))
def test_a_twins_name_is_a_label_and_leaves_room_for_its_pods(name: str, uid: str) -> None:
    made = twin_name(local_pod(name, metadata={"name": name, "uid": uid}))
    assert DNS_LABEL.fullmatch(made)
    assert len(f"{made}-") <= 58, "the API server would cut it"


def test_a_twins_name_is_readable_and_the_pods_own() -> None:
    first, second = local_pod(), local_pod(metadata={"uid": "another"})
    assert twin_name(first) == f"web-0-{short_hash(first['metadata']['uid'])}"
    assert twin_name(first) != twin_name(second), "the pod that a StatefulSet makes next"
    assert twin_name(first) == "web-0-dzwxdyawrz", "changing the scheme would make every running pod a second time"


@pytest.mark.parametrize(
    ("name", "spec", "minor", "fields"),
    [
        ("web-0", {}, 36, {"hostname": "web-0"}),
        ("web-0", {"hostname": "own"}, 36, {}),
        ("web-0", {"hostNetwork": True}, 36, {}),
        ("web-0", {"hostnameOverride": "own.name"}, 36, {}),
        ("web-0", {"hostnameOverride": "own.name"}, 34, {"hostname": "own-name"}),
        ("a.b", {}, 35, {"hostnameOverride": "a.b"}),
        ("a.b", {}, 34, {"hostname": "a-b"}),
        ("a.b", {"setHostnameAsFQDN": True}, 36, {"hostname": "a-b"}),
        ("x" * 62 + "-y", {}, 36, {"hostname": "x" * 62}),
        ("x" * 62 + ".y", {}, 36, {"hostname": "x" * 62}),
    ],
)
def test_hostname(name: str, spec: Object, minor: int, fields: Object) -> None:
    assert hostname_fields(local_pod(name, **spec), minor) == fields


@given(name=pod_names, minor=st.sampled_from([30, 34, 35, 36]))
def test_a_hostname_is_one_that_the_api_accepts(name: str, minor: int) -> None:
    fields = hostname_fields(local_pod(name), minor)
    if "hostname" in fields:
        assert DNS_LABEL.fullmatch(fields["hostname"])
        assert len(fields["hostname"]) <= 63
    else:
        assert all(DNS_LABEL.fullmatch(part) for part in fields["hostnameOverride"].split("."))
        assert len(fields["hostnameOverride"]) <= 63
