"""Calls to real containers with real clients: straight to the remote API server, and through a gateway without SPDY."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import hashlib
import json
import os
import pty
import re
import select
import socket
import struct
import subprocess
import termios
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kubernetes
import pytest
from kubernetes.stream import stream as kubernetes_stream
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from devcluster.cluster import Cluster
from devcluster.fleet import Fleet
from kubelet_api.call import CallError, Kind
from kubelet_api.twins import Twin
from tests.cluster.pods import run_pod
from tests.eventually import eventually
from tests.kubelet_api.front import Count, Front, front, make_call
from tests.kubelet_api.gateway import gateway

pytestmark = pytest.mark.cluster

POD = "calls"
SCRIPT = """
mkdir /www; head -c 5000000 /dev/urandom > /www/big; sha256sum < /www/big > /www/sum
httpd -p 8080 -h /www
for i in 1 2 3 4 5; do echo out $i; done
exec sleep 1000000
"""
SIZE = 20_000_000


class Way:
    """How a client reaches the containers."""

    def __init__(self, made: Front, cluster: Cluster, namespace: str, kubeconfig: Path, *, websocket: bool) -> None:
        self.front, self.cluster, self.namespace = made, cluster, namespace
        self._kubeconfig = kubeconfig
        switch = "true" if websocket else "false"
        names = ("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "KUBECTL_PORT_FORWARD_WEBSOCKETS")
        self.environment = {**os.environ, **dict.fromkeys(names, switch)}

    def command(self, *arguments: str) -> list[str]:
        return self.cluster.kubectl_command("-n", self.namespace, *arguments, kubeconfig=self._kubeconfig)

    def kubectl(self, *arguments: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            self.command(*arguments), env=self.environment, input=stdin, capture_output=True, timeout=120, check=False
        )


@pytest.fixture(scope="module")
def place(fleet: Fleet) -> Iterator[tuple[Cluster, str]]:
    """A namespace of the remote cluster with a pod."""
    cluster = fleet.cluster("remote")
    namespace = f"t-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", namespace)
    eventually(lambda: cluster.kubectl("-n", namespace, "get", "serviceaccount", "default"), "its ServiceAccount")
    run_pod(cluster, namespace, POD, SCRIPT)
    yield cluster, namespace
    cluster.kubectl("delete", "namespace", namespace, "--wait=false", check=False)


@pytest.fixture(scope="module")
def straight(place: tuple[Cluster, str]) -> Iterator[Front]:
    with front(place[0].kubeconfig) as made:
        yield made


@pytest.fixture(scope="module")
def gated(place: tuple[Cluster, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with gateway(place[0], tmp_path_factory.mktemp("gateway") / "nginx") as kubeconfig, front(kubeconfig) as made:
        yield made


@pytest.fixture(params=["straight-websocket", "straight-spdy", "gated-websocket", "gated-spdy"])
def way(request: pytest.FixtureRequest, place: tuple[Cluster, str], tmp_path: Path) -> Way:
    which, _, dialect = request.param.partition("-")
    made = request.getfixturevalue(which)
    return Way(made, *place, made.write_kubeconfig(tmp_path / "front.kubeconfig"), websocket=dialect == "websocket")


def test_exit_codes_and_both_outputs(way: Way) -> None:
    done = way.kubectl("exec", POD, "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout) == (7, b"out\n")
    assert done.stderr == b"err\ncommand terminated with exit code 7\n"
    assert way.kubectl("exec", POD, "--", "true").returncode == 0


def test_much_input_and_its_end(way: Way) -> None:
    data = os.urandom(1000) * (SIZE // 1000)
    done = way.kubectl("exec", "-i", POD, "--", "sha256sum", stdin=data)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_much_output(way: Way) -> None:
    done = way.kubectl("exec", POD, "--", "sh", "-c", f"yes 0123456789 | head -c {SIZE}")
    expected = (b"0123456789\n" * (SIZE // 11 + 1))[:SIZE]
    assert (done.returncode, len(done.stdout), done.stderr) == (0, SIZE, b"")
    assert done.stdout == expected


def test_copy_both_ways(way: Way, tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    (tmp_path / "there").write_bytes(data)
    assert way.kubectl("cp", str(tmp_path / "there"), f"{POD}:/tmp/copy").returncode == 0
    assert way.kubectl("cp", f"{POD}:/tmp/copy", str(tmp_path / "back")).returncode == 0
    assert (tmp_path / "back").read_bytes() == data


def test_a_terminal_with_its_size(way: Way) -> None:
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
    process = subprocess.Popen(
        way.command("exec", "-it", POD, "--", "sh"),
        env={**way.environment, "TERM": "dumb"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,
    )
    os.close(terminal)
    seen = ""

    def see(pattern: str) -> None:
        nonlocal seen
        deadline = time.monotonic() + 120
        while not re.search(pattern, seen):
            assert time.monotonic() < deadline, f"{pattern} not in {seen!r}"
            if select.select([main], [], [], 1)[0]:
                seen += os.read(main, 4096).decode(errors="replace")

    def ask_size(until: str) -> None:
        """As often as it takes: a new size arrives when it does."""
        nonlocal seen
        for _ in range(100):
            seen = ""
            os.write(main, b"stty size\n")
            see(r"\d+ \d+\r\n[^\n]*# ")
            if until in seen:
                return
            time.sleep(0.1)
        pytest.fail(f"{until} not in {seen!r}")

    try:
        see("# ")
        ask_size("33 101")
        fcntl.ioctl(main, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 88, 0, 0))
        ask_size("44 88")
        os.write(main, b"echo st''arts; cat\n")
        see("starts")  # the shell no longer reads ahead
        os.write(main, b"here\n")
        see("here\r\nhere\r\n")  # typed, and said by a program that runs: a signal ends it
        seen = ""
        os.write(main, b"\x03")
        see("# ")
        os.write(main, b"exit 5\n")
        assert eventually(process.poll, "kubectl ends", until=lambda code: code is not None) == 5
    finally:
        process.kill()
        process.wait()
        os.close(main)


def test_attach(way: Way) -> None:
    name = f"attach-{uuid.uuid4().hex[:6]}"
    run_pod(
        way.cluster,
        way.namespace,
        name,
        'while read line; do echo "got $line"; done; echo over',
        container={"stdin": True, "stdinOnce": True},
        restartPolicy="Never",
    )
    done = way.kubectl("attach", "-i", name, stdin=b"one\ntwo\n")
    assert done.stdout.decode() == "got one\ngot two\nover\n"
    assert done.returncode == 0


@contextlib.contextmanager
def forwarded(way: Way, port: int) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    process = subprocess.Popen(
        way.command("port-forward", POD, f":{port}"),
        env=way.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    try:
        said = process.stdout.readline().decode()
        matched = re.search(r"127\.0\.0\.1:(\d+)", said)
        assert matched, said
        threading.Thread(target=process.stdout.read, daemon=True).start()  # it writes a line for each connection
        yield int(matched[1]), process
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def test_port_forward_of_many_connections(way: Way) -> None:
    with forwarded(way, 8080) as (port, _):

        def fetch(path: str) -> bytes:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=60) as answer:
                content: bytes = answer.read()
                return content

        expected = fetch("sum").split()[0].decode()
        with ThreadPoolExecutor(6) as pool:
            sums = [hashlib.sha256(body).hexdigest() for body in pool.map(fetch, ["big"] * 12)]
        assert sums == [expected] * 12


def test_a_refused_container_is_said_so(way: Way) -> None:
    name = f"waiting-{uuid.uuid4().hex[:6]}"
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "localhost/no/such:1"}], "terminationGracePeriodSeconds": 0},
    }
    way.cluster.kubectl("-n", way.namespace, "apply", "-f", "-", stdin=json.dumps(pod))
    eventually(
        lambda: (
            way.cluster.kubectl(
                "-n",
                way.namespace,
                "get",
                "pod",
                name,
                "-o",
                "jsonpath={.status.containerStatuses[0].state.waiting.reason}",
            ).stdout
        ),
        "it waits for its image",
        until=lambda reason: "Image" in reason,
    )
    done = way.kubectl("exec", name, "--", "true")
    assert done.returncode == 1
    assert b'container not found ("main")' in done.stderr
    twin = Twin(way.namespace, name, "uid")
    with pytest.raises(CallError, match=r'^container "main" in pod "web" is waiting to start: .*image') as error:
        way.front.run(way.front.calls.logs(make_call(Kind.LOGS, way.namespace, "web", twin=twin)))
    assert error.value.status == 400


def test_a_way_without_spdy_is_learnt(
    gated: Front, straight: Front, place: tuple[Cluster, str], tmp_path: Path
) -> None:
    for made, carries in ((gated, False), (straight, True)):
        way = Way(made, *place, made.write_kubeconfig(tmp_path / "kubeconfig"), websocket=False)
        assert way.kubectl("exec", POD, "--", "true").returncode == 0
        assert way.kubectl("exec", "no-such-pod", "--", "true").returncode == 1
        assert made.calls.carries_spdy is carries


# ---------------------------------------------------------------------- logs


@pytest.fixture
def kubectl(straight: Front, place: tuple[Cluster, str], tmp_path: Path) -> Way:
    return Way(straight, *place, straight.write_kubeconfig(tmp_path / "kubeconfig"), websocket=True)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "out 1\nout 2\nout 3\nout 4\nout 5\n"),
        (["--tail=2"], "out 4\nout 5\n"),
        (["--tail=0"], ""),
        (["--limit-bytes=8"], "out 1\nou"),
        (["--since=1h", "--tail=1"], "out 5\n"),
        (["--since-time=2020-01-01T00:00:00Z", "--tail=1"], "out 5\n"),
        (["--since-time=2120-01-01T00:00:00Z"], ""),
    ],
)
def test_log_options(kubectl: Way, options: list[str], expected: str) -> None:
    assert kubectl.kubectl("logs", POD, *options).stdout.decode() == expected


def test_timestamps(kubectl: Way) -> None:
    lines = kubectl.kubectl("logs", POD, "--timestamps").stdout.decode().splitlines()
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z out \d", line) for line in lines)
    assert len(lines) == 5


def test_no_previous_container(kubectl: Way) -> None:
    done = kubectl.kubectl("logs", POD, "--previous")
    assert f'previous terminated container "main" in pod "{POD}" not found' in done.stderr.decode()


def test_the_previous_container(kubectl: Way) -> None:
    name = f"again-{uuid.uuid4().hex[:6]}"
    script = "if [ -e /seen/it ]; then echo second; exec sleep 1000000; fi; touch /seen/it; echo first; exit 1"
    container = {"volumeMounts": [{"name": "seen", "mountPath": "/seen"}]}
    run_pod(
        kubectl.cluster,
        kubectl.namespace,
        name,
        script,
        container=container,
        volumes=[{"name": "seen", "emptyDir": {}}],
    )
    eventually(lambda: kubectl.kubectl("logs", name).stdout, "the second", until=lambda said: said == b"second\n")
    assert kubectl.kubectl("logs", name, "--previous").stdout == b"first\n"


def test_much_log(kubectl: Way) -> None:
    name = f"much-{uuid.uuid4().hex[:6]}"
    script = "seq 1 300000; exec sleep 1000000"
    run_pod(kubectl.cluster, kubectl.namespace, name, script)
    expected = "".join(f"{number}\n" for number in range(1, 300_001)).encode()
    said = eventually(
        lambda: kubectl.kubectl("logs", name).stdout, "all", until=lambda said: len(said) >= len(expected)
    )
    assert said == expected


def test_following_starts_at_once_and_ends_with_the_container(kubectl: Way) -> None:
    name = f"follow-{uuid.uuid4().hex[:6]}"
    script = (
        "while ! [ -e /tmp/go ]; do sleep 0.1; done; echo now; while ! [ -e /tmp/end ]; do sleep 0.1; done; echo end"
    )
    run_pod(kubectl.cluster, kubectl.namespace, name, script, restartPolicy="Never")
    call = make_call(Kind.LOGS, kubectl.namespace, name, query=(("follow", "true"),))
    made = kubectl.front

    async def touch(file: str) -> None:
        await asyncio.to_thread(
            kubectl.cluster.kubectl, "-n", kubectl.namespace, "exec", name, "--", "touch", f"/tmp/{file}"
        )

    async def follow() -> list[bytes]:
        async with asyncio.timeout(60):
            stream = await made.calls.logs(call)  # before there is any output
            await touch("go")
            first = await anext(stream)
            await touch("end")
            return [first, *[piece async for piece in stream]]

    assert made.run(follow(), 90) == [b"now\n", b"end\n"]


def followers(cluster: Cluster, namespace: str) -> int:
    """How often the remote kubelet has the log of our pod open; API servers only count everybody's requests."""
    kubelet = cluster.component("kubelet").identity()
    assert kubelet is not None
    count = 0
    for opened in Path(f"/proc/{kubelet.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            count += f"/{namespace}_{POD}_" in str(opened.readlink())
    return count


def test_following_is_cancelled_at_the_remote(kubectl: Way) -> None:
    def following() -> int:
        return followers(kubectl.cluster, kubectl.namespace)

    query = (("follow", "true"),)
    made = kubectl.front
    streams = [made.run(made.calls.logs(make_call(Kind.LOGS, kubectl.namespace, POD, query=query))) for _ in range(5)]
    eventually(following, "all five", until=lambda count: count == 5)
    for stream in streams:
        made.run(stream.aclose())
    eventually(following, "none of them", until=lambda count: count == 0)


def test_a_session_ends_at_the_remote_with_its_client(way: Way) -> None:
    # what runs in the pod: the API server's count of sessions has everybody's, also those of tests at the same time
    def under_way() -> int:
        listed = way.cluster.kubectl("-n", way.namespace, "exec", POD, "--", "sh", "-c", "pidof cat | wc -w")
        return int(listed.stdout)

    command = way.command("exec", "-i", POD, "--", "cat")
    clients = [
        subprocess.Popen(command, env=way.environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        for _ in range(3)
    ]
    try:
        eventually(under_way, "all three", until=lambda count: count == 3)
    finally:
        for client in clients:
            client.kill()
            client.wait()
            assert client.stdin is not None
            client.stdin.close()
    eventually(under_way, "none of them", until=lambda count: count == 0)


def test_a_slow_reader_stops_the_command(way: Way) -> None:
    process = subprocess.Popen(
        way.command("exec", POD, "--", "yes"), env=way.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    process.stdout.read(1000)
    meter = way.front.meters[-1]
    seen = -1

    def stands_still() -> bool:
        nonlocal seen
        before, seen = seen, meter.down
        time.sleep(0.5)
        return before == meter.down

    eventually(stands_still, "nothing more is read from the remote")
    assert meter.down < 64 << 20
    process.kill()
    process.wait()
    process.stdout.close()


# ---------------------------------------------------------------------- other clients


def test_the_official_client(straight: Front, place: tuple[Cluster, str]) -> None:
    configuration = kubernetes.client.Configuration(host=f"http://127.0.0.1:{straight.port}")
    with kubernetes.client.ApiClient(configuration) as api:
        core = kubernetes.client.CoreV1Api(api)
        session = kubernetes_stream(
            core.connect_get_namespaced_pod_exec,
            POD,
            place[1],
            command=["sh", "-c", "read line; echo got $line; exit 4"],
            stdin=True,
            stdout=True,
            stderr=True,
            tty=False,
            _preload_content=False,
        )
        session.write_stdin("hello\n")
        session.run_forever(timeout=30)
        assert session.read_stdout() == "got hello\n"
        assert session.returncode == 4
        session.sock.shutdown()  # close() leaves the socket open once the server has closed


@pytest.mark.parametrize("protocol", ["channel.k8s.io", "v4.base64.channel.k8s.io", "v4.channel.k8s.io"])
def test_every_websocket_dialect(straight: Front, place: tuple[Cluster, str], protocol: str) -> None:
    url = f"ws://127.0.0.1:{straight.port}/api/v1/namespaces/{place[1]}/pods/{POD}/exec"
    with connect(
        f"{url}?container=main&command=echo&command=hello&stdout=true",
        subprotocols=[Subprotocol(protocol)],
        additional_headers={"Authorization": "Bearer not-ours"},
    ) as websocket:
        said: list[Any] = []
        with contextlib.suppress(ConnectionClosed):
            while True:
                said.append(websocket.recv(timeout=30))
    assert websocket.subprotocol == protocol
    if "base64" in protocol:
        output = b"".join(base64.b64decode(message[1:]) for message in said if message[:1] == "1")
    else:
        output = b"".join(message[1:] for message in said if message[:1] == b"\x01")
    assert output == b"hello\n"


def test_a_websocket_without_a_subprotocol(straight: Front, place: tuple[Cluster, str]) -> None:
    """The API server answers it with an empty header, which a strict library refuses: so by hand."""
    path = f"/api/v1/namespaces/{place[1]}/pods/{POD}/exec?container=main&command=echo&command=hello&stdout=true"
    key = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13"
    with socket.create_connection(("127.0.0.1", straight.port), 30) as wire:
        head = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{key}\r\n\r\n"
        wire.sendall(head.encode())
        got = b""
        while b"hello\n" not in got:
            piece = wire.recv(4096)
            assert piece, got
            got += piece
    assert got.startswith(b"HTTP/1.1 101 ")
    assert b"\x82\x07\x01hello\n" in got  # a binary message on channel 1


def test_port_forward_over_plain_websocket(straight: Front, place: tuple[Cluster, str]) -> None:
    url = f"ws://127.0.0.1:{straight.port}/api/v1/namespaces/{place[1]}/pods/{POD}/portforward?ports=8080"
    with connect(url, subprotocols=[Subprotocol("v4.channel.k8s.io")]) as websocket:
        assert {websocket.recv(timeout=30), websocket.recv(timeout=30)} == {b"\x00\x90\x1f", b"\x01\x90\x1f"}
        websocket.send(b"\x00GET /sum HTTP/1.0\r\n\r\n")
        got = b""
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            while b"-\n" not in got:
                message = websocket.recv(timeout=60)
                assert isinstance(message, bytes)
                got += message[1:]
    assert got.startswith(b"HTTP/1.")
    assert re.search(rb"[0-9a-f]{64}  -\n", got)


def run(made: Front, namespace: str, command: str) -> bytes:
    call = make_call(Kind.RUN, namespace, POD, method="POST", query=(("cmd", command),))
    return made.run(made.calls.run(call, Count()))


@pytest.mark.parametrize("which", ["straight", "gated"])
def test_run(request: pytest.FixtureRequest, place: tuple[Cluster, str], which: str) -> None:
    made: Front = request.getfixturevalue(which)
    assert run(made, place[1], "echo hello world") == b"hello world\n"
    with pytest.raises(CallError, match=r"^command 'ls /nowhere' exited with 1: ls: /nowhere: No such file") as error:
        run(made, place[1], "ls /nowhere")
    assert error.value.status == 500
    with pytest.raises(CallError, match=r"no-such-program") as error:
        run(made, place[1], "no-such-program")
    assert error.value.status == 500


def test_a_pod_that_is_gone(straight: Front, place: tuple[Cluster, str]) -> None:
    call = make_call(Kind.RUN, place[1], "gone", query=(("cmd", "true"),))
    with pytest.raises(CallError, match=r"^pod does not exist$") as error:
        straight.run(straight.calls.run(call, Count()))
    assert error.value.status == 404


def test_many_short_sessions_leave_nothing(straight: Front, place: tuple[Cluster, str]) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a folder that changes while it is read

    async def many(count: int) -> None:
        limit = asyncio.Semaphore(8)

        async def one(number: int) -> None:
            async with limit:
                if number % 2:
                    call = make_call(Kind.RUN, place[1], POD, query=(("cmd", "echo x"),))
                    assert await straight.calls.run(call, Count()) == b"x\n"
                else:
                    stream = await straight.calls.logs(make_call(Kind.LOGS, place[1], POD))
                    assert await anext(stream)
                    await stream.aclose()

        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(one(number))

    straight.run(many(8))
    eventually(lambda: not straight.sessions, "sessions of other tests are over")
    before = descriptors()
    straight.run(many(60), 120)
    eventually(descriptors, "no descriptor is left", until=lambda count: count <= before, timeout=60)


def test_a_meter_counts_both_ways(kubectl: Way) -> None:
    kubectl.kubectl("exec", "-i", POD, "--", "cat", stdin=b"x" * 10_000)
    meter: Count = kubectl.front.meters[-1]
    assert 10_000 <= meter.up < 20_000
    assert 10_000 <= meter.down < 20_000
