"""Who may do what: every route, tried by everybody from nobody to the API server, against real RBAC."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple

import pytest

from app.kube.client import Client
from app.kube.objects import Object
from devcluster import pki
from devcluster.cluster import Cluster
from kubelet_api import routes
from kubelet_api.server import KubeletServer
from tests.eventually import eventually
from tests.kubelet_api.serving import (
    NODE,
    SPDY,
    UID,
    Authority,
    Recorder,
    Wire,
    ask,
    bearer,
    connected,
    request,
    serving,
)

pytestmark = pytest.mark.cluster

RBAC: Final = "rbac.authorization.k8s.io"


class Row(NamedTuple):
    """What the reference says (kubelet-api.md §2), written down again and not taken from the code."""

    path: str
    methods: tuple[str, ...]
    subresources: tuple[str, ...]
    creates: bool = False
    upgrade: bool = False


EXPECTED: Final = (
    Row("/containerLogs/shop/web/main", ("GET",), ("proxy",)),
    *(
        Row(path, ("GET", "POST"), ("proxy",), creates=True, upgrade=upgrade)
        for upgrade in (False, True)
        for path in (
            "/exec/shop/web/main",
            f"/exec/shop/web/{UID}/main",
            "/attach/shop/web/main",
            f"/attach/shop/web/{UID}/main",
            "/portForward/shop/web",
            f"/portForward/shop/web/{UID}",
        )
    ),
    Row("/run/shop/web/main", ("GET", "POST"), ("proxy",), creates=True),
    Row(f"/run/shop/web/{UID}/main", ("GET", "POST"), ("proxy",), creates=True),
    Row("/pods", ("GET", "POST"), ("pods", "proxy")),
    Row("/pods/else", ("GET",), ("pods", "proxy")),
    Row("/runningpods/", ("GET", "POST"), ("pods", "proxy")),
    Row("/stats/summary", ("GET", "POST"), ("stats",)),
    Row("/stats/else", ("GET",), ("stats",)),
    Row("/metrics", ("GET", "POST"), ("metrics",)),
    Row("/metrics/cadvisor", ("GET",), ("metrics",)),
    Row("/metrics/probes", ("GET",), ("metrics",)),
    Row("/metrics/resource", ("GET",), ("metrics",)),
    Row("/metrics/slis", ("GET",), ("metrics",)),
    Row("/healthz", ("GET", "POST"), ("healthz", "proxy")),
    Row("/healthz/ping", ("GET",), ("healthz", "proxy")),
    Row("/configz", ("GET",), ("configz", "proxy")),
    Row("/logs/", ("GET",), ("log",)),
    Row("/logs/messages", ("GET",), ("log",)),
    Row("/checkpoint/shop/web/main", ("GET", "POST"), ("checkpoint",)),
    Row("/flagz", ("GET",), ("configz",)),
    Row("/statusz", ("GET",), ("statusz",)),
    Row("/debug/pprof/heap", ("GET",), ("proxy",)),
    Row("/debug/flags/v", ("GET", "PUT"), ("proxy",)),
    Row("/else", ("GET", "POST"), ("proxy",)),
    Row("/exec/shop", ("GET", "POST"), ("proxy",), creates=True),
)
VERBS: Final = {"GET": "get", "POST": "create", "PUT": "update"}
SUBRESOURCES: Final = ("proxy", "pods", "healthz", "configz", "stats", "metrics", "log", "checkpoint", "statusz")
API_ADMIN: Final = ("proxy", "metrics", "stats", "log", "pods", "healthz", "configz")
"""What ClusterRole system:kubelet-api-admin has, all verbs."""

Rights = Callable[[str, str], bool]


class Person(NamedTuple):
    name: str
    context: ssl.SSLContext
    headers: tuple[str, ...]
    rights: Rights | None
    """By verb and subresource; None: not even known."""


def test_every_route_of_the_table_is_in_the_matrix() -> None:
    covered = {routes.find(row.path).route for row in EXPECTED}
    assert [route.template for route in routes.TABLE if route not in covered] == []


def test_matrix(
    local: Cluster,
    authority: Authority,
    reviews: Callable[[], AbstractAsyncContextManager[Client]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    people = [*_strangers(authority), *_people(local, authority)]

    async def main() -> tuple[list[str], Counter[str]]:
        wrong: list[str] = []
        seen: Counter[str] = Counter()
        remote = Recorder()
        remote.pieces = [b"x"]
        async with reviews() as client, serving(client, authority, remote=remote) as server:
            for person in people:
                async for row, method, status in _tried(server, person):
                    allowed = status not in (401, 403)
                    verb = "create" if row.creates else VERBS[method]
                    rights = person.rights
                    expected = (
                        401
                        if rights is None
                        else 0
                        if any(rights(verb, subresource) for subresource in row.subresources)
                        else 403
                    )
                    seen[f"{person.name.partition(':')[0]}: {'let in' if allowed else status}"] += 1
                    if (0 if allowed else status) != expected:
                        wrong.append(
                            f"{person.name}: {method} {row.path} gave {status}, expected {expected or 'entry'}"
                        )
            calls_before = len(remote.calls)
            for context in _not_let_in_by_tls(authority):
                with pytest.raises((OSError, asyncio.IncompleteReadError)):
                    await ask(server, context, "GET", "/healthz")
                seen["a bad, foreign or ended certificate: no connection"] += 1
            assert len(remote.calls) == calls_before
        return wrong, seen

    wrong, seen = asyncio.run(main())
    with capsys.disabled():
        lines = [f"    {count:5d}  {what}" for what, count in sorted(seen.items())]
        print("\n  authentication matrix:", *lines, sep="\n")  # noqa: T201 - the summary that the issue asks for
    assert not wrong, "\n".join(wrong)


async def _tried(server: KubeletServer, person: Person) -> AsyncIterator[tuple[Row, str, int]]:
    """Every route by every method; one connection for as long as it lasts."""
    async with contextlib.AsyncExitStack() as stack:
        wire: Wire | None = None
        for row in EXPECTED:
            for method in row.methods:
                if wire is None:
                    wire = await stack.enter_async_context(connected(server, person.context))
                headers = [*person.headers, *(SPDY if row.upgrade else ()), "Content-Length: 0"]
                await wire.send(request(method, f"{row.path}?command=a&output=1&cmd=a", headers))
                status, answered = await wire.head()
                yield row, method, status
                if status == 101 or answered.get("connection") == "close":
                    wire.writer.transport.abort()
                    wire = None
                elif "content-length" in answered:
                    await wire.reader.readexactly(int(answered["content-length"]))
                else:
                    async for _ in wire.chunks():
                        pass


def _strangers(authority: Authority) -> list[Person]:
    nobody = authority.client_context()
    return [
        Person("no credentials", nobody, (), None),
        Person("an invented token", nobody, (bearer("invented"),), None),
        Person("a password", nobody, ("Authorization: Basic YWRtaW46YWRtaW4=",), None),
        Person("impersonation", nobody, ("X-Remote-User: admin", "Impersonate-User: admin"), None),
    ]


def _not_let_in_by_tls(authority: Authority) -> list[ssl.SSLContext]:
    """What the server ends the handshake for; the client may learn of it only when it reads."""
    foreign = pki.authority("clients")
    return [
        authority.client_context(pki.client(foreign, "admin", ["system:masters"])),
        authority.ended("admin", "system:masters"),
        authority.client_context(pki.server(authority.clients, "admin", ["127.0.0.1"])),
    ]


def _people(local: Cluster, authority: Authority) -> list[Person]:
    nobody = authority.client_context()
    local.service_account_kubeconfig("default", "matrix-nothing")
    token = local.kubectl("create", "token", "matrix-nothing").stdout.strip()
    people = [
        Person("a token without rights", nobody, (bearer(token),), lambda verb, subresource: False),
        Person("a user without rights", authority.user("matrix-nobody"), (), lambda verb, subresource: False),
        Person(
            "the apiserver as system:masters",
            authority.user("kube-apiserver-kubelet-client", "system:masters"),
            (),
            lambda verb, subresource: True,
        ),
        Person(
            "the apiserver as kubelet-api-admin",
            authority.user("matrix-apiserver"),
            (),
            lambda verb, subresource: subresource in API_ADMIN,
        ),
    ]
    objects = [_binding("matrix-apiserver", "system:kubelet-api-admin")]
    for verb in ("get", "create", "update"):
        for subresource in SUBRESOURCES:
            name = f"matrix-{verb}-{subresource}"
            objects += [_role(name, verb, subresource), _binding(name, name)]
            only = (verb, subresource)
            people.append(
                Person(
                    f"a single right: {verb} {subresource}",
                    authority.user(name),
                    (),
                    lambda verb, subresource, only=only: (verb, subresource) == only,  # type: ignore[misc]
                )
            )
    local.api.apply(objects)
    for name, verb, subresource in (
        ("matrix-apiserver", "get", "pods"),
        (f"matrix-update-{SUBRESOURCES[-1]}", "update", SUBRESOURCES[-1]),
    ):
        eventually(lambda n=name, v=verb, s=subresource: _allowed(local, n, v, s), f"RBAC knows {name}")  # type: ignore[misc]
    return people


def _allowed(local: Cluster, user: str, verb: str, subresource: str) -> bool:
    attributes = {"verb": verb, "resource": "nodes", "subresource": subresource, "name": NODE}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": attributes},
    }
    answer = local.api.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


def _role(name: str, verb: str, subresource: str) -> Object:
    rules = [{"apiGroups": [""], "resources": [f"nodes/{subresource}"], "resourceNames": [NODE], "verbs": [verb]}]
    return {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}


def _binding(user: str, role: str) -> Object:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"{user}-of-kubelet-api"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
    }
