"""Pages of the remote kubelets, made ours: only the series of our pods, with the names of the local ones. Pure.

A remote kubelet tells of everybody's pods. What is kept is decided by the labels ``namespace`` and ``pod`` as the text
format has them, quotes and escapes and all: a value of somebody else's that contains ``pod="ours"`` is just a value.
Series without these two labels (of the machine, of its services) are not of a pod and are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kubelet_api.twins import Placed
from kubelet_api.usage.exposition import escaped
from kubelet_api.usage.snapshot import PodKey, Sample

_SERIES: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\{(.*)\}[ \t]+([^ \t{}]+)(?:[ \t]+(-?[0-9]+))?[ \t]*")
_LABEL: Final = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"[ \t]*(?:,|$)')
_COMMENT: Final = re.compile(r"#[ \t]+(HELP|TYPE)[ \t]+([a-zA-Z_:][a-zA-Z0-9_:]*)(?:[ \t]+(.*))?")
_POD: Final = re.compile(r'pod="([^"\\]+)"')
_ESCAPE: Final = re.compile(r"\\(.)")
_SUFFIXES: Final = ("_bucket", "_count", "_sum")
_MEANT: Final = {"n": "\n"}


class Series(NamedTuple):
    """One line that is not a comment."""

    name: str
    labels: dict[str, str]
    value: str
    time: str | None
    """Milliseconds since the epoch."""


@dataclass(slots=True)
class Family:
    """The lines of one metric."""

    comments: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


class Places:
    """Our pods, by where they run."""

    def __init__(self, placed: Iterable[Placed]) -> None:
        self._by_key: dict[PodKey, Placed] = {(item.twin.namespace, item.twin.pod): item for item in placed}
        self._names = {name for _, name in self._by_key}

    def find(self, line: str) -> tuple[Series, Placed] | None:
        """What a line says, if it is of one of our pods."""
        names = self._names
        if not any(name in names for name in _POD.findall(line)):  # most lines are others': a look is enough
            return None
        series = parse(line)
        if series is None:
            return None
        placed = self._by_key.get((series.labels.get("namespace", ""), series.labels.get("pod", "")))
        return (series, placed) if placed is not None else None


def parse(line: str) -> Series | None:
    """A line of the text format with labels; None if it is not one."""
    match = _SERIES.fullmatch(line)
    if match is None:
        return None
    name, block, value, time = match.groups()
    labels: dict[str, str] = {}
    position = 0
    while position < len(block):
        label = _LABEL.match(block, position)
        if label is None or label[1] in labels:
            return None
        labels[label[1]] = _ESCAPE.sub(lambda found: _MEANT.get(found[1], found[1]), label[2])
        position = label.end()
    try:
        float(value)
    except ValueError:
        return None
    return Series(name, labels, value, time)


def ours(labels: Mapping[str, str], placed: Placed) -> dict[str, str]:
    """The labels of a series as they would be if the pod ran where it is asked for."""
    found = dict(labels)
    found["namespace"], found["pod"] = placed.namespace, placed.name
    if "pod_uid" in found:
        found["pod_uid"] = placed.uid
    twin = placed.twin
    for label in ("id", "name"):  # paths of cgroups hold the UID, names of Docker's containers all three
        if value := found.get(label):
            value = value.replace(twin.uid, placed.uid).replace(_systemd(twin.uid), _systemd(placed.uid))
            found[label] = value.replace(f"_{twin.pod}_{twin.namespace}_", f"_{placed.name}_{placed.namespace}_")
    return found


class Page:
    """Takes one kubelet's page line by line and keeps what is ours."""

    def __init__(self, places: Places) -> None:
        self.families: dict[str, Family] = {}
        self._places = places
        self._comments: dict[str, list[str]] = {}

    def line(self, text: str) -> None:
        """Take the next line."""
        if text.startswith("#"):
            comment = _COMMENT.fullmatch(text)
            if comment is not None:
                self._comments.setdefault(comment[2], []).append(text)
            return
        found = self._places.find(text)
        if found is None:
            return
        series, placed = found
        name = self._family_of(series.name)
        family = self.families.get(name)
        if family is None:
            family = self.families[name] = Family(self._comments.get(name, []))
        labels = ours(series.labels, placed)
        block = ",".join(f'{key}="{escaped(value)}"' for key, value in labels.items())
        time = f" {series.time}" if series.time else ""
        family.lines.append(f"{series.name}{{{block}}} {series.value}{time}")

    def _family_of(self, name: str) -> str:
        if name in self._comments:
            return name
        for suffix in _SUFFIXES:
            stem = name.removesuffix(suffix)
            if stem != name and stem in self._comments:
                return stem
        return name


def merged(pages: Iterable[Mapping[str, Family]]) -> Iterator[bytes]:
    """Several kubelets' families as one page: each family once, with its comments first."""
    families: dict[str, list[Family]] = {}
    for page in pages:
        for name, family in page.items():
            families.setdefault(name, []).append(family)
    for name in sorted(families):
        every = families[name]
        yield "".join(f"{line}\n" for line in every[0].comments).encode()
        for family in every:
            for start in range(0, len(family.lines), 256):
                yield "".join(f"{line}\n" for line in family.lines[start : start + 256]).encode()


class ResourcePage:
    """Takes a kubelet's ``/metrics/resource`` line by line, for the samples of our pods."""

    def __init__(self, places: Places, asked: float) -> None:
        """*asked*: when, since the epoch; the time of figures that have none, as metrics-server has it."""
        self._places = places
        self._asked = asked
        self._found: dict[tuple[PodKey, str], dict[str, tuple[float, float]]] = {}

    def line(self, text: str) -> None:
        """Take the next line."""
        if text.startswith("#"):
            return
        found = self._places.find(text)
        if found is None:
            return
        series, placed = found
        key = (placed.twin.namespace, placed.twin.pod)
        time = int(series.time) / 1000 if series.time else self._asked
        self._found.setdefault((key, series.labels.get("container", "")), {})[series.name] = float(series.value), time

    def samples(self) -> Iterator[tuple[PodKey, str, Sample]]:
        """Pod, container (empty: the whole pod) and what was said, of those with CPU and memory."""
        for (key, container), figures in self._found.items():
            stem = "container" if container else "pod"
            cpu, memory = (
                figures.get(f"{stem}_cpu_usage_seconds_total"),
                figures.get(f"{stem}_memory_working_set_bytes"),
            )
            if cpu is None or memory is None:
                continue
            swap, limit = figures.get(f"{stem}_swap_usage_bytes"), figures.get(f"{stem}_swap_limit_bytes")
            started = figures.get("container_start_time_seconds")
            sample = Sample(
                time=cpu[1],
                memory=int(memory[0]),
                total=cpu[0],
                started=started[0] if started else None,
                swap=int(swap[0]) if swap else None,
                swap_limit=int(limit[0]) if limit else None,
            )
            yield key, container, sample


def _systemd(uid: str) -> str:
    """A UID as systemd's names of cgroups have it."""
    return uid.replace("-", "_")
