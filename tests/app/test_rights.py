"""The table of rights and the manifests never drift apart, and what is missing is said so that a person can act."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from app import rights
from app.rights import Right
from app.settings import RunSettings, load

ROOT = Path(__file__).resolve().parents[2]


def settings(**flags: object) -> RunSettings:
    return load({"remote_kubeconfig": Path("remote"), **flags}, {}, None)


def granted(manifest: str) -> set[tuple[str, str, str, str | None]]:
    """Verb, group, resource and namespace of every rule of the roles in a manifest."""
    documents: Iterable[dict[str, Any]] = yaml.safe_load_all((ROOT / manifest).read_text())
    return {
        (verb, group, resource, document["metadata"].get("namespace"))
        for document in documents
        if document["kind"] in ("Role", "ClusterRole")
        for rule in document["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def needed(*tables: Iterable[Right]) -> set[tuple[str, str, str, str | None]]:
    return {(right.verb, right.group, right.object(), right.namespace) for table in tables for right in table}


def test_the_local_manifest_grants_what_is_needed_and_no_more() -> None:
    api = (rights.LOCAL_API, rights.LOCAL_CSR, rights.LOCAL_OPTIONAL)
    reflection = rights.LOCAL_REFLECTION.values()
    tables = (rights.LOCAL, rights.LOCAL_OFFLOADING, rights.LOCAL_REMOVE)
    assert granted(rights.LOCAL_MANIFEST) == needed(*tables, *api, *reflection)


def test_the_remote_manifest_grants_what_is_needed_and_no_more() -> None:
    tables = (rights.REMOTE, rights.REMOTE_API, rights.REMOTE_EVENTS, rights.REMOTE_NODES, rights.REMOTE_QUOTA)
    assert granted(rights.REMOTE_MANIFEST) == needed(
        *tables, rights.REMOTE_REMOVE, rights.REMOTE_METRICS, *rights.REMOTE_REFLECTION.values()
    )


def test_the_manifest_for_remote_kubelets_grants_what_is_needed_and_not_nodes_proxy() -> None:
    assert granted(rights.KUBELETS_MANIFEST) == needed(rights.REMOTE_KUBELETS)


def test_the_confined_manifest_grants_the_same_in_a_namespace() -> None:
    everything = [*rights.REMOTE, *rights.REMOTE_API, *rights.REMOTE_EVENTS, *rights.REMOTE_METRICS]
    tables = (rights.confined(everything), rights.REMOTE_QUOTA)
    assert granted(rights.CONFINED_MANIFEST) == needed(*tables, *rights.REMOTE_REFLECTION.values())
    kinds = {document["kind"] for document in yaml.safe_load_all((ROOT / rights.CONFINED_MANIFEST).read_text())}
    assert kinds == {"Role", "RoleBinding"}, "nothing cluster-wide"


def test_confined_rights_are_asked_for_in_each_namespace_and_nowhere_else() -> None:
    reflection = [right for table in rights.REMOTE_REFLECTION.values() for right in table]
    found = rights.remote(settings(capacity="cpu=1", namespaces=("a=x", "b=y")), ["x", "y"])
    assert {right.namespace for right in found} == {"x", "y"}
    assert needed(found) == {
        (right.verb, right.group, right.object(), space)
        for right in rights.confined(
            [*rights.REMOTE, *rights.REMOTE_API, *rights.REMOTE_EVENTS, *rights.REMOTE_METRICS, *reflection]
        )
        for space in ("x", "y")
    }


@pytest.mark.parametrize(
    ("flags", "asked", "not_asked"),
    [
        ({}, {"nodes", "events"}, {"resourcequotas"}),
        ({"capacity": "cpu=1"}, {"events"}, {"nodes", "resourcequotas"}),
        ({"capacity_command": "x"}, set(), {"nodes"}),
        ({"capacity_url": "http://x"}, set(), {"nodes"}),
        ({"capacity_quota": "team/q"}, {"resourcequotas"}, {"nodes"}),
        ({"events": "none"}, {"nodes"}, {"events"}),
    ],
)
def test_only_what_the_settings_need_is_asked_for(
    flags: dict[str, object], asked: set[str], not_asked: set[str]
) -> None:
    resources = {right.resource for right in rights.remote(settings(**flags))}
    assert asked <= resources
    assert not resources & not_asked


def test_a_kind_that_is_not_reflected_is_not_asked_for() -> None:
    chosen = settings(reflect=("secrets=off", "configmaps=none"))
    for asked in (rights.local(chosen), rights.remote(chosen)):
        kinds = {right.resource for right in asked}
        assert {"configmaps", "services", "endpointslices"} <= kinds
        assert "secrets" not in kinds


def test_what_is_not_reflected_for_want_of_rights_is_no_error() -> None:
    missing = [*rights.LOCAL_REFLECTION["secrets"], *rights.REMOTE_REFLECTION["services"][:1]]
    assert rights.refusal("local", missing, "roles.yaml") is None
    assert rights.not_reflected(missing) == {"secrets", "services"}
    assert rights.losses("local", missing) == [
        "missing in the local cluster: get, list, watch secrets: secrets are reflected only from namespaces where a "
        "RoleBinding grants it",
        "missing in the local cluster: get services: services are not reflected",
    ]


def test_a_quota_needs_rights_in_its_namespace_only() -> None:
    found = [r for r in rights.remote(settings(capacity_quota="team/q")) if r.resource == "resourcequotas"]
    assert [right.namespace for right in found] == ["team", "team"]


def test_what_nothing_works_without_is_one_line_with_the_way_out() -> None:
    missing = [
        Right("list", "pods"),
        Right("watch", "pods"),
        Right("patch", "pods", subresource="resize", loss="no resize"),
        Right("list", "nodes", instead="state the size"),
        Right("get", "leases", namespace="here"),
    ]
    assert rights.refusal("remote", missing, "roles.yaml") == (
        "in the remote cluster these rights are missing: list, watch pods; list nodes; get leases in namespace here; "
        "apply roles.yaml, or state the size"
    )


def test_what_can_be_done_without_is_listed() -> None:
    missing = [
        Right("get", "events", loss="no events"),
        Right("patch", "pods", subresource="resize", loss="no resize"),
        Right("create", "events", loss="no events"),
    ]
    assert rights.refusal("local", missing, "roles.yaml") is None
    assert rights.losses("local", missing) == [
        "missing in the local cluster: get, create events: no events",
        "missing in the local cluster: patch pods/resize: no resize",
    ]


def test_nothing_is_missing() -> None:
    assert rights.refusal("local", [], "roles.yaml") is None
    assert rights.losses("local", []) == []
