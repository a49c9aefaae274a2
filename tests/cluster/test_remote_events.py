"""Why a pod does not run in the remote cluster is told on the local pod, where its user looks."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from app import names
from devcluster.cluster import Cluster
from tests.cluster import audit
from tests.cluster.farlet import Farlet, pod_manifest, running
from tests.cluster.objects import apply
from tests.eventually import eventually

pytestmark = pytest.mark.cluster

Object = dict[str, Any]


def items(cluster: Cluster, namespace: str, *what: str) -> list[Object]:
    found: list[Object] = json.loads(cluster.kubectl("-n", namespace, "get", *what, "-o", "json").stdout)["items"]
    return found


def events(farlet: Farlet, namespace: str, pod: str, reason: str | None = None) -> list[Object]:
    """What is told on a local pod."""
    selector = f"involvedObject.kind=Pod,involvedObject.name={pod}" + (f",reason={reason}" if reason else "")
    return items(farlet.local, namespace, "events", "--field-selector", selector)


def told(farlet: Farlet, namespace: str, pod: str, reason: str, text: str) -> Object:
    """Wait until it is told, on the very pod; some seconds are for a machine that does much else."""

    def found() -> list[Object]:
        return [event for event in events(farlet, namespace, pod, reason) if text in event["message"]]

    event = eventually(found, f"{reason} with {text!r} is told on {pod}", timeout=30)[0]
    uid = farlet.local.kubectl("-n", namespace, "get", "pod", pod, "-o", "jsonpath={.metadata.uid}").stdout
    assert event["involvedObject"]["uid"] == uid
    assert event["type"] == "Warning"
    return event


def container(**fields: Any) -> Object:
    return {"name": "main", "image": "farlet/busybox:1", "command": ["sleep", "1000000"], **fields}


def forbid_pods(farlet: Farlet, namespace: str) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    apply(farlet.remote, namespace, json.dumps(quota))
    eventually(
        lambda: items(farlet.remote, namespace, "resourcequotas")[0].get("status", {}).get("hard"), "the quota counts"
    )


def test_an_image_that_does_not_exist(farlet: Farlet, namespace: str) -> None:
    apply(
        farlet.local,
        namespace,
        pod_manifest("box", farlet.node, containers=[container(image="farlet/no-such-image:1")]),
    )
    event = told(farlet, namespace, "box", "Failed", "farlet/no-such-image:1")
    assert event["involvedObject"]["fieldPath"] == "spec.containers{main}"
    text = eventually(
        lambda: farlet.local.kubectl("-n", namespace, "describe", "pod", "box").stdout,
        "kubectl describe shows it",
        until=lambda text: "ErrImagePull" in text.partition("Events:")[2],
    )
    assert "no-such-image" in text.partition("Events:")[2]

    def backed_off() -> list[int]:
        return [e["count"] for e in events(farlet, namespace, "box", "Failed") if "ImagePullBackOff" in e["message"]]

    (first,) = eventually(backed_off, "the kubelet backs off")
    (more,) = eventually(backed_off, "its count grows", until=lambda found: found != [first], timeout=90)
    assert more > first, "a count, not one more event"


@pytest.mark.parametrize("policy", ["Always", "Never"], ids=["ReplicaSet", "Job"])
def test_a_quota_that_forbids_the_pod(farlet: Farlet, namespace: str, policy: str) -> None:
    """No remote pod is ever made: only its twin knows why."""
    forbid_pods(farlet, namespace)
    apply(farlet.local, namespace, pod_manifest("box", farlet.node, restartPolicy=policy))
    event = told(farlet, namespace, "box", "FailedCreate", "exceeded quota")
    assert "fieldPath" not in event["involvedObject"]
    if policy == "Always":  # a Job waits ten seconds and more before it tries again

        def counted() -> list[int]:
            return [event["count"] for event in events(farlet, namespace, "box", "FailedCreate")]

        eventually(counted, "it is tried again, and one event counts", until=lambda found: max(found) > 3)
        assert len(counted()) == 1
        assert len(items(farlet.remote, namespace, "events", "--field-selector", "reason=FailedCreate")) > 3
    assert not items(farlet.remote, namespace, "pods")


def test_a_pod_that_fits_on_no_remote_node(farlet: Farlet, namespace: str) -> None:
    huge = container(resources={"requests": {"cpu": "5000"}})
    apply(farlet.local, namespace, pod_manifest("box", farlet.node, containers=[huge]))
    told(farlet, namespace, "box", "FailedScheduling", "Insufficient cpu")


def test_a_restart_tells_nothing_twice_and_what_was_missed(farlet: Farlet, namespace: str) -> None:
    huge = container(resources={"requests": {"cpu": "5000"}})
    apply(farlet.local, namespace, pod_manifest("box", farlet.node, containers=[huge]))
    told(farlet, namespace, "box", "FailedScheduling", "Insufficient cpu")
    happen(farlet, namespace, "before")
    told(farlet, namespace, "box", "Synthetic", "before")
    before = counts(farlet, namespace)
    farlet.kill()
    mark = audit.mark(farlet.local)
    happen(farlet, namespace, "missed")
    farlet.start()
    told(farlet, namespace, "box", "Synthetic", "missed")
    happen(farlet, namespace, "after")
    told(farlet, namespace, "box", "Synthetic", "after")
    after = counts(farlet, namespace)
    changed = {name for name, count in after.items() if before.get(name) != count}
    written = eventually(
        lambda: event_writes(farlet.local, mark, namespace), "the audit log has it", until=lambda w: len(w) >= 2
    )
    assert set(written) <= changed, "only what is new was written"
    told_twice = [event["message"] for event in events(farlet, namespace, "box", "Synthetic")]
    assert sorted(told_twice) == ["after", "before", "missed"]


def test_none(local: Cluster, remote: Cluster, namespace: str, virtual_node: str, tmp_path: Path) -> None:
    options = ["--namespace", f"{namespace}={namespace}", "--events", "none"]
    with running(local, remote, virtual_node, tmp_path, *options) as farlet:
        huge = container(resources={"requests": {"cpu": "5000"}})
        apply(local, namespace, pod_manifest("box", farlet.node, containers=[huge]))
        eventually(lambda: items(remote, namespace, "events", "--field-selector", "type=Warning"), "a remote warning")
        time.sleep(2)
        assert not events(farlet, namespace, "box", "FailedScheduling")


def happen(farlet: Farlet, namespace: str, message: str) -> None:
    """A warning about the remote pod that comes once and never again."""
    pod = remote_pod(farlet, namespace)["metadata"]
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": pod["name"], "uid": pod["uid"]}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{pod['name']}.{message}"},
        "involvedObject": about,
        "type": "Warning",
        "reason": "Synthetic",
        "message": message,
        "count": 1,
        "firstTimestamp": now,
        "lastTimestamp": now,
    }
    farlet.remote.kubectl("-n", namespace, "create", "-f", "-", stdin=json.dumps(event))


def remote_pod(farlet: Farlet, namespace: str) -> Object:
    ours = f"{names.LABEL_NODE}={farlet.node}"
    return eventually(lambda: items(farlet.remote, namespace, "pods", "-l", ours), "the remote pod")[0]


def counts(farlet: Farlet, namespace: str) -> dict[str, int]:
    return {event["metadata"]["name"]: event.get("count") or 0 for event in events(farlet, namespace, "box")}


def event_writes(cluster: Cluster, since: int, namespace: str) -> list[str]:
    """The names of the events that Farlet wrote, or tried to, by the audit log."""
    return [
        item.get("name", "")
        for event, item in audit.about(cluster, since, namespace)
        if event["verb"] not in audit.READS and item.get("resource") == "events"
    ]
