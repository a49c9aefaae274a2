"""A machine that gets another address while Farlet runs on it: the node says so, and its certificate is for it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster import network
from devcluster.cluster import Cluster
from tests.cluster.farlet import running
from tests.eventually import eventually

pytestmark = pytest.mark.cluster

FIRST, SECOND = "198.18.0.2", "198.18.0.3"
"""Of a network for benchmarks (RFC 2544), that only this test's namespaces know of."""


class Machine:
    """A host of its own, with a wire to each of the two clusters."""

    def __init__(self, local: Cluster, remote: Cluster) -> None:
        self._name = f"farlet-{uuid.uuid4().hex[:8]}"
        self._local, self._remote = local.layout, remote.layout
        self.within = ("nsenter", f"--net=/run/netns/{self._name}", "--")

    def make(self) -> None:
        network.run(["ip", "netns", "add", self._name])
        self._ip("link set lo up")
        for device, cluster, peer in (("near", self._local, "198.18.0.1"), ("far", self._remote, "198.18.1.1")):
            other = self._name[-8:]
            network.run(
                ["ip", "-n", self._name, "link", "add", device, "type", "veth", "peer", other, "netns", cluster.netns]
            )
            network.run(["ip", "-n", cluster.netns, "address", "add", f"{peer}/24", "dev", other])
            network.run(["ip", "-n", cluster.netns, "link", "set", other, "up"])
            self._ip(f"link set {device} up")
        self._ip("address add 198.18.1.2/24 dev far")
        self._ip(f"route add {self._remote.ip} via 198.18.1.1")

    def move_to(self, address: str) -> None:
        """Have this address, and no other, towards the local cluster."""
        self._ip("address flush dev near")
        self._ip(f"address add {address}/24 dev near")
        self._ip(f"route add {self._local.ip} via 198.18.0.1")

    def remove(self) -> None:
        network.run(["ip", "netns", "delete", self._name])  # the wires go with it

    def _ip(self, command: str) -> None:
        network.run(["ip", "-n", self._name, *command.split()])


@pytest.fixture
def machine(local: Cluster, remote: Cluster) -> Iterator[Machine]:
    machine = Machine(local, remote)
    machine.make()
    try:
        yield machine
    finally:
        machine.remove()


def node_address(local: Cluster, node: str) -> str:
    path = "jsonpath={.status.addresses[*].address}"
    return local.kubectl("get", "node", node, "-o", path).stdout


def test_another_address_while_it_runs(
    local: Cluster, remote: Cluster, machine: Machine, namespace: str, virtual_node: str, tmp_path: Path
) -> None:
    machine.move_to(FIRST)
    mapped = ["--namespace", f"{namespace}={namespace}"]
    with running(local, remote, virtual_node, tmp_path, *mapped, within=machine.within) as farlet:

        def reached() -> bool:
            """By the API server, which verifies the certificate."""
            path = f"/api/v1/nodes/{virtual_node}/proxy/healthz"
            return local.kubectl("get", "--raw", path, check=False).stdout == "ok"

        assert node_address(local, virtual_node) == FIRST
        eventually(reached, "the kubelet API is reached at the first address", timeout=60)
        machine.move_to(SECOND)
        eventually(
            lambda: node_address(local, virtual_node), "the node moves", until=lambda found: found == SECOND, timeout=90
        )
        eventually(reached, "the kubelet API is reached at the second address", timeout=60)
        log = farlet.log.read_text()
        assert f"node {virtual_node} is at {SECOND} now, not at {FIRST}" in log
        assert f"serving certificate for {SECOND}" in log
