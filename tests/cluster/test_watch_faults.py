"""Watches that hang, history that is gone, tokens and locks that are lost: all catches up, nothing is made anew."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from app import names
from devcluster import faults
from devcluster.cluster import Cluster
from devcluster.controlplane import API_SERVER
from devcluster.fleet import Fleet
from tests.cluster import audit
from tests.cluster.farlet import Farlet, install_rights, pod_manifest, running
from tests.cluster.gate import Gate, gate
from tests.cluster.objects import (
    Object,
    apply,
    get,
    remote_of,
    restarts,
    settle,
    twins,
    uids,
    wait_ready,
)
from tests.eventually import eventually

pytestmark = pytest.mark.faults

NODE_CONTROLLER = "system:serviceaccount:kube-system:node-controller"

SIDES = pytest.mark.parametrize("side", ["local", "remote"])


@dataclass
class Place:
    """A Farlet that reaches both clusters through gates, and four pods that it runs."""

    farlet: Farlet
    namespace: str
    gates: dict[str, Gate]
    clusters: dict[str, Cluster]
    tokens: dict[str, Path]
    before: dict[str, Object]
    """The local pods as they were."""
    remote_before: dict[str, set[str]]
    """The UIDs of their remote pods."""
    marks: dict[str, int]

    def pod(self, name: str) -> Object:
        return get(self.farlet.local, self.namespace, "pod", name)

    def remote_uids(self, name: str) -> set[str]:
        return uids(remote_of(self.farlet, self.namespace, self.before[name]))

    def change(self) -> None:
        """Something happens on each side: a pod is made, one is deleted, a remote one is replaced."""
        local, remote = self.farlet.local, self.farlet.remote
        apply(local, self.namespace, pod_manifest("new", self.farlet.node))
        local.kubectl("-n", self.namespace, "delete", "pod", "gone", "--wait=false")
        label = f"{names.LABEL_POD_UID}={self.before['replaced']['metadata']['uid']}"
        remote.kubectl("-n", self.namespace, "delete", "pod", "-l", label)

    def caught_up(self) -> None:
        """All that happened is told on the other side, and what nothing happened to was left alone."""
        local = self.farlet.local
        wait_ready(local, self.namespace, "pod/new")
        eventually(lambda: restarts(self.pod("replaced")), "the replacement is seen", until=lambda count: count == 1)
        wait_ready(local, self.namespace, "pod/replaced")
        self.is_gone(self.before["gone"])
        assert self.remote_uids("gone") == set()
        for name in ("kept", "once"):
            assert self.pod(name)["metadata"]["uid"] == self.before[name]["metadata"]["uid"]
            assert self.remote_uids(name) == self.remote_before[name], f"{name}: the remote pod is the same"
            assert restarts(self.pod(name)) == 0
        assert self.pod("replaced")["metadata"]["uid"] == self.before["replaced"]["metadata"]["uid"]
        assert len(twins(self.farlet, self.namespace, "replicasets")) == 3
        assert len(twins(self.farlet, self.namespace, "jobs")) == 1
        self._left_alone("kept")
        self._left_alone("once")
        # where the API server was away for long, the node controller may have called the node Unknown just now
        eventually(self.farlet.ready, "the node is Ready, and it is still the same process")

    def is_gone(self, pod: Object) -> None:
        """Wait until a local pod is."""

        def left() -> set[str]:
            return uids([pod]) & uids(get(self.farlet.local, self.namespace, "pods")["items"])

        eventually(left, f"{pod['metadata']['name']} is gone", until=lambda found: not found)

    def come_and_go(self) -> Object:
        """A pod whose twin is made and deleted while no remote watch passes: nothing will ever tell of the twin."""
        local = self.farlet.local
        apply(local, self.namespace, pod_manifest("brief", self.farlet.node))
        pod = self.pod("brief")

        def remote() -> list[Object]:
            return [
                item for kind in ("replicasets", "pods") for item in remote_of(self.farlet, self.namespace, pod, kind)
            ]

        eventually(remote, "its twin is made")
        local.kubectl("-n", self.namespace, "delete", "pod", "brief", "--wait=false")
        eventually(remote, "and deleted", until=lambda found: not found)
        return pod

    def _left_alone(self, name: str) -> None:
        """Nothing was written to a pod or its twin without a cause.

        A kubelet goes on for a while after a pod is Ready; and where the local API server takes its time to start, the
        node controller calls the pods of a node that was not heard of not Ready, which is put right. An API server that
        has just started knows nobody's rights: what it refuses is written again.
        """
        written = {
            side: audit.writes(cluster, self.marks[side], self.namespace, accepted=True)
            for side, cluster in self.clusters.items()
        }
        assert [line for line in written["remote"] if f" {name}-" in line] == []
        ours = [line for line in written["local"] if f" {name} " in line]
        causes = [*self._status_writes("remote", "system:node:*"), *self._status_writes("local", NODE_CONTROLLER)]
        due = [pod for pod in causes if pod == name or pod.startswith(f"{name}-")]
        assert len(ours) <= len(due), f"{ours} of {written['local']}"

    def _status_writes(self, side: str, user: str) -> list[str]:
        return audit.status_writes(self.clusters[side], self.marks[side], self.namespace, user)


def token_file(cluster: Cluster, path: Path, holder: str) -> None:
    """Write a token of Farlet's that is valid as long as a Secret is there, as a person rotates one: in one go."""
    cluster.kubectl("-n", "farlet", "create", "secret", "generic", holder)
    bound = ["--bound-object-kind", "Secret", "--bound-object-name", holder]
    token = cluster.kubectl("-n", "farlet", "create", "token", "farlet", *bound).stdout.strip()
    aside = path.with_suffix(".new")
    aside.touch(mode=0o600)
    aside.write_text(token)
    aside.replace(path)


def kubeconfig_with(cluster: Cluster, opened: Gate, folder: Path, token: Path) -> Path:
    """Farlet's kubeconfig through the gate, with its token in a file of its own."""
    path = folder / f"{cluster.name}.kubeconfig"
    opened.kubeconfig(cluster.service_account_kubeconfig("farlet", "farlet"), path)
    config = json.loads(path.read_text())
    config["users"][0]["user"] = {"tokenFile": str(token)}
    path.write_text(json.dumps(config))
    return path


@pytest.fixture
def place(faulty: Fleet, faulty_namespace: str, virtual_node: str, tmp_path: Path) -> Iterator[Place]:
    clusters = {cluster.name: cluster for cluster in faulty.clusters()}
    tokens = {name: tmp_path / f"{name}.token" for name in clusters}
    install_rights(clusters["local"], clusters["remote"])
    with contextlib.ExitStack() as stack:
        gates = {name: stack.enter_context(gate(cluster)) for name, cluster in clusters.items()}
        for name, cluster in clusters.items():
            token_file(cluster, tokens[name], f"{faulty_namespace}-first")
        files = {
            name: str(kubeconfig_with(cluster, gates[name], tmp_path, tokens[name]))
            for name, cluster in clusters.items()
        }
        options = ["--kubeconfig", files["local"], "--remote-kubeconfig", files["remote"], "--watch-silence", "5"]
        options += ["--on-unreachable", "keep"]  # an API server that takes long to start is no news for the pods
        options += ["--namespace", f"{faulty_namespace}={faulty_namespace}"]
        farlet = stack.enter_context(running(clusters["local"], clusters["remote"], virtual_node, tmp_path, *options))
        manifests = [pod_manifest(name, farlet.node) for name in ("kept", "replaced", "gone")]
        apply(farlet.local, faulty_namespace, *manifests, pod_manifest("once", farlet.node, restartPolicy="Never"))
        wait_ready(farlet.local, faulty_namespace, "pod", "--all")
        settle(farlet, faulty_namespace)
        before = {pod["metadata"]["name"]: pod for pod in get(farlet.local, faulty_namespace, "pods")["items"]}
        remote_before = {name: uids(remote_of(farlet, faulty_namespace, pod)) for name, pod in before.items()}
        marks = {name: audit.mark(clusters[name]) for name in ("remote", "local")}
        yield Place(farlet, faulty_namespace, gates, clusters, tokens, before, remote_before, marks)


@SIDES
def test_watches_that_hang(place: Place, side: str) -> None:
    """They stay open and say nothing, as behind a firewall that has forgotten them; other requests pass."""
    assert place.gates[side].hang_watches() > 0
    place.change()
    place.caught_up()
    assert "API server was silent for 5 s" in place.farlet.log.read_text()


@SIDES
def test_history_that_is_gone(place: Place, side: str) -> None:
    """While no watch passes, etcd is compacted: there is nothing to resume from, so all is listed again."""
    cluster, opened = place.clusters[side], place.gates[side]
    opened.shut()
    place.change()
    brief: Object = place.come_and_go() if side == "remote" else {}
    faults.kill(cluster, API_SERVER)
    faults.compact(cluster)
    faults.start(cluster, API_SERVER)
    eventually(cluster.healthy, "the cluster is back", timeout=120)
    passed = opened.watches
    opened.open()
    eventually(lambda: opened.watches > passed, "a watch passes again")
    if brief:
        place.is_gone(brief)
    place.caught_up()
    assert "too old resource version" in place.farlet.log.read_text()


@SIDES
def test_a_token_that_is_revoked_and_replaced(place: Place, side: str) -> None:
    """Nothing passes until there is another token in the file; then everything goes on, in the same process."""
    cluster, opened = place.clusters[side], place.gates[side]
    cluster.kubectl("-n", "farlet", "delete", "secret", f"{place.namespace}-first")
    opened.shut()  # a watch that is open would outlive its token
    opened.open()
    eventually(lambda: "refuses the credentials" in place.farlet.log.read_text(), "the token is refused", timeout=30)
    place.change()
    token_file(cluster, place.tokens[side], f"{place.namespace}-second")
    place.caught_up()
    cluster.kubectl("-n", "farlet", "delete", "secret", f"{place.namespace}-second")


def test_a_lock_that_is_lost_and_an_api_server_that_refuses_meanwhile(place: Place) -> None:
    """As one does that has just started, and knows nobody's rights yet: it is asked again, by the same process."""
    farlet, opened = place.farlet, place.gates["local"]
    opened.refuse(f"GET /api/v1/nodes/{farlet.node} ")
    taken = {"spec": {"holderIdentity": "another", "leaseDurationSeconds": 1, "renewTime": None}}
    lock = ["-n", names.LOCK_NAMESPACE, "patch", "lease", names.lock_name(farlet.node), "--type=merge"]
    farlet.local.kubectl(*lock, "-p", json.dumps(taken))
    eventually(lambda: opened.refusals >= 2, "it leads again, and is refused more than once")
    assert farlet.log.read_text().count("is looked after") == 1
    opened.refuse("nothing")
    eventually(lambda: farlet.log.read_text().count("is looked after") == 2, "it looks after the node again")
    place.change()
    place.caught_up()
