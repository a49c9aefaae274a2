"""What cluster tests share: a Farlet between the shared clusters, and the project's image."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster import imagebuild
from devcluster.cluster import Cluster
from tests.cluster.farlet import Farlet, running

CHECKOUT = Path(__file__).resolve().parents[2]
IMAGE = "docker.io/library/farlet:test"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The image takes a minute or two to build: a test that stands alone comes first, and a group needs it last."""

    def place(item: pytest.Item) -> int:
        if "image_archive" not in getattr(item, "fixturenames", ()):
            return 0
        return 1 if item.get_closest_marker("xdist_group") else -1

    items.sort(key=place)


@pytest.fixture(scope="session")
def image_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's image, called IMAGE, as an archive; built by the first of the workers that needs it."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # each has a folder in that of the run
        shared = shared.parent
    archive = shared / "farlet.tar"
    with (shared / "farlet.tar.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return archive if archive.exists() else imagebuild.build(CHECKOUT, IMAGE, output=archive)


@pytest.fixture
def farlet(local: Cluster, remote: Cluster, namespace: str, virtual_node: str, tmp_path: Path) -> Iterator[Farlet]:
    """A Farlet that offloads from the test's namespace, to the remote namespace of the same name."""
    with running(local, remote, virtual_node, tmp_path, "--namespace", f"{namespace}={namespace}") as farlet:
        yield farlet
