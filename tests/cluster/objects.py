"""What tests of offloading ask both clusters for, and give to them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from app import names
from devcluster.cluster import Cluster
from tests.cluster.farlet import Farlet
from tests.eventually import eventually

Object = dict[str, Any]


def get(cluster: Cluster, namespace: str, *what: str) -> Object:
    content: Object = json.loads(cluster.kubectl("-n", namespace, "get", *what, "-o", "json").stdout)
    return content


def apply(cluster: Cluster, namespace: str, *manifests: str) -> None:
    cluster.kubectl("-n", namespace, "apply", "-f", "-", stdin="\n---\n".join(manifests))


def wait_ready(cluster: Cluster, namespace: str, *what: str) -> None:
    cluster.kubectl("-n", namespace, "wait", "--for=condition=Ready", *what, "--timeout=60s", timeout=70)


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


def writes(cluster: Cluster, since: int, namespace: str) -> list[str]:
    """What Farlet wrote to pods and twins of a namespace, by the audit log from that line on."""
    kinds = ("pods", "replicasets", "jobs")
    return [
        f"{event['verb']} {item['resource']} {item.get('name')} {item.get('subresource', '')}"
        for event, item in _audited(cluster, since, namespace)
        if event["user"].get("username") == "system:serviceaccount:farlet:farlet" and item.get("resource") in kinds
    ]


def status_writes(cluster: Cluster, since: int, namespace: str, user: str) -> list[str]:
    """The pods whose status was written by a user whose name begins so, once for each time."""
    return [
        str(item.get("name"))
        for event, item in _audited(cluster, since, namespace)
        if event["user"].get("username", "").startswith(user) and item.get("subresource") == "status"
    ]


def _audited(cluster: Cluster, since: int, namespace: str) -> Iterator[tuple[Object, Object]]:
    for line in cluster.layout.audit_log.read_text().splitlines()[since:]:
        event = json.loads(line)
        item = event.get("objectRef", {})
        if item.get("namespace") == namespace and event["verb"] not in ("get", "list", "watch"):
            yield event, item


def audit_mark(cluster: Cluster) -> int:
    """Where the audit log ends now, for ``writes``."""
    return len(cluster.layout.audit_log.read_text().splitlines())
