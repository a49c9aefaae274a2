"""Certificates from a real cluster: asked for, approved or not, renewed, and believed by its API server."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from app.kube.client import Client
from app.kube.config import load
from app.kube.informer import Timing as InformerTiming
from certs.address import node_address
from certs.clientca import ENTRY, NAME, NAMESPACE, ClusterCa
from certs.csr import SigningRequests
from certs.pair import Pair, self_signed
from certs.probe import Result, probe
from certs.serving import Renewed, Timing
from certs.tls import ServerTls
from devcluster import pki
from devcluster.cluster import Cluster
from tests.certs.talk import Talker, ask, serving
from tests.certs.test_tls import REFUSED
from tests.certs.waiting import running, until
from tests.cluster.farlet import install_rights
from tests.cluster.sockets import run

pytestmark = pytest.mark.cluster

QUICK = Timing(retry=(0.05, 0.2), denied=0.2, look=0.05)
LOOK = (0.1, 0.5)
ASK_ONLY = [
    {"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"], "verbs": ["create", "get"]}
]


@pytest.fixture
def own(local: Cluster, remote: Cluster) -> Path:
    """A kubeconfig with the rights of ``manifests/`` and no more."""
    install_rights(local, remote)
    return local.service_account_kubeconfig("farlet", "farlet")


@pytest.fixture
def asker(local: Cluster, namespace: str) -> Iterator[Path]:
    """A kubeconfig of somebody who may ask for certificates, and not approve them."""
    role = f"asker-{namespace}"
    rules = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": role}}
    local.kubectl("create", "-f", "-", stdin=json.dumps({**rules, "rules": ASK_ONLY}))
    yield local.service_account_kubeconfig(namespace, "asker", cluster_role=role)
    local.kubectl("delete", "clusterrolebinding", f"devcluster:{namespace}:asker", "--ignore-not-found")
    local.kubectl("delete", "clusterrole", role, "--ignore-not-found")


def requests_of(cluster: Cluster, node: str) -> list[str]:
    """The names of the requests of a node, the oldest first."""
    printed = cluster.kubectl("get", "csr", "--sort-by=.metadata.creationTimestamp", "-o", "name").stdout
    names = [line.partition("/")[2] for line in printed.split()]
    return [name for name in names if name.startswith(f"farlet-{node}-")]


@pytest.fixture(autouse=True)
def _no_requests_left(local: Cluster, virtual_node: str) -> Iterator[None]:
    yield
    if left := requests_of(local, virtual_node):
        local.kubectl("delete", "csr", "--ignore-not-found", *left)


def signed_by(authority: pki.Pair, pair: Pair) -> bool:
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate))
    return True


def authority_of(cluster: Cluster) -> pki.Pair:
    return pki.Pair.read(cluster.layout.pki, "ca")


@contextlib.asynccontextmanager
async def kept(
    kubeconfig: Path, node: str, addresses: list[str], **options: Any
) -> AsyncIterator[tuple[Renewed, list[Pair]]]:
    """A certificate that is kept while the block runs."""
    used: list[Pair] = []
    async with Client(load(kubeconfig)) as client:
        certificate = Renewed(SigningRequests(client, node, look=LOOK), addresses, timing=QUICK, **options)
        async with running(certificate.run(used.append)):
            yield certificate, used


@pytest.mark.parametrize("length", [None, 63])
def test_approves_its_own_where_it_may(local: Cluster, own: Path, virtual_node: str, length: int | None) -> None:
    node = virtual_node.ljust(length, "x") if length else virtual_node

    async def test() -> None:
        async with kept(own, node, ["10.1.2.3", "far.example"]) as (certificate, used):
            await asyncio.wait_for(certificate.ready.wait(), 60)
            assert certificate.check() is None
            assert used[0].names == {"10.1.2.3", "far.example"}
            assert signed_by(authority_of(local), used[0])

    run(test())
    for name in requests_of(local, node):
        local.kubectl("delete", "csr", name)


def test_waits_for_a_person_and_says_how(
    local: Cluster, asker: Path, virtual_node: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with kept(asker, virtual_node, ["10.1.2.3"]) as (certificate, used):
            await until(lambda: "kubectl certificate approve" in (certificate.check() or ""), "it is told what to do")
            (name,) = re.findall(r"kubectl certificate approve (\S+)", certificate.check() or "")
            await asyncio.sleep(1.5)  # several looks
            assert used == []
            await asyncio.to_thread(local.kubectl, "certificate", "approve", name)
            await asyncio.wait_for(certificate.ready.wait(), 60)
            assert signed_by(authority_of(local), used[0])
            assert requests_of(local, virtual_node) == [name]

    with caplog.at_level(logging.WARNING, "certs"):
        run(test())
    assert caplog.text.count("waits for approval: kubectl certificate approve") == 1


def test_denied_is_said_and_asked_again(
    local: Cluster, asker: Path, virtual_node: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with kept(asker, virtual_node, ["10.1.2.3"]) as (_, used):
            await until(lambda: requests_of(local, virtual_node), "asked")
            (first,) = requests_of(local, virtual_node)
            await asyncio.to_thread(local.kubectl, "certificate", "deny", first)
            await until(lambda: len(requests_of(local, virtual_node)) == 2, "asked again")
            (second,) = {*requests_of(local, virtual_node)} - {first}
            await asyncio.to_thread(local.kubectl, "certificate", "approve", second)
            await until(lambda: used, "issued")

    with caplog.at_level(logging.WARNING, "certs"):
        run(test())
    assert re.search(r"no new serving certificate: certificate request \S+ was denied \(KubectlDeny: ", caplog.text)


def test_a_request_that_is_gone_is_made_again(local: Cluster, asker: Path, virtual_node: str) -> None:
    async def test() -> None:
        async with kept(asker, virtual_node, ["10.1.2.3"]):
            await until(lambda: requests_of(local, virtual_node), "asked")
            (first,) = requests_of(local, virtual_node)
            await asyncio.to_thread(local.kubectl, "delete", "csr", first)
            await until(lambda: {*requests_of(local, virtual_node)} - {first}, "asked again")

    run(test())


def test_renewed_in_time_and_for_new_addresses_under_an_open_connection(
    local: Cluster, own: Path, virtual_node: str
) -> None:
    ahead = 0.0

    async def test() -> None:
        nonlocal ahead
        tls = ServerTls()
        authority = authority_of(local)
        tls.set_client_ca(authority.certificate)
        talker = Talker(pki.client(authority, "somebody"))
        used: list[Pair] = []

        def use(pair: Pair) -> None:
            tls.set_certificate(pair.certificate, pair.key)
            used.append(pair)

        async with Client(load(own)) as client, serving(tls) as port:
            certificate = Renewed(
                SigningRequests(client, virtual_node, life=3600, look=LOOK),
                ["127.0.0.1"],
                timing=QUICK,
                clock=lambda: time.time() + ahead,
            )
            async with running(certificate.run(use)):
                await asyncio.wait_for(certificate.ready.wait(), 60)
                assert 3600 <= used[0].not_after - used[0].not_before <= 3600 + 301
                with await asyncio.to_thread(talker.connect, port) as connection:
                    assert (await asyncio.to_thread(ask, connection))[0] == "somebody"
                    ahead = 3600 * 0.95
                    await until(lambda: len(used) >= 2, "renewed in time")
                    ahead = 0.0
                    certificate.set_addresses(["127.0.0.1", "10.9.8.7"])
                    await until(lambda: used[-1].names == {"127.0.0.1", "10.9.8.7"}, "renewed for new addresses")
                    seen = (await talker.talk(port)).server
                    assert seen == x509.load_pem_x509_certificate(used[-1].certificate)
                    assert len({pair.key for pair in used}) == len(used)
                    assert (await asyncio.to_thread(ask, connection))[0] == "somebody"

    run(test())


def test_the_approval_of_somebody_without_the_right_to_ask(local: Cluster, namespace: str, virtual_node: str) -> None:
    nobody = local.service_account_kubeconfig(namespace, "nobody")

    async def test() -> None:
        async with kept(nobody, virtual_node, ["10.1.2.3"]) as (certificate, _):
            await until(lambda: "cannot create resource" in (certificate.check() or ""), "the reason is told")

    run(test())


# ---------------------------------------------------------------------- client CA


def published(cluster: Cluster) -> str:
    content = cluster.kubectl("-n", NAMESPACE, "get", "configmap", NAME, "-o", "json").stdout
    return str(json.loads(content)["data"][ENTRY])


def publish(cluster: Cluster, pem: str) -> None:
    patch = json.dumps({"data": {ENTRY: pem}})
    cluster.kubectl("-n", NAMESPACE, "patch", "configmap", NAME, "--type=merge", "-p", patch)


@pytest.mark.xdist_group("client-ca")
def test_client_ca_follows_the_config_map(local: Cluster, own: Path) -> None:
    """The API server itself only ever adds to it; a person rotates it by taking the old one away."""
    extra = pki.authority(f"extra-{uuid.uuid4().hex[:8]}")
    front = pki.Pair.read(local.layout.pki, "front-proxy-ca")
    before = published(local)

    async def accepted(talker: Talker, port: int) -> bool:
        try:
            await talker.talk(port)
        except REFUSED:
            return False
        return True

    async def test() -> None:
        tls = ServerTls()
        server = pki.server(extra, "server", ["127.0.0.1"])
        tls.set_certificate(server.certificate, server.key)
        taken: list[bytes] = []

        def use(pem: bytes) -> None:
            tls.set_client_ca(pem)
            taken.append(pem)

        async with Client(load(own)) as client, serving(tls) as port:
            authority = ClusterCa(client)
            async with running(authority.run(use)):
                await asyncio.wait_for(authority.ready.wait(), 30)
                assert authority.check() is None
                ours = Talker(pki.client(authority_of(local), "kube-apiserver"))
                theirs, proxy = Talker(pki.client(extra, "extra")), Talker(pki.client(front, "front-proxy-client"))
                assert (await ours.talk(port)).client == "kube-apiserver"
                assert not await accepted(theirs, port)
                assert not await accepted(proxy, port), "the CA of request headers is not the client CA"

                await asyncio.to_thread(publish, local, before + extra.certificate.decode())
                await until(lambda: extra.certificate.strip() in taken[-1], "the new CA is taken")
                assert (await theirs.talk(port)).client == "extra"
                with await asyncio.to_thread(theirs.connect, port) as connection:
                    await asyncio.to_thread(publish, local, before)
                    await until(lambda: extra.certificate.strip() not in taken[-1], "the CA is taken away")
                    assert (await asyncio.to_thread(ask, connection))[0] == ""
                assert not await accepted(theirs, port)
                assert (await ours.talk(port)).client == "kube-apiserver"

    try:
        run(test())
    finally:
        publish(local, before)


@pytest.mark.xdist_group("client-ca")
def test_client_ca_that_may_not_be_read(local: Cluster, namespace: str, caplog: pytest.LogCaptureFixture) -> None:
    kubeconfig = local.service_account_kubeconfig(namespace, "nobody")

    async def test() -> None:
        async with Client(load(kubeconfig)) as client:
            authority = ClusterCa(client, timing=InformerTiming(backoff=(0.05, 0.2)))
            async with running(authority.run(lambda pem: None)):
                await until(lambda: "--client-ca-file" in (authority.check() or ""), "the way out is told")
                subject = f"--serviceaccount={namespace}:nobody"
                binding = ["rolebinding", namespace, f"--role={NAME}-reader", subject]
                await asyncio.to_thread(local.kubectl, "-n", NAMESPACE, "create", *binding)
                await asyncio.wait_for(authority.ready.wait(), 30)
                assert authority.check() is None

    try:
        run(test())
    finally:
        local.kubectl("-n", NAMESPACE, "delete", "rolebinding", namespace, "--ignore-not-found")
    assert "clients of the kubelet API cannot be told by their certificates: no right to read" in caplog.text


# ---------------------------------------------------------------------- probe


@contextlib.asynccontextmanager
async def healthy(tls: ServerTls, host: str) -> AsyncIterator[int]:
    """A server with a /healthz and nothing else; gives its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            who = tls.peer_certificate(writer.get_extra_info("ssl_object"))
            status, body = ("200 OK", "ok") if who else ("401 Unauthorized", "Unauthorized")
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()
            )
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, host, 0, ssl=tls.context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.fixture
def node(local: Cluster, virtual_node: str) -> Iterator[str]:
    manifest = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": virtual_node}, "spec": {"unschedulable": True}}
    local.kubectl("create", "-f", "-", stdin=json.dumps(manifest))
    yield virtual_node
    local.kubectl("delete", "node", virtual_node, "--wait=false")


def place(cluster: Cluster, node: str, address: str, port: int) -> None:
    """Say where the node is."""
    addresses = [{"type": "InternalIP", "address": address}]
    status = {"addresses": addresses, "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}
    patch = json.dumps({"status": status})
    cluster.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", patch)


def test_probe_through_the_api_server(local: Cluster, node: str) -> None:
    address = str(local.layout.gateway)
    authority = authority_of(local)
    other = pki.authority("other")

    async def test() -> None:
        tls = ServerTls()
        tls.set_client_ca(authority.certificate)

        async def tried(where: str, port: int) -> Result:
            await asyncio.to_thread(place, local, node, where, port)
            return await probe(client, node, where, port, attempts=1)

        def serve_with(pair: Pair | pki.Pair) -> None:
            tls.set_certificate(pair.certificate, pair.key)

        async with Client(load(local.kubeconfig)) as client, healthy(tls, address) as port:
            assert "broke the connection off" in (await tried(address, port)).line
            good = pki.server(authority, node, [address])
            serve_with(good)
            assert await tried(address, port) == Result(
                True, f"kubectl logs and exec work: the API server reaches node {node} at {address}:{port}"
            )
            serve_with(self_signed(node, [address], datetime.timedelta(days=1)))
            assert "--serving-certificate csr" in (await tried(address, port)).line
            serve_with(pki.server(authority, node, ["10.1.1.1"]))
            assert "not for the node's address" in (await tried(address, port)).line
            serve_with(good)
            tls.set_client_ca(other.certificate)
            assert "--client-ca-file" in (await tried(address, port)).line
            assert "nothing listens there" in (await tried(address, 1)).line
            assert "--node-address" in (await tried("127.0.0.1", port)).line

    run(test())


def test_probe_waits_for_the_node_to_be_placed(local: Cluster, node: str) -> None:
    address = str(local.layout.gateway)

    async def test() -> None:
        tls = ServerTls()
        pair = pki.server(authority_of(local), node, [address])
        tls.set_certificate(pair.certificate, pair.key)
        tls.set_client_ca(authority_of(local).certificate)
        async with Client(load(local.kubeconfig)) as client, healthy(tls, address) as port:
            probing = asyncio.ensure_future(probe(client, node, address, port, attempts=60, pause=0.1))
            await asyncio.sleep(0.5)
            assert not probing.done()
            await asyncio.to_thread(place, local, node, address, port)
            assert (await asyncio.wait_for(probing, 30)).works

    run(test())


def test_probe_without_the_right_to_node_proxies(local: Cluster, namespace: str, node: str) -> None:
    address = str(local.layout.gateway)
    kubeconfig = local.service_account_kubeconfig(namespace, "nobody")

    async def test() -> None:
        tls = ServerTls()
        async with Client(load(kubeconfig)) as client, healthy(tls, address) as port:
            pair = pki.server(authority_of(local), node, [address])
            tls.set_certificate(pair.certificate, pair.key)
            result = await probe(client, node, address, port, attempts=1)
            assert result.works is None
            assert "answers" in result.line
            assert "the right to get nodes/proxy" in result.line
            own = self_signed(node, [address], datetime.timedelta(days=1))
            tls.set_certificate(own.certificate, own.key)
            result = await probe(client, node, address, port, attempts=1)
            assert "only if the API server does not verify kubelets" in result.line
            result = await probe(client, node, address, 1, attempts=1)
            assert (result.works, "nothing listens there" in result.line) == (False, True)

    run(test())


def test_the_address_towards_the_local_api_server(local: Cluster) -> None:
    async def test() -> None:
        async with Client(load(local.kubeconfig)) as client:
            found = await node_address(None, {}, client)
            assert (found.address, found.warning) == (str(local.layout.gateway), None)

    run(test())
