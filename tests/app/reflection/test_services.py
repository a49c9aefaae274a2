"""What a Service offers is carried, what a cluster allots is its own, and a copy as it should be is left alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import names
from app.kube.objects import Envelope, Object
from app.reflection import copies
from app.reflection.rules import Rules
from app.reflection.services import Services
from tests.app.reflection.envelopes import NOWHERE, OWNER, envelope, stored

KIND = Services(OWNER, Rules())
PORT = {"name": "web", "port": 80, "targetPort": "http", "protocol": "TCP"}
OURS = {"ports": [PORT], "selector": {"app": "x"}, "type": "ClusterIP", "sessionAffinity": "None"}
ALLOTTED = {"clusterIP": "10.1.0.7", "clusterIPs": ["10.1.0.7"], "ipFamilies": ["IPv4"]}


def forged(spec: Object, **annotations: str) -> Object:
    given_annotations = {f"farlet.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    copy = KIND.forge(envelope("Service", annotations=given_annotations, spec=spec), NOWHERE)
    assert copy is not None
    content: Object = copy.content["spec"]
    return content


@pytest.mark.parametrize(
    ("local", "remote"),
    [
        (
            {**OURS, **ALLOTTED, "ipFamilyPolicy": "SingleStack"},
            {**OURS, "ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"]},
        ),
        ({"clusterIP": "None", "clusterIPs": ["None"]}, {"clusterIP": "None"}),
        ({"type": "ExternalName", "externalName": "a.example"}, {"type": "ExternalName", "externalName": "a.example"}),
        (
            {"type": "NodePort", "ports": [{**PORT, "nodePort": 30001}]},
            {"type": "NodePort", "ports": [PORT]},
        ),
        (
            {
                "type": "LoadBalancer",
                "loadBalancerIP": "1.2.3.4",
                "loadBalancerClass": "x",
                "healthCheckNodePort": 30002,
                "externalIPs": ["1.2.3.5"],
                "loadBalancerSourceRanges": ["10.0.0.0/8"],
                "allocateLoadBalancerNodePorts": False,
            },
            {
                "type": "LoadBalancer",
                "loadBalancerSourceRanges": ["10.0.0.0/8"],
                "allocateLoadBalancerNodePorts": False,
            },
        ),
        (
            {**OURS, "externalIPs": ["1.2.3.5"], "externalTrafficPolicy": "Cluster"},
            OURS,
        ),
        ({"externalIPs": ["1.2.3.5"], "externalTrafficPolicy": "Cluster"}, {}),
        (
            {"type": "NodePort", "externalIPs": ["1.2.3.5"], "externalTrafficPolicy": "Local"},
            {"type": "NodePort", "externalTrafficPolicy": "Local"},
        ),
        (
            {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv4", "IPv6"]},
            {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv4", "IPv6"]},
        ),
        (
            {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"]},
            {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"]},
        ),
        (
            {"ofTheFuture": {"x": 1}, "ports": [{**PORT, "new": 1}]},
            {"ofTheFuture": {"x": 1}, "ports": [{**PORT, "new": 1}]},
        ),
    ],
)
def test_what_is_carried(local: Object, remote: Object) -> None:
    assert forged(local) == remote


def test_node_ports_when_asked() -> None:
    ports = [{**PORT, "nodePort": 30001}]
    assert forged({"type": "NodePort", "ports": ports}, keep_node_ports="true")["ports"] == ports
    assert forged({"type": "NodePort", "ports": ports}, keep_node_ports="no")["ports"] == [PORT]


def test_the_api_servers_own_is_never_reflected() -> None:
    assert KIND.forge(envelope("Service", "kubernetes", namespace="default", spec={}), NOWHERE) is None
    assert KIND.forge(envelope("Service", "kubernetes", namespace="shop", spec={}), NOWHERE) is not None


def there(local: Object, **changes: Any) -> Envelope:
    """The copy of a Service as the remote cluster completes it."""
    remote = stored(KIND, envelope("Service", spec=local))
    spec = msgspec.json.decode(remote.spec)
    return msgspec.structs.replace(remote, spec=msgspec.json.encode({**ALLOTTED, **spec, **changes}))


def same(local: Object, remote: Envelope) -> bool:
    copy = KIND.forge(envelope("Service", spec=local), NOWHERE)
    assert copy is not None
    return copies.same_metadata(copy, remote) and KIND.same(copy.content, remote)


@pytest.mark.parametrize(
    ("changes", "still"),
    [
        ({}, True),
        ({"ofTheRemote": 1, "externalIPs": ["9.9.9.9"]}, True),
        ({"ports": [{**PORT, "nodePort": 31234}]}, True),
        ({"ports": [{**PORT, "port": 81}]}, False),
        ({"ports": [PORT, {**PORT, "name": "more"}]}, False),
        ({"selector": {"app": "x", "more": "y"}}, False),
        ({"selector": {}}, False),
        ({"sessionAffinity": "ClientIP"}, False),
    ],
)
def test_drift(changes: Object, still: bool) -> None:
    assert same(OURS, there(OURS, **changes)) is still


@pytest.mark.parametrize(
    ("found", "still"), [({}, True), ({"selector": None}, True), ({"selector": {"a": "b"}}, False)]
)
def test_a_selector_that_was_never_wanted_is_taken_away(found: Object, still: bool) -> None:
    bare = {"ports": [PORT], "type": "ClusterIP"}
    remote = there(bare, **found)
    assert same(bare, remote) is still
    assert "selector" not in merged(bare, remote)


def test_a_field_that_is_gone_locally_is_a_change() -> None:
    assert not same(OURS, there({**OURS, "trafficDistribution": "PreferClose"}))


def merged(wanted: Object, remote: Envelope) -> Object:
    copy = KIND.forge(envelope("Service", spec=wanted), NOWHERE)
    assert copy is not None
    spec: Object = KIND.merged(copy.content, remote)["spec"]
    return spec


def test_what_the_remote_allotted_stays() -> None:
    balanced = {**OURS, "type": "LoadBalancer", "externalTrafficPolicy": "Local"}
    allotted = {"healthCheckNodePort": 30009, "loadBalancerClass": "cloud", "ports": [{**PORT, "nodePort": 31234}]}
    spec = merged({**balanced, "ports": [{**PORT, "port": 81}]}, there(balanced, **allotted))
    assert {key: spec[key] for key in ALLOTTED} == ALLOTTED
    assert spec["ports"] == [{**PORT, "port": 81, "nodePort": 31234}]
    assert (spec["healthCheckNodePort"], spec["loadBalancerClass"]) == (30009, "cloud")
    # and is not carried over to where it has no place
    plain = merged(OURS, there(balanced, **allotted))
    assert "healthCheckNodePort" not in plain
    assert "loadBalancerClass" not in plain
    assert plain["ports"] == [PORT]
    named = merged({"type": "ExternalName", "externalName": "x"}, there(balanced, **allotted))
    assert named == {"type": "ExternalName", "externalName": "x"}


def test_families_are_a_wish() -> None:
    """A remote cluster without them is asked again for what it has, and what it gave is never disputed."""
    dual = {**OURS, "ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6", "IPv4"]}
    copy = KIND.forge(envelope("Service", spec=dual), NOWHERE)
    assert copy is not None
    refusal = 'Service "x" is invalid: spec.ipFamilies[0]: Invalid value: "IPv6": not configured on this cluster'
    assert KIND.relaxed(copy.content, refusal) == {"spec": {**OURS, "ipFamilyPolicy": "PreferDualStack"}}
    assert KIND.relaxed(copy.content, "spec.ports: Required value") is None
    assert KIND.relaxed({"spec": OURS}, refusal) is None
    there_it_has_one = there(dual, **ALLOTTED)
    assert same(dual, there_it_has_one)
    assert merged({**dual, "sessionAffinity": "ClientIP"}, there_it_has_one)["ipFamilies"] == ["IPv4"]


@pytest.mark.parametrize(
    ("before", "after", "anew"),
    [
        (OURS, {**OURS, "clusterIP": "None"}, True),
        ({**OURS, "clusterIP": "None"}, OURS, True),
        (OURS, {**OURS, "type": "NodePort"}, False),
        (OURS, {"type": "ExternalName", "externalName": "x"}, False),
        ({"type": "ExternalName", "externalName": "x"}, {**OURS, "clusterIP": "None"}, False),
    ],
)
def test_headless_or_not_cannot_be_changed(before: Object, after: Object, anew: bool) -> None:
    copy = KIND.forge(envelope("Service", spec=after), NOWHERE)
    assert copy is not None
    assert KIND.must_replace(copy.content, there(before)) is anew


values = st.recursive(
    st.booleans() | st.integers(0, 5) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", min_size=1), inner, max_size=2),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["type", "selector", "future", "more"]), values, max_size=4))
def test_any_spec_is_settled_by_one_write(spec: Object) -> None:
    spec = {**spec, "selector": {"a": "b"}}
    remote = there(spec)
    assert same(spec, remote)
    assert forged(forged(spec)) == forged(spec), "forging what was forged changes nothing"
    assert names.LABEL_ORIGIN in (remote.metadata.labels or {})
