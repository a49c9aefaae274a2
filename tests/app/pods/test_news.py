"""Which changes of a twin wake anybody."""

from __future__ import annotations

from typing import Any

import pytest

from app.kube.objects import Envelope, Object
from app.pods.news import is_news


def replica_set(status: Object, *, spec: Object | None = None, **metadata: Any) -> Envelope:
    names = {"name": "web", "namespace": "shop", "uid": "1", "resourceVersion": str(id(status))}
    return Envelope.of({"metadata": names | metadata, "spec": spec or {"replicas": 1}, "status": status})


@pytest.mark.parametrize(
    "new",
    [
        replica_set({"replicas": 1, "observedGeneration": 1}),
        replica_set({"replicas": 1, "readyReplicas": 1, "availableReplicas": 1, "observedGeneration": 1}),
        replica_set({}),
    ],
)
def test_counts_are_no_news(new: Envelope) -> None:
    assert not is_news(replica_set({"replicas": 0}), new)


@pytest.mark.parametrize(
    "new",
    [
        replica_set({"replicas": 0, "conditions": [{"type": "ReplicaFailure", "status": "True"}]}),
        replica_set({"replicas": 0}, spec={"replicas": 0}),
        replica_set({"replicas": 0}, deletionTimestamp="2026-02-01T12:00:00Z"),
        replica_set({"replicas": 0}, labels={"team": "shop"}),
        replica_set({"replicas": 0}, uid="2"),
    ],
)
def test_whatever_else_changes_is(new: Envelope) -> None:
    assert is_news(replica_set({"replicas": 0}), new)
    assert is_news(new, replica_set({"replicas": 0})), "that it is gone is news too"
