"""Events of real controllers and kubelets in the remote cluster, told on a local pod by a real API server."""

from __future__ import annotations

import json

import pytest

from app.kube.objects import Object
from app.pods.warnings import event_patch, local_event
from devcluster.addons import BUSYBOX_IMAGE
from devcluster.cluster import Cluster
from tests.eventually import eventually

pytestmark = pytest.mark.cluster


def _pod(name: str, **spec: object) -> Object:
    container = {"name": "main", "image": BUSYBOX_IMAGE, "command": ["sh", "-c", "exit 1"]}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec}


def test_events_of_all_writers(local: Cluster, remote: Cluster, namespace: str) -> None:
    """Scheduler (the newer API), kubelet (counts), and controllers (about a ReplicaSet or a Job)."""
    pods, events = (f"/api/v1/namespaces/{namespace}/{plural}" for plural in ("pods", "events"))
    pod = local.api.post(pods, _pod("told", schedulerName="nobody"))
    remote.api.post(pods, _pod("no-node", nodeSelector={"there": "is-none"}))
    remote.api.post(pods, _pod("crashes"))
    forbidden = {"metadata": {"labels": {"app": "none"}}, "spec": _pod("none", serviceAccountName="missing")["spec"]}
    twin = {"replicas": 1, "selector": {"matchLabels": {"app": "none"}}, "template": forbidden}
    remote.api.post(
        f"/apis/apps/v1/namespaces/{namespace}/replicasets", {"metadata": {"name": "refused"}, "spec": twin}
    )
    wanted = {"FailedScheduling", "BackOff", "FailedCreate"}

    def seen() -> list[Object]:
        found = remote.api.items(events)
        assert wanted <= {event["reason"] for event in found}
        return found

    told: dict[str, Object] = {}
    for event in eventually(seen, f"events {wanted}"):
        made = local_event(event, pod, mode="all")
        if made is not None:
            stored = local.api.post(events, made)
            assert event_patch(stored, made) is None
            told[made["reason"]] = stored
    assert wanted <= told.keys()
    assert all(event["involvedObject"]["uid"] == pod["metadata"]["uid"] for event in told.values())
    assert {told[reason]["type"] for reason in wanted} == {"Warning"}
    described = local.kubectl("-n", namespace, "describe", "pod", "told").stdout
    assert all(reason in described for reason in wanted), described

    more = event_patch(told["BackOff"], told["BackOff"] | {"count": 99})
    local.kubectl(
        "-n", namespace, "patch", "event", told["BackOff"]["metadata"]["name"], "--type=merge", "-p", json.dumps(more)
    )
