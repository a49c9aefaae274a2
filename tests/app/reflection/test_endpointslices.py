"""Only endpoints that the remote cluster does not find by itself are carried, as it can reach them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import names
from app.kube.objects import Envelope, Object
from app.pods.addresses import IpMap
from app.reflection.endpointslices import LABEL_MANAGED_BY, LABEL_SERVICE, EndpointSlices
from app.reflection.kind import Around
from app.reflection.rules import Rules
from tests.app.reflection.envelopes import OWNER, envelope, rules, stored

CONTROLLER = "endpointslice-controller.k8s.io"
NO_MAP = IpMap()


def kind(chosen: Rules | None = None, seen_remotely: str = "", seen_locally: str = "") -> EndpointSlices:
    maps = [IpMap.parse(filter(None, [text])) for text in (seen_remotely, seen_locally)]
    return EndpointSlices(OWNER, chosen or Rules(), seen_remotely=maps[0], seen_locally=maps[1])


def endpoint(address: str, node: str | None = None, **more: Any) -> Object:
    return {"addresses": [address], "conditions": {"ready": True}, **({"nodeName": node} if node else {}), **more}


def of(*endpoints: Object, managed_by: str = CONTROLLER, **annotations: str) -> Envelope:
    return envelope(
        "EndpointSlice",
        "web-abc",
        labels={LABEL_SERVICE: "web", LABEL_MANAGED_BY: managed_by},
        annotations={f"farlet.dev/{key}": value for key, value in annotations.items()},
        addressType="IPv4",
        ports=[{"name": "", "port": 80, "protocol": "TCP"}],
        endpoints=list(endpoints),
    )


def around(selector: bool = True, service: str = "web", **annotations: str) -> Around:
    spec = {"selector": {"app": "x"}} if selector else {}
    given_annotations = {f"farlet.dev/{key}": value for key, value in annotations.items()}
    found = envelope("Service", service, annotations=given_annotations, spec=spec)
    return Around(found, frozenset({"far", "far-2"}))


def carried(forging: EndpointSlices, local: Envelope, where: Around) -> list[Object] | None:
    copy = forging.forge(local, where)
    return None if copy is None else copy.content["endpoints"]


def test_those_that_run_there_are_left_out() -> None:
    local = of(
        endpoint("10.1.0.1", "real"),
        endpoint("10.2.0.1", "far"),
        endpoint("10.2.0.2", "far-2"),
        endpoint("10.3.0.1", "another-remote"),
        endpoint("10.1.0.2"),
    )
    found = carried(kind(), local, around())
    assert found == [endpoint("10.1.0.1"), endpoint("10.3.0.1"), endpoint("10.1.0.2")]


def test_none_left_is_no_slice() -> None:
    assert kind().forge(of(endpoint("10.2.0.1", "far")), around()) is None
    assert kind().forge(of(), around()) is None


@pytest.mark.parametrize(("selector", "managed_by"), [(False, CONTROLLER), (True, "somebody"), (False, "somebody")])
def test_what_the_remote_cannot_find_is_carried_with_the_address_that_it_has_there(
    selector: bool, managed_by: str
) -> None:
    forging = kind(seen_remotely="10.1.0.0/16=10.201.0.0/16", seen_locally="10.2.0.0/16=10.102.0.0/16")
    local = of(endpoint("10.102.0.7", "far"), endpoint("10.1.0.7", "real"), managed_by=managed_by)
    assert carried(forging, local, around(selector)) == [endpoint("10.2.0.7"), endpoint("10.201.0.7")]


def test_what_is_carried_of_an_endpoint() -> None:
    local = of(
        endpoint(
            "10.1.0.1",
            "real",
            hostname="web-0",
            zone="a",
            conditions={"ready": False, "serving": True, "terminating": True},
            hints={"forZones": [{"name": "a"}], "forNodes": [{"name": "real"}]},
            targetRef={"kind": "Pod", "name": "x"},
            deprecatedTopology={"x": "y"},
            ofTheFuture=1,
        ),
        endpoint("10.1.0.2", hints={"forNodes": [{"name": "real"}]}),
    )
    assert carried(kind(), local, around()) == [
        {
            "addresses": ["10.1.0.1"],
            "conditions": {"ready": False, "serving": True, "terminating": True},
            "hostname": "web-0",
            "zone": "a",
            "hints": {"forZones": [{"name": "a"}]},
            "ofTheFuture": 1,
        },
        endpoint("10.1.0.2"),
    ]


def test_labels_and_name() -> None:
    copy = kind().forge(of(endpoint("10.1.0.1")), around())
    assert copy is not None
    assert copy.name == "web-abc-home"
    assert copy.labels[LABEL_SERVICE] == "web"
    assert copy.labels[LABEL_MANAGED_BY] == names.SLICES_MANAGED_BY
    assert len(kind().remote_name("x" * 253)) == 253


@pytest.mark.parametrize(
    ("where", "policy", "said", "wanted"),
    [
        (Around(), "all", {}, False),
        (around(), "all", {}, True),
        (around(reflect="false"), "all", {}, False),
        (around(reflect="false"), "all", {"reflect": "true"}, False),
        (around(), "all", {"reflect": "false"}, False),
        (around(), "none", {}, False),
        (around(reflect="true"), "none", {}, True),
        (around(), "off", {}, False),
    ],
)
def test_a_slice_follows_its_service(where: Around, policy: str, said: dict[str, str], wanted: bool) -> None:
    copy = kind(rules(services=policy)).forge(of(endpoint("10.1.0.1"), **said), where)
    assert (copy is not None) is wanted


def test_a_copy_is_never_copied_on() -> None:
    assert kind().forge(of(endpoint("10.1.0.1"), managed_by=names.SLICES_MANAGED_BY), around()) is None


def test_the_family_of_addresses_cannot_be_changed() -> None:
    remote = stored(kind(), of(endpoint("10.1.0.1")), around())
    copy = kind().forge(of(endpoint("10.1.0.2")), around())
    assert copy is not None
    assert not kind().must_replace(copy.content, remote)
    assert kind().must_replace({**copy.content, "addressType": "IPv6"}, remote)


@given(
    st.lists(
        st.tuples(st.ip_addresses(v=4).map(str), st.sampled_from(["far", "real", None]), st.booleans()), max_size=6
    )
)
def test_any_slice_is_settled_by_one_write_and_loses_no_endpoint(found: list[tuple[str, str | None, bool]]) -> None:
    local = of(*(endpoint(address, node, conditions={"ready": ready}) for address, node, ready in found))
    copy = kind().forge(local, around())
    outside = [address for address, node, _ in found if node != "far"]
    if not outside:
        assert copy is None
        return
    assert copy is not None
    assert [each["addresses"][0] for each in copy.content["endpoints"]] == outside
    assert kind().same(copy.content, stored(kind(), local, around()))
