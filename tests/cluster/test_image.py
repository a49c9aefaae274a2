"""Images without a registry: an archive made here, and the project's own Dockerfile built for real."""

from __future__ import annotations

from pathlib import Path

import pytest

import app
from devcluster.cluster import Cluster
from tests.cluster.conftest import IMAGE
from tests.eventually import eventually

pytestmark = pytest.mark.cluster


@pytest.mark.timeout(900)
def test_the_projects_own_image_runs(remote: Cluster, namespace: str, image_archive: Path) -> None:
    assert IMAGE in remote.load_image(image_archive)[0]
    run = ["run", "version", f"--image={IMAGE}", "--restart=Never", "--image-pull-policy=Never"]
    remote.kubectl("-n", namespace, *run, "--", "version")

    def phase() -> str:
        return remote.kubectl("-n", namespace, "get", "pod", "version", "-o", "jsonpath={.status.phase}").stdout

    assert eventually(phase, "the pod ends", until=lambda p: p in ("Succeeded", "Failed")) == "Succeeded"
    assert app.__version__ in remote.kubectl("-n", namespace, "logs", "version").stdout
