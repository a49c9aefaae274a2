"""Farlet in the local cluster, from ``manifests/`` as docs/install.md says: in a pod that may nothing, and kubectl
through it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from app import names
from app.namespaces.mapping import remote_name
from devcluster.cluster import Cluster
from devcluster.fleet import Fleet
from tests.cluster.conftest import IMAGE
from tests.cluster.farlet import MANIFESTS, install_rights, pod_manifest
from tests.cluster.objects import Object, get, wait_ready
from tests.eventually import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.xdist_group("labels"),
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("_deployed"),
]

NODE = HOME = "farlet"
"""The node and the namespace that the manifests name; no other test uses this node."""
OWN = ("deployment/farlet", "service/farlet", "networkpolicy/farlet", "poddisruptionbudget/farlet")
SCRIPT = "echo up; exec sleep 1000000"


@pytest.fixture
def offloaded(local: Cluster, remote: Cluster, namespace: str) -> Iterator[tuple[str, str]]:
    """A namespace that is offloaded, and its remote one."""
    local.kubectl("label", "namespace", namespace, f"{names.LABEL_ENABLED}=true")
    cluster = local.kubectl("get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}").stdout
    there = remote_name(namespace, hashlib.sha256(cluster.encode()).hexdigest()[:8])
    yield namespace, there
    remote.kubectl("delete", "namespace", there, "--ignore-not-found", "--wait=false")


@pytest.fixture(scope="module")
def _deployed(fleet: Fleet, image_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """``kubectl apply -k`` of a kustomization of one's own, which says where the image is."""
    local, remote = fleet.cluster("local"), fleet.cluster("remote")
    folder = tmp_path_factory.mktemp("my-farlet").resolve()
    local.load_image(image_archive)
    install_rights(local, remote)
    credentials = remote.service_account_kubeconfig("farlet", "farlet")
    secret = ["create", "secret", "generic", "farlet-remote", f"--from-file=kubeconfig={credentials}"]
    local.kubectl("-n", HOME, *secret)
    name, _, tag = IMAGE.rpartition(":")
    overlay = {
        "resources": [os.path.relpath(MANIFESTS, folder)],
        "images": [{"name": "farlet", "newName": name, "newTag": tag}],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(overlay))
    try:
        local.kubectl("apply", "-k", str(folder))
        rolled_out(local)
        yield
    finally:
        for what in (["logs", "deployment/farlet", "--all-pods", "--prefix"], ["get", "events"]):
            print(local.kubectl("-n", HOME, *what, check=False).stdout[-6000:])  # noqa: T201 - for a test that fails
        # not with -k: the namespace and the rights are those of other tests, too
        local.kubectl("-n", HOME, "delete", *OWN, "secret/farlet-remote", "--ignore-not-found")
        eventually(lambda: not farlet_pods(local), "Farlet's pods end", timeout=120)
        local.kubectl("delete", "node", NODE, "--ignore-not-found", "--wait=false")


def rolled_out(local: Cluster) -> None:
    local.kubectl("-n", HOME, "rollout", "status", "deployment/farlet", "--timeout=180s", timeout=200)


def farlet_pods(local: Cluster) -> list[Object]:
    items: list[Object] = get(local, HOME, "pods", "-l", "app.kubernetes.io/name=farlet")["items"]
    return items


def node_address(local: Cluster) -> str:
    path = "jsonpath={.status.addresses[?(@.type=='InternalIP')].address}"
    return local.kubectl("get", "node", NODE, "-o", path).stdout


def test_a_deployment_serves_the_node_and_is_replaced_without_harm(
    local: Cluster, remote: Cluster, offloaded: tuple[str, str]
) -> None:
    namespace, there = offloaded
    local.kubectl("wait", "--for=condition=Ready", f"node/{NODE}", "--timeout=120s", timeout=130)
    container = {"name": "main", "image": "farlet/busybox:1", "command": ["sh", "-c", SCRIPT]}
    pod = pod_manifest("box", NODE, containers=[container])
    local.kubectl("-n", namespace, "apply", "-f", "-", stdin=pod)
    wait_ready(local, namespace, "pod/box")

    def reaches_in() -> bool:
        logs = local.kubectl("-n", namespace, "logs", "box").stdout
        printed = local.kubectl("-n", namespace, "exec", "box", "--", "sh", "-c", "hostname").stdout
        return logs == "up\n" and bool(printed.strip())

    def running() -> dict[str, int]:
        """UID and restarts of what the remote cluster runs."""
        pods = get(remote, there, "pods")["items"]
        return {p["metadata"]["uid"]: p["status"]["containerStatuses"][0]["restartCount"] for p in pods}

    assert reaches_in()
    assert local.kubectl("-n", namespace, "exec", "box", "--", "sh", "-c", "exit 7", check=False).returncode == 7
    (before,) = farlet_pods(local)
    assert node_address(local) == before["status"]["podIP"]
    remote_before = running()
    assert list(remote_before.values()) == [0]
    eventually(
        lambda: local.kubectl("-n", HOME, "logs", before["metadata"]["name"]).stdout,
        "it says that the API server reaches it",
        until=lambda log: "kubectl logs and exec work: the API server reaches" in log,
    )

    local.kubectl("-n", HOME, "rollout", "restart", "deployment/farlet")
    rolled_out(local)
    eventually(lambda: len(farlet_pods(local)) == 1, "the old pod ends", timeout=120)
    (after,) = farlet_pods(local)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    eventually(
        lambda: node_address(local), "the node has the new pod's address", until=lambda a: a == after["status"]["podIP"]
    )
    eventually(reaches_in, "kubectl logs and exec go through the new pod")
    assert running() == remote_before
    assert [c["restartCount"] for c in after["status"]["containerStatuses"]] == [0]


def test_pod_security_and_the_node_affinity_hold(local: Cluster) -> None:
    labels = get(local, HOME, "namespace", HOME)["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    (pod,) = farlet_pods(local)
    assert pod["spec"]["nodeName"] != NODE
    write = local.kubectl("-n", HOME, "exec", pod["metadata"]["name"], "--", "touch", "/tmp/x", check=False)
    assert "Read-only file system" in write.stderr
    user = local.kubectl("-n", HOME, "exec", pod["metadata"]["name"], "--", "id", "-u").stdout
    assert user.strip() == "65532"
    refused = local.kubectl("-n", HOME, "run", "x", "--image=x", "--restart=Never", check=False)
    assert "violates PodSecurity" in refused.stderr
