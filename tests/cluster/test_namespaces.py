"""Remote namespaces that Farlet made go when their local ones have gone, if nothing is in them; no others ever do."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from app import names
from app.namespaces.mapping import remote_name
from devcluster.cluster import Cluster
from tests.cluster.farlet import Farlet, pod_manifest, running
from tests.eventually import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("labels")]


@pytest.fixture
def farlet(local: Cluster, remote: Cluster, virtual_node: str, tmp_path: Path) -> Iterator[Farlet]:
    """One that goes by the label."""
    with running(local, remote, virtual_node, tmp_path) as farlet:
        yield farlet


@pytest.fixture
def spaces(local: Cluster, remote: Cluster, virtual_node: str) -> Iterator[list[str]]:
    """Local namespaces that are offloaded; those that are left, and the remote ones, are removed afterwards."""
    made = [f"{virtual_node}-{letter}" for letter in "ab"]
    for name in made:
        enable(local, name)
    yield made
    for cluster, found in ((local, made), (remote, [there(local, name) for name in made])):
        cluster.kubectl("delete", "namespace", *found, "--ignore-not-found", "--wait=false")


def enable(local: Cluster, name: str) -> None:
    local.kubectl("create", "namespace", name)
    local.kubectl("label", "namespace", name, f"{names.LABEL_ENABLED}=true")
    eventually(lambda: local.kubectl("-n", name, "get", "serviceaccount", "default"), "the ServiceAccount")


def there(local: Cluster, name: str) -> str:
    """The remote namespace of a local one."""
    cluster = local.kubectl("get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}").stdout
    return remote_name(name, hashlib.sha256(cluster.encode()).hexdigest()[:8])


def uid(cluster: Cluster, name: str) -> str:
    """Of a namespace; empty if it is not there, or going."""
    found = cluster.kubectl("get", "namespace", name, "-o", "json", "--ignore-not-found").stdout
    metadata = json.loads(found)["metadata"] if found else {}
    return "" if "deletionTimestamp" in metadata else str(metadata.get("uid") or "")


def offload(farlet: Farlet, name: str) -> None:
    farlet.local.kubectl("-n", name, "apply", "-f", "-", stdin=pod_manifest("box", farlet.node))
    wait = ["wait", "--for=condition=Ready", "pod/box", "--timeout=120s"]
    farlet.local.kubectl("-n", name, *wait, timeout=130)


def test_it_goes_with_the_local_one_and_comes_again(farlet: Farlet, spaces: list[str]) -> None:
    local, remote = farlet.local, farlet.remote
    first, second = spaces
    offload(farlet, first)
    offload(farlet, second)
    far, other = there(local, first), there(local, second)
    before = uid(remote, far)
    # somebody else's claim holds a namespace back
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    remote.kubectl("-n", other, "apply", "-f", "-", stdin=json.dumps(claim))

    local.kubectl("delete", "namespace", first, timeout=60)
    eventually(lambda: uid(remote, far), "the remote namespace goes", until=lambda found: found != before)
    enable(local, first)
    offload(farlet, first)
    assert uid(remote, far) not in ("", before), "made again with the local one"
    assert uid(remote, other), "its local namespace is there"

    local.kubectl("delete", "namespace", second, timeout=60)
    eventually(
        lambda: farlet.log.read_text(),
        "it is said why a namespace stays",
        until=lambda text: f"remote namespace {other} stays" in text and "PersistentVolumeClaim data" in text,
    )
    assert uid(remote, other)
    assert uid(remote, far)


def test_one_whose_local_namespace_went_while_no_farlet_ran(farlet: Farlet, spaces: list[str]) -> None:
    """And one that looks like ours, but is not under the name that we would have given it."""
    local, remote = farlet.local, farlet.remote
    gone, kept = spaces
    offload(farlet, gone)
    offload(farlet, kept)
    far = there(local, gone)
    origin = far.rpartition("-")[2]
    foreign = f"{gone}-given"
    remote.kubectl("create", "namespace", foreign)
    remote.kubectl("label", "namespace", foreign, f"{names.LABEL_ORIGIN}={origin}")
    remote.kubectl("annotate", "namespace", foreign, f"{names.ANNOTATION_LOCAL_NAMESPACE}={gone}")
    try:
        farlet.kill()
        local.kubectl("-n", gone, "delete", "pod", "box", "--grace-period=0", "--force")
        local.kubectl("delete", "namespace", gone, timeout=60)
        assert uid(remote, far)
        farlet.start()
        # a lock that was not given up is waited for first
        eventually(lambda: uid(remote, far), "the remote namespace goes", until=lambda found: not found, timeout=120)
        assert uid(remote, foreign)
        assert uid(remote, there(local, kept))
    finally:
        remote.kubectl("delete", "namespace", foreign, "--wait=false")
