"""Local pods and their twins, for the tests of what is forged from them."""

from __future__ import annotations

from typing import Any

from app.kube.objects import Object
from app.pods.forge import ForgeOptions, forge_twin

UID = "0b5a3a1e-7d2c-4c55-9d2e-1c1f6a3d9b10"
OPTIONS = ForgeOptions(origin="home", node="far-away", remote_minor=36)
REMOTE = "shop-remote"


def local_pod(name: str = "web-0", *, metadata: Object | None = None, **spec: Any) -> Object:
    """A pod as a local API server has it: admitted, completed, bound."""
    container = {
        "name": "main",
        "image": "web:1",
        "resources": {"requests": {"cpu": "100m"}},
        "volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            {"name": "kube-api-access-x7k2p", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"},
        ],
    }
    token = {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "generateName": "web-",
            "namespace": "shop",
            "uid": UID,
            "resourceVersion": "17",
            "labels": {"app": "web", "pod-template-hash": "7d9f"},
            "annotations": {"note": "hello"},
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "7d9f", "controller": True}
            ],
            "finalizers": ["example.org/wait"],
            "managedFields": [{"manager": "kubectl"}],
            **(metadata or {}),
        },
        "spec": {
            "nodeName": "far-away",
            "restartPolicy": "Always",
            "serviceAccountName": "shopkeeper",
            "serviceAccount": "shopkeeper",
            "schedulerName": "default-scheduler",
            "priority": 0,
            "preemptionPolicy": "PreemptLowerPriority",
            "containers": [container],
            "volumes": [
                {"name": "data", "emptyDir": {}},
                {"name": "kube-api-access-x7k2p", "projected": {"sources": [token]}},
            ],
            **spec,
        },
        "status": {"phase": "Pending"},
    }


def made_by(twin: Object) -> Object:
    """The pod that a twin's controller makes, with what only the API server knows."""
    template = twin["spec"]["template"]
    metadata = {
        **template["metadata"],
        "name": f"{twin['metadata']['name']}-abcde",
        "namespace": REMOTE,
        "uid": "pod-uid",
    }
    return {"metadata": metadata, "spec": template["spec"], "status": {"phase": "Running"}}


def twin_of(pod: Object, options: ForgeOptions = OPTIONS) -> Object:
    """The twin of a pod, as the remote API server has it."""
    twin = forge_twin(pod, REMOTE, options)
    twin["metadata"]["uid"] = "twin-uid"
    return twin
