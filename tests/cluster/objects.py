"""What tests of offloading ask both clusters for, and give to them."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import urlencode

from app import names
from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError
from tests.cluster.farlet import Farlet
from tests.eventually import eventually

Object = dict[str, Any]


_KINDS = {
    "configmap": "/api/v1/namespaces/{}/configmaps",
    "deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "endpointslice": "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices",
    "event": "/api/v1/namespaces/{}/events",
    "job": "/apis/batch/v1/namespaces/{}/jobs",
    "namespace": "/api/v1/namespaces",
    "node": "/api/v1/nodes",
    "nso": "/apis/farlet.dev/v1alpha1/namespaces/{}/namespaceoffloadings",
    "pod": "/api/v1/namespaces/{}/pods",
    "replicaset": "/apis/apps/v1/namespaces/{}/replicasets",
    "rs": "/apis/apps/v1/namespaces/{}/replicasets",
    "secret": "/api/v1/namespaces/{}/secrets",
    "service": "/api/v1/namespaces/{}/services",
    "serviceaccount": "/api/v1/namespaces/{}/serviceaccounts",
}
_SELECTORS = {"-l": "labelSelector", "--field-selector": "fieldSelector"}


def get(cluster: Cluster, namespace: str, *what: str) -> Object:
    """What ``kubectl get -o json`` prints.

    Tests ask often, and a process for each look took a third of the machine: what is simple is asked without one.
    """
    path = _simple_path(namespace, what)
    if path is None:
        printed: Object = json.loads(cluster.kubectl("-n", namespace, "get", *what, "-o", "json").stdout)
        return printed
    content = cluster.api.get(path)
    for item in content.get("items", [content]):
        item["metadata"].pop("managedFields", None)
        item.setdefault("kind", content["kind"].removesuffix("List"))
        item.setdefault("apiVersion", content["apiVersion"])
    return content


def _simple_path(namespace: str, what: tuple[str, ...]) -> str | None:
    """The URL of one object by its name, or of those of a kind, all or by selectors; None for all else."""
    kind, *rest = what
    path = _KINDS.get(kind) or _KINDS.get(kind.removesuffix("s"))
    if path is None:
        return None
    path = path.format(namespace)
    if len(rest) == 1 and not rest[0].startswith("-"):
        return f"{path}/{rest[0]}"
    names_of, values = rest[::2], rest[1::2]
    if len(names_of) != len(values) or not set(names_of) <= _SELECTORS.keys():
        return None
    return f"{path}?{urlencode([(_SELECTORS[name], value) for name, value in zip(names_of, values, strict=True)])}"


def apply(cluster: Cluster, namespace: str, *manifests: str) -> None:
    cluster.kubectl("-n", namespace, "apply", "-f", "-", stdin="\n---\n".join(manifests))


def make_namespace(cluster: Cluster, name: str, labels: dict[str, str] | None = None) -> None:
    """Make one, and wait until pods can be made in it."""
    content = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels or {}}}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(content))
    eventually(lambda: get(cluster, name, "serviceaccount", "default"), f"the ServiceAccount of {name}")


def wait_ready(cluster: Cluster, namespace: str, *what: str) -> None:
    _wait(cluster, namespace, "wait", "--for=condition=Ready", *what, "--timeout=120s")


def rolled_out(cluster: Cluster, namespace: str, *deployments: str) -> None:
    """Wait until all pods of Deployments are those of their latest revision, and Ready."""
    for name in deployments:
        _wait(cluster, namespace, "rollout", "status", f"deployment/{name}", "--timeout=90s")


def _wait(cluster: Cluster, namespace: str, *command: str) -> None:
    try:
        cluster.kubectl("-n", namespace, *command, timeout=150)
    except DevclusterError as error:
        pods = cluster.kubectl("-n", namespace, "get", "pods", "-o", "yaml", check=False).stdout
        events = cluster.kubectl("-n", namespace, "get", "events", check=False).stdout
        raise AssertionError(f"{error}\n{pods}\n{events}") from None


def twins(farlet: Farlet, namespace: str, kind: str = "pods") -> list[Object]:
    """What of one kind the remote cluster has for the pods of the virtual node."""
    items: list[Object] = get(farlet.remote, namespace, kind, "-l", f"{names.LABEL_NODE}={farlet.node}")["items"]
    return items


def remote_of(farlet: Farlet, namespace: str, local: Object, kind: str = "pods") -> list[Object]:
    """What of one kind the remote cluster has for one local pod."""
    uid = local["metadata"]["uid"]
    return [item for item in twins(farlet, namespace, kind) if item["metadata"]["labels"][names.LABEL_POD_UID] == uid]


def uids(items: list[Object]) -> set[str]:
    return {item["metadata"]["uid"] for item in items}


def restarts(pod: Object) -> int:
    """How often the first container was started again."""
    return int(pod["status"]["containerStatuses"][0]["restartCount"])


def settle(farlet: Farlet, namespace: str) -> None:
    """Wait until nothing is left to say: a kubelet goes on a little after its pod is Ready."""

    def versions() -> list[str]:
        pods = [*get(farlet.local, namespace, "pods")["items"], *twins(farlet, namespace)]
        return [pod["metadata"]["resourceVersion"] for pod in pods]

    seen: list[list[str]] = [[]]

    def quiet() -> bool:
        time.sleep(3)
        seen.append(versions())
        return seen[-1] == seen[-2]

    eventually(quiet, "the pods come to rest")
