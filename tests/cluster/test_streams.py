"""Many streams, and streams that end badly, on clusters that are well: nothing stays behind, nobody is kept waiting."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import os
import ssl
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from app.kube.client import Client
from app.kube.config import load
from app.kube.objects import Object
from certs.csr import SigningRequests
from certs.pair import Pair
from certs.serving import Renewed, Timing
from certs.tls import ServerTls
from devcluster import pki
from devcluster.cluster import Cluster
from devcluster.fleet import Fleet
from kubelet_api.remote import RemoteCalls
from kubelet_api.server import KubeletServer
from kubelet_api.twins import Twin
from tests.certs.waiting import running as kept
from tests.certs.waiting import until
from tests.cluster import sockets, spdy
from tests.cluster.farlet import Farlet, pod_manifest, running
from tests.cluster.reach import OWN, Kubectl, Reached, program, reached, read_line
from tests.cluster.sockets import ERROR, STDOUT, Sockets
from tests.eventually import eventually
from tests.kubelet_api.serving import Pods, pod
from tests.kubelet_api.serving import load as load_pair

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("streams")]

SESSIONS = int(os.environ.get("FARLET_TEST_SESSIONS", "300"))
"""``make soak`` has more."""
AT_ONCE = 16


@pytest.fixture(scope="module")
def pods(fleet: Fleet, module_namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reached]:
    folder = tmp_path_factory.mktemp("farlet")
    with reached(fleet, module_namespace, f"virtual-{uuid.uuid4().hex[:8]}", folder, "box") as pods:
        yield pods


def no_stream_left(farlet: Farlet) -> None:
    eventually(lambda: farlet.figure("farlet_sessions_open"), "no stream is left", until=lambda count: count == 0)


def descriptors(farlet: Farlet) -> int:
    """Open files of the process, without the connections that API servers keep to it for a while."""
    # asked for first: the answer comes over one of those connections
    kept = farlet.figure("farlet_connections")
    return len(list(Path(f"/proc/{farlet.pid}/fd").iterdir())) - int(kept)


def memory(farlet: Farlet) -> int:
    """Bytes of the process that are in memory."""
    return int(Path(f"/proc/{farlet.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ---------------------------------------------------------------------- many


async def short_session(reach: Sockets, number: int) -> None:
    """One of those that people and programs have."""
    match number % 7:
        case 0:
            async with reach.exec("box", "true") as socket:
                status = (await sockets.outputs(socket))[ERROR]
                assert json.loads(status)["status"] == "Success"
        case 1:  # which the API server turns into SPDY for the kubelet
            async with reach.exec("box", "cat", stdin=True, subprotocol="v5.channel.k8s.io") as socket:
                await socket.send(b"\x00" + b"x" * 5000)
                await socket.send(b"\xff\x00")  # the end of stdin
                assert (await sockets.outputs(socket))[STDOUT] == b"x" * 5000
        case 2:  # gone before its end
            async with reach.exec("box", "cat", stdin=True) as socket:
                await socket.send(b"\x00hello")
                assert await socket.recv(decode=False)
                socket.transport.abort()
        case 3:
            async with reach.open("box/portforward", [("ports", "8080")], "v4.channel.k8s.io") as socket:
                await socket.send(b"\x00GET /nothing HTTP/1.0\r\n\r\n")
                while not (message := await socket.recv(decode=False)).startswith(b"\x00HTTP/1.1 404"):
                    assert len(message) == 3, message
        case 4:
            async with reach.open("box/log", [("container", "main"), ("tailLines", "1")], "binary.k8s.io") as socket:
                assert b"".join([bytes(message) async for message in socket]) == b"line 5\n"  # type: ignore[arg-type]
        case 5:  # which passes both API servers as it is
            query = [("container", "main"), ("command", "cat"), ("stdin", "true"), ("stdout", "true")]
            async with spdy.connected(reach, "box/exec", query, "v4.channel.k8s.io") as wire:
                error, stdin, stdout = [await wire.open(streamtype=name) for name in ("error", "stdin", "stdout")]
                await wire.send(stdin, b"x" * 5000)
                await wire.send(stdin, b"", fin=True)
                found = await wire.outputs()
                assert found[stdout] == b"x" * 5000
                assert json.loads(found[error])["status"] == "Success"
        case 6:  # gone before its end
            async with spdy.connected(reach, "box/portforward", [], "portforward.k8s.io") as wire:
                await wire.open(streamtype="error", port="8080", requestid="0")
                data = await wire.open(streamtype="data", port="8080", requestid="0")
                await wire.send(data, b"GET /nothing HTTP/1.0\r\n\r\n")
                async for stream, content in wire.received():
                    if stream == data and content.startswith(b"HTTP/1.1 404"):
                        break
                else:
                    raise AssertionError("no answer")


@pytest.mark.timeout(600 + SESSIONS)  # more than its own limits, so that those tell
def test_many_short_sessions_leave_nothing(pods: Reached) -> None:
    farlet = pods.farlet

    async def sessions(count: int) -> None:
        async with sockets.sockets(farlet.local.kubeconfig, pods.namespace) as reach:
            numbers = iter(range(count))

            async def some() -> None:
                for number in numbers:
                    await short_session(reach, number)

            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(some())

    sockets.run(sessions(50))
    no_stream_left(farlet)
    before, tasks, used = descriptors(farlet), farlet.figure("farlet_tasks"), memory(farlet)
    ended = farlet.figure("farlet_sessions_total")
    started = time.monotonic()
    sockets.run(sessions(SESSIONS), timeout=60 + SESSIONS)
    print(f"{SESSIONS} sessions in {time.monotonic() - started:.1f} s")  # noqa: T201
    no_stream_left(farlet)
    assert farlet.figure("farlet_sessions_total") == ended + SESSIONS
    eventually(lambda: descriptors(farlet), "every descriptor is closed", until=lambda count: count <= before)
    eventually(
        lambda: farlet.figure("farlet_tasks") - farlet.figure("farlet_connections"), "every task has ended",
        until=lambda count: count <= tasks,
    )  # fmt: skip
    grown = memory(farlet) - used
    print(f"memory grew by {grown / 1e6:.1f} MB")  # noqa: T201
    assert grown < 30 << 20


def lease_age(farlet: Farlet) -> float:
    """As a share of what it lasts for; at 1 the node counts as gone."""
    lease = farlet.local.api.get(f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{farlet.node}")
    renewed = datetime.datetime.fromisoformat(lease["spec"]["renewTime"])
    return (datetime.datetime.now(datetime.UTC) - renewed).total_seconds() / int(lease["spec"]["leaseDurationSeconds"])


def test_200_streams_at_full_speed_delay_no_heartbeat(pods: Reached) -> None:
    farlet, streams = pods.farlet, 200
    before = farlet.figure("farlet_session_bytes_total")

    async def pour(socket: ClientConnection) -> None:
        await socket.send(b"\x00go\n")
        with contextlib.suppress(ConnectionClosed):
            while True:
                await socket.recv(decode=False)

    async def test() -> list[float]:
        ages = []
        async with (
            sockets.sockets(farlet.local.kubeconfig, pods.namespace) as reach,
            contextlib.AsyncExitStack() as stack,
        ):
            few = asyncio.Semaphore(8)

            async def opened() -> ClientConnection:
                async with few:
                    command = ["sh", "-c", "read go; exec cat /dev/zero"]
                    return await stack.enter_async_context(reach.exec("box", *command, stdin=True))

            held = await asyncio.gather(*(opened() for _ in range(streams)))
            pouring = [asyncio.create_task(pour(socket)) for socket in held]
            for _ in range(25):
                ages.append(await asyncio.to_thread(lease_age, farlet))
                await asyncio.sleep(1)
            assert not any(task.done() for task in pouring)
            for socket in held:
                socket.transport.abort()
            await asyncio.gather(*pouring)
        return ages

    ages = sockets.run(test(), timeout=280)
    assert max(ages) < 1, ages  # both API servers are as busy: no tighter limit would be about Farlet
    no_stream_left(farlet)
    passed = farlet.figure("farlet_session_bytes_total") - before
    print(f"{passed / 1e6:.0f} MB through {streams} streams, oldest Lease {max(ages):.2f} of its life")  # noqa: T201
    assert passed > streams * 1_000_000, "they were no idle streams"


def test_a_slow_reader_does_not_grow_memory(pods: Reached) -> None:
    farlet = pods.farlet

    def passed() -> float:
        return farlet.figure("farlet_session_bytes_total")

    def stands_still() -> bool:
        first = passed()
        time.sleep(1)
        return passed() == first

    async def test() -> None:
        async with (
            sockets.sockets(farlet.local.kubeconfig, pods.namespace) as reach,
            contextlib.AsyncExitStack() as stack,
        ):
            held: list[ClientConnection] = []
            before = memory(farlet)
            for _ in range(10):
                held.append(await stack.enter_async_context(reach.exec("box", "cat", "/dev/zero")))
            await asyncio.to_thread(eventually, stands_still, "nothing passes while nobody reads")
            assert memory(farlet) - before < 40 << 20, "four megabytes for each"
            for socket in held:
                socket.transport.abort()

    sockets.run(test())
    no_stream_left(farlet)


# ---------------------------------------------------------------------- ends


def test_a_client_that_is_killed(pods: Reached) -> None:
    """What it ran sees the end of its input, and no stream is left."""
    kubectl = pods.through()
    script = "echo started; cat; touch /tmp/input-ended"
    with kubectl.started("exec", "-i", "box", "-c", "main", "--", "sh", "-c", script) as process:
        assert read_line(process) == b"started\n"
        assert pods.farlet.figure("farlet_sessions_open") == 1
        process.kill()
    with kubectl.started("logs", "-f", "box", "-c", "main") as process:
        assert read_line(process) == b"line 1\n"
        process.kill()
    no_stream_left(pods.farlet)
    ended = ["exec", "box", "-c", "main", "--", "test", "-e", "/tmp/input-ended"]
    eventually(lambda: kubectl(*ended).code == 0, "the command has ended")


def test_a_remote_pod_that_is_replaced(local: Cluster, pods: Reached) -> None:
    """The stream ends as with a container that restarts; the next call goes to the new pod."""
    kubectl = pods.through()
    manifest = pod_manifest("moving", pods.farlet.node)
    kubectl.says("apply", "-f", "-", stdin=manifest.encode())
    kubectl.says("wait", "--for=condition=Ready", "pod/moving", "--timeout=120s", timeout=130)
    twin = pods.twin("moving")
    script = "touch /tmp/old; echo started; exec sleep 1000000"
    with kubectl.started("exec", "moving", "--", "sh", "-c", script) as process:
        assert read_line(process) == b"started\n"
        pods.farlet.remote.kubectl("-n", pods.namespace, "delete", "pod", twin, "--wait=false")
        assert process.wait(60) != 0
    no_stream_left(pods.farlet)

    def old_or_new() -> int:
        return kubectl("exec", "moving", "--", "test", "-e", "/tmp/old").code

    eventually(old_or_new, "a call reaches the new pod", until=lambda code: code == 1)
    assert kubectl("exec", "moving", "--", "sh", "-c", "exit 6").code == 6
    kubectl.says("delete", "pod", "moving", "--wait=false")


def test_a_certificate_that_is_replaced_under_a_stream(
    local: Cluster, remote: Cluster, namespace: str, virtual_node: str, tmp_path: Path
) -> None:
    authority, kubectl = pki.Pair.read(local.layout.pki, "ca"), Kubectl(program(OWN), local, namespace)
    address = str(local.layout.gateway)
    files = {"--tls-cert-file": tmp_path / "tls.crt", "--tls-key-file": tmp_path / "tls.key"}
    pki.server(authority, "first", [address]).write(tmp_path, "tls")
    given = [part for name, path in files.items() for part in (name, str(path))]
    options = ["--namespace", f"{namespace}={namespace}", "--node-address", address]
    with running(local, remote, virtual_node, tmp_path, *options, "--serving-certificate", "files", *given):
        kubectl.says("apply", "-f", "-", stdin=pod_manifest("box", virtual_node).encode())
        kubectl.says("wait", "--for=condition=Ready", "pod/box", "--timeout=120s", timeout=130)
        port = local.kubectl("get", "node", virtual_node, "-o", "jsonpath={.status.daemonEndpoints.*.Port}").stdout

        def shown() -> str:
            return ssl.get_server_certificate((address, int(port)))

        first = shown()
        with kubectl.started("exec", "-i", "box", "--", "cat") as process:
            assert process.stdin is not None
            process.stdin.write(b"before\n")
            process.stdin.flush()
            assert read_line(process) == b"before\n"
            pki.server(authority, "second", [address]).write(tmp_path, "tls")
            eventually(shown, "the new certificate is shown", until=lambda certificate: certificate != first)
            process.stdin.write(b"after\n")
            process.stdin.flush()
            assert read_line(process) == b"after\n"
            assert kubectl("exec", "box", "--", "sh", "-c", "exit 6").code == 6, "new calls work too"
            process.stdin.close()
            assert process.wait(60) == 0


class _Box(Pods):
    """The pod ``box``, whose twin is the one that was made straight in the remote cluster."""

    def __init__(self, namespace: str) -> None:
        super().__init__([pod("box", namespace)])
        self._namespace = namespace

    def twin(self, pod: Object) -> Twin | None:
        return Twin(self._namespace, "box", "remote-uid")


def test_a_certificate_that_is_renewed_by_request_under_a_stream(
    local: Cluster, remote: Cluster, pods: Reached, virtual_node: str
) -> None:
    """The cluster signs for no less than ten minutes, so it is the clock that moves."""
    ahead = 0.0
    authority = pki.Pair.read(local.layout.pki, "ca")
    clients = [load(cluster.service_account_kubeconfig("farlet", "farlet")) for cluster in (local, remote)]
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    load_pair(context, pki.client(authority, "somebody", ["system:masters"]))

    async def test() -> None:
        nonlocal ahead
        tls, used = ServerTls(), list[Pair]()
        tls.set_client_ca(authority.certificate)

        def use(pair: Pair) -> None:
            tls.set_certificate(pair.certificate, pair.key)
            used.append(pair)

        async with Client(clients[0]) as near, Client(clients[1]) as far:
            requests = SigningRequests(near, virtual_node, life=3600, look=(0.1, 0.5))
            quick = Timing(retry=(0.05, 0.2), look=0.05)
            certificate = Renewed(requests, ["127.0.0.1"], timing=quick, clock=lambda: time.time() + ahead)
            server = KubeletServer(
                host="127.0.0.1",
                port=0,
                tls=tls.context,
                peer_certificate=tls.peer_certificate,
                node=virtual_node,
                version="test",
                twins=_Box(pods.direct_namespace),
                remote=RemoteCalls(far),
                reviews=near,
            )
            await server.start()

            def exec_(*command: str) -> connect:
                words = urlencode([*(("command", word) for word in command), ("input", "1"), ("output", "1")])
                url = f"wss://127.0.0.1:{server.port}/exec/{pods.direct_namespace}/box/main?{words}"
                version = Subprotocol("v4.channel.k8s.io")
                return connect(url, ssl=context, subprotocols=[version], compression=None, proxy=None)

            async def echoed(socket: ClientConnection, text: bytes) -> None:
                await socket.send(b"\x00" + text)
                while not (message := await socket.recv(decode=False))[1:]:
                    pass
                assert message == bytes([STDOUT]) + text

            async def shown() -> str:
                return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", server.port))

            try:
                async with kept(certificate.run(use)):
                    await asyncio.wait_for(certificate.ready.wait(), 60)
                    first = await shown()
                    async with exec_("cat") as socket:
                        await echoed(socket, b"before\n")
                        ahead = 3600 * 0.95
                        await until(lambda: len(used) > 1, "renewed in time")
                        ahead = 0.0
                        await echoed(socket, b"after\n")
                        assert await shown() not in (first, "")
                        async with exec_("cat") as another:
                            await echoed(another, b"with the new one\n")
                        await echoed(socket, b"still\n")
            finally:
                await server.stop(0)

    try:
        sockets.run(test())
    finally:
        asked = [name for name in local.kubectl("get", "csr", "-o", "name").stdout.split() if virtual_node in name]
        local.kubectl("delete", "--ignore-not-found", *asked)
