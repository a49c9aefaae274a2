"""What the tests of devcluster that need no cluster share: a layout in a folder of the test, and keys made once."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path

import pytest

from devcluster import pki
from devcluster.layout import ClusterLayout, FleetLayout


@pytest.fixture
def layout(tmp_path: Path) -> ClusterLayout:
    """The layout of a cluster that nobody started."""
    return ClusterLayout(FleetLayout("dev", tmp_path / "dev"), "local", 1, 0, IPv4Network("10.254.0.0/16"))


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> ClusterLayout:
    """A cluster with all its keys, certificates and kubeconfigs; many tests share it, so they only read."""
    folder = tmp_path_factory.mktemp("made") / "dev"
    cluster = ClusterLayout(FleetLayout("dev", folder), "local", 1, 0, IPv4Network("10.254.0.0/16"))
    pki.make(cluster)
    return cluster
