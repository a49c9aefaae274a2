"""The configurations in code are those of the manifests."""

from __future__ import annotations

from pathlib import Path

import yaml

from app.operator.registration import configurations

MANIFEST = Path(__file__).resolve().parents[3] / "manifests" / "operator" / "webhooks.yaml"


def test_the_manifest_is_the_same() -> None:
    documents = list(yaml.safe_load_all(MANIFEST.read_text()))
    for document in documents:
        for webhook in document["webhooks"]:
            webhook.pop("clientConfig")
    assert documents == [content for _, content in configurations("farlet", "farlet")]
