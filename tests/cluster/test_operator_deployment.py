"""The operator in the local cluster, from ``manifests/operator`` as docs/operator.md says: two replicas behind a
Service, called by the API server, of which one may go."""

from __future__ import annotations

import base64
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from app import names
from devcluster.cluster import Cluster
from devcluster.fleet import Fleet
from tests.cluster.conftest import IMAGE
from tests.cluster.farlet import MANIFESTS, install_rights
from tests.cluster.objects import Object, get, rolled_out
from tests.cluster.operators import SCOPE
from tests.cluster.test_namespace_offloading import offload
from tests.cluster.test_webhook import dry, pod, tolerates
from tests.eventually import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("labels"), pytest.mark.timeout(900)]

HOME = "farlet"
"""The namespace that the manifests name."""
OPERATOR = "farlet-operator"
OWN = (
    f"deployment/{OPERATOR}",
    "service/farlet-webhook",
    f"networkpolicy/{OPERATOR}",
    f"poddisruptionbudget/{OPERATOR}",
)
MUTATING, VALIDATING = "mutatingwebhookconfiguration", "validatingwebhookconfiguration"


@pytest.fixture(scope="module")
def operator(fleet: Fleet, image_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``kubectl apply -k`` of a kustomization of one's own; gives the label of namespaces that it is asked about."""
    local = fleet.cluster("local")
    folder = tmp_path_factory.mktemp("my-operator").resolve()
    local.load_image(image_archive)
    install_rights(local, fleet.cluster("remote"))
    scope = f"scope-{uuid.uuid4().hex[:8]}"
    (folder / "kustomization.yaml").write_text(json.dumps(overlay(folder, scope)))
    try:
        local.kubectl("apply", "-k", str(folder))
        rolled_out(local, HOME, OPERATOR)
        yield scope
    finally:
        for what in (["logs", f"deployment/{OPERATOR}", "--all-pods", "--prefix"], ["get", "events"]):
            print(local.kubectl("-n", HOME, *what, check=False).stdout[-6000:])  # noqa: T201 - for a test that fails
        # not with -k: the rights are those of other tests, too
        local.kubectl("delete", f"{MUTATING},{VALIDATING}", "farlet", "--ignore-not-found")
        local.kubectl("-n", HOME, "delete", *OWN, "secret/farlet-webhook-tls", "--ignore-not-found")
        eventually(lambda: not replicas(local), "the operator's pods end", timeout=120)


def overlay(folder: Path, scope: str) -> Object:
    """Where the image is; and the namespaces of other tests are none of its concern."""
    name, _, tag = IMAGE.rpartition(":")
    ours = {SCOPE: scope}
    patches = {
        "MutatingWebhookConfiguration": ("/webhooks/0/namespaceSelector/matchLabels", ours),
        "ValidatingWebhookConfiguration": ("/webhooks/0/namespaceSelector", {"matchLabels": ours}),
    }
    return {
        "resources": [os.path.relpath(MANIFESTS / "operator", folder)],
        "images": [{"name": "farlet", "newName": name, "newTag": tag}],
        "patches": [
            {
                "target": {"kind": kind, "name": "farlet"},
                "patch": json.dumps([{"op": "add", "path": path, "value": value}]),
            }
            for kind, (path, value) in patches.items()
        ],
    }


def replicas(local: Cluster) -> list[Object]:
    items: list[Object] = get(local, HOME, "pods", "-l", f"app.kubernetes.io/name={OPERATOR}")["items"]
    return items


def ready(local: Cluster) -> set[str]:
    """The replicas that are Ready and stay."""
    return {
        item["metadata"]["name"]
        for item in replicas(local)
        if "deletionTimestamp" not in item["metadata"]
        and any(c["type"] == "Ready" and c["status"] == "True" for c in item["status"].get("conditions", []))
    }


def authority(local: Cluster, kind: str) -> str:
    """Whom the API server trusts when it calls."""
    (webhook,) = get(local, HOME, kind, "farlet")["webhooks"]
    return base64.b64decode(webhook["clientConfig"].get("caBundle", "")).decode()


def test_pods_are_steered_by_either_of_two_replicas(operator: str, local: Cluster, namespace: str) -> None:
    assert len(ready(local)) == 2
    known = base64.b64decode(get(local, HOME, "secret", "farlet-webhook-tls")["data"]["ca.crt"]).decode()
    assert "BEGIN CERTIFICATE" in known
    for kind in (MUTATING, VALIDATING):
        eventually(lambda kind=kind: known in authority(local, kind), f"the {kind} has its caBundle")  # type: ignore[misc]

    local.kubectl("label", "namespace", namespace, f"{SCOPE}={operator}")
    offload(local, namespace)
    # the API server hears of a caBundle a little later: an object that comes before that is labelled by the leader
    tighter = ["patch", "nso", names.OFFLOADING, "--dry-run=server", "--type=merge", "-p"]
    ask = [*tighter, '{"spec": {"podOffloadingStrategy": "Local"}}']
    eventually(
        lambda: "stay until they are replaced" in local.kubectl("-n", namespace, *ask).stderr,
        "the validating webhook is called",
    )
    eventually(lambda: tolerates(dry(local, namespace, pod())[0]), "pods are steered")

    for goes in sorted(ready(local)):  # the one that leads, and the one that does not
        local.kubectl("-n", HOME, "delete", "pod", goes, "--wait=false")
        asked = 0
        while goes in {item["metadata"]["name"] for item in replicas(local)} or len(ready(local)) < 2:
            assert tolerates(dry(local, namespace, pod())[0]), f"{goes} goes, and the other one answers"
            asked += 1
        assert asked

    local.kubectl("-n", namespace, "delete", "nso", names.OFFLOADING, timeout=60)
    assert names.LABEL_ENABLED not in get(local, namespace, "namespace", namespace)["metadata"]["labels"]
