"""What tests of the image share."""

from __future__ import annotations

from pathlib import Path

import pytest

from devcluster import imagebuild

CHECKOUT = Path(__file__).resolve().parents[2]
IMAGE = "docker.io/library/farlet:test"


@pytest.fixture(scope="session")
def image_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's image, called IMAGE, as an archive; built once, as those who use it are of one xdist group."""
    return imagebuild.build(CHECKOUT, IMAGE, output=tmp_path_factory.mktemp("image") / "farlet.tar")
