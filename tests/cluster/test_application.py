"""A whole application in a namespace that a NamespaceOffloading extends, beside a ``farlet operator``: the scheduler
spreads its pods over both clusters, they find each other, and they all come home when it is over. Nothing in its
manifests says anything of Farlet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from app import names
from devcluster.addons import BUSYBOX_IMAGE
from devcluster.cluster import Cluster
from devcluster.fleet import Fleet
from tests.cluster.farlet import Farlet, running
from tests.cluster.objects import Object, apply, get, make_namespace, rolled_out
from tests.cluster.operators import operating
from tests.cluster.pods import run_pod, shell
from tests.cluster.test_namespace_offloading import REGION, gone, offload, selector, there
from tests.eventually import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("labels")]

NODE = REGION_NAME = "application-north"
KINDS = "configmaps,secrets,services,endpointslices,replicasets,jobs,pods"
PAGE = """
mkdir -p /www
while true; do
  echo "$(cat /config/word) $PASSWORD $VERSION $(hostname)" >/www/new; mv /www/new /www/page; sleep 1
done &
exec httpd -f -p 8080 -h /www
"""


def deployment(part: str, version: str = "v1") -> Object:
    """Two pods that serve what they read, on as many nodes as there are for them, each revision by itself."""
    labels = {"app": part}
    container = {
        "name": "main",
        "image": BUSYBOX_IMAGE,
        "command": ["sh", "-c", PAGE],
        "env": [
            {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "password", "key": "word"}}},
            {"name": "VERSION", "value": version},
        ],
        "volumeMounts": [{"name": "config", "mountPath": "/config"}],
        "readinessProbe": {"httpGet": {"path": "/page", "port": 8080}, "periodSeconds": 1},
    }
    spread = {
        "topologyKey": "kubernetes.io/hostname",
        "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": labels},
        "matchLabelKeys": ["pod-template-hash"],
        "nodeTaintsPolicy": "Honor",  # a node that it must not run on is none to be even with
    }
    spec = {
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": "settings"}}],
        "topologySpreadConstraints": [spread],
        "terminationGracePeriodSeconds": 0,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": part},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def settings(word: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"word": word}}


def service(name: str, part: str, **spec: Any) -> Object:
    spec = {"selector": {"app": part}, "ports": [{"port": 80, "targetPort": 8080}], **spec}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


APPLICATION = (
    settings("hello"),
    {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "password"}, "stringData": {"word": "sesame"}},
    service("api", "api"),
    service("members", "api", clusterIP="None"),
    service("front", "front"),
    deployment("api"),
    deployment("front"),
)


@dataclass(frozen=True, slots=True)
class Extended:
    """A local namespace and what it is called in the remote cluster."""

    local: Cluster
    remote: Cluster
    here: str
    there: str

    def deploy(self, *objects: Object) -> None:
        apply(self.local, self.here, *map(json.dumps, objects))

    def rolled_out(self) -> None:
        rolled_out(self.local, self.here, "api", "front")

    def pods(self, part: str) -> dict[str, list[str]]:
        """Names of the pods of a part, by where they run."""
        found: dict[str, list[str]] = {"here": [], "there": []}
        for pod in get(self.local, self.here, "pods", "-l", f"app={part}")["items"]:
            if "deletionTimestamp" not in pod["metadata"]:
                found["there" if pod["spec"].get("nodeName") == NODE else "here"].append(pod["metadata"]["name"])
        return found

    def spread(self, part: str) -> tuple[str, str]:
        """The one pod that runs here, and the one that runs there."""
        found = self.pods(part)
        assert [len(found["here"]), len(found["there"])] == [1, 1], found
        assert found["there"][0] in [
            pod["metadata"]["annotations"][names.ANNOTATION_LOCAL_NAME]
            for pod in get(self.remote, self.there, "pods", "-l", f"app={part}")["items"]
        ]
        return found["here"][0], found["there"][0]

    def addresses(self, part: str) -> set[str]:
        return {pod["status"]["podIP"] for pod in get(self.local, self.here, "pods", "-l", f"app={part}")["items"]}

    def copies(self) -> list[str]:
        """What of ours is in the remote namespace."""
        found = get(self.remote, self.there, KINDS, "-l", names.LABEL_ORIGIN)["items"]
        return [f"{item['kind']} {item['metadata']['name']}" for item in found]


def answers(cluster: Cluster, namespace: str, client: str, part: str) -> set[str]:
    """What a pod is told by a Service in several tries."""
    script = f"for i in 1 2 3 4 5 6 7 8 9 10 11 12; do wget -qO- http://{part}/page; done"
    return set(shell(cluster, namespace, client, script).splitlines())


def until_answered(cluster: Cluster, namespace: str, client: str, part: str, said: str, pods: set[str]) -> None:
    """Wait until a pod is told this by each of these pods, and by no other."""
    wanted = {f"{said} {pod}" for pod in pods}
    what = f"{client} reaches {part}"
    eventually(lambda: answers(cluster, namespace, client, part), what, until=wanted.__eq__, timeout=90)


def until_found(cluster: Cluster, namespace: str, client: str, name: str, addresses: set[str]) -> None:
    """Wait until a name stands for these addresses: it has slices of its own, and DNS remembers answers for a while."""
    eventually(
        lambda: shell(cluster, namespace, client, f"nslookup {name} || true"),
        f"{client} finds {name}",
        until=lambda found: all(address in found for address in addresses),
    )


@pytest.fixture(scope="module")
def operated(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Farlet, dict[str, str]]]:
    """A Farlet with an operator, and the labels of namespaces that the operator sees."""
    local, remote = fleet.cluster("local"), fleet.cluster("remote")
    folder = tmp_path_factory.mktemp("application")
    options = ("--unmap-grace", "1", "--node-label", f"{REGION}={REGION_NAME}")
    with operating(local, remote, folder) as (_, labels), running(local, remote, NODE, folder, *options) as farlet:
        yield farlet, labels


@pytest.fixture
def extended(operated: tuple[Farlet, dict[str, str]], virtual_node: str) -> Iterator[Extended]:
    """Not extended yet."""
    farlet, labels = operated
    name = f"app-{virtual_node[-8:]}"
    found = Extended(farlet.local, farlet.remote, name, there(farlet.local, name))
    make_namespace(farlet.local, name, labels)
    yield found
    # while there are an operator and a Farlet to let it go
    found.local.kubectl("-n", found.here, "delete", "nso", "--all", "--timeout=90s", timeout=120, check=False)
    for cluster, left in ((found.local, found.here), (found.remote, found.there)):
        cluster.kubectl("delete", "namespace", left, "--ignore-not-found", "--wait=false")


def extend(extended: Extended, strategy: str) -> None:
    chosen = selector(REGION, REGION_NAME)  # nodes of other tests are there too
    offload(extended.local, extended.here, podOffloadingStrategy=strategy, clusterSelector=chosen)


def test_an_application_in_both_clusters(extended: Extended) -> None:
    local, remote, here = extended.local, extended.remote, extended.here
    extend(extended, "LocalAndRemote")
    extended.deploy(*APPLICATION)
    extended.rolled_out()
    api, front = extended.spread("api"), extended.spread("front")

    # each way, and from each cluster to both: through Services and their names
    for client in front:
        until_answered(local, here, client, "api", "hello sesame v1", set(api))
    for client in api:
        until_answered(local, here, client, "front", "hello sesame v1", set(front))
    members = extended.addresses("api")
    for client in front:
        until_found(local, here, client, "members", members)

    # a rolling update, and a change of what is mounted
    extended.deploy(deployment("api", "v2"))
    extended.rolled_out()
    eventually(lambda: extended.spread("api"), "the old ones have gone")
    new = extended.spread("api")
    assert not set(api) & set(new)
    for client in front:
        until_answered(local, here, client, "api", "hello sesame v2", set(new))
    extended.deploy(settings("bye"))
    for client in front:
        until_answered(local, here, client, "api", "bye sesame v2", set(new))
    assert extended.spread("api") == new, "nobody had to be started anew for it"

    # home again
    local.kubectl("-n", here, "delete", "nso", names.OFFLOADING, timeout=120)
    assert gone(remote, extended.there)
    extended.rolled_out()
    for part, version, client in (("api", "v2", "front"), ("front", "v1", "api")):
        eventually(lambda p=part: extended.pods(p)["there"] == [], f"{part} is here")  # type: ignore[misc]
        pods = extended.pods(part)["here"]
        assert len(pods) == 2, pods
        until_answered(local, here, extended.pods(client)["here"][0], part, f"bye sesame {version}", set(pods))

    def marks() -> set[str]:
        metadata = get(local, here, "namespace", here)["metadata"]
        return {*metadata["labels"], *(metadata.get("annotations") or {})}

    ours = {names.LABEL_ENABLED, names.ANNOTATION_ENABLED_BY}
    eventually(marks, "its mark is taken away", until=ours.isdisjoint)
    everywhere = get(remote, "default", f"namespaces,{KINDS}", "-A", "-l", names.LABEL_ORIGIN)["items"]
    left = [
        item
        for item in everywhere
        if item["metadata"].get("annotations", {}).get(names.ANNOTATION_LOCAL_NAMESPACE) == here
    ]
    assert left == [], "nothing of it is left there"


def test_pods_of_the_remote_clusters_own_tenants_use_services_of_this_one(extended: Extended) -> None:
    """With strategy Local nothing of ours runs there; who lives there finds our Services in the remote namespace."""
    local, remote, here, there = extended.local, extended.remote, extended.here, extended.there
    extend(extended, "Local")
    extended.deploy(*APPLICATION)
    extended.rolled_out()
    api, front = extended.pods("api"), extended.pods("front")
    assert (len(api["here"]), len(front["here"])) == (2, 2), (api, front)
    assert (api["there"], front["there"]) == ([], [])
    eventually(lambda: get(remote, there, "serviceaccount", "default"), "the remote namespace is there")
    run_pod(remote, there, "tenant")
    assert [pod["metadata"]["name"] for pod in get(remote, there, "pods")["items"]] == ["tenant"]
    tenant = get(remote, there, "pod", "tenant")["metadata"]["uid"]
    for part, pods in (("api", api), ("front", front)):
        until_answered(remote, there, "tenant", part, "hello sesame v1", set(pods["here"]))
    until_found(remote, there, "tenant", f"members.{there}.svc.cluster.local", extended.addresses("api"))
    local.kubectl("-n", here, "scale", "deployment/api", "--replicas=1")
    eventually(lambda: len(extended.pods("api")["here"]) == 1, "one is left")
    until_answered(remote, there, "tenant", "api", "hello sesame v1", set(extended.pods("api")["here"]))

    # what is ours goes; the pod does not, nor does the namespace that it is in, and nobody waits for it
    local.kubectl("-n", here, "delete", "nso", names.OFFLOADING, timeout=120)
    eventually(extended.copies, "our copies go", until=lambda left: left == [])
    pod = get(remote, there, "pod", "tenant")
    assert (pod["metadata"]["uid"], pod["status"]["phase"]) == (tenant, "Running")
    extend(extended, "Local")
    until_answered(remote, there, "tenant", "front", "hello sesame v1", set(front["here"]))


def test_an_application_moves_to_another_remote_name_under_a_budget(extended: Extended) -> None:
    """One pod goes when the one before is ready in the new remote namespace, with what it needs there."""
    local, remote, here, there = extended.local, extended.remote, extended.here, extended.there
    local.kubectl("label", "namespace", here, f"{names.LABEL_ENABLED}=true")
    api = deployment("api")
    api["spec"]["template"]["spec"]["nodeSelector"] = {REGION: REGION_NAME}
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "api"},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "api"}}},
    }

    def ready_in(namespace: str) -> int:
        conditions = [pod["status"].get("conditions", []) for pod in get(remote, namespace, "pods")["items"]]
        return sum({"Ready": "True"}.items() <= {c["type"]: c["status"] for c in each}.items() for each in conditions)

    eventually(lambda: get(remote, there, "serviceaccount", "default"), "it is extended")
    extended.deploy(*APPLICATION[:2], budget, api)
    rolled_out(local, here, "api")
    assert ready_in(there) == 2
    try:
        chosen = selector(REGION, REGION_NAME)
        offload(local, here, namespaceMappingStrategy="EnforceSameName", clusterSelector=chosen)
        eventually(lambda: ready_in(here), "they have moved", until=lambda count: count == 2, timeout=180)
        eventually(lambda: gone(remote, there), "the old one is left", timeout=120)
        local.kubectl("-n", here, "delete", "nso", names.OFFLOADING, timeout=120)
    finally:
        remote.kubectl("delete", "namespace", here, "--ignore-not-found", "--wait=false")
