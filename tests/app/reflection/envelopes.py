"""Objects for tests of reflection, as informers would hold them."""

from __future__ import annotations

from typing import Any

from app.kube.objects import Envelope, Object
from app.reflection.copies import Owner
from app.reflection.kind import Around, Kind
from app.reflection.rules import Rules

OWNER = Owner(origin="home", node="far")
NOWHERE = Around()


def envelope(
    kind: str,
    name: str = "web",
    *,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    namespace: str = "shop",
    **content: Any,
) -> Envelope:
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": "u1",
        "resourceVersion": "7",
        "labels": labels or {},
        "annotations": annotations or {},
        "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "y"}],
        "finalizers": ["example.com/x"],
    }
    return Envelope.of({"apiVersion": "v1", "kind": kind, "metadata": metadata, **content})


def stored(kind: Kind, local: Envelope, around: Around = NOWHERE, **added: Any) -> Envelope:
    """The copy of a local object as the remote cluster would show it, with what that adds."""
    copy = kind.forge(local, around)
    assert copy is not None
    metadata: Object = {
        "name": copy.name,
        "namespace": "there",
        "uid": "r1",
        "resourceVersion": "9",
        "labels": dict(copy.labels),
        "annotations": dict(copy.annotations),
    }
    return kind.slim(Envelope.of({**kind.head(), "metadata": metadata, **copy.content, **added}))


def rules(**policies: str) -> Rules:
    from app.reflection.rules import parse

    return Rules(parse([f"{kind}={policy}" for kind, policy in policies.items()]))
