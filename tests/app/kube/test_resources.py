"""Paths are built from checked parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kube import resources
from app.kube.resources import JOBS, LEASES, NODES, PODS, Resource

CLUSTER_ROLES = Resource("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", namespaced=False)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (PODS.path(), "/api/v1/pods"),
        (PODS.path("a"), "/api/v1/namespaces/a/pods"),
        (PODS.path("a", "b"), "/api/v1/namespaces/a/pods/b"),
        (PODS.path("a", "b.c-d", "ephemeralcontainers"), "/api/v1/namespaces/a/pods/b.c-d/ephemeralcontainers"),
        (NODES.path(), "/api/v1/nodes"),
        (NODES.path(name="n", subresource="status"), "/api/v1/nodes/n/status"),
        (JOBS.path("a", "b"), "/apis/batch/v1/namespaces/a/jobs/b"),
        (LEASES.path("kube-node-lease"), "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"),
        (CLUSTER_ROLES.path(name="system:x"), "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:x"),
        (PODS.path("a", "b c?d#e"), "/api/v1/namespaces/a/pods/b%20c%3Fd%23e"),
    ],
)
def test_path(path: str, expected: str) -> None:
    assert path == expected


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a%2fb", "a\nb", "a\0", "x" * 254])
def test_names_that_would_be_another_path_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a name"):
        PODS.path("a", name)
    with pytest.raises(ValueError, match="not a name"):
        PODS.path(name, "a")


@pytest.mark.parametrize("namespace", ["A", "a.b", "-a", "a-", "a" * 64, "a b", "a\n"])
def test_namespaces_are_dns_labels(namespace: str) -> None:
    with pytest.raises(ValueError, match="not a name of a namespace"):
        PODS.path(namespace)


def test_parts_must_fit_the_kind() -> None:
    with pytest.raises(ValueError, match="not namespaced"):
        NODES.path("a", "b")
    with pytest.raises(ValueError, match="needs a namespace"):
        PODS.path(name="b")
    with pytest.raises(ValueError, match="not a subresource"):
        PODS.path("a", subresource="status")
    with pytest.raises(ValueError, match="not a subresource"):
        PODS.path("a", "b", "status/../../c")


@given(st.text(max_size=30))
def test_a_name_is_always_one_segment(name: str) -> None:
    try:
        path = PODS.path("a", name)
    except ValueError:
        return
    assert path.count("/") == 6
    assert path.rpartition("/")[2] not in ("", ".", "..")
    assert not set(path) & set("?#\\ \n")


def test_group() -> None:
    assert PODS.group == ""
    assert JOBS.group == "batch"


def test_every_constant_is_a_resource_of_its_own() -> None:
    found = [value for value in vars(resources).values() if isinstance(value, Resource)]
    assert len({(resource.api_version, resource.plural) for resource in found}) == len(found) >= 13
