"""kubectl, old and new, at pods of the virtual node: through the real API server, to real containers elsewhere.

The pods are there a second time straight in the remote cluster; where it matters what people read, the same command
goes there as well and both must say the same.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import re
import socket
import subprocess
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from devcluster.addons import BUSYBOX_IMAGE
from devcluster.fleet import Fleet
from tests.cluster.reach import BODY, OWN, PODS, Kubectl, Reached, reached, read_line

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("kubectl")]

ALL = pytest.mark.parametrize("minor", [27, 29, 31, 34, OWN, 37])
EDGES = pytest.mark.parametrize("minor", [27, OWN, 37])
"""The oldest, our own and the newest: for what takes longer."""

LINES = [f"line {number}" for number in range(1, 6)]


@pytest.fixture(scope="module")
def pods(fleet: Fleet, module_namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reached]:
    folder = tmp_path_factory.mktemp("farlet")
    names = [str(pod["metadata"]["name"]) for pod in PODS]  # type: ignore[index]
    with reached(fleet, module_namespace, f"virtual-{uuid.uuid4().hex[:8]}", folder, *names) as pods:
        yield pods


# ---------------------------------------------------------------------- logs


@ALL
def test_logs(pods: Reached, minor: int) -> None:
    kubectl = pods.through(minor)
    box = ["logs", "box", "-c", "main"]
    assert kubectl.says(*box).splitlines() == LINES
    assert kubectl.says(*box, "--tail=2").splitlines() == LINES[-2:]
    assert kubectl.says(*box, "--tail=0") == ""
    assert kubectl.says(*box, "--since=1h", "--limit-bytes=10") == "line 1\nlin"
    stamped = kubectl.says(*box, "--timestamps", "--tail=1")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\S+ line 5\n", stamped)
    assert kubectl.says("logs", "crash", "--previous") == "before the crash\n"
    assert kubectl.says("logs", "done") == "all done\n"
    assert kubectl.says("logs", "early", "-c", "init") == "first\n"


@EDGES
def test_logs_since_a_moment_and_of_many(pods: Reached, minor: int) -> None:
    kubectl = pods.through(minor)
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert kubectl.says("logs", "box", "-c", "main", f"--since-time={now}") == ""
    both = {f"[pod/box/main] {line}" for line in LINES} | {"[pod/box/side] from the side"}
    everything = ["logs", "-l", "app=box", "--all-containers", "--prefix"]
    assert set(kubectl.says(*everything).splitlines()) == both
    with kubectl.started(*everything, "--follow") as process:
        assert {read_line(process).decode().rstrip("\n") for _ in both} == both
        assert process.poll() is None, "it waits for more"


@EDGES
def test_followed_logs_end_with_the_container(pods: Reached, minor: int) -> None:
    kubectl, name = pods.through(minor), f"ending-{minor}"
    script = "echo begins; until [ -e /tmp/go ]; do sleep 0.1; done; echo ends"
    container = {"name": "main", "image": BUSYBOX_IMAGE, "command": ["sh", "-c", script]}
    spec = {"nodeName": pods.farlet.node, "restartPolicy": "Never", "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    kubectl.says("apply", "-f", "-", stdin=json.dumps(pod).encode())
    kubectl.says("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=120s", timeout=130)
    with kubectl.started("logs", "-f", name) as process:
        assert read_line(process) == b"begins\n"
        kubectl.says("exec", name, "--", "touch", "/tmp/go")
        assert process.communicate(timeout=60) == (b"ends\n", b"")
        assert process.returncode == 0
    kubectl.says("delete", "pod", name, "--wait=false")


# ---------------------------------------------------------------------- exec and attach


@ALL
def test_exec(pods: Reached, minor: int) -> None:
    kubectl = pods.through(minor)
    into = ["exec", "box", "-c", "main"]
    for code in (0, 7, 255):
        result = kubectl(*into, "--", "sh", "-c", f"echo out; echo complaint >&2; exit {code}")
        assert (result.code, result.stdout) == (code, b"out\n"), str(result)
        assert "complaint\n" in result.stderr
    data = os.urandom(1_000_000)
    digest = kubectl.says(*into, "-i", "--", "sh", "-c", "sha256sum; echo more follows", stdin=data)
    assert digest.split()[0] == hashlib.sha256(data).hexdigest(), "what follows the end of stdin is heard"
    assert digest.endswith("more follows\n")
    assert kubectl(*into, "-i", "--", "cat", stdin=data).stdout == data
    assert kubectl.says("exec", "box", "-c", "side", "--", "hostname") == "box\n"


@EDGES
def test_exec_at_a_terminal(pods: Reached, minor: int) -> None:
    with pods.through(minor).at_terminal("exec", "-it", "box", "-c", "main", "--", "sh", size=(31, 97)) as terminal:
        terminal.expect("# ")
        terminal.type("stty size; tty\n")
        terminal.expect(r"31 97\r\n")
        terminal.expect(r"/dev/pts/\d+\r\n")
        terminal.resize(12, 44)
        # the shell tells of the change itself, so that nothing is asked before it has come
        terminal.type("until [ \"$(stty size)\" = '12 44' ]; do sleep 0.1; done; echo resized to $(stty size)\n")
        terminal.expect(r"resized to 12 44\r\n")
        terminal.type("sh -c 'echo $((40 + 2)) waits; cat'\n")
        terminal.expect("42 waits")
        terminal.type("\x03")  # Ctrl-C is for the program inside
        terminal.expect("# ")
        terminal.type("exit 9\n")
        assert terminal.ended() == 9


@EDGES
def test_attach(pods: Reached, minor: int) -> None:
    with pods.through(minor).started("attach", "-i", "chat") as process:
        assert process.stdin is not None
        for word in ("first", "second"):
            process.stdin.write(f"{word} {minor}\n".encode())
            process.stdin.flush()
            while (line := read_line(process)) != f"got {word} {minor}\n".encode():
                assert line.startswith((b"got", b"If you don't see")), line


@EDGES
def test_debug_and_run(pods: Reached, minor: int) -> None:
    kubectl = pods.through(minor)
    debug = ["debug", "-it", "chat", f"--image={BUSYBOX_IMAGE}", "-c", f"debug-{minor}", "--", "sh"]
    with kubectl.at_terminal(*debug) as terminal:
        terminal.expect("# ", timeout=90)
        terminal.type("hostname; echo $((6 * 7)) answers; exit\n")
        terminal.expect(r"chat\r\n")
        terminal.expect(r"42 answers\r\n")
        terminal.ended()
    bound = json.dumps({"spec": {"nodeName": pods.farlet.node}})
    once = ["run", f"once-{minor}", "--rm", "-it", f"--image={BUSYBOX_IMAGE}", "--restart=Never"]
    script = "read word; echo heard $word; exit 5"
    with kubectl.at_terminal(*once, f"--overrides={bound}", "--", "sh", "-c", script) as terminal:
        terminal.expect("If you don't see a command prompt", timeout=90)
        terminal.type("hello\n")
        terminal.expect(r"heard hello\r\n")
        terminal.expect(rf'pod "once-{minor}" deleted', timeout=90)
        assert terminal.ended() == 5
    assert "NotFound" in kubectl("get", "pod", f"once-{minor}").stderr


@EDGES
def test_wait(pods: Reached, minor: int) -> None:
    kubectl = pods.through(minor)
    assert kubectl.says("wait", "--for=condition=Ready", "pod/box") == "pod/box condition met\n"
    assert kubectl.says("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/done") == "pod/done condition met\n"


# ---------------------------------------------------------------------- cp


@ALL
def test_cp(pods: Reached, minor: int, tmp_path: Path) -> None:
    kubectl = pods.through(minor)
    there = tmp_path / "there"
    (there / "folder" / "deep").mkdir(parents=True)
    (there / "folder" / "large").write_bytes(os.urandom(2_000_000))
    (there / "folder" / "deep" / "small").write_text("small\n")
    (there / "folder" / "empty").touch()
    kubectl.says("cp", str(there / "folder" / "large"), f"box:/tmp/file-{minor}", "-c", "main")
    kubectl.says("cp", str(there / "folder"), f"box:/tmp/folder-{minor}", "-c", "main")
    back = tmp_path / "back"
    kubectl.says("cp", f"box:/tmp/file-{minor}", str(back / "file"), "-c", "main")
    kubectl.says("cp", f"box:/tmp/folder-{minor}", str(back / "folder"), "-c", "main")
    assert (back / "file").read_bytes() == (there / "folder" / "large").read_bytes()
    assert content(back / "folder") == content(there / "folder")


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_100_megabytes_both_ways(pods: Reached, tmp_path: Path) -> None:
    """Checked on the far side on the way there, and here on the way back."""
    size, kubectl = 100 << 20, pods.through()
    file = tmp_path / "data"
    block = os.urandom(1 << 20)
    digest = hashlib.sha256()
    with file.open("wb") as out:
        for number in range(size >> 20):
            piece = bytes([number]) + block[1:]
            digest.update(piece)
            out.write(piece)
    into = ["exec", "-i", "box", "-c", "main", "--"]
    with file.open("rb") as data:
        command = kubectl.command(*into, "sh", "-c", "tee /tmp/data | sha256sum")
        there = subprocess.run(command, stdin=data, capture_output=True, timeout=250, check=True).stdout
    assert there.split()[0].decode() == digest.hexdigest()
    back = hashlib.sha256()
    with kubectl.started(*into, "cat", "/tmp/data") as process:
        assert process.stdout is not None
        while piece := process.stdout.read(1 << 20):
            back.update(piece)
        assert process.wait(60) == 0
    assert back.hexdigest() == digest.hexdigest()
    kubectl.says("exec", "box", "-c", "main", "--", "rm", "/tmp/data")


# ---------------------------------------------------------------------- port-forward


@ALL
def test_port_forward(pods: Reached, minor: int) -> None:
    kubectl = pods.through(minor)
    digest = kubectl.says("exec", "box", "-c", "main", "--", "sha256sum", "/www/body").split()[0]
    with kubectl.forwarded("box", 8080) as (process, port):

        def fetch(_: int) -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/body", timeout=60) as response:
                data = response.read()
            assert len(data) == BODY
            return hashlib.sha256(data).hexdigest()

        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(fetch, range(8))) == {digest}
        assert process.poll() is None


@EDGES
def test_a_port_where_nobody_listens(pods: Reached, minor: int) -> None:
    """What a person sees, and whether the same port-forward is of use afterwards, is as with the cluster itself."""

    def outcome(kubectl: Kubectl) -> tuple[object, ...]:
        with kubectl.forwarded("box", 81) as (process, port):
            with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port), 60) as connection:
                assert connection.recv(1) == b"", "somebody listens at port 81"
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.terminate()
                process.wait(60)
            assert process.stderr is not None
            said = process.stderr.read().decode()
            # only the pod's own words: what kubectl tells of its two copying threads depends on which is the faster
            told = re.search("error forwarding port 81 .*", said)
            assert told, said
            return process.returncode, same_words(pods, told[0]), said.splitlines()[-1]

    assert outcome(pods.through(minor)) == outcome(pods.direct(minor))
    with (
        pods.through(minor).forwarded("box", 8080) as (_, port),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/body", timeout=60) as response,
    ):
        assert len(response.read()) == BODY, "the next one works"


# ---------------------------------------------------------------------- errors


def same_words(pods: Reached, text: str) -> str:
    """What two clusters say, without what is of one of them: ids, namespaces, moments and ports of this machine."""
    text = text.replace(pods.direct_namespace, pods.namespace)
    text = re.sub(r"[0-9a-f]{64}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text)
    return re.sub(
        r"\d+ +(?=connection\.go|portforward\.go)|127\.0\.0\.1:\d+|(?<=forwarding )\d+|(?<=localPort=)\d+", "N", text
    )


@EDGES
@pytest.mark.parametrize(
    "command",
    [
        "logs nobody",
        "logs box -c nothing",
        "logs early -c main",
        "logs box -c main --previous",
        "exec nobody -- true",
        "exec box -c nothing -- true",
        "exec box -c main -- no-such-program",
        "exec box -c main -- sh -c no-such-program",
        "exec early -c main -- true",
        "exec done -- true",
        "attach done",
        "attach early -c main",
        "port-forward pod/done :80",
        "port-forward pod/nobody :80",
    ],
)
def test_errors_are_those_of_the_cluster_itself(pods: Reached, minor: int, command: str) -> None:
    through, direct = pods.through(minor)(*command.split()), pods.direct(minor)(*command.split())
    assert (through.code, through.stdout) == (direct.code, direct.stdout), f"{through} but {direct}"
    assert same_words(pods, through.stderr) == same_words(pods, direct.stderr)


# ---------------------------------------------------------------------- the node's own routes


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("healthz", r"ok"),
        ("healthz/ping", r"ok"),
        ("healthz?verbose", r"\[\+\]ping ok\n[^-]*healthz check passed\n"),
        ("pods", r'\{"kind":"PodList","apiVersion":"v1".*"name":"box".*'),
        ("runningpods/", r'\{"kind":"PodList","apiVersion":"v1".*"name":"box".*'),
        ("configz", r'\{"kubeletconfig":\{.*'),
        ("metrics", r"(?s).*\nfarlet_sessions_open\{.*"),
        ("metrics/resource", r"(?s)# HELP .*\nresource_scrape_error 0\n"),
        ("metrics/cadvisor", r"(?s)# HELP .*\ncontainer_scrape_error 0\n"),
        ("metrics/probes", r"(?s)# HELP process_start_time_seconds .*"),
        ("stats/summary", r'\{"node":\{"nodeName":"virtual-.*"name":"box".*'),
    ],
)
def test_routes_of_the_node(pods: Reached, path: str, expected: str) -> None:
    said = pods.through().says("get", "--raw", f"/api/v1/nodes/{pods.farlet.node}/proxy/{path}")
    assert re.fullmatch(expected, said.strip() if path.startswith("healthz/") else said, re.DOTALL), said[:2000]


@pytest.mark.parametrize("path", ["nothing", "pods/more", "containerLogs/a", "healthz/nothing", "run/a/b/c"])
def test_routes_that_are_not_there(pods: Reached, path: str) -> None:
    """Compared with the kubelet of the remote cluster."""
    node = pods.farlet.remote.kubectl("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}").stdout
    ours = pods.through()("get", "--raw", f"/api/v1/nodes/{pods.farlet.node}/proxy/{path}")
    its = pods.direct()("get", "--raw", f"/api/v1/nodes/{node}/proxy/{path}")
    assert (ours.code, ours.stdout, ours.stderr) == (its.code, its.stdout, its.stderr)
