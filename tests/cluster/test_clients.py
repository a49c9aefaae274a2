"""Other clients than kubectl at pods of the virtual node: the official Python client, every dialect of WebSocket."""

from __future__ import annotations

import base64
import contextlib
import gc
import json
import random
import socket
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as official
from kubernetes.config import new_client_from_config
from kubernetes.stream import portforward, stream

from devcluster.api import Api
from devcluster.cluster import Cluster
from devcluster.fleet import Fleet
from tests.cluster import sockets
from tests.cluster.farlet import Farlet, pod_manifest, running
from tests.cluster.reach import BODY, OWN, Kubectl, Reached, program, reached
from tests.cluster.sockets import ERROR, STDERR, STDOUT
from tests.eventually import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("clients")]


@pytest.fixture(scope="module")
def pods(fleet: Fleet, module_namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reached]:
    folder = tmp_path_factory.mktemp("farlet")
    with reached(fleet, module_namespace, f"virtual-{uuid.uuid4().hex[:8]}", folder, "box") as pods:
        yield pods


# ---------------------------------------------------------------------- the official Python client


leaves_sockets = pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
"""The client leaves its WebSockets, and a thread for forwarded ports, to the garbage collection."""


@pytest.fixture
def core(pods: Reached) -> Iterator[Any]:
    with new_client_from_config(str(pods.farlet.local.kubeconfig)) as api:  # type: ignore[no-untyped-call]
        yield official.CoreV1Api(api)
        api.rest_client.pool_manager.clear()
    for thread in threading.enumerate():
        if thread.name.startswith("Kubernetes port forward"):
            thread.join(30)
    gc.collect()


@leaves_sockets
def test_python_client(pods: Reached, core: Any) -> None:
    box = {"name": "box", "namespace": pods.namespace}
    assert core.read_namespaced_pod_log(**box, container="main", tail_lines=1) == "line 5\n"
    call = {**box, "container": "main", "stdout": True, "stderr": True}
    said = stream(core.connect_get_namespaced_pod_exec, **call, command=["echo", "hello"], stdin=False, tty=False)
    assert said == "hello\n"

    script = 'read -r word; echo "got $word"; echo complaint >&2; exit 4'
    open_ended = {**call, "command": ["sh", "-c", script], "stdin": True, "tty": False, "_preload_content": False}
    talk = stream(core.connect_get_namespaced_pod_exec, **open_ended)
    talk.write_stdin("hello\n")
    talk.run_forever(timeout=60)
    assert (talk.read_stdout(), talk.read_stderr(), talk.returncode) == ("got hello\n", "complaint\n", 4)
    talk.close()


@leaves_sockets
def test_python_client_forwards_a_port(pods: Reached, core: Any) -> None:
    forwarded = portforward(core.connect_get_namespaced_pod_portforward, "box", pods.namespace, ports="8080")
    with contextlib.closing(forwarded.socket(8080)) as plain:
        plain.setblocking(True)
        plain.sendall(b"GET /body HTTP/1.0\r\n\r\n")
        received = b""
        while data := plain.recv(65536):
            received += data
    assert forwarded.error(8080) is None
    assert len(received.partition(b"\r\n\r\n")[2]) == BODY


# ---------------------------------------------------------------------- WebSocket by hand


@pytest.mark.parametrize("subprotocol", ["channel.k8s.io", "v4.channel.k8s.io", "v5.channel.k8s.io"])
def test_exec_by_channels(pods: Reached, subprotocol: str) -> None:
    async def test() -> dict[int, bytes]:
        script = 'read -r word; echo "got $word"; echo complaint >&2; exit 4'
        async with (
            sockets.sockets(pods.farlet.local.kubeconfig, pods.namespace) as reach,
            reach.exec("box", "sh", "-c", script, stdin=True, subprotocol=subprotocol) as socket,
        ):
            assert socket.subprotocol == subprotocol
            await socket.send(b"\x00hello\n")
            return await sockets.outputs(socket)

    said = sockets.run(test())
    assert (said[STDOUT], said[STDERR]) == (b"got hello\n", b"complaint\n")
    if subprotocol == "channel.k8s.io":
        assert b"exit code" in said[ERROR] or b"exit status 4" in said[ERROR]
    else:
        assert json.loads(said[ERROR])["details"]["causes"] == [{"reason": "ExitCode", "message": "4"}]


@pytest.mark.parametrize("subprotocol", ["base64.channel.k8s.io", "v4.base64.channel.k8s.io"])
def test_exec_by_base64(pods: Reached, subprotocol: str) -> None:
    async def test() -> list[str]:
        async with (
            sockets.sockets(pods.farlet.local.kubeconfig, pods.namespace) as reach,
            reach.exec("box", "head", "-n", "1", stdin=True, subprotocol=subprotocol) as socket,
        ):
            assert socket.subprotocol == subprotocol
            await socket.send("0" + base64.b64encode(b"hello\n").decode())
            return [str(message) async for message in socket]

    said = [base64.b64decode(message[1:]) for message in sockets.run(test()) if message[0] == "1"]
    assert b"".join(said) == b"hello\n"


def test_port_forward_by_channels(pods: Reached) -> None:
    """Two channels for each port, data and error; the first message of each is the port."""

    async def test() -> tuple[bytes, bytes]:
        async with (
            sockets.sockets(pods.farlet.local.kubeconfig, pods.namespace) as reach,
            reach.open("box/portforward", [("ports", "8080")], "v4.channel.k8s.io") as socket,
        ):
            for channel in (0, 1):
                assert await socket.recv() == bytes([channel]) + (8080).to_bytes(2, "little")
            await socket.send(b"\x00GET /body HTTP/1.0\r\n\r\n")
            data, errors = b"", b""
            async for message in socket:
                assert isinstance(message, bytes)
                if message[0] == 0:
                    data += message[1:]
                else:
                    errors += message[1:]
                if len(data.partition(b"\r\n\r\n")[2]) >= BODY:
                    break
            return data, errors

    data, errors = sockets.run(test())
    assert errors == b""
    assert len(data.partition(b"\r\n\r\n")[2]) == BODY


# ---------------------------------------------------------------------- the API apart from the worker


def free_ports(count: int) -> list[int]:
    """Ports that stay free until somebody binds them: the system gives connections others, and NodePorts are others."""
    found: list[int] = []
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no port is free")


def test_any_number_of_apis_serve_one_node(
    local: Cluster, remote: Cluster, namespace: str, virtual_node: str, tmp_path: Path
) -> None:
    """A worker without an API, an API where the node says that there is one, and another: either will do."""
    ports = free_ports(2)
    mapped = ["--namespace", f"{namespace}={namespace}"]
    where = [f"0.0.0.0:{port}" for port in ports]
    worker = [*mapped, "--role", "worker", "--kubelet-address", where[0]]
    api = [*mapped, "--role", "api", "--health-address", "127.0.0.1:0"]
    with contextlib.ExitStack() as stack:
        farlet = stack.enter_context(running(local, remote, virtual_node, tmp_path, *worker))
        local.kubectl("-n", namespace, "apply", "-f", "-", stdin=pod_manifest("box", virtual_node))
        first, second = (
            Farlet(local, remote, virtual_node, tmp_path / f"api-{number}.log", [*api, "--kubelet-address", address])
            for number, address in enumerate(where)
        )
        first.start()
        stack.callback(first.stop)
        kubectl = Kubectl(program(OWN), local, namespace)
        kubectl.says("wait", "--for=condition=Ready", "pod/box", "--timeout=120s", timeout=130)
        eventually(lambda: kubectl.says("logs", "box") == "", "logs through the API's process")
        assert kubectl("exec", "-i", "box", "--", "sh", "-c", "cat; exit 3", stdin=b"hello").code == 3

        second.start()
        stack.callback(second.stop)
        address = local.kubectl("get", "node", virtual_node, "-o", "jsonpath={.status.addresses[0].address}").stdout
        admin = json.loads(local.kubeconfig.read_text())
        admin["clusters"][0]["cluster"]["server"] = f"https://{address}:{ports[1]}"
        straight = tmp_path / "straight.kubeconfig"
        straight.write_text(json.dumps(admin))
        eventually(lambda: '"name":"box"' in Api(straight).text("/pods"), "the second API serves the same pods")
        assert Api(straight).text(f"/containerLogs/{namespace}/box/main") == ""
        assert first.stop() == 0
        assert farlet.ready(), "the worker goes on by itself"
        assert Api(straight).text("/healthz") == "ok"
