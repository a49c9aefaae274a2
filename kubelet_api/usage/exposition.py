"""A snapshot as a kubelet writes it: ``/metrics/resource`` and, of what is known, ``/metrics/cadvisor``. Pure.

metrics-server's way of reading decides the details: no zero and no missing value (one hides its whole pod), every
sample with the time it was taken at, no labels but the kubelet's. Families, HELP lines and numbers are written as the
kubelet does. Everything comes in pieces, so that an event loop can do other things between them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

from kubelet_api.usage.snapshot import ContainerUsage, PodUsage, Snapshot

PIECE: Final = 64 << 10
"""Bytes of a piece, about: a millisecond of work."""

_BATCH: Final = 256
"""Pods of which the lines of one family are made at once."""

Label = Callable[[PodUsage, ContainerUsage], str]


def resource(snapshot: Snapshot) -> Iterator[bytes]:
    """``/metrics/resource``."""
    pods, node = snapshot.pods, snapshot.node
    lines = _Lines()
    if pods:
        yield from lines.write(pods)
        yield _head(
            "container_cpu_usage_seconds_total",
            "Cumulative cpu time consumed by the container in core-seconds",
            "counter",
        )
        yield from lines.cpu
        yield _head("container_memory_working_set_bytes", "Current working set of the container in bytes", "gauge")
        yield from lines.memory
        yield _head("container_start_time_seconds", "Start time of the container since unix epoch in seconds", "gauge")
        yield from lines.started
        yield from _container_swap(pods)
    if node is not None:
        yield _head(
            "node_cpu_usage_seconds_total", "Cumulative cpu time consumed by the node in core-seconds", "counter"
        )
        yield f"node_cpu_usage_seconds_total {seconds(node.cpu)} {node.time * 1000:.0f}\n".encode()
        yield _head("node_memory_working_set_bytes", "Current working set of the node in bytes", "gauge")
        yield f"node_memory_working_set_bytes {integer(node.memory)} {node.time * 1000:.0f}\n".encode()
        if node.swap is not None:
            text = "Current swap usage of the node in bytes. Reported only on non-windows systems"
            yield _head("node_swap_usage_bytes", text, "gauge", "ALPHA")
            yield f"node_swap_usage_bytes {integer(node.swap)} {node.time * 1000:.0f}\n".encode()
    if pods:
        yield _head("pod_cpu_usage_seconds_total", "Cumulative cpu time consumed by the pod in core-seconds", "counter")
        yield from lines.pod_cpu
        yield _head("pod_memory_working_set_bytes", "Current working set of the pod in bytes", "gauge")
        yield from lines.pod_memory
        if swapping := [pod for pod in pods if pod.swap is not None]:
            text = "Current amount of the pod swap usage in bytes. Reported only on non-windows systems"
            yield _head("pod_swap_usage_bytes", text, "gauge", "ALPHA")
            yield from _pod_lines(swapping, "pod_swap_usage_bytes", lambda pod: integer(pod.swap or 0))
    yield scrape_error("resource_scrape_error", failed=not snapshot.complete, stability="[STABLE] ")


def cadvisor(snapshot: Snapshot) -> Iterator[bytes]:
    """``/metrics/cadvisor``, of what any source knows: CPU, memory and start, with cAdvisor's labels."""
    pods = snapshot.pods
    if pods:
        labels = _cadvisor_labels(pods)
        yield from labels.prepare()
        for name, text, kind, value in _CADVISOR:
            yield f"# HELP {name} {text}\n# TYPE {name} {kind}\n".encode()
            yield from labels.lines(name, value)
    yield scrape_error("container_scrape_error", failed=not snapshot.complete)


def scrape_error(name: str, *, failed: bool, stability: str = "") -> bytes:
    text = "1 if there was an error while getting container metrics, 0 otherwise"
    return f"# HELP {name} {stability}{text}\n# TYPE {name} gauge\n{name} {int(failed)}\n".encode()


def process_start(started: float) -> bytes:
    """What a kubelet has on every page."""
    name = "process_start_time_seconds"
    text = "[STABLE] Start time of the process since unix epoch in seconds."
    return f"# HELP {name} {text}\n# TYPE {name} gauge\n{name} {number(started)}\n".encode()


class _Lines:
    """The lines of ``/metrics/resource`` that every pod has, of all families in one pass: ten thousand pods are fifty
    thousand lines, and a call for each figure of each line costs more than the text."""

    def __init__(self) -> None:
        self.cpu: list[bytes] = []
        self.memory: list[bytes] = []
        self.started: list[bytes] = []
        self.pod_cpu: list[bytes] = []
        self.pod_memory: list[bytes] = []

    def write(self, pods: Sequence[PodUsage]) -> Iterator[bytes]:
        """Write them; gives nothing, in turns."""
        for start in range(0, len(pods), _BATCH):
            self._write(pods[start : start + _BATCH])
            yield b""

    def _write(self, pods: Sequence[PodUsage]) -> None:
        cpus: list[str] = []
        memories: list[str] = []
        starts: list[str] = []
        pod_cpus: list[str] = []
        pod_memories: list[str] = []
        for pod in pods:
            own = f'namespace="{pod.placed.namespace}",pod="{pod.placed.name}"}} '
            end = _end(pod.time)
            cpu = memory = ""
            usage = None
            for usage in pod.containers:
                labels = f'{{container="{usage.name}",{own}'
                at = end if usage.time == pod.time else _end(usage.time)
                cpu, memory = seconds(usage.cpu), integer(usage.memory)
                cpus.append(f"container_cpu_usage_seconds_total{labels}{cpu}{at}")
                memories.append(f"container_memory_working_set_bytes{labels}{memory}{at}")
                starts.append(f"container_start_time_seconds{labels}{_moment(usage.started)}\n")
            if usage is None or usage.cpu != pod.cpu:  # of one container, they are mostly its own
                cpu = seconds(pod.cpu)
            if usage is None or usage.memory != pod.memory:
                memory = integer(pod.memory)
            pod_cpus.append(f"pod_cpu_usage_seconds_total{{{own}{cpu}{end}")
            pod_memories.append(f"pod_memory_working_set_bytes{{{own}{memory}{end}")
        self.cpu.append("".join(cpus).encode())
        self.memory.append("".join(memories).encode())
        self.started.append("".join(starts).encode())
        self.pod_cpu.append("".join(pod_cpus).encode())
        self.pod_memory.append("".join(pod_memories).encode())


class _Labels:
    """The labels of every container, written once for all families."""

    def __init__(self, pods: Sequence[PodUsage], label: Label) -> None:
        self._pods = pods
        self._label = label
        self._written: list[tuple[str, ContainerUsage]] = []

    def prepare(self) -> Iterator[bytes]:
        """Write them; gives nothing, in turns."""
        label, written = self._label, self._written
        for index, pod in enumerate(self._pods):
            for container in pod.containers:
                written.append((label(pod, container), container))
            if index % _BATCH == _BATCH - 1:
                yield b""

    def lines(
        self, name: str, value: Callable[[ContainerUsage], str], only: Callable[[ContainerUsage], bool] | None = None
    ) -> Iterator[bytes]:
        written = self._written
        for start in range(0, len(written), _BATCH):
            batch = written[start : start + _BATCH]
            yield "".join(
                [f"{name}{{{label}}} {value(usage)}\n" for label, usage in batch if only is None or only(usage)]
            ).encode()


def _container_labels(pods: Sequence[PodUsage]) -> _Labels:
    return _Labels(
        pods,
        lambda pod, usage: f'container="{usage.name}",namespace="{pod.placed.namespace}",pod="{pod.placed.name}"',
    )


def _cadvisor_labels(pods: Sequence[PodUsage]) -> _Labels:
    def label(pod: PodUsage, usage: ContainerUsage) -> str:
        placed = pod.placed
        return (
            f'container="{usage.name}",id="/kubepods/pod{placed.uid}/{usage.name}",image="{escaped(usage.image)}",'
            f'name="{escaped(usage.container_id)}",namespace="{placed.namespace}",pod="{placed.name}"'
        )

    return _Labels(pods, label)


def _container_swap(pods: Sequence[PodUsage]) -> Iterator[bytes]:
    every = [usage for pod in pods for usage in pod.containers if not (usage.swap is usage.swap_limit is None)]
    if not every:
        return
    labels = _container_labels(pods)
    yield from labels.prepare()
    what = "Current amount of the container swap {} in bytes. Reported only on non-windows systems"
    if any(usage.swap_limit is not None for usage in every):
        yield _head("container_swap_limit_bytes", what.format("limit"), "gauge", "ALPHA")
        yield from labels.lines(
            "container_swap_limit_bytes",
            lambda c: f"{integer(c.swap_limit or 0)} {_stamp(c.time)}",
            lambda c: c.swap_limit is not None,
        )
    if any(usage.swap is not None for usage in every):
        yield _head("container_swap_usage_bytes", what.format("usage"), "gauge", "ALPHA")
        yield from labels.lines(
            "container_swap_usage_bytes",
            lambda c: f"{integer(c.swap or 0)} {_stamp(c.time)}",
            lambda c: c.swap is not None,
        )


def _pod_lines(pods: Sequence[PodUsage], name: str, value: Callable[[PodUsage], str]) -> Iterator[bytes]:
    for start in range(0, len(pods), _BATCH):
        yield "".join(
            [
                f'{name}{{namespace="{pod.placed.namespace}",pod="{pod.placed.name}"}} '
                f"{value(pod)} {_stamp(pod.time)}\n"
                for pod in pods[start : start + _BATCH]
            ]
        ).encode()


def _head(name: str, text: str, kind: str, stability: str = "STABLE") -> bytes:
    return f"# HELP {name} [{stability}] {text}\n# TYPE {name} {kind}\n".encode()


# ---------------------------------------------------------------------- numbers and texts, as Go writes them


def number(value: float) -> str:
    """The shortest text of a number, with an exponent from a million on."""
    text = repr(value)
    if value < 1e6 or "e" in text:
        return text[:-2] if text.endswith(".0") else text
    whole, _, decimals = text.partition(".")
    mantissa = (whole[1:] + decimals).rstrip("0")
    return f"{whole[0]}{'.' if mantissa else ''}{mantissa}e+{len(whole) - 1:02d}"


@lru_cache(maxsize=4096)
def _moment(time: float) -> str:
    """A time in seconds; many containers start at the same."""
    return number(time)


@lru_cache(maxsize=1024)
def _stamp(time: float) -> str:
    """A time in milliseconds; many samples are taken at the same."""
    return f"{time * 1000:.0f}"


@lru_cache(maxsize=1024)
def _end(time: float) -> str:
    """The end of a line: when its figure was taken."""
    return f" {time * 1000:.0f}\n"


def seconds(value: float) -> str:
    """Seconds of CPU as :func:`number`, but in whole billionths, as a kubelet counts them: all the digits that the sum
    of many floats has take longer to find, and to pack."""
    if 1e-4 <= value < 1e6:
        text = "%.9f" % value  # noqa: UP031 - the quickest of the ways
        return text if text[-1] != "0" else text.rstrip("0").rstrip(".")
    if 1e6 <= value < 8e6:  # three months; beyond, a float knows no billionths
        text = str(int(value * 1e9 + 0.5))
        return _exponential(text, len(text) - 9)
    return number(value)


def integer(value: int) -> str:
    """As :func:`number`, of a whole one."""
    text = str(value)
    size = len(text)
    if size <= 6:
        return text
    return _exponential(text, size) if size <= 15 else number(float(value))  # beyond, not every one is a float


def _exponential(digits: str, whole: int) -> str:
    """Digits of which so many stand before the point."""
    if digits[-1] == "0":
        digits = digits.rstrip("0")
        if len(digits) == 1:
            return f"{digits}e+{whole - 1:02d}"
    return f"{digits[0]}.{digits[1:]}{_EXPONENTS[whole]}"


_EXPONENTS: Final = tuple(f"e+{whole - 1:02d}" for whole in range(24))


def escaped(text: str) -> str:
    """The value of a label."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


_CADVISOR: Final[Sequence[tuple[str, str, str, Callable[[ContainerUsage], str]]]] = (
    (
        "container_cpu_usage_seconds_total",
        "Cumulative cpu time consumed in seconds.",
        "counter",
        lambda c: f"{seconds(c.cpu)} {_stamp(c.time)}",
    ),
    (
        "container_memory_working_set_bytes",
        "Current working set in bytes.",
        "gauge",
        lambda c: f"{integer(c.memory)} {_stamp(c.time)}",
    ),
    (
        "container_start_time_seconds",
        "Start time of the container since unix epoch in seconds.",
        "gauge",
        lambda c: _moment(c.started),
    ),
)


# ---------------------------------------------------------------------- pieces


def gathered(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of a useful size; an empty one wherever a part gave none, so that nobody waits long."""
    held: list[bytes] = []
    size = 0
    for part in parts:
        if not part:
            yield b""
            continue
        held.append(part)
        size += len(part)
        if size >= PIECE:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def zipped(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The same, as gzip. The quickest level: what repeats so much is small with any."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    for part in parts:
        yield packer.compress(part)
    yield packer.flush()
