"""What keeps a remote namespace that is over, and what is in every namespace anyway."""

from __future__ import annotations

import pytest

from app.kube.objects import Envelope, Object
from app.kube.resources import CONFIG_MAPS, DEPLOYMENTS, ENDPOINT_SLICES, SECRETS, SERVICES, Resource
from app.namespaces.content import is_somebodys

TOKEN_OF = "kubernetes.io/service-account.name"
SERVICE = {"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "1"}


@pytest.mark.parametrize(
    ("kind", "metadata", "expected"),
    [
        (CONFIG_MAPS, {"name": "theirs"}, True),
        (CONFIG_MAPS, {"name": "kube-root-ca.crt"}, False),
        (CONFIG_MAPS, {"name": "openshift-service-ca.crt"}, False),
        (CONFIG_MAPS, {"name": "istio-ca-root-cert"}, False),
        (SECRETS, {"name": "kube-root-ca.crt"}, True),
        (SECRETS, {"name": "default-token-x7k2p", "annotations": {TOKEN_OF: "default"}}, False),
        (SECRETS, {"name": "robot-token", "annotations": {TOKEN_OF: "robot"}}, True),
        (SERVICES, {"name": "web"}, True),
        (ENDPOINT_SLICES, {"name": "web-x7k2p", "ownerReferences": [SERVICE]}, False),
        (ENDPOINT_SLICES, {"name": "by-hand"}, True),
        (DEPLOYMENTS, {"name": "web", "ownerReferences": [SERVICE]}, True),
    ],
)
def test_whether_it_is_somebodys(kind: Resource, metadata: Object, expected: bool) -> None:
    assert is_somebodys(kind, Envelope.of({"metadata": {"namespace": "far", **metadata}})) is expected
