"""Services and slices of both families, between clusters that have both and one that has IPv4 only."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from app import names
from app.reflection.endpointslices import LABEL_MANAGED_BY
from devcluster.cluster import Cluster
from devcluster.fleet import Fleet
from tests.cluster import audit
from tests.cluster.farlet import Farlet, running
from tests.cluster.objects import Object, apply, get, make_namespace
from tests.eventually import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.xdist_group("scratch"),  # one at a time: each has clusters of its own besides the shared ones
]

SPACE = "families"
POLICIES: dict[str, tuple[str, list[str] | None]] = {
    "any": ("SingleStack", None),
    "six": ("SingleStack", ["IPv6"]),
    "prefers": ("PreferDualStack", None),
    "six-first": ("PreferDualStack", ["IPv6", "IPv4"]),
    "requires": ("RequireDualStack", ["IPv6", "IPv4"]),
}


@pytest.fixture
def clusters(elsewhere: Path) -> Iterator[tuple[Cluster, Cluster, Cluster]]:
    """A local cluster with both families, a remote one like it, and one with IPv4 only."""
    fleet = Fleet("families")
    try:
        fleet.up(["local", "both"], real=False, metrics=False, dual_stack=True)
        fleet.up(["four"], real=False, metrics=False)
        yield fleet.cluster("local"), fleet.cluster("both"), fleet.cluster("four")
    finally:
        fleet.down()


def service(name: str, policy: str, families: list[str] | None) -> Object:
    spec: Object = {"selector": {"app": name}, "ports": [{"port": 80}], "ipFamilyPolicy": policy}
    if families:
        spec["ipFamilies"] = families
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def slice_of(name: str, family: str, address: str) -> Object:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"{name}-{family.lower()}", "labels": {"kubernetes.io/service-name": name}},
        "addressType": family,
        "ports": [{"name": "", "port": 80, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
    }


def spec_of(cluster: Cluster, name: str) -> Object:
    spec: Object = get(cluster, SPACE, "service", name)["spec"]
    return spec


def addresses_match(cluster: Cluster, spec: Object) -> bool:
    """Whether a Service has one address of each of its families, from the cluster's own ranges."""
    ranges = {"IPv4": str(cluster.layout.services), "IPv6": str(cluster.layout.services6)}
    return len(spec["clusterIPs"]) == len(spec["ipFamilies"]) and all(
        ipaddress.ip_address(address) in ipaddress.ip_network(ranges[family])
        for address, family in zip(spec["clusterIPs"], spec["ipFamilies"], strict=True)
    )


def test_services_and_slices_of_both_families(clusters: tuple[Cluster, Cluster, Cluster], tmp_path: Path) -> None:
    local, both, four = clusters
    for cluster in clusters:
        make_namespace(cluster, SPACE)
    made = [service(name, policy, families) for name, (policy, families) in POLICIES.items()]
    made += [slice_of("six-first", "IPv6", "fd00:9::9"), slice_of("six-first", "IPv4", "10.9.9.9")]
    apply(local, SPACE, *map(json.dumps, made))
    options = ("--namespace", f"{SPACE}={SPACE}", "--local-cidr-map", "fd00:9::/64=fd00:99::/64")
    with running(local, both, "node-both", tmp_path, *options) as farlet:
        for name in POLICIES:
            _is_reflected(farlet, name, list(spec_of(local, name)["ipFamilies"]))
        assert spec_of(both, "six")["ipFamilies"] == ["IPv6"]
        assert spec_of(both, "six-first")["ipFamilies"] == spec_of(both, "requires")["ipFamilies"] == ["IPv6", "IPv4"]
        _slices_of_both_are_there(farlet)
        _follows_the_policy(farlet, "PreferDualStack", ["IPv4", "IPv6"])
        _follows_the_policy(farlet, "SingleStack", ["IPv4"])
        assert _written_on_restart(farlet) == []
    with running(local, four, "node-four", tmp_path, *options) as farlet:
        for name in sorted(POLICIES.keys() - {"requires"}):
            _is_reflected(farlet, name, ["IPv4"])
        told = ["events", "--field-selector", "involvedObject.kind=Service,involvedObject.name=requires"]
        eventually(lambda: names.REFLECTION_FAILED in str(get(local, SPACE, *told)), "the user is told")
        assert "requires" not in four.kubectl("-n", SPACE, "get", "services", "-o", "name").stdout
        _slices_of_both_are_there(farlet)
        _follows_the_policy(farlet, "PreferDualStack", ["IPv4"])
        _follows_the_policy(farlet, "SingleStack", ["IPv4"])
        assert [text for text in _written_on_restart(farlet) if not text.startswith("create services requires")] == []


def _is_reflected(farlet: Farlet, name: str, families: list[str]) -> None:
    found = eventually(lambda: spec_of(farlet.remote, name), f"{name} is reflected")
    assert found["ipFamilyPolicy"] == POLICIES[name][0]
    assert found["ipFamilies"] == families
    assert addresses_match(farlet.remote, found), found


def _slices_of_both_are_there(farlet: Farlet) -> None:
    ask = ["endpointslices", "-l", f"{LABEL_MANAGED_BY}={names.SLICES_MANAGED_BY}"]

    def look() -> Object:
        items = get(farlet.remote, SPACE, *ask)["items"]
        return {item["addressType"]: item["endpoints"][0]["addresses"] for item in items}

    found = eventually(look, "both slices are there", until=lambda found: len(found) == 2)
    assert found == {"IPv6": ["fd00:99::9"], "IPv4": ["10.9.9.9"]}


def _follows_the_policy(farlet: Farlet, policy: str, families: list[str]) -> None:
    patch = {"spec": {"ipFamilyPolicy": policy}}
    farlet.local.kubectl("-n", SPACE, "patch", "service", "any", "--type=merge", "-p", json.dumps(patch))
    found = eventually(
        lambda: spec_of(farlet.remote, "any"),
        f"it is {policy}",
        until=lambda spec: bool(spec["ipFamilyPolicy"] == policy),
    )
    assert found["ipFamilies"] == families
    assert addresses_match(farlet.remote, found), found


def _written_on_restart(farlet: Farlet) -> list[str]:
    """What the next Farlet has to say about what this one did; it has looked when it reflects something new."""
    mark = audit.mark(farlet.remote)
    farlet.stop()
    farlet.start()
    apply(farlet.local, SPACE, json.dumps(service("last", "SingleStack", None)))
    there = ["-n", SPACE, "get", "service", "last", "-o", "name"]
    eventually(lambda: farlet.remote.kubectl(*there).stdout, "it has looked")
    written = audit.writes(farlet.remote, mark, SPACE, ("services", "endpointslices"))
    farlet.local.kubectl("-n", SPACE, "delete", "service", "last")
    return [text for text in written if not text.startswith("create services last")]
