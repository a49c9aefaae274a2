"""Nothing of two clusters, two fleets or two checkouts ever meets on one machine."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devcluster.errors import DevclusterError
from devcluster.layout import MAX_CLUSTERS, SLOTS, ClusterLayout, FleetLayout, base_network, check_name, state_root

BASE = IPv4Network("10.254.0.0/16")
IFNAMSIZ = 15
"""Characters that Linux allows in the name of an interface."""

names = st.from_regex(r"[a-z]([a-z0-9-]{0,13}[a-z0-9])?", fullmatch=True).filter(lambda name: name != "machine")
folders = st.text("abcdefghijklmnopqrstuvwxyz-_.0123456789", min_size=1).map(lambda name: Path("/checkouts") / name)
sixteens = st.integers(0, 2**16 - 1).map(lambda number: IPv4Network((number << 16, 16)))


def fleet_of(
    cluster_names: Sequence[str], *, slot: int = 0, base: IPv4Network = BASE, folder: Path = Path("/checkout/dev")
) -> list[ClusterLayout]:
    fleet = FleetLayout("dev", folder)
    return [ClusterLayout(fleet, name, index, slot, base) for index, name in enumerate(cluster_names, 1)]


def largest_fleet(*, slot: int = 0, base: IPv4Network = BASE) -> list[ClusterLayout]:
    return fleet_of([f"c{index}" for index in range(MAX_CLUSTERS)], slot=slot, base=base)


def overlapping(networks: Sequence[IPv4Network]) -> list[tuple[IPv4Network, IPv4Network]]:
    ordered = sorted(networks)
    return [(one, other) for one, other in itertools.pairwise(ordered) if one.overlaps(other)]


@settings(max_examples=10, deadline=None)
@given(sixteens)
def test_addresses_of_all_slots_are_apart_and_inside_the_base(base: IPv4Network) -> None:
    networks = []
    for slot in range(SLOTS):
        fleet = largest_fleet(slot=slot, base=base)
        networks += [cluster.node_network for cluster in fleet]
        for one, other in itertools.combinations(fleet, 2):
            wire = one.wire(other)
            networks.append(IPv4Network(f"{wire.address}/30", strict=False))
    assert overlapping(networks) == []
    assert [network for network in networks if not network.subnet_of(base)] == []


def test_pods_and_services_are_apart() -> None:
    ranges = [network for cluster in largest_fleet() for network in (cluster.pods, cluster.services)]
    assert overlapping([*ranges, BASE]) == []


def test_own_addresses_are_in_their_ranges_and_distinct() -> None:
    for cluster in largest_fleet():
        assert cluster.gateway in cluster.node_network
        assert cluster.ip in cluster.node_network
        services = [cluster.kubernetes_service_ip, cluster.dns_service_ip, cluster.metrics_service_ip]
        assert all(address in cluster.services for address in services)
        assert len({cluster.gateway, cluster.ip, *services}) == 5
        assert cluster.server == f"https://{cluster.ip}:6443"


def test_a_wire_is_the_same_from_both_ends() -> None:
    for one, other in itertools.permutations(largest_fleet(), 2):
        mine, theirs = one.wire(other), other.wire(one)
        assert (mine.address, mine.peer_address) == (theirs.peer_address, theirs.address)
        assert mine.address != mine.peer_address


@settings(max_examples=30, deadline=None)
@given(st.lists(names, min_size=2, max_size=MAX_CLUSTERS, unique=True), folders)
def test_names_in_one_fleet(cluster_names: list[str], folder: Path) -> None:
    fleet = fleet_of(cluster_names, folder=folder)
    for what in ("netns", "netns_path", "cgroup", "host_interface", "node_name", "folder", "pki", "logs", "run"):
        values = {getattr(cluster, what) for cluster in fleet}
        assert len(values) == len(fleet), f"{what} is shared: {values}"
    for cluster in fleet:
        wires = [cluster.wire(peer).interface for peer in fleet if peer is not cluster]
        interfaces = [cluster.host_interface, "eth0", *wires]
        assert len(set(interfaces)) == len(interfaces)
        assert max(len(name) for name in interfaces) <= IFNAMSIZ
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", cluster.node_name), "not a DNS label"


def test_two_checkouts_share_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    shared: list[set[str]] = []
    for checkout in ("/srv/one/farlet", "/srv/two/farlet"):
        monkeypatch.setenv("FARLET_DEVCLUSTER_STATE", f"{checkout}/.devcluster")
        cluster = ClusterLayout(FleetLayout.of("dev"), "local", 1, 0, BASE)
        shared.append({cluster.netns, cluster.cgroup, cluster.host_interface, str(cluster.folder)})
    assert shared[0].isdisjoint(shared[1])


def test_the_same_fleet_is_found_again() -> None:
    assert FleetLayout.of("dev") == FleetLayout.of("dev")
    assert FleetLayout.of("dev").id == FleetLayout.of("dev").id
    assert FleetLayout.of("dev").id != FleetLayout.of("test").id


def test_state_is_in_the_checkout_unless_said_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FARLET_DEVCLUSTER_STATE", raising=False)
    assert state_root() == Path(__file__).parents[2] / ".devcluster"
    monkeypatch.setenv("FARLET_DEVCLUSTER_STATE", str(tmp_path))
    assert state_root() == tmp_path


@settings(max_examples=50, deadline=None)
@given(names)
def test_good_names_are_taken(name: str) -> None:
    assert check_name("cluster", name) == name


@pytest.mark.parametrize(
    "name", ["", "A", "1a", "-a", "a-", "a_b", "a.b", "a/b", "..", "a\n", "a" * 16, "ä", "a b", "a,b"]
)
@pytest.mark.parametrize("kind", ["cluster", "fleet"])
def test_bad_names_are_refused_and_named(kind: str, name: str) -> None:
    with pytest.raises(DevclusterError, match=f"^{kind} name ") as caught:
        check_name(kind, name)
    assert repr(name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_cluster_is_called_machine() -> None:
    with pytest.raises(DevclusterError, match="machine"):
        check_name("cluster", "machine")


def test_base_network_can_be_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FARLET_DEVCLUSTER_NETWORK", raising=False)
    assert base_network() == BASE
    monkeypatch.setenv("FARLET_DEVCLUSTER_NETWORK", "172.30.0.0/16")
    assert base_network() == IPv4Network("172.30.0.0/16")


@pytest.mark.parametrize(
    "given",
    ["", "nonsense", "10.254.0.0/24", "10.254.1.0/16", "10.0.0.0/8", "fd00::/16", "10.201.0.0/16", "10.108.0.0/16"],
)
def test_base_network_that_cannot_be(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("FARLET_DEVCLUSTER_NETWORK", given)
    with pytest.raises(DevclusterError, match=f"^FARLET_DEVCLUSTER_NETWORK={given}: "):
        base_network()
