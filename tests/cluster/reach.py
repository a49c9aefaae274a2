"""kubectl at a pod, as a person uses it: of any minor version, with pipes or at a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app import names
from devcluster import kubectls
from devcluster.addons import BUSYBOX_IMAGE
from devcluster.binaries import ensure
from devcluster.cluster import Cluster
from devcluster.fleet import Fleet
from tests.cluster.farlet import Farlet, running
from tests.eventually import eventually

OWN = 36
"""The clusters' own minor version."""

BODY = 5_000_000
"""Bytes of what the pod ``box`` serves at port 8080 as ``/body``."""

_SERVE = f"""
mkdir /www && head -c {BODY} /dev/urandom >/www/body && httpd -p 8080 -h /www
for number in 1 2 3 4 5; do echo "line $number"; done
exec sleep 1000000
"""
_CRASH_ONCE = """
if [ -e /kept/once ]; then echo "after the crash"; exec sleep 1000000; fi
touch /kept/once; echo "before the crash"; exit 3
"""
_CHAT = 'while true; do while read -r line; do echo "got $line"; done; sleep 1; done'


def _pod(name: str, *containers: dict[str, object], **spec: object) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": list(containers), "terminationGracePeriodSeconds": 1, **spec},
    }


def _container(script: str, name: str = "main", **options: object) -> dict[str, object]:
    return {"name": name, "image": BUSYBOX_IMAGE, "command": ["sh", "-c", script], **options}


PODS = (
    _pod("box", _container(_SERVE), _container("echo from the side; exec sleep 1000000", "side")),
    _pod("chat", _container(_CHAT, stdin=True)),
    _pod(
        "crash",
        _container(_CRASH_ONCE, volumeMounts=[{"name": "kept", "mountPath": "/kept"}]),
        volumes=[{"name": "kept", "emptyDir": {}}],
    ),
    _pod("done", _container("echo all done"), restartPolicy="Never"),
    _pod(
        "early", _container("exec sleep 1000000"), initContainers=[_container("echo first; exec sleep 1000000", "init")]
    ),
)
"""One that serves and talks, one that listens, and some that are in the states that errors come from."""

_REACHED = {
    "box": "condition=Ready",
    "chat": "condition=Ready",
    "crash": "jsonpath={.status.containerStatuses[0].restartCount}=1",
    "done": "jsonpath={.status.phase}=Succeeded",
    "early": "jsonpath={.status.initContainerStatuses[0].state.running.startedAt}",
}


@dataclass(frozen=True, slots=True)
class Reached:
    """The same pods twice: on a virtual node, and straight in the remote cluster to compare with."""

    farlet: Farlet
    namespace: str
    direct_namespace: str

    def through(self, minor: int = OWN) -> Kubectl:
        """kubectl at the local cluster."""
        return Kubectl(program(minor), self.farlet.local, self.namespace)

    def direct(self, minor: int = OWN) -> Kubectl:
        """kubectl at the remote cluster."""
        return Kubectl(program(minor), self.farlet.remote, self.direct_namespace)

    def twin(self, pod: str) -> str:
        """What a local pod is called in the remote cluster."""
        local = self.farlet.local.kubectl("-n", self.namespace, "get", "pod", pod, "-o", "jsonpath={.metadata.uid}")
        selector = f"{names.LABEL_POD_UID}={local.stdout}"
        what = ["get", "pods", "-l", selector, "-o", "jsonpath={.items[0].metadata.name}"]
        return self.farlet.remote.kubectl("-n", self.namespace, *what).stdout


@contextlib.contextmanager
def reached(fleet: Fleet, namespace: str, node: str, folder: Path, *pods: str) -> Iterator[Reached]:
    """A Farlet with some of :data:`PODS`, in the states that they are there for."""
    local, remote = fleet.cluster("local"), fleet.cluster("remote")
    direct = f"{namespace}-direct"
    remote.kubectl("create", "namespace", direct)
    try:
        with running(local, remote, node, folder, "--namespace", f"{namespace}={namespace}") as farlet:
            places = [(local, namespace, {"nodeName": node}), (remote, direct, {})]
            wanted = [pod for pod in PODS if pod["metadata"]["name"] in pods]  # type: ignore[index]
            for cluster, space, more in places:
                bound = [{**pod, "spec": {**pod["spec"], **more}} for pod in wanted]  # type: ignore[dict-item]
                listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": bound})
                # its default ServiceAccount may not be there yet
                eventually(
                    lambda c=cluster, s=space, text=listed: c.kubectl("-n", s, "apply", "-f", "-", stdin=text),  # type: ignore[misc]
                    f"pods in {space}",
                )
            for cluster, space, _ in places:
                for pod in pods:
                    wait = ["wait", f"--for={_REACHED[pod]}", f"pod/{pod}", "--timeout=120s"]
                    cluster.kubectl("-n", space, *wait, timeout=130)
            yield Reached(farlet, namespace, direct)
    finally:
        remote.kubectl("delete", "namespace", direct, "--wait=false", check=False)


@dataclass(frozen=True, slots=True)
class Result:
    """What a run of kubectl came to."""

    stdout: bytes
    stderr: str
    code: int

    def __str__(self) -> str:
        return f"exit code {self.code}, stdout {self.stdout[-2000:]!r}, stderr {self.stderr[-2000:]!r}"


@dataclass(frozen=True, slots=True)
class Kubectl:
    """One kubectl, in one namespace of one cluster."""

    program: Path
    cluster: Cluster
    namespace: str

    def command(self, *arguments: str) -> list[str]:
        cache = self.cluster.layout.folder / "kubectl-cache"
        return [
            str(self.program),
            f"--kubeconfig={self.cluster.kubeconfig}",
            f"--cache-dir={cache}",
            f"--namespace={self.namespace}",
            *arguments,
        ]

    def __call__(self, *arguments: str, stdin: bytes | None = None, timeout: float = 60) -> Result:
        done = subprocess.run(
            self.command(*arguments),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        return Result(done.stdout, done.stderr.decode(), done.returncode)

    def says(self, *arguments: str, stdin: bytes | None = None, timeout: float = 60) -> str:
        """What it prints, if it succeeds."""
        result = self(*arguments, stdin=stdin, timeout=timeout)
        assert result.code == 0, f"kubectl {' '.join(arguments)}: {result}"
        return result.stdout.decode()

    @contextlib.contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """It runs while the block does, with pipes at all three ends."""
        with subprocess.Popen(
            self.command(*arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    @contextlib.contextmanager
    def at_terminal(self, *arguments: str, size: tuple[int, int] = (24, 80)) -> Iterator[Terminal]:
        """It runs at a terminal of its own while the block does."""
        ours, theirs = pty.openpty()
        _resize(ours, size)
        try:
            with subprocess.Popen(
                self.command(*arguments), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
            ) as process:
                os.close(theirs)
                try:
                    yield Terminal(process, ours)
                finally:
                    process.kill()
        finally:
            os.close(ours)

    @contextlib.contextmanager
    def forwarded(self, pod: str, port: int) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
        """A port of a pod at a port of this machine."""
        with self.started("port-forward", f"pod/{pod}", f":{port}") as process:
            assert process.stdout is not None
            line = read_line(process)
            found = re.search(rb"127\.0\.0\.1:(\d+) ->", line)
            assert found, f"port-forward says {line!r}"
            yield process, int(found[1])


class Terminal:
    """A program at a pseudo-terminal, with us at the keyboard."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor
        self.shown = b""

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def resize(self, rows: int, columns: int) -> None:
        """What a window does when its corner is dragged."""
        _resize(self._descriptor, (rows, columns))
        self.process.send_signal(signal.SIGWINCH)

    def expect(self, pattern: str, timeout: float = 60) -> None:
        """Wait until it shows something new; what came before that is forgotten."""
        wanted = re.compile(pattern.encode())
        deadline = time.monotonic() + timeout
        while (found := wanted.search(self.shown)) is None:
            self._read(deadline, f"{pattern!r} at the terminal")
        self.shown = self.shown[found.end() :]

    def ended(self, timeout: float = 60) -> int:
        """Its exit code."""
        deadline = time.monotonic() + timeout
        with contextlib.suppress(EOFError):
            while True:
                self._read(deadline, "the program at the terminal has not ended")
        return self.process.wait(timeout)

    def _read(self, deadline: float, what: str) -> None:
        readable, _, _ = select.select([self._descriptor], [], [], max(0.0, deadline - time.monotonic()))
        if not readable:
            raise AssertionError(f"{what}: not in time; shown since: {self.shown[-2000:]!r}")
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:  # how Linux says that nobody has the other side open any more
            data = b""
        if not data:
            raise EOFError(f"{what}: it ended; shown since: {self.shown[-2000:]!r}")
        self.shown += data


def read_line(process: subprocess.Popen[bytes], timeout: float = 60) -> bytes:
    """The next line that a program prints."""
    assert process.stdout is not None
    line = b""
    deadline = time.monotonic() + timeout
    while not line.endswith(b"\n"):
        readable, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        if not readable:
            raise AssertionError(f"no line from {process.args!r} within {timeout:g} s; so far {line!r}")
        piece = os.read(process.stdout.fileno(), 1)
        if not piece:
            complaint = process.stderr.read() if process.stderr is not None else b""
            raise AssertionError(f"{process.args!r} ended: {line!r} {complaint!r}")
        line += piece
    return line


def program(minor: int) -> Path:
    """The kubectl of a minor version."""
    return ensure(["kubectl"])["kubectl"] if minor == OWN else kubectls.ensure(minor)


def _resize(descriptor: int, size: tuple[int, int]) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
