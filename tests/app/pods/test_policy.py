"""Which pods stay, and what they are told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.kube.objects import Object
from app.pods.policy import losses, refusal
from tests.app.pods.pods import OPTIONS, local_pod


def _owned_by(kind: str, **reference: object) -> Object:
    return {"ownerReferences": [{"kind": kind, "name": "owner", "controller": True, **reference}]}


def _container(**fields: object) -> list[Object]:
    return [{"name": "main", "image": "web:1", **fields}]


PRIVILEGED = _container(securityContext={"privileged": True})


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        (local_pod(), None),
        (local_pod(metadata=_owned_by("StatefulSet")), None),
        (local_pod(metadata=_owned_by("DaemonSet", controller=False)), None),
        (local_pod(metadata=_owned_by("DaemonSet")), "DaemonSet owner"),
        (local_pod(metadata={"annotations": {"kubernetes.io/config.mirror": "x"}}), "static pod"),
        (local_pod(metadata=_owned_by("Node")), "static pod"),
        (local_pod(resourceClaims=[{"name": "gpu"}]), "resource claims (gpu)"),
        (local_pod(hostNetwork=True), "hostNetwork"),
        (local_pod(hostPID=True, hostIPC=True), "hostPID, hostIPC"),
        (local_pod(hostNetwork=False, hostPID=None), None),
        (local_pod(volumes=[{"name": "logs", "hostPath": {"path": "/var/log"}}]), "hostPath volume logs"),
        (local_pod(containers=PRIVILEGED), "privileged container main"),
        (local_pod(initContainers=PRIVILEGED), "privileged container main"),
        (local_pod(containers=_container(ports=[{"containerPort": 80, "hostPort": 8080}])), "hostPort 8080"),
        (local_pod(securityContext={"windowsOptions": {"hostProcess": True}}), "hostProcess"),
        (local_pod(metadata={"annotations": {"big": "x" * (256 * 1024 - 100)}}), "bytes of annotations"),
        (local_pod(metadata={"annotations": {"big": "x" * (255 * 1024)}}), None),
    ],
)
def test_refusal(pod: Object, words: str | None) -> None:
    said = refusal(pod, OPTIONS)
    assert said is None if words is None else words in str(said)


def test_annotations_shown_in_a_volume_count_twice() -> None:
    everything = {"path": "all", "fieldRef": {"fieldPath": "metadata.annotations"}}
    pod = local_pod(
        metadata={"annotations": {"big": "x" * (200 * 1024)}},
        volumes=[{"name": "info", "downwardAPI": {"items": [everything]}}],
    )
    assert "count twice" in str(refusal(pod, OPTIONS))


def test_a_refusal_can_be_lifted() -> None:
    assert refusal(local_pod(hostNetwork=True), replace(OPTIONS, allow_host=True)) is None
    assert refusal(local_pod(metadata=_owned_by("DaemonSet")), replace(OPTIONS, allow_daemon_sets=True)) is None


def test_losses() -> None:
    token = {"serviceAccountToken": {"audience": "vault", "path": "token"}}
    volume = {"name": "vault", "projected": {"sources": [token, {"configMap": {"name": "c"}}]}}
    assert losses(local_pod()) == []
    pod = local_pod()
    pod["spec"]["volumes"].append(volume)
    assert ["volume vault" in text for text in losses(pod)] == [True]
