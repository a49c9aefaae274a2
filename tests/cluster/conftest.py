"""What cluster tests share: a Farlet between the shared clusters, and the project's image."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster import imagebuild
from devcluster.cluster import Cluster
from tests.cluster.farlet import Farlet, running

CHECKOUT = Path(__file__).resolve().parents[2]
IMAGE = "docker.io/library/farlet:test"


@pytest.fixture(scope="session")
def image_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's image, called IMAGE, as an archive; built once, as those who use it are of one xdist group."""
    return imagebuild.build(CHECKOUT, IMAGE, output=tmp_path_factory.mktemp("image") / "farlet.tar")


@pytest.fixture
def farlet(local: Cluster, remote: Cluster, namespace: str, virtual_node: str, tmp_path: Path) -> Iterator[Farlet]:
    """A Farlet that offloads from the test's namespace, to the remote namespace of the same name."""
    with running(local, remote, virtual_node, tmp_path, "--namespace", f"{namespace}={namespace}") as farlet:
        yield farlet
