"""Names from URLs, and what they mean."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_api.call import CallError, Kind
from kubelet_api.twins import Twin
from kubelet_api.validate import is_label, is_subdomain, resolve
from tests.kubelet_api.serving import UID, Pods, pod


@pytest.mark.parametrize("name", ["a", "a-b", "0", "a" * 63])
def test_labels(name: str) -> None:
    assert is_label(name)
    assert is_subdomain(name)


@pytest.mark.parametrize("name", ["", "-", "a-", "A", "a.b", "a/b", "..", "a\n", "a" * 64, "é", "a b", "a%20"])
def test_not_labels(name: str) -> None:
    assert not is_label(name)


@pytest.mark.parametrize("name", ["a.b", "a-b.c", "a" * 253, "web-0.shop"])
def test_subdomains(name: str) -> None:
    assert is_subdomain(name)


@pytest.mark.parametrize("name", ["", ".", "a.", ".a", "a..b", "a.-b", "A.b", "a" * 254, "a\n", "a/b"])
def test_not_subdomains(name: str) -> None:
    assert not is_subdomain(name)


@given(st.text())
def test_nothing_that_is_let_through_can_change_a_url(name: str) -> None:
    if is_label(name) or is_subdomain(name):
        assert re.fullmatch(r"[a-z0-9.-]+", name)
        assert ".." not in name


def _resolve(kind: Kind, pods: Pods | None = None, /, **names: str) -> tuple[int, str] | Twin:
    chosen = {
        "namespace": "shop",
        "pod": "web",
        **({} if kind is Kind.PORT_FORWARD else {"container": "main"}),
        **names,
    }
    try:
        return resolve(pods or Pods([pod()]), kind, chosen).twin
    except CallError as error:
        return error.status, error.message


FOUND = Twin("remote-shop", "web-twin", "remote-uid")


@pytest.mark.parametrize("kind", list(Kind))
def test_found(kind: Kind) -> None:
    assert _resolve(kind) == FOUND
    assert _resolve(kind, uid=UID) == FOUND


@pytest.mark.parametrize("container", ["main", "side", "init", "debug"])
def test_every_kind_of_container(container: str) -> None:
    assert _resolve(Kind.LOGS, container=container) == FOUND


@pytest.mark.parametrize("names", [{"pod": "other"}, {"namespace": "other"}, {"pod": "../web"}, {"namespace": "SHOP"}])
def test_no_such_pod(names: dict[str, str]) -> None:
    assert _resolve(Kind.EXEC, **names) == (404, "pod does not exist")
    status, text = _resolve(Kind.LOGS, **names)  # type: ignore[misc]
    assert (status, text.endswith('" does not exist')) == (404, True)


def test_an_invalid_name_is_not_even_looked_up() -> None:
    class Careful(Pods):
        def local_pod(self, namespace: str, name: str) -> dict[str, object] | None:
            assert is_label(namespace)
            assert is_subdomain(name)
            return super().local_pod(namespace, name)

    assert _resolve(Kind.EXEC, Careful([pod()]), pod="a/b", namespace="..") == (404, "pod does not exist")


@pytest.mark.parametrize("kind", [Kind.EXEC, Kind.ATTACH, Kind.RUN])
def test_no_such_container_or_another_pod_of_that_name(kind: Kind) -> None:
    assert _resolve(kind, container="other") == (500, 'container not found ("other")')
    assert _resolve(kind, container="../main") == (500, 'container not found ("../main")')
    assert _resolve(kind, uid="another") == (500, 'container not found ("main")')
    assert _resolve(kind, Pods([pod()], without_twin=["web"])) == (500, 'container not found ("main")')


def test_port_forward_to_another_pod_of_that_name() -> None:
    assert _resolve(Kind.PORT_FORWARD, uid="another") == (404, "pod not found")


def test_nothing_is_known_before_the_caches_are() -> None:
    pods = Pods([])
    pods.complete = False
    status, _ = _resolve(Kind.LOGS, pods)  # type: ignore[misc]
    assert status == 503


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (None, "is not available"),
        ({}, "is waiting to start: ContainerCreating"),
        ({"waiting": {"reason": "PodInitializing"}}, "is waiting to start: PodInitializing"),
        ({"terminated": {"exitCode": 0}}, "is terminated"),
    ],
)
def test_a_log_of_what_does_not_run(state: dict[str, object] | None, text: str) -> None:
    waiting = pod()
    if state is not None:
        waiting["status"]["containerStatuses"] = [{"name": "main", "state": state}]
    expected = (400, f'container "main" in pod "web" {text}')
    assert _resolve(Kind.LOGS, Pods([waiting], without_twin=["web"])) == expected
