"""Hosts for the clusters: a network namespace each, with a link to this machine and wires to each other.

The machine reaches every cluster over a veth pair of its own; the clusters reach each other over direct wires, so
that cutting a wire leaves the machine's access alone and nothing is ever forwarded by the machine itself. Whatever
leaves a cluster for anywhere else is unreachable at once instead of hanging.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network
from itertools import combinations
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.layout import SLOTS, ClusterLayout

FAULT_CHAIN = "FARLET-FAULT"
"""An iptables chain at the head of INPUT, OUTPUT and FORWARD, where faults put their rules."""

_ON = (
    "net/ipv4/ip_forward",
    "net/bridge/bridge-nf-call-iptables",
    "net/ipv4/conf/all/route_localnet",
)


def run(argv: Sequence[str], *, stdin: str | None = None, check: bool = True) -> str:
    """Run a short command and return what it prints."""
    result = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)
    if check and result.returncode != 0:
        command = " ".join(argv[:6])
        raise DevclusterError(f"{command} ...: {(result.stderr or result.stdout).strip() or 'failed'}")
    return result.stdout


def inside(cluster: ClusterLayout, argv: Sequence[str], *, check: bool = True) -> str:
    """Run a short command in the cluster's network namespace.

    Not with ``ip netns exec``: that remounts /sys and hides the cgroups.
    """
    return run(["nsenter", f"--net={cluster.netns_path}", "--", *argv], check=check)


def used_networks() -> list[IPv4Network]:
    """Every IPv4 network that this machine has an address in or a route to (the default route aside)."""
    routes = json.loads(run(["ip", "-j", "-4", "route", "show", "table", "all"]) or "[]")
    found = []
    for route in routes:
        destination = route.get("dst", "default")
        if destination != "default" and "/" not in destination:
            destination += "/32"
        if destination != "default":
            found.append(IPv4Network(destination, strict=False))
    return found


def slot_network(base: IPv4Network, slot: int) -> IPv4Network:
    """All node addresses and wires of one slot."""
    return IPv4Network((int(base.network_address) + slot * 16 * 256, 20))


def free_slot(base: IPv4Network) -> int:
    """The first slot whose addresses nobody on this machine uses."""
    used = used_networks()
    for slot in range(SLOTS):
        if not any(slot_network(base, slot).overlaps(network) for network in used):
            return slot
    raise DevclusterError(
        f"every part of {base} is in use on this machine: stop another fleet (`python -m devcluster down`), "
        "or set FARLET_DEVCLUSTER_NETWORK to a /16 that is free"
    )


def ensure(clusters: Sequence[ClusterLayout], *, isolated: bool) -> None:
    """Make the namespaces, links and wires that are missing."""
    for cluster in clusters:
        if not cluster.netns_path.exists():
            _make_host(cluster)
    for one, other in combinations(clusters, 2):
        ensure_wire(one, other, isolated=isolated)


def ensure_wire(one: ClusterLayout, other: ClusterLayout, *, isolated: bool) -> None:
    """Join two clusters; also after a link was taken down, which deletes its routes."""
    if one.wire(other).interface not in _links(one):
        peer = ["peer", "name", other.wire(one).interface, "netns", other.netns]
        run(["ip", "-n", one.netns, "link", "add", one.wire(other).interface, "type", "veth", *peer])
    for here, there in ((one, other), (other, one)):
        wire = here.wire(there)
        destinations = [f"{there.ip}/32"]
        if not isolated:
            destinations += [str(there.pods), str(there.services)]
        via = f"via {wire.peer_address} dev {wire.interface} src {here.ip}"
        _batch(
            here,
            [
                f"address replace {wire.address}/30 dev {wire.interface}",
                f"link set {wire.interface} up",
                *(f"route replace {destination} {via}" for destination in destinations),
            ],
        )
        if isolated:
            # the other side has no route back to our pods: they appear with their node's address
            rule = ["POSTROUTING", "-s", str(here.pods), "-o", wire.interface, "-j", "MASQUERADE"]
            inside(here, ["iptables", "-w", "-t", "nat", "-D", *rule], check=False)
            inside(here, ["iptables", "-w", "-t", "nat", "-A", *rule])


def remove(clusters: Iterable[ClusterLayout]) -> None:
    """Remove the namespaces; links, wires and firewall rules go with them."""
    for cluster in clusters:
        if cluster.host_interface in _links(None):
            run(["ip", "link", "delete", cluster.host_interface])
        if cluster.netns_path.exists():
            run(["ip", "netns", "delete", cluster.netns])


def exists(cluster: ClusterLayout) -> bool:
    """Whether anything of the cluster's network is there."""
    return cluster.netns_path.exists() or cluster.host_interface in _links(None)


def has_netem() -> bool:
    """Whether this kernel can delay and drop packets by itself (``tc netem``)."""
    # a namespace of its own: trying changes nothing that anybody uses
    command = "ip link set lo up && tc qdisc add dev lo root netem delay 1ms"
    return subprocess.run(["unshare", "--net", "sh", "-c", command], capture_output=True).returncode == 0


def _make_host(cluster: ClusterLayout) -> None:
    used = [network for network in used_networks() if network.overlaps(cluster.node_network)]
    if used and cluster.host_interface not in _links(None):
        raise DevclusterError(
            f"cluster {cluster.name} wants {cluster.node_network}, which this machine uses ({used[0]}): "
            "`python -m devcluster down` forgets the old addresses, the next `up` takes free ones"
        )
    if cluster.host_interface in _links(None):
        run(["ip", "link", "delete", cluster.host_interface])
    run(["ip", "netns", "add", cluster.netns])
    peer = ["peer", "name", "eth0", "netns", cluster.netns]
    run(["ip", "link", "add", cluster.host_interface, "type", "veth", *peer])
    run(["ip", "address", "add", f"{cluster.gateway}/24", "dev", cluster.host_interface])
    run(["ip", "link", "set", cluster.host_interface, "up"])
    _batch(
        cluster,
        [
            "link set lo up",
            f"address add {cluster.ip}/24 dev eth0",
            "link set eth0 up",
            # services need a route of their own: the kernel looks one up before kube-proxy's rules rewrite it
            f"route add {cluster.services} via {cluster.gateway} dev eth0 src {cluster.ip}",
            "route add unreachable default",
        ],
    )
    _load_bridge_filter()
    settings = " && ".join(f"echo 1 >/proc/sys/{setting}" for setting in _ON)
    inside(cluster, ["sh", "-c", settings])
    _make_rules(cluster)


def _make_rules(cluster: ClusterLayout) -> None:
    rules = [f":{FAULT_CHAIN} - [0:0]"]
    rules += [f"-I {chain} 1 -j {FAULT_CHAIN}" for chain in ("INPUT", "OUTPUT", "FORWARD")]
    # What still has a service's address here was not rewritten: kube-proxy does not know that service (yet). Without a
    # refusal the client would hang, and go on hanging when it does, as the kernel remembers the connection.
    rules += [f"-A {chain} -d {cluster.services} -j REJECT" for chain in ("OUTPUT", "FORWARD")]
    text = "\n".join(["*filter", *rules, "COMMIT", ""])
    command = ["nsenter", f"--net={cluster.netns_path}", "--", "iptables-restore", "--noflush", "-w"]
    run(command, stdin=text)


def _load_bridge_filter() -> None:
    if not Path("/proc/sys/net/bridge").exists():
        subprocess.run(["modprobe", "br_netfilter"], capture_output=True, check=False)
    if not Path("/proc/sys/net/bridge").exists():
        raise DevclusterError("this kernel has no br_netfilter: Services cannot work (try `modprobe br_netfilter`)")


def _batch(cluster: ClusterLayout, commands: Sequence[str]) -> None:
    run(["ip", "-n", cluster.netns, "-batch", "-"], stdin="\n".join(commands) + "\n")


def _links(cluster: ClusterLayout | None) -> set[str]:
    where = ["-n", cluster.netns] if cluster else []
    return {link["ifname"] for link in json.loads(run(["ip", "-j", *where, "link", "show"]) or "[]")}
