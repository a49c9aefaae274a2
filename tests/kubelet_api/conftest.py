"""What tests of the kubelet API share: authorities, made once, and a local cluster that is asked who may do what."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from app.kube.client import Client
from app.kube.config import load
from devcluster.cluster import Cluster
from tests.kubelet_api.serving import Authority


@pytest.fixture(scope="session")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def reviews(local: Cluster) -> Callable[[], AbstractAsyncContextManager[Client]]:
    """A client of the local cluster that may review tokens and rights, to be opened in the test's event loop."""
    path = local.service_account_kubeconfig("default", "kubelet-api-tests", cluster_role="system:auth-delegator")
    return lambda: Client(load(path), name="local")
