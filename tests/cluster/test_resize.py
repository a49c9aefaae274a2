"""The node is as large as what stands behind it, whoever says how large that is, and follows while it runs.

Two control planes with fake nodes are enough: nothing here needs a container.
"""

from __future__ import annotations

import http.server
import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.names import TAINT_UNREACHABLE
from devcluster import faults, kwok
from devcluster.cluster import Cluster
from devcluster.fleet import Fleet
from tests.cluster.farlet import ANY_PORT, Farlet, install_rights, pod_manifest, running
from tests.eventually import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.xdist_group("scratch"),  # one at a time: each has clusters of its own besides the shared ones
]

ON_FAKE_NODES = ("--remote-toleration", kwok.TAINT["key"])
QUICK = ("--capacity-settle", "0.5", "--capacity-interval", "0.2")
GPU = "example.com/gpu"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FARLET_DEVCLUSTER_STATE", str(tmp_path_factory.mktemp("checkout")))
        fleet = Fleet("resize")
        fleet.up(["local", "remote"], real=False, kwok_nodes=1, metrics=False)
        install_rights(fleet.cluster("local"), fleet.cluster("remote"))
        yield fleet
        fleet.down()


@pytest.fixture
def local(pair: Fleet) -> Cluster:
    return pair.cluster("local")


@pytest.fixture
def remote(pair: Fleet) -> Cluster:
    return pair.cluster("remote")


@pytest.fixture
def namespace(pair: Fleet, virtual_node: str) -> Iterator[str]:
    """A namespace of that name in both clusters."""
    for cluster in pair.clusters():
        cluster.kubectl("create", "namespace", virtual_node)
        eventually(
            lambda c=cluster: c.kubectl("-n", virtual_node, "get", "serviceaccount", "default"),  # type: ignore[misc]
            "its default ServiceAccount",
        )
    yield virtual_node
    for cluster in pair.clusters():
        cluster.kubectl("delete", "namespace", virtual_node, "--wait=false")


# ------------------------------------------------------------------ the remote nodes


def test_the_remote_nodes(local: Cluster, remote: Cluster, namespace: str, virtual_node: str, tmp_path: Path) -> None:
    """The three examples of the first specification, one after another; one GPU stays one."""
    resize(remote, "kwok-0", {"cpu": "100", GPU: "1"})
    options = (*ON_FAKE_NODES, *QUICK, "--rounding", "up", "--node-taint", "example.com/far:NoExecute")
    with running(local, remote, virtual_node, tmp_path, *options) as farlet:
        eventually_offers(farlet, cpu="90", **{GPU: "1"})
        said = farlet.log.read_text()
        assert "offers cpu 90, memory " in said
        assert "(90 % of what is free on the remote nodes)" in said
        assert "the node becomes NotReady (no local node has a providerID" in said
        assert "missing" not in said
        assert "tolerate example.com/far" in said
        assert [(t["key"], t["effect"]) for t in node(farlet)["spec"]["taints"]] == [("example.com/far", "NoExecute")]

        run_elsewhere(remote, namespace, "theirs", "kwok-0", {"cpu": "50"})
        eventually_offers(farlet, cpu="45")

        remote.kubectl("-n", namespace, "delete", "pod", "theirs", "--grace-period=0", "--force")
        twin = kwok.node(1)
        twin["status"]["capacity"] = twin["status"]["allocatable"] = {**twin["status"]["allocatable"], "cpu": "100"}
        remote.api.post("/api/v1/nodes", twin)
        eventually_offers(farlet, cpu="180")
        remote.kubectl("delete", "node", "kwok-1")
        eventually_offers(farlet, cpu="90")


def resize(cluster: Cluster, name: str, allocatable: dict[str, str]) -> None:
    body = json.dumps({"status": {"allocatable": allocatable, "capacity": allocatable}})
    cluster.kubectl("patch", "node", name, "--subresource=status", "-p", body)


def run_elsewhere(cluster: Cluster, namespace: str, name: str, on: str, requests: dict[str, str]) -> None:
    """A pod that is not ours."""
    container = {"name": "main", "image": "fake", "resources": {"requests": requests}}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"nodeName": on, "containers": [container]},
    }
    cluster.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps(body))


# ------------------------------------------------------------------ a quota


def test_a_quota(local: Cluster, remote: Cluster, namespace: str, virtual_node: str, tmp_path: Path) -> None:
    set_quota(remote, namespace, "compute", {"requests.cpu": "10", "requests.memory": "20Gi", "pods": "9"})
    run_elsewhere(remote, namespace, "theirs", "kwok-0", {"cpu": "2", "memory": "1Gi"})
    eventually(lambda: used_cpu(remote, namespace) == "2", "the quota has counted the pod")
    mapping = f"{namespace}={namespace}"
    options = (*ON_FAKE_NODES, *QUICK, "--capacity-quota", f"{namespace}/compute", "--namespace", mapping)
    with running(local, remote, virtual_node, tmp_path, *options) as farlet:
        eventually_offers(farlet, cpu="8", memory="19Gi", pods="8")
        assert f"offers cpu 8, memory 19Gi, pods 8 (the ResourceQuota {namespace}/compute)" in farlet.log.read_text()

        # what is ours is subtracted by the local scheduler, not by us: the size stays, at every moment
        written = node(farlet)["metadata"]["managedFields"]
        size_written = [entry["time"] for entry in written if "f:allocatable" in json.dumps(entry)]
        resources = {"requests": {"cpu": "3", "memory": "1Gi"}}
        container = {"name": "main", "image": "fake", "resources": resources}
        local.kubectl(
            "-n", namespace, "apply", "-f", "-", stdin=pod_manifest("ours", virtual_node, containers=[container])
        )
        phase = ("-n", namespace, "get", "pod", "ours", "-o", "jsonpath={.status.phase}")
        eventually(lambda: local.kubectl(*phase).stdout == "Running", "our pod runs")
        assert used_cpu(remote, namespace) == "5"
        local.kubectl("-n", namespace, "delete", "pod", "ours")
        eventually(lambda: used_cpu(remote, namespace) == "2", "the quota has forgotten our pod")
        assert offered(farlet)["cpu"] == "8"
        written = node(farlet)["metadata"]["managedFields"]
        assert [entry["time"] for entry in written if "f:allocatable" in json.dumps(entry)] == size_written

        set_quota(remote, namespace, "compute", {"requests.cpu": "20", "requests.memory": "20Gi", "pods": "9"})
        eventually_offers(farlet, cpu="18")
        remote.kubectl("-n", namespace, "delete", "resourcequota", "compute")
        eventually(lambda: f"{namespace} has no ResourceQuota compute" in farlet.log.read_text(), "it is said once")
        assert offered(farlet)["cpu"] == "18"
        set_quota(remote, namespace, "compute", {"requests.cpu": "6", "requests.memory": "20Gi", "pods": "9"})
        eventually_offers(farlet, cpu="4")


def set_quota(cluster: Cluster, namespace: str, name: str, hard: dict[str, str], **spec: Any) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": {"hard": hard, **spec}}
    cluster.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps(quota))


def used_cpu(cluster: Cluster, namespace: str) -> str:
    path = r"jsonpath={.status.used.requests\.cpu}"
    return cluster.kubectl("-n", namespace, "get", "resourcequota", "compute", "-o", path).stdout


# ------------------------------------------------------------------ a command, a URL


def test_a_command(local: Cluster, remote: Cluster, virtual_node: str, tmp_path: Path) -> None:
    size = tmp_path / "the size"
    size.write_text(f"cpu=7 # cores\nmemory=3Gi\n{GPU}=2\n")
    limited = without(remote, "patch", "pods/resize")
    options = (*QUICK, "--capacity-command", shlex.join(["cat", str(size)]), "--remote-kubeconfig", str(limited))
    with running(local, remote, virtual_node, tmp_path, *options) as farlet:
        eventually_offers(farlet, cpu="7", memory="3Gi", pods="10k", **{GPU: "2"})
        said = farlet.log.read_text()
        assert "missing in the remote cluster: patch pods/resize: pods are not resized in place" in said
        replace(size, '{"cpu": 7.5, "memory": "3Gi"}')
        eventually_offers(farlet, cpu="7500m")
        assert GPU not in offered(farlet)
        size.unlink()
        eventually(lambda: "ended with exit code 1: cat: " in farlet.log.read_text(), "it is said")
        assert offered(farlet)["cpu"] == "7500m"
        replace(size, "cpu=1")
        eventually_offers(farlet, cpu="1")


def replace(file: Path, text: str) -> None:
    """In one step: whoever reads it sees the old or the new."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.rename(file)


def without(cluster: Cluster, verb: str, resource: str) -> Path:
    """The kubeconfig of a ServiceAccount with all rights of the remote manifest but one."""
    role = json.loads(cluster.kubectl("get", "clusterrole", "farlet:remote", "-o", "json").stdout)
    rules = []
    for rule in role["rules"]:
        for each in rule["resources"]:
            verbs = [word for word in rule["verbs"] if (word, each) != (verb, resource)]
            if verbs:
                rules.append({**rule, "resources": [each], "verbs": verbs})
    name = "limited"
    limited = {"apiVersion": role["apiVersion"], "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(limited))
    return cluster.service_account_kubeconfig("farlet", name, cluster_role=name)


def test_a_url_and_a_local_cloud(
    pair: Fleet, local: Cluster, remote: Cluster, virtual_node: str, tmp_path: Path
) -> None:
    """Where a cloud knows the local nodes, an unreachable remote does not make the node NotReady."""
    local.kubectl("patch", "node", "kwok-0", "-p", json.dumps({"spec": {"providerID": "cloud:///zone/kwok-0"}}))
    probe = ("--probe-interval", "0.5", "--probe-timeout", "0.5", "--probe-failures", "1")
    with serving('{"cpu": "4", "memory": "8Gi"}') as server:
        options = (*QUICK, *probe, "--capacity-url", f"http://127.0.0.1:{server.server_port}/size?token=secret")
        with running(local, remote, virtual_node, tmp_path, *options) as farlet:
            eventually_offers(farlet, cpu="4", memory="8Gi")
            assert "the node stays Ready (local node kwok-0 has a providerID" in farlet.log.read_text()
            server.says = '{"cpu": "5", "memory": "8Gi"}'
            eventually_offers(farlet, cpu="5")

            faults.pause(remote, "kube-apiserver")
            try:
                eventually(lambda: TAINT_UNREACHABLE in json.dumps(node(farlet)["spec"]), "new pods are kept away")
                assert farlet.ready()
            finally:
                faults.resume(remote, "kube-apiserver")
            eventually(lambda: TAINT_UNREACHABLE not in json.dumps(node(farlet)["spec"]), "and welcome again")

            server.says = "nonsense"
            eventually(lambda: "/size: line 1: 'nonsense' is not name=quantity" in farlet.log.read_text(), "it is said")
            assert offered(farlet)["cpu"] == "5"
            assert "secret" not in farlet.log.read_text()
    eventually(remote.healthy, "the remote is well again")
    local.kubectl("delete", "node", "kwok-0")
    local.set_kwok_nodes(1)


class Server(http.server.ThreadingHTTPServer):
    """Answers everything with one text."""

    says = ""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.server.says.encode())

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@contextmanager
def serving(says: str) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), _Handler) as server:
        server.says = says
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


# ------------------------------------------------------------------ what cannot work


def test_what_cannot_work_is_one_line_at_start(local: Cluster, remote: Cluster, namespace: str, tmp_path: Path) -> None:
    set_quota(remote, namespace, "scoped", {"pods": "3"}, scopes=["NotTerminating"])
    bare = remote.service_account_kubeconfig("farlet", "bare")
    bare_local = local.service_account_kubeconfig("farlet", "bare")
    cases = [
        (["--capacity-quota", f"{namespace}/none"], f"the remote namespace {namespace} has no ResourceQuota none"),
        (["--capacity-quota", namespace], f"ResourceQuota scoped of the remote namespace {namespace} says nothing"),
        (["--capacity-command", "false"], "--capacity-command false: ended with exit code 1; it must say"),
        (["--capacity-url", "http://127.0.0.1:1/"], "--capacity-url http://127.0.0.1:1/: cannot be reached: "),
        (["--capacity", "cpu=many"], "in 'cpu=many': cpu: 'many' is not a quantity"),
        (["--remote-kubeconfig", str(bare)], "or the rights of manifests/remote-rbac.yaml"),
        (["--kubeconfig", str(bare_local)], "in the local cluster these rights are missing: get, list, watch, create"),
    ]
    common = [
        *("--kubeconfig", str(local.service_account_kubeconfig("farlet", "farlet"))),
        *("--remote-kubeconfig", str(remote.service_account_kubeconfig("farlet", "farlet"))),
        *("--node-name", f"no-{namespace}", *ANY_PORT),
    ]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda case: start(*common, *case[0]), cases))
    for result, (_, says) in zip(results, cases, strict=True):
        assert result.returncode == 1, result
        last = result.stderr.splitlines()[-1]
        assert last.startswith("farlet run: "), result.stderr
        assert says in last
    assert local.kubectl("get", "node", f"no-{namespace}", check=False).returncode != 0


def start(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "app", "run", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env={**os.environ})


# ------------------------------------------------------------------ the node


def node(farlet: Farlet) -> dict[str, Any]:
    text = farlet.local.kubectl("get", "node", farlet.node, "-o", "json", "--show-managed-fields").stdout
    found: dict[str, Any] = json.loads(text)
    return found


def offered(farlet: Farlet) -> dict[str, str]:
    status = node(farlet)["status"]
    assert status["allocatable"] == status["capacity"]
    allocatable: dict[str, str] = status["allocatable"]
    return allocatable


def eventually_offers(farlet: Farlet, **expected: str) -> None:
    eventually(
        lambda: offered(farlet), f"the node offers {expected}", until=lambda found: expected.items() <= found.items()
    )
