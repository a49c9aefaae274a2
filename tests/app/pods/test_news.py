"""Which changes wake anybody."""

from __future__ import annotations

from typing import Any

import pytest

from app.kube.objects import Envelope, Object
from app.pods.news import is_news, is_silent


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


def pod(status: Object, **metadata: Any) -> Envelope:
    return Envelope.of({"metadata": {"name": "web", "namespace": "shop", "uid": "1"} | metadata, "status": status})


BOUND = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": "2026-02-01T12:00:00Z"}


@pytest.mark.parametrize(
    "status", [{}, {"phase": "Pending", "qosClass": "Burstable"}, {"phase": "Pending", "conditions": [BOUND]}]
)
def test_a_pod_of_which_nobody_has_told_anything(status: Object) -> None:
    assert is_silent(pod(status))
    assert not is_silent(pod(status, deletionTimestamp="2026-02-01T12:00:00Z"))


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Running"},
        {"phase": "Failed"},
        {"phase": "Pending", "reason": "NotOffloaded"},
        {"phase": "Pending", "message": "why"},
        {"phase": "Pending", "startTime": "2026-02-01T12:00:00Z"},
        {"phase": "Pending", "conditions": [BOUND | {"status": "False"}]},
        {"phase": "Pending", "conditions": [BOUND, {"type": "Ready", "status": "False"}]},
        {"phase": "Pending", "conditions": [BOUND, {"type": "example.com/gate", "status": "True"}]},
        {"phase": "Pending", "containerStatuses": [{"name": "main"}]},
        {"phase": "Pending", "initContainerStatuses": [{"name": "first"}]},
        {"phase": "Pending", "ephemeralContainerStatuses": [{"name": "debug"}]},
    ],
)
def test_whatever_is_told_of_a_pod_is_heard(status: Object) -> None:
    assert not is_silent(pod(status))
