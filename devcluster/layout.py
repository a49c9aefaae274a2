"""Where everything of a fleet of clusters lives: names, addresses and folders, computed and never looked up.

A *fleet* is a named set of clusters that belong together (``dev`` for the demo, ``test`` for the tests...). Its state
lives in one folder of the checkout. Names that the whole machine shares (network namespaces, interfaces, cgroups)
carry a short hash of that folder, so two checkouts never meet; addresses that the machine shares come from a
*slot*, of which each running fleet has its own. Pod and service ranges only exist inside the namespaces, so every
fleet uses the same ones.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Network
from pathlib import Path

from devcluster.errors import DevclusterError

MAX_CLUSTERS = 8
"""Clusters in one fleet: every two of them are joined by a wire of its own."""

SLOTS = 16
API_PORT = 6443
RELAY_PORT = 7443

MACHINE = "machine"
"""What a fault calls the end of a link that is this machine itself, where a person's kubectl and `farlet run` are."""

_PODS, _SERVICES = 200, 100
"""The second number of the pod and service ranges, to which a cluster's index is added."""

_CLUSTER_NAME = re.compile(r"[a-z]([a-z0-9-]{0,13}[a-z0-9])?")
_CHECKOUT = Path(__file__).resolve().parent.parent


def state_root() -> Path:
    """The folder that holds the state of all fleets of this checkout."""
    given = os.environ.get("FARLET_DEVCLUSTER_STATE")
    return Path(given).resolve() if given else _CHECKOUT / ".devcluster"


def check_name(kind: str, name: str) -> str:
    """Refuse a fleet or cluster name that could not be part of an interface, host or folder name."""
    if not _CLUSTER_NAME.fullmatch(name):
        raise DevclusterError(
            f"{kind} name {name!r} is not valid: 1 to 15 lower-case letters, digits and '-', starting with a letter"
        )
    if kind == "cluster" and name == MACHINE:
        raise DevclusterError(f"cluster name {name!r} is taken: it stands for this machine when a link is cut")
    return name


@dataclass(frozen=True, slots=True)
class FleetLayout:
    """Names and folders of one fleet."""

    name: str
    folder: Path

    @classmethod
    def of(cls, name: str) -> FleetLayout:
        """The layout of the fleet of that name in this checkout."""
        return cls(check_name("fleet", name), state_root() / name)

    @property
    def id(self) -> str:
        """Four hexadecimal digits that tell this fleet from every other on the machine."""
        return hashlib.sha256(str(self.folder).encode()).hexdigest()[:4]

    @property
    def record(self) -> Path:
        """What was asked for: the fleet's slot and its clusters."""
        return self.folder / "fleet.json"


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """Names, addresses and folders of one cluster."""

    fleet: FleetLayout
    name: str
    index: int
    """1 to MAX_CLUSTERS, unique in the fleet; addresses are computed from it."""
    slot: int
    """0 to SLOTS-1, unique among the fleets that run on this machine."""
    base: IPv4Network
    """The /16 that node addresses are taken from."""

    @property
    def folder(self) -> Path:
        return self.fleet.folder / self.name

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def audit_log(self) -> Path:
        return self.logs / "audit.log"

    def kubeconfig(self, user: str = "admin") -> Path:
        return self.folder / "kubeconfigs" / f"{user}.kubeconfig"

    @property
    def netns(self) -> str:
        return f"farlet-{self.fleet.id}-{self.name}"

    @property
    def netns_path(self) -> Path:
        return Path("/run/netns") / self.netns

    @property
    def cgroup(self) -> str:
        return f"farlet-{self.fleet.id}-{self.name}"

    @property
    def host_interface(self) -> str:
        return f"fl{self.fleet.id}-{self.index}"

    @property
    def node_name(self) -> str:
        return f"{self.name}-node"

    @property
    def node_network(self) -> IPv4Network:
        return IPv4Network((int(self.base.network_address) + (self.slot * 16 + self.index) * 256, 24))

    @property
    def gateway(self) -> IPv4Address:
        """The machine's own end of the cluster's link."""
        return self.node_network[1]

    @property
    def ip(self) -> IPv4Address:
        """The one address of the cluster's host: API server and kubelet listen here."""
        return self.node_network[2]

    @property
    def server(self) -> str:
        return f"https://{self.ip}:{API_PORT}"

    @property
    def pods(self) -> IPv4Network:
        return IPv4Network(f"10.{_PODS + self.index}.0.0/16")

    @property
    def services(self) -> IPv4Network:
        return IPv4Network(f"10.{_SERVICES + self.index}.0.0/16")

    @property
    def pods6(self) -> IPv6Network:
        """Besides *pods*, where a cluster is dual-stack."""
        return IPv6Network(f"fd00:{_PODS + self.index}::/56")

    @property
    def services6(self) -> IPv6Network:
        return IPv6Network(f"fd00:{_SERVICES + self.index}::/112")

    @property
    def kubernetes_service_ip(self) -> IPv4Address:
        return self.services[1]

    @property
    def dns_service_ip(self) -> IPv4Address:
        return self.services[10]

    @property
    def metrics_service_ip(self) -> IPv4Address:
        return self.services[11]

    def wire(self, peer: ClusterLayout) -> Wire:
        """This cluster's end of the link to *peer*."""
        low, high = sorted((self.index, peer.index))
        pair = (low - 1) * MAX_CLUSTERS + (high - 1)
        network = IPv4Network((int(self.base.network_address) + self.slot * 16 * 256 + pair * 4, 30))
        mine, theirs = (network[1], network[2]) if self.index == low else (network[2], network[1])
        return Wire(interface=f"wire{peer.index}", address=mine, peer_address=theirs)


@dataclass(frozen=True, slots=True)
class Wire:
    """One end of the point-to-point link between two clusters."""

    interface: str
    address: IPv4Address
    peer_address: IPv4Address


def base_network() -> IPv4Network:
    """The /16 for node addresses; ``FARLET_DEVCLUSTER_NETWORK`` moves it where the default is in use."""
    given = os.environ.get("FARLET_DEVCLUSTER_NETWORK", "10.254.0.0/16")
    try:
        network = IPv4Network(given)
    except ValueError as error:
        raise DevclusterError(f"FARLET_DEVCLUSTER_NETWORK={given}: {error}") from error
    if network.prefixlen != 16:
        raise DevclusterError(f"FARLET_DEVCLUSTER_NETWORK={given}: a /16 is needed, such as 10.254.0.0/16")
    first, second = network.network_address.packed[:2]
    if first == 10 and any(0 < second - start <= MAX_CLUSTERS for start in (_PODS, _SERVICES)):
        raise DevclusterError(f"FARLET_DEVCLUSTER_NETWORK={given}: the clusters' pods or services have these addresses")
    return network
