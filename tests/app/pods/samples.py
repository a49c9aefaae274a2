"""Pods, twins and container statuses to start from, as API servers and kubelets write them."""

from __future__ import annotations

from typing import Any

from app import names
from app.kube.objects import Object

NOW = "2026-02-01T12:00:00Z"
"""The moment of the test."""
EARLIER = "2026-02-01T11:00:00Z"
"""When things happened in the remote cluster."""


def container(name: str = "main", **fields: Any) -> Object:
    return {"name": name, "image": "busybox", **fields}


def local_pod(
    *, policy: str = "Always", status: Object | None = None, annotations: dict[str, str] | None = None, **spec: Any
) -> Object:
    """A pod that the local scheduler has bound to the virtual node."""
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": EARLIER, "observedGeneration": 1}
    return {
        "metadata": {
            "name": "web",
            "namespace": "shop",
            "uid": "local-uid",
            "generation": 1,
            "annotations": annotations or {},
        },
        "spec": {"restartPolicy": policy, "containers": [container()], "nodeName": "virtual", **spec},
        "status": {"phase": "Pending", "qosClass": "BestEffort", "conditions": [scheduled], **(status or {})},
    }


def told_of(uid: str = "remote-1", before: str | None = None) -> dict[str, str]:
    """The annotations of a local pod whose status tells of a remote pod."""
    found = {names.ANNOTATION_REMOTE_UID: uid, names.ANNOTATION_REMOTE_POD: f"shop-far/web-{uid}"}
    return found | ({names.ANNOTATION_RESTARTS_BEFORE: before} if before else {})


def remote_pod(
    *statuses: Object,
    phase: str = "Running",
    uid: str = "remote-1",
    ready: bool = True,
    deleting: bool = False,
    owner: str = "twin-uid",
    created: str = EARLIER,
    conditions: list[Object] | None = None,
    spec: Object | None = None,
    **status: Any,
) -> Object:
    """A pod that a remote kubelet has; *conditions* come on top of the usual ones."""
    word = "True" if ready else "False"
    usual = [
        {"type": "PodReadyToStartContainers", "status": "True", "lastProbeTime": None, "lastTransitionTime": EARLIER},
        {"type": "Initialized", "status": "True", "lastProbeTime": None, "lastTransitionTime": EARLIER},
        {"type": "Ready", "status": word, "lastProbeTime": None, "lastTransitionTime": EARLIER},
        {"type": "ContainersReady", "status": word, "lastProbeTime": None, "lastTransitionTime": EARLIER},
        {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": EARLIER},
    ]
    metadata: Object = {
        "name": f"web-{uid}",
        "namespace": "shop-far",
        "uid": uid,
        "generation": 7,
        "creationTimestamp": created,
        "ownerReferences": [{"kind": "ReplicaSet", "name": "web", "uid": owner, "controller": True}],
    }
    if deleting:
        metadata["deletionTimestamp"] = EARLIER
    return {
        "metadata": metadata,
        "spec": spec or {"containers": [container()]},
        "status": {
            "phase": phase,
            "qosClass": "Burstable",
            "observedGeneration": 7,
            "startTime": EARLIER,
            "hostIP": "192.168.1.9",
            "hostIPs": [{"ip": "192.168.1.9"}],
            "podIP": "10.1.2.3",
            "podIPs": [{"ip": "10.1.2.3"}],
            "conditions": usual + (conditions or []),
            "containerStatuses": list(statuses) or [running()],
            **status,
        },
    }


def fresh_pod(uid: str = "remote-1", *conditions: Object) -> Object:
    """A remote pod just made by its twin."""
    pod = remote_pod(uid=uid)
    pod["status"] = {"phase": "Pending", "qosClass": "BestEffort"}
    if conditions:
        pod["status"]["conditions"] = list(conditions)
    return pod


def running(name: str = "main", *, restarts: int = 0, **fields: Any) -> Object:
    return _status(name, {"running": {"startedAt": EARLIER}}, ready=True, restarts=restarts, started=True, **fields)


def waiting(name: str = "main", reason: str = "ContainerCreating", *, restarts: int = 0, **fields: Any) -> Object:
    entry = _status(name, {"waiting": {"reason": reason}}, ready=False, restarts=restarts, started=False, **fields)
    entry.pop("containerID")
    return entry


def terminated(name: str = "main", code: int = 0, *, restarts: int = 0, **fields: Any) -> Object:
    state = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "finishedAt": EARLIER}
    return _status(name, {"terminated": state}, ready=False, restarts=restarts, started=False, **fields)


def _status(name: str, state: Object, *, ready: bool, restarts: int, started: bool, **fields: Any) -> Object:
    return {
        "name": name,
        "state": state,
        "lastState": {},
        "ready": ready,
        "started": started,
        "restartCount": restarts,
        "image": "busybox",
        "imageID": "sha256:1",
        "containerID": f"containerd://{name}",
        **fields,
    }


def replica_set(*conditions: Object, deleting: bool = False) -> Object:
    return _twin("ReplicaSet", {"replicas": 1}, conditions, deleting)


def job(*conditions: Object, backoff: int = 0, deleting: bool = False) -> Object:
    return _twin("Job", {"backoffLimit": backoff}, conditions, deleting)


def _twin(kind: str, spec: Object, conditions: tuple[Object, ...], deleting: bool) -> Object:
    metadata: Object = {"name": "web", "namespace": "shop-far", "uid": "twin-uid"}
    if deleting:
        metadata["deletionTimestamp"] = EARLIER
    return {"kind": kind, "metadata": metadata, "spec": spec, "status": {"conditions": list(conditions)}}


def condition(kind: str, status: str = "True", reason: str = "", message: str = "") -> Object:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": EARLIER}


def shown(local: Object, status: Object, annotations: dict[str, str]) -> Object:
    """The local pod after its status and annotations were written."""
    metadata = local["metadata"] | {"annotations": local["metadata"]["annotations"] | annotations}
    return local | {"metadata": metadata, "status": status}
