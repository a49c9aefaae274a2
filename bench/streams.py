"""Streams through Farlet against the same streams straight from the remote cluster, in one run.

Both ways end in the same containers: a pod on the virtual node, and its twin. Through Farlet the bytes pass the local
API server and Farlet besides the remote API server, and all of them share this machine with kubectl and the kubelet:
``docs/bench.md`` says what a ratio contains.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import WebSocketException

from app import names
from bench import table, usage
from bench.rig import Farlet
from bench.usage import Cpu, difference
from bench.ways import NAMESPACE, NODE
from devcluster.addons import BUSYBOX_IMAGE
from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.fleet import Fleet
from devcluster.process import wait_for
from tests.cluster.sockets import STDOUT, Sockets, sockets

FLEET, LOCAL, REMOTE = "streams", "near", "far"

LOGS, OTHERS = 0.9, 0.7
"""The least that a throughput may be, as a part of the direct one."""
ADDED = 0.015
"""Seconds that the first byte may come later."""
IDLE = 100_000
"""Bytes for an idle session."""

_LINE = "x" * 99 + "\n"
_MEGABYTE = 1_000_000
_PIECE = 1 << 20
_WARM = 20
_AT_ONCE = 16
"""Sessions that are opened at the same time, and connections of a port-forward."""
_CONNECTIONS = 100
_API, _FARLET = "API local", "Farlet"
_CPU = ("local API's CPU", "Farlet's CPU")


def run(megabytes: int, *, rounds: int, runs: int, sessions: int, keep: bool, profile: Path | None) -> None:
    """Measure everything and print the tables."""
    fleet = Fleet(FLEET)
    try:
        fleet.up([REMOTE], real=True, metrics=False)
        fleet.up([LOCAL], real=False, metrics=False)
        local, remote = fleet.cluster(LOCAL), fleet.cluster(REMOTE)
        farlet = Farlet(local, remote, profile=profile, reachable=True)
        try:
            farlet.start()
            with _pod(local, remote, megabytes) as (direct, through), tempfile.TemporaryDirectory() as folder:
                Bench(direct, through, farlet, Path(folder), megabytes * _MEGABYTE).run(rounds, runs, sessions)
        finally:
            farlet.stop()
    finally:
        if not keep:
            fleet.down()


@dataclass(frozen=True, slots=True)
class Way:
    """kubectl at one of the two clusters, and what the pod is called there."""

    cluster: Cluster
    pod: str

    @contextlib.contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """kubectl with pipes; it has to succeed, unless the block leaves it running."""
        command = self.cluster.kubectl_command("-n", NAMESPACE, *arguments)
        with (
            tempfile.TemporaryFile() as complaints,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints) as process,
        ):
            try:
                yield process
            finally:
                code = process.poll()
                process.kill()
            if code:
                complaints.seek(0)
                raise DevclusterError(f"kubectl {' '.join(arguments)}: {complaints.read()[-2000:].decode()}")

    def exec(self, container: str, *command: str) -> list[str]:
        return ["exec", "-i", self.pod, "-c", container, "--", *command]


@dataclass(slots=True)
class Measured:
    """One thing in both ways, a figure for each round."""

    what: str
    direct: list[float] = field(default_factory=list)
    through: list[float] = field(default_factory=list)
    cpu: Counter[str] = field(default_factory=Counter)
    """Seconds that those used in all rounds whom only the way through Farlet passes."""

    @property
    def medians(self) -> tuple[float, float]:
        return statistics.median(self.direct), statistics.median(self.through)


class Bench:
    """The measurements, one after another."""

    def __init__(self, direct: Way, through: Way, farlet: Farlet, folder: Path, size: int) -> None:
        self._direct, self._through = direct, through
        self._farlet = farlet
        self._programs = usage.programs({"local": through.cluster})
        self._size = size
        self._file = folder / "file"
        self._file.write_bytes(bytes(size))

    def run(self, rounds: int, runs: int, sessions: int) -> None:
        for way in (self._direct, self._through):  # caches and connections are warm then
            _first_byte(way, *way.exec("main", "echo", "."))
        self._show_throughput(rounds)
        self._show_first_byte(runs)
        asyncio.run(self._show_sessions(sessions))

    # ------------------------------------------------------------------ throughput

    def _show_throughput(self, rounds: int) -> None:
        before = _load()
        size, part = self._size, self._size // 4
        with contextlib.ExitStack() as stack:
            ports = {way.cluster.name: stack.enter_context(_forwarded(way)) for way in (self._direct, self._through)}
            streams: list[tuple[str, float, Callable[[Way], float]]] = [
                ("exec, from the pod", OTHERS, lambda way: _exec_out(way, size)),
                ("exec, into the pod", OTHERS, lambda way: _exec_in(way, size)),
                ("cp, from the pod", OTHERS, lambda way: _copy_out(way, self._file, size)),
                ("cp, into the pod", OTHERS, lambda way: _copy_in(way, self._file, size)),
                ("logs", LOGS, lambda way: _log(way, size)),
                ("logs, followed", LOGS, lambda way: _follow(way, self._direct, part)),
                ("port-forward", OTHERS, lambda way: _fetch(ports[way.cluster.name], "body", size)),
            ]
            rows = []
            for what, target, measure in streams:
                moved = (part if what == "logs, followed" else size) * rounds
                measured = self._alternate(what, rounds, measure)
                rows.append(_ratio(measured, target, _MEGABYTE, "MB/s", moved / 1e9, "s/GB"))
            rate = self._alternate("port-forward", rounds, lambda way: _connections(ports[way.cluster.name]))
            rows.append(_ratio(rate, OTHERS, 1, "connections/s", rounds * _CONNECTIONS / 1000, "ms each"))
        columns = ("stream", "direct", "Farlet", "ratio", "target", "met", *_CPU)
        title = f"{size // _MEGABYTE} MB through each, medians of {rounds} rounds; load average {before} to {_load()}"
        table.show(title, columns, rows)

    def _alternate(self, what: str, rounds: int, measure: Callable[[Way], float]) -> Measured:
        measured = Measured(what)
        for number in range(rounds):
            for way in (self._direct, self._through)[:: -1 if number % 2 else 1]:
                if way is self._direct:
                    measured.direct.append(measure(way))
                else:
                    before = self._cpu()
                    measured.through.append(measure(way))
                    measured.cpu.update(difference(self._cpu(), before))
        return measured

    def _cpu(self) -> Cpu:
        return {_API: usage.cpu_of(self._programs[_API]), _FARLET: self._farlet.cpu()}

    # ------------------------------------------------------------------ the first byte

    def _show_first_byte(self, runs: int) -> None:
        before = _load()
        found = [
            self._alternate("kubectl exec", runs, lambda way: _first_byte(way, *way.exec("main", "echo", "."))),
            self._alternate("exec without kubectl", runs, _first_message),
            self._alternate(
                "kubectl logs", runs, lambda way: _first_byte(way, "logs", way.pod, "-c", "log", "--tail=1")
            ),
            self._alternate("logs without kubectl", runs, _first_log),
        ]
        rows = []
        for measured in found:
            direct, through = measured.medians
            rows.append(
                [
                    measured.what,
                    table.milliseconds(direct),
                    table.milliseconds(through),
                    table.milliseconds(through - direct),
                    f"<= {table.milliseconds(ADDED)}",
                    _met(through - direct <= ADDED),
                    *(table.milliseconds(measured.cpu[who] / runs) for who in (_API, _FARLET)),
                ]
            )
        columns = ("first byte of", "direct", "Farlet", "added", "target", "met", *_CPU)
        table.show(f"p50 of {runs} runs; load average {before} to {_load()}", columns, rows)

    # ------------------------------------------------------------------ many sessions

    async def _show_sessions(self, count: int) -> None:
        before = _load()
        await _hold(self._through, _WARM)
        idle = usage.resident(self._farlet.pid)
        through = await _hold(self._through, count, lambda: usage.resident(self._farlet.pid) - idle)
        direct = await _hold(self._direct, count)
        per = through.memory / max(through.opened, 1)
        rows = [
            ["opened", str(direct.opened), str(through.opened), str(count), _met(through.opened == count)],
            [
                "answer when all are open",
                str(direct.alive),
                str(through.alive),
                str(count),
                _met(through.alive == count),
            ],
            ["opened in", table.seconds(direct.seconds), table.seconds(through.seconds), "", ""],
            ["Farlet's memory for each", "", f"{per / 1000:.0f} kB", f"<= {IDLE // 1000} kB", _met(per <= IDLE)],
        ]
        for problem in sorted({*direct.problems, *through.problems}):
            print(f"  a session failed: {problem}")
        title = f"{count} exec sessions at once over WebSocket; load average {before} to {_load()}"
        table.show(title, ("sessions", "direct", "Farlet", "target", "met"), rows)


# ---------------------------------------------------------------------- the pod


@contextlib.contextmanager
def _pod(local: Cluster, remote: Cluster, megabytes: int) -> Iterator[tuple[Way, Way]]:
    """A pod on the virtual node that can be reached, and its twin: the direct way and the one through Farlet."""
    name = f"box-{os.getpid()}"
    size = megabytes * _MEGABYTE
    spec = {
        "nodeName": NODE,
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "volumes": [{"name": "data", "emptyDir": {"medium": "Memory"}}],
        "containers": [
            _container("main", f"echo . >/data/small; head -c {size} /dev/zero >/data/body; httpd -p 8080 -h /data"),
            _container("log", f"yes {_LINE.strip()} | head -n {size // len(_LINE)}"),
            _container(
                "follow",
                f"mkfifo /data/wanted; echo {_LINE.strip()}",
                f"while read lines </data/wanted; do yes {_LINE.strip()} | head -n $lines; done",
            ),
        ],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    local.kubectl("-n", NAMESPACE, "create", "-f", "-", stdin=json.dumps(pod))
    try:
        wait = ["wait", "--for=condition=Ready", f"pod/{name}", "--timeout=120s"]
        local.kubectl("-n", NAMESPACE, *wait, timeout=130)
        uid = local.kubectl("-n", NAMESPACE, "get", "pod", name, "-o", "jsonpath={.metadata.uid}").stdout
        selector = f"{names.LABEL_POD_UID}={uid}"
        twin = ["get", "pods", "-l", selector, "-o", "jsonpath={.items[0].metadata.name}"]
        ways = Way(remote, remote.kubectl("-n", NAMESPACE, *twin).stdout), Way(local, name)
        for way in ways:
            reached = ["-n", NAMESPACE, *way.exec("main", "true")]
            if not wait_for(lambda w=way, r=reached: w.cluster.kubectl(*r, check=False).returncode == 0, 60, 1):  # type: ignore[misc]
                said = way.cluster.kubectl(*reached, check=False).stderr
                raise DevclusterError(f"pod {way.pod} of cluster {way.cluster.name} cannot be reached: {said}")
        yield ways
    finally:
        local.kubectl("-n", NAMESPACE, "delete", "pod", name, "--timeout=60s", check=False, timeout=70)


def _container(name: str, script: str, then: str = "exec sleep 1000000") -> dict[str, object]:
    """Ready when its script has ended; what it does then goes on."""
    return {
        "name": name,
        "image": BUSYBOX_IMAGE,
        "command": ["sh", "-c", f"{script}; touch /data/ready-{name}; {then}"],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "readinessProbe": {"exec": {"command": ["test", "-e", f"/data/ready-{name}"]}, "periodSeconds": 1},
    }


# ---------------------------------------------------------------------- bytes a second


def _exec_out(way: Way, size: int) -> float:
    with way.started(*way.exec("main", "head", "-c", str(size), "/dev/zero")) as process:
        return _drain(process, size)


def _exec_in(way: Way, size: int) -> float:
    """From the moment that the command runs until it has counted everything."""
    with way.started(*way.exec("main", "sh", "-c", "echo .; wc -c")) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        start = time.monotonic()
        left = size
        block = bytes(_PIECE)
        while left:
            left -= process.stdin.write(block[:left])
        process.stdin.close()
        counted = int(process.stdout.read() or 0)
        taken = time.monotonic() - start
        process.wait(60)
    return _complete(counted, size) / taken


def _copy_out(way: Way, file: Path, size: int) -> float:
    target = file.with_name("copy")
    taken = _copy(way, f"{way.pod}:/data/body", str(target))
    copied = target.stat().st_size
    target.unlink()
    return _complete(copied, size) / taken


def _copy_in(way: Way, file: Path, size: int) -> float:
    taken = _copy(way, str(file), f"{way.pod}:/data/copy")
    said = way.cluster.kubectl("-n", NAMESPACE, *way.exec("main", "sh", "-c", "wc -c </data/copy; rm /data/copy"))
    return _complete(int(said.stdout), size) / taken


def _copy(way: Way, source: str, target: str) -> float:
    start = time.monotonic()
    way.cluster.kubectl("-n", NAMESPACE, "cp", "-c", "main", source, target, timeout=600)
    return time.monotonic() - start


def _log(way: Way, size: int) -> float:
    with way.started("logs", way.pod, "-c", "log") as process:
        return _drain(process, size // len(_LINE) * len(_LINE))


def _follow(way: Way, direct: Way, size: int) -> float:
    """Lines that are written while somebody follows; both ways are told to begin straight in the remote cluster."""
    lines = size // len(_LINE)
    with way.started("logs", "--follow", way.pod, "-c", "follow", "--tail=1") as process:
        assert process.stdout is not None
        process.stdout.readline()
        begin = direct.exec("follow", "sh", "-c", f"echo {lines} >/data/wanted")
        direct.cluster.kubectl("-n", NAMESPACE, *begin)
        return _drain(process, lines * len(_LINE), ends=False)


def _drain(process: subprocess.Popen[bytes], size: int, *, ends: bool = True) -> float:
    """Bytes a second from the first to the last."""
    assert process.stdout is not None
    counted = len(os.read(process.stdout.fileno(), _PIECE))
    start, first = time.monotonic(), counted
    while counted < size and (piece := os.read(process.stdout.fileno(), _PIECE)):
        counted += len(piece)
    taken = time.monotonic() - start
    if ends:
        process.wait(60)
    return (_complete(counted, size) - first) / taken


def _complete(count: int, size: int) -> int:
    if count != size:
        raise DevclusterError(f"{count} bytes came of {size}")
    return count


# ---------------------------------------------------------------------- port-forward


@contextlib.contextmanager
def _forwarded(way: Way) -> Iterator[int]:
    """The port of this machine that leads to the pod."""
    with way.started("port-forward", f"pod/{way.pod}", ":8080") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(rb"127\.0\.0\.1:(\d+) ->", line)
        if found is None:
            raise DevclusterError(f"kubectl port-forward said {line!r}")
        yield int(found[1])


def _fetch(port: int, path: str, size: int) -> float:
    """Bytes a second from the first to the last."""
    with socket.create_connection(("127.0.0.1", port), timeout=300) as wire:
        wire.sendall(f"GET /{path} HTTP/1.0\r\n\r\n".encode())
        answer = wire.makefile("rb")
        while answer.readline().strip():
            pass
        start, counted = time.monotonic(), 0
        buffer = bytearray(_PIECE)
        while count := answer.readinto(buffer):
            counted += count
        return _complete(counted, size) / (time.monotonic() - start)


def _connections(port: int) -> float:
    start = time.monotonic()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda _: _fetch(port, "small", 2), range(_CONNECTIONS)))
    return _CONNECTIONS / (time.monotonic() - start)


# ---------------------------------------------------------------------- the first byte


def _first_byte(way: Way, *arguments: str) -> float:
    """Seconds from the start of kubectl."""
    start = time.monotonic()
    with way.started(*arguments) as process:
        assert process.stdout is not None
        if not os.read(process.stdout.fileno(), 1):
            process.wait(10)
            raise DevclusterError(f"kubectl {' '.join(arguments)} printed nothing")
        taken = time.monotonic() - start
        process.wait(60)
        return taken


def _first_message(way: Way) -> float:
    async def measure() -> float:
        async with sockets(way.cluster.kubeconfig, NAMESPACE) as reach:
            start = time.monotonic()
            async with reach.exec(way.pod, "echo", ".") as wire:
                await _said(wire)
                taken = time.monotonic() - start
            await asyncio.sleep(0)
            return taken

    return asyncio.run(measure())


def _first_log(way: Way) -> float:
    start = time.monotonic()
    way.cluster.api.text(f"/api/v1/namespaces/{NAMESPACE}/pods/{way.pod}/log?container=log&tailLines=1")
    return time.monotonic() - start


# ---------------------------------------------------------------------- sessions


@dataclass(slots=True)
class Held:
    """Sessions that were open at once."""

    opened: int = 0
    alive: int = 0
    seconds: float = 0.0
    memory: float = 0.0
    problems: list[str] = field(default_factory=list)


async def _hold(way: Way, count: int, measure: Callable[[], float] = lambda: 0.0) -> Held:
    """Open sessions and keep all of them, see which answer then, and close them."""
    held = Held()
    async with sockets(way.cluster.kubeconfig, NAMESPACE) as reach, contextlib.AsyncExitStack() as stack:
        slots = asyncio.Semaphore(_AT_ONCE)
        start = time.monotonic()

        async def open_one() -> ClientConnection | None:
            async with slots:
                try:
                    wire = await stack.enter_async_context(_session(reach, way.pod))
                    await _echo(wire)
                    return wire
                except (OSError, WebSocketException, TimeoutError) as error:
                    held.problems.append(repr(error))
                    return None

        opened = [wire for wire in await asyncio.gather(*(open_one() for _ in range(count))) if wire is not None]
        held.opened, held.seconds = len(opened), time.monotonic() - start
        held.memory = measure()
        answers = await asyncio.gather(*(_echo(wire) for wire in opened), return_exceptions=True)
        held.alive = sum(answer is None for answer in answers)
        held.problems += [repr(answer) for answer in answers if answer is not None]
        await asyncio.gather(*(wire.close() for wire in opened), return_exceptions=True)
    return held


def _session(reach: Sockets, pod: str) -> contextlib.AbstractAsyncContextManager[ClientConnection]:
    return reach.exec(pod, "cat", stdin=True)


async def _echo(wire: ClientConnection) -> None:
    await wire.send(bytes([0]) + b"hello\n")
    await _said(wire)


async def _said(wire: ClientConnection) -> None:
    """Wait for output."""
    async with asyncio.timeout(120):
        while True:
            message = await wire.recv(decode=False)
            if len(message) > 1 and message[0] == STDOUT:
                return


# ---------------------------------------------------------------------- tables


def _ratio(measured: Measured, target: float, unit: float, name: str, amount: float, per: str) -> Sequence[str]:
    direct, through = measured.medians
    ratio = through / direct
    figures = [f"{rate / unit:.0f} {name}" for rate in (direct, through)]
    cpu = [f"{measured.cpu[who] / amount:.1f} {per}" for who in (_API, _FARLET)]
    return [measured.what, *figures, f"{ratio:.2f}", f">= {target:.1f}", _met(ratio >= target), *cpu]


def _met(reached: bool) -> str:
    return "yes" if reached else "NO"


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}"
