"""Pods for tests: made with kubectl, ready when returned."""

from __future__ import annotations

import json
from typing import Any

from devcluster.addons import BUSYBOX_IMAGE
from devcluster.cluster import Cluster

SLEEP = "exec sleep 1000000"


def run_pod(cluster: Cluster, namespace: str, name: str, script: str = SLEEP, **spec: Any) -> None:
    """Run a shell script in a pod, and wait until it is Ready."""
    container = {"name": "main", "image": BUSYBOX_IMAGE, "command": ["sh", "-c", script]}
    container.update(spec.pop("container", {}))
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec},
    }
    cluster.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps(pod))
    wait = ["wait", "--for=condition=Ready", f"pod/{name}", "--timeout=90s"]
    cluster.kubectl("-n", namespace, *wait, timeout=100)


def shell(cluster: Cluster, namespace: str, pod: str, script: str, *, stdin: str | None = None) -> str:
    """What a shell script prints in a running pod."""
    interactive = ["-i"] if stdin is not None else []
    command = ["exec", *interactive, pod, "--", "sh", "-c", script]
    return cluster.kubectl("-n", namespace, *command, stdin=stdin).stdout


def pod_ip(cluster: Cluster, namespace: str, name: str) -> str:
    return cluster.kubectl("-n", namespace, "get", "pod", name, "-o", "jsonpath={.status.podIP}").stdout
