"""Namespaces that extend to a remote cluster by a NamespaceOffloading, or by the label: made, kept, told of, and left
again with nothing left. No operator runs here: ``farlet run`` does all of this alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app import names
from app.namespaces.mapping import remote_name
from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.fleet import Fleet
from tests.cluster.farlet import Farlet, pod_manifest, running
from tests.cluster.objects import Object, get, wait_ready
from tests.eventually import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("labels")]

REGION = "topology.kubernetes.io/region"
NODE = "offloading-north"
OPTIONS = ("--unmap-grace", "1", "--node-label", f"{REGION}=north")

Space = Callable[..., str]


@pytest.fixture(scope="module")
def farlet(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farlet]:
    folder = tmp_path_factory.mktemp("farlet")
    with running(fleet.cluster("local"), fleet.cluster("remote"), NODE, folder, *OPTIONS) as farlet:
        yield farlet


@pytest.fixture
def space(local: Cluster, remote: Cluster, virtual_node: str) -> Iterator[Space]:
    """Makes local namespaces; they and what was made for them are removed afterwards."""
    made: list[str] = []

    def make(suffix: str = "a") -> str:
        name = f"nso-{virtual_node[-8:]}-{suffix}"
        made.append(name)
        local.kubectl("create", "namespace", name)
        eventually(lambda: local.kubectl("-n", name, "get", "serviceaccount", "default"), "its ServiceAccount")
        return name

    yield make
    for name in made:
        for cluster in (local, remote):
            found = [name, f"{name}-far", there(local, name)]
            cluster.kubectl("delete", "namespace", *found, "--ignore-not-found", "--wait=false")


def there(local: Cluster, name: str) -> str:
    cluster = local.kubectl("get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}").stdout
    return remote_name(name, hashlib.sha256(cluster.encode()).hexdigest()[:8])


def offload(local: Cluster, namespace: str, name: str = names.OFFLOADING, **spec: object) -> None:
    content = {
        "apiVersion": "farlet.dev/v1alpha1",
        "kind": "NamespaceOffloading",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }
    local.kubectl("apply", "-f", "-", stdin=json.dumps(content))


def selector(key: str, *values: str, operator: str = "In") -> Object:
    expression = {"key": key, "operator": operator, "values": list(values)}
    return {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}


def entry(local: Cluster, namespace: str, node: str = NODE) -> Object:
    """What a node says of a namespace; empty if nothing."""
    found = get(local, namespace, "nso", names.OFFLOADING).get("status", {}).get("clusters", [])
    return next((item for item in found if item["node"] == node), {})


def remote_namespace(remote: Cluster, name: str) -> Object:
    """Empty if it is not there, or going."""
    found = remote.kubectl("get", "namespace", name, "-o", "json", "--ignore-not-found").stdout
    content: Object = json.loads(found) if found else {}
    return {} if content.get("metadata", {}).get("deletionTimestamp") else content


def gone(remote: Cluster, name: str) -> bool:
    return not remote.kubectl("get", "namespace", name, "--ignore-not-found").stdout


def run_pod(farlet: Farlet, namespace: str, name: str = "box") -> None:
    farlet.local.kubectl("-n", namespace, "apply", "-f", "-", stdin=pod_manifest(name, farlet.node))
    wait_ready(farlet.local, namespace, f"pod/{name}")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"namespaceMappingStrategy": "SelectedName"}, "remoteNamespaceName goes with"),
        ({"remoteNamespaceName": "x"}, "remoteNamespaceName goes with"),
        ({"podOffloadingStrategy": "Nowhere"}, "Unsupported value"),
        ({"clusterSelector": {"nodeSelectorTerms": []}}, "should have at least 1 items"),
        ({"clusterSelector": {"nodeSelectorTerms": [{}]}}, "an empty term selects nothing"),
        ({"clusterSelector": selector("region")}, "In and NotIn need values"),
        ({"clusterSelector": selector("region", "x", operator="Exists")}, "have no values"),
        ({"clusterSelector": selector("size", "big", operator="Gt")}, "one whole number"),
        ({"clusterSelector": selector("not a key", "x")}, "should match"),
    ],
)
def test_the_schema_refuses(farlet: Farlet, module_namespace: str, spec: Object, message: str) -> None:
    with pytest.raises(DevclusterError, match=message):
        offload(farlet.local, module_namespace, **spec)


def test_one_for_each_namespace_and_its_mapping_stays(farlet: Farlet, space: Space) -> None:
    local, name = farlet.local, space()
    with pytest.raises(DevclusterError, match="it is called offloading"):
        offload(local, name, name="another")
    offload(local, name, clusterSelector=selector(REGION, "nowhere"))
    with pytest.raises(DevclusterError, match="namespaceMappingStrategy cannot be changed"):
        offload(local, name, namespaceMappingStrategy="EnforceSameName")
    shown = local.kubectl("-n", name, "get", "nso").stdout.split()
    assert "LocalAndRemote" in shown
    assert "DefaultName" in shown


@pytest.mark.parametrize(
    ("spec", "suffix"),
    [
        ({}, None),
        ({"podOffloadingStrategy": "Local"}, None),
        ({"namespaceMappingStrategy": "EnforceSameName", "clusterSelector": selector(REGION, "north")}, ""),
        ({"namespaceMappingStrategy": "SelectedName"}, "-far"),
    ],
)
def test_the_remote_namespace_is_made_kept_told_of_and_left(
    farlet: Farlet, space: Space, spec: Object, suffix: str | None
) -> None:
    local, remote, name = farlet.local, farlet.remote, space()
    far = there(local, name) if suffix is None else f"{name}{suffix}"
    if spec.get("namespaceMappingStrategy") == "SelectedName":
        spec = {**spec, "remoteNamespaceName": far}
    offload(local, name, **spec)
    eventually(lambda: entry(local, name).get("ready"), "the namespace is extended")
    found = entry(local, name)
    assert (found["remoteNamespace"], found["reason"]) == (far, "NamespaceReady")
    metadata = remote_namespace(remote, far)["metadata"]
    assert metadata["annotations"][names.ANNOTATION_LOCAL_NAMESPACE] == name
    assert names.LABEL_ORIGIN in metadata["labels"]

    # somebody deletes it: it is made again
    remote.kubectl("delete", "namespace", far, timeout=60)
    eventually(
        lambda: remote_namespace(remote, far).get("metadata", {}).get("uid"),
        "it is made again",
        until=lambda uid: bool(uid) and uid != metadata["uid"],
    )
    run_pod(farlet, name)

    local.kubectl("-n", name, "delete", "nso", names.OFFLOADING)
    eventually(lambda: gone(remote, far), "the remote namespace goes", timeout=120)
    eventually(lambda: not get(local, name, "pods")["items"], "it was evicted, and nobody makes it again")


def test_a_namespace_that_is_not_ours_is_a_conflict_until_it_is_gone(farlet: Farlet, space: Space) -> None:
    local, remote, name = farlet.local, farlet.remote, space()
    remote.kubectl("create", "namespace", name)
    uid = remote_namespace(remote, name)["metadata"]["uid"]
    offload(local, name, namespaceMappingStrategy="EnforceSameName")
    eventually(lambda: entry(local, name).get("reason") == "Conflict", "the conflict is told")
    assert "is not ours" in entry(local, name)["message"]
    assert names.LABEL_ORIGIN not in remote_namespace(remote, name)["metadata"].get("labels", {})
    # a pod that waits is taken up when it can be
    local.kubectl("-n", name, "apply", "-f", "-", stdin=pod_manifest("box", NODE))
    remote.kubectl("delete", "namespace", name, timeout=60)
    eventually(lambda: entry(local, name).get("ready"), "the conflict is over", timeout=90)
    wait_ready(local, name, "pod/box")
    assert remote_namespace(remote, name)["metadata"]["uid"] != uid

    local.kubectl("-n", name, "delete", "nso", names.OFFLOADING)
    eventually(lambda: gone(remote, name), "the remote namespace goes", timeout=120)


def test_a_selector_chooses_clusters_and_lets_go_of_them(
    farlet: Farlet, space: Space, virtual_node: str, tmp_path: Path
) -> None:
    """Two virtual nodes in front of one cluster: what one leaves, the other keeps."""
    local, remote, name = farlet.local, farlet.remote, space()
    options = ("--unmap-grace", "1", "--node-label", f"{REGION}=south")
    far = there(local, name)
    with running(local, remote, virtual_node, tmp_path, *options) as south:
        offload(local, name, clusterSelector=selector(REGION, "south"))
        eventually(lambda: entry(local, name, south.node).get("ready"), "south is chosen")
        assert entry(local, name) == {}
        run_pod(south, name, "there")
        local.kubectl("-n", name, "apply", "-f", "-", stdin=pod_manifest("nowhere", NODE))
        eventually(
            lambda: get(local, name, "pod", "nowhere")["status"].get("message", ""),
            "a pod on the other node says why",
            until=lambda text: "clusterSelector" in text,
        )
        offload(local, name, clusterSelector=selector(REGION, "south", "north"))
        eventually(lambda: entry(local, name).get("ready"), "both are chosen")
        wait_ready(local, name, "pod/nowhere")
        uid = get(local, name, "pod", "nowhere")["metadata"]["uid"]

        offload(local, name, clusterSelector=selector(REGION, "north"))
        eventually(lambda: not entry(local, name, south.node), "south has left", timeout=90)
        pods = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in get(local, name, "pods")["items"]}
        assert pods == {"nowhere": uid}, "only the pods of the node that is not chosen any more go"
        assert remote_namespace(remote, far), "the other node uses it"
    local.kubectl("-n", name, "delete", "nso", names.OFFLOADING)
    eventually(lambda: gone(remote, far), "the remote namespace goes", timeout=120)


def test_what_others_put_there_stays_and_nobody_waits_for_it(farlet: Farlet, space: Space) -> None:
    """Only what is ours goes; offloaded again, the namespace is used again, and empty it goes after all."""
    local, remote, name = farlet.local, farlet.remote, space()
    far = there(local, name)
    here, elsewhere = selector(REGION, "north"), selector(REGION, "nowhere")

    def held(kinds: str = "configmaps,pods,replicasets") -> set[str]:
        return {item["metadata"]["name"] for item in get(remote, far, kinds)["items"]}

    local.kubectl("-n", name, "create", "configmap", "ours")
    offload(local, name, clusterSelector=here)
    run_pod(farlet, name)
    eventually(lambda: "ours" in held(), "it is reflected")
    uid = remote_namespace(remote, far)["metadata"]["uid"]
    remote.kubectl("-n", far, "create", "configmap", "theirs")

    offload(local, name, clusterSelector=elsewhere)
    eventually(lambda: not entry(local, name), "nothing is left to wait for", timeout=90)
    assert held() == {"theirs", "kube-root-ca.crt"}
    assert remote_namespace(remote, far)["metadata"]["uid"] == uid
    eventually(
        lambda: local.kubectl("-n", name, "events", "--for", f"nso/{names.OFFLOADING}").stdout,
        "it is said what stays, and why",
        until=lambda text: names.NAMESPACE_STAYS in text and f"{far} stays" in text and "ConfigMap theirs" in text,
    )

    offload(local, name, clusterSelector=here)
    eventually(lambda: entry(local, name).get("ready"), "it is offloaded again")
    eventually(lambda: "ours" in held(), "it is reflected again")
    assert remote_namespace(remote, far)["metadata"]["uid"] == uid

    remote.kubectl("-n", far, "delete", "configmap", "theirs")
    local.kubectl("-n", name, "delete", "nso", names.OFFLOADING)
    eventually(lambda: gone(remote, far), "the remote namespace goes", timeout=120)


def test_a_label_is_the_simple_way_and_taken_back_the_same_way(farlet: Farlet, space: Space) -> None:
    local, remote, name = farlet.local, farlet.remote, space()
    far = there(local, name)
    local.kubectl("label", "namespace", name, f"{names.LABEL_ENABLED}=true")
    eventually(lambda: remote_namespace(remote, far), "the remote namespace is made before any pod")
    run_pod(farlet, name)
    local.kubectl("label", "namespace", name, f"{names.LABEL_ENABLED}-")
    eventually(lambda: gone(remote, far), "pod and remote namespace go", timeout=120)
    eventually(lambda: not get(local, name, "pods")["items"], "the pod is gone")


def held(local: Cluster, name: str, finalizers: list[str] | None) -> None:
    """As an operator holds an object until all have let go."""
    body = json.dumps({"metadata": {"finalizers": finalizers}})
    local.kubectl("-n", name, "patch", "nso", names.OFFLOADING, "--type=merge", "-p", body)


@pytest.mark.parametrize("mapping", ["DefaultName", "EnforceSameName"])
def test_a_persons_label_takes_over_from_an_object_that_goes(farlet: Farlet, space: Space, mapping: str) -> None:
    """The object has nobody to wait for, and what only it had asked for goes."""
    local, remote, name = farlet.local, farlet.remote, space()
    far = there(local, name)
    offload(local, name, namespaceMappingStrategy=mapping, clusterSelector=selector(REGION, "north"))
    local.kubectl("label", "namespace", name, f"{names.LABEL_ENABLED}=true")
    eventually(lambda: entry(local, name).get("ready"), "the namespace is extended")
    before = remote_namespace(remote, entry(local, name)["remoteNamespace"])["metadata"]
    held(local, name, ["test.farlet.dev/waits"])
    try:
        local.kubectl("-n", name, "delete", "nso", names.OFFLOADING, "--wait=false")
        eventually(lambda: not entry(local, name), "nothing is left to wait for", timeout=90)
        if mapping == "EnforceSameName":
            assert gone(remote, name), "it was the object's"
            eventually(lambda: remote_namespace(remote, far), "the label has its own")
        else:
            assert remote_namespace(remote, far)["metadata"]["uid"] == before["uid"], "it is the label's now"
    finally:
        held(local, name, None)
    eventually(lambda: not local.kubectl("-n", name, "get", "nso", "-o", "name").stdout, "the object goes")
    if mapping == "EnforceSameName":
        # the same without a finalizer: nobody is told, and nothing stays
        offload(local, name, namespaceMappingStrategy=mapping, clusterSelector=selector(REGION, "north"))
        eventually(lambda: remote_namespace(remote, name), "the object has its own again")
        eventually(lambda: entry(local, name).get("ready"), "the namespace is extended")
        local.kubectl("-n", name, "delete", "nso", names.OFFLOADING)
        eventually(lambda: gone(remote, name), "it goes with the object", timeout=90)


def test_what_a_flag_had_made_goes_with_the_object_that_took_it_over(farlet: Farlet, space: Space) -> None:
    local, remote, name = farlet.local, farlet.remote, space()
    far = there(local, name)
    # as `farlet run --namespace` leaves it: ours, and made for neither label nor object
    labels, annotations = {names.LABEL_ORIGIN: far.rpartition("-")[2]}, {names.ANNOTATION_LOCAL_NAMESPACE: name}
    metadata = {"name": far, "labels": labels, "annotations": annotations}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    remote.kubectl("create", "-f", "-", stdin=json.dumps(body))
    uid = remote_namespace(remote, far)["metadata"]["uid"]
    offload(local, name, clusterSelector=selector(REGION, "north"))
    eventually(lambda: entry(local, name).get("ready"), "the namespace is extended")
    assert remote_namespace(remote, far)["metadata"]["uid"] == uid
    held(local, name, ["test.farlet.dev/waits"])
    try:
        local.kubectl("-n", name, "delete", "nso", names.OFFLOADING, "--wait=false")
        eventually(lambda: not entry(local, name), "nothing is left to wait for", timeout=90)
        assert gone(remote, far)
    finally:
        held(local, name, None)


def test_a_selector_that_flickers_harms_nothing_and_budgets_are_respected(
    local: Cluster, remote: Cluster, space: Space, virtual_node: str, tmp_path: Path
) -> None:
    name = space()
    far = there(local, name)
    elsewhere = selector("no-such-label", "x")
    chosen = selector(names.LABEL_VIRTUAL_NODE, "true")

    def uids() -> list[str]:
        return [get(c, s, "pods")["items"][0]["metadata"]["uid"] for c, s in ((local, name), (remote, far))]

    def says_budget() -> bool:
        found = entry(local, name, virtual_node)
        return bool(found.get("reason") == "Draining" and "disruption budget" in found["message"])

    with running(local, remote, virtual_node, tmp_path, "--unmap-grace", "4") as farlet:
        offload(local, name, clusterSelector=chosen)
        eventually(lambda: entry(local, name, virtual_node).get("ready"), "it is extended")
        run_pod(farlet, name)
        before = uids()
        offload(local, name, clusterSelector=elsewhere)
        eventually(lambda: entry(local, name, virtual_node).get("reason") == "Draining", "it is about to be left")
        offload(local, name, clusterSelector=chosen)
        eventually(lambda: entry(local, name, virtual_node).get("ready"), "it is extended again")
        budget = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "box"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "box"}}},
        }
        local.kubectl("-n", name, "apply", "-f", "-", stdin=json.dumps(budget))
        eventually(
            lambda: get(local, name, "pdb", "box").get("status", {}).get("currentHealthy") == 1, "the budget counts it"
        )
        offload(local, name, clusterSelector=elsewhere)
        eventually(says_budget, "the budget is respected, and named")
        farlet.kill()  # in the middle, with all that was remembered
        farlet.start()
        eventually(says_budget, "the budget is respected, and named")
        assert uids() == before
        local.kubectl("-n", name, "delete", "pdb", "box")
        eventually(lambda: gone(remote, far), "pod and remote namespace go", timeout=120)
        eventually(lambda: not entry(local, name, virtual_node), "nothing is left to say")
        eventually(lambda: not get(local, name, "pods")["items"], "the pod is gone")
