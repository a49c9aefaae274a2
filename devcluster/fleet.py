"""A fleet: clusters that are started, joined and stopped together. The Python API behind ``python -m devcluster``."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from ipaddress import IPv4Network
from pathlib import Path

from devcluster import binaries, debian, images, network
from devcluster.cluster import Cluster, ClusterSpec, GivenUp, Tools
from devcluster.errors import DevclusterError
from devcluster.layout import MAX_CLUSTERS, ClusterLayout, FleetLayout, base_network, check_name
from devcluster.process import Command, Component, watches_in_use
from devcluster.progress import step

DEFAULT_FLEET = "dev"
DEFAULT_CLUSTERS = ("local", "remote")

_DISK_NEEDED = 3 * 1024**3
_TOOLS_WITHOUT_NODES = ("ip", "nsenter", "iptables")
_JANITOR = "janitor"

_WATCHES, _WATCHES_REAL = 6, 18
"""Inotify instances that a cluster without and with a real node uses."""


@dataclass(frozen=True, slots=True)
class Record:
    """What a fleet was asked to be; kept in its folder."""

    slot: int
    base: str
    isolated: bool
    clusters: tuple[ClusterSpec, ...]


class Fleet:
    """The clusters of one name in this checkout, running or not."""

    def __init__(self, name: str = DEFAULT_FLEET) -> None:
        self.layout = FleetLayout.of(name)

    @property
    def name(self) -> str:
        return self.layout.name

    def exists(self) -> bool:
        """Whether it was started and not removed since."""
        return self.layout.record.exists()

    def clusters(self) -> list[Cluster]:
        """Its clusters; none if it was never started."""
        record = self._read()
        return [self._cluster(record, spec) for spec in record.clusters] if record else []

    def cluster(self, name: str) -> Cluster:
        """The cluster of that name."""
        for cluster in self.clusters():
            if cluster.name == name:
                return cluster
        names = ", ".join(cluster.name for cluster in self.clusters())
        if not names:
            raise DevclusterError(f"fleet {self.name} is not up: start it with `python -m devcluster up`")
        raise DevclusterError(f"fleet {self.name} has no cluster {name!r}; it has: {names}")

    @property
    def isolated(self) -> bool:
        record = self._read()
        return record is not None and record.isolated

    # ------------------------------------------------------------------ up

    def up(
        self,
        clusters: Sequence[str] = DEFAULT_CLUSTERS,
        *,
        real: bool = True,
        kwok_nodes: int = 0,
        metrics: bool = True,
        isolated: bool = False,
        dual_stack: bool = False,
    ) -> None:
        """Start what is asked for and does not run yet. Nothing that runs is stopped, so twice is once."""
        self._preflight(clusters)
        if dual_stack and real:
            raise DevclusterError("a dual-stack cluster has no real node: its pods would have one family only")
        wanted = [
            ClusterSpec(name, 0, real=real, kwok=kwok_nodes > 0, metrics=metrics, dual_stack=dual_stack)
            for name in clusters
        ]
        before = self._read()
        tools = prepare([*wanted, *(before.clusters if before else ())])
        with self._locked():
            self.layout.folder.mkdir(parents=True, exist_ok=True)
            with _machine_lock():
                record = self._merge(wanted, isolated)
                running = [self._cluster(record, spec) for spec in record.clusters]
                _check_watches([cluster for cluster in running if not cluster.running()])
                self._write(record)
                network.ensure([cluster.layout for cluster in running], isolated=record.isolated)
            self._start_janitor()
            _start_all(running, tools)
            if kwok_nodes:
                for cluster in running:
                    if cluster.name in clusters:
                        with step(f"{cluster.name}: {kwok_nodes} fake nodes"):
                            cluster.set_kwok_nodes(kwok_nodes)

    def _preflight(self, clusters: Sequence[str]) -> None:
        check_means()
        if not clusters:
            raise DevclusterError("no cluster is named: --clusters local,remote")
        for name in clusters:
            check_name("cluster", name)
        if len(set(clusters)) != len(clusters):
            raise DevclusterError(f"a cluster is named twice: {','.join(clusters)}")
        self.layout.folder.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.layout.folder.parent).free
        if free < _DISK_NEEDED:
            raise DevclusterError(
                f"{self.layout.folder.parent} has {free / 1024**3:.1f} GiB free and the clusters want "
                f"{_DISK_NEEDED / 1024**3:.0f}: free some, or set FARLET_DEVCLUSTER_STATE to a folder on another disk"
            )

    def _merge(self, wanted: Sequence[ClusterSpec], isolated: bool) -> Record:
        """What is there plus what is wanted; a cluster is only ever given more."""
        old = self._read()
        if old is None:
            base = base_network()
            old = Record(network.free_slot(base), str(base), isolated, ())
        specs = {spec.name: spec for spec in old.clusters}
        for spec in wanted:
            have = specs.get(spec.name)
            if have is None:
                specs[spec.name] = replace(spec, index=_free_index(list(specs.values())))
            else:
                specs[spec.name] = replace(
                    have,
                    real=have.real or spec.real,
                    kwok=have.kwok or spec.kwok,
                    metrics=have.metrics or spec.metrics,
                )
        return replace(old, clusters=tuple(specs.values()))

    def _start_janitor(self) -> None:
        command = Command(
            [sys.executable, "-m", "devcluster.logs", str(self.layout.folder)],
            env={"PYTHONPATH": str(Path(__file__).resolve().parent.parent)},
        )
        self._janitor().start(command)

    def _janitor(self) -> Component:
        return Component(_JANITOR, self.layout.folder / "run", self.layout.folder / "run")

    # ------------------------------------------------------------------ down

    def down(self, *, keep: bool = False) -> None:
        """Stop everything and remove it, or with *keep* leave the data for the next ``up``."""
        with self._locked():
            clusters = self.clusters()
            with ThreadPoolExecutor(max_workers=max(1, len(clusters))) as pool:
                list(pool.map(lambda cluster: cluster.stop() if keep else cluster.kill(), clusters))
            with _machine_lock():
                network.remove([cluster.layout for cluster in clusters])
            self._janitor().stop()
            if not keep and self.layout.folder.exists():
                shutil.rmtree(self.layout.folder)
        if not keep:
            self._lock_path().unlink(missing_ok=True)

    def leftovers(self) -> list[str]:
        """What of the fleet is on the machine besides its folder; nothing when it is down."""
        found = [left for cluster in self.clusters() for left in cluster.leftovers()]
        if self._janitor().alive():
            found.append("process janitor")
        return found

    # ------------------------------------------------------------------ record and locks

    def _cluster(self, record: Record, spec: ClusterSpec) -> Cluster:
        layout = ClusterLayout(self.layout, spec.name, spec.index, record.slot, IPv4Network(record.base))
        return Cluster(layout, spec, lambda: binaries.ensure(["kubectl"])["kubectl"])

    def _read(self) -> Record | None:
        try:
            content = json.loads(self.layout.record.read_text())
        except FileNotFoundError:
            return None
        specs = tuple(ClusterSpec(**spec) for spec in content.pop("clusters"))
        return Record(**content, clusters=specs)

    def _write(self, record: Record) -> None:
        aside = self.layout.record.with_suffix(".new")
        aside.write_text(json.dumps(asdict(record), indent=1))
        aside.replace(self.layout.record)

    def _lock_path(self) -> Path:
        return self.layout.folder.with_name(f".{self.name}.lock")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One ``up`` or ``down`` of a fleet at a time; a second one waits."""
        self.layout.folder.parent.mkdir(parents=True, exist_ok=True)
        with self._lock_path().open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def check_means() -> None:
    """Refuse a machine or user that cannot have clusters."""
    if sys.platform != "linux":
        raise DevclusterError("devcluster runs on Linux only: its clusters live in Linux network namespaces")
    if os.geteuid() != 0:
        raise DevclusterError("devcluster needs root (network namespaces, cgroups, mounts): run it with sudo")


def _check_watches(clusters: Sequence[Cluster]) -> None:
    """Refuse to start clusters for which this machine has too few inotify instances left: kubelets would die of it."""
    limit_file = Path("/proc/sys/fs/inotify/max_user_instances")
    needed = sum(_WATCHES_REAL if cluster.spec.real else _WATCHES for cluster in clusters)
    if not needed or not limit_file.exists():
        return
    limit, used = int(limit_file.read_text()), watches_in_use()
    if used + needed > limit:
        raise DevclusterError(
            f"{len(clusters)} more clusters need about {needed} inotify instances; {used} of {limit} are in use: stop "
            "other clusters, or raise the limit with `sysctl -w fs.inotify.max_user_instances=1024`"
        )


def prepare(specs: Sequence[ClusterSpec]) -> Tools:
    """Get everything from outside that such clusters need: Debian packages, programs, images. Nothing is started."""
    real = any(spec.real for spec in specs)
    debian.ensure(*(debian.CLUSTER_TOOLS if real else _TOOLS_WITHOUT_NODES))
    programs = binaries.ensure(dict.fromkeys(name for spec in specs for name in spec.binaries()))
    return Tools(
        binaries=programs,
        containerd=Path(shutil.which("containerd") or "containerd"),
        runc=Path(shutil.which("runc") or "runc"),
        cni_plugins=debian.cni_bin_folder() if real else Path("/usr/lib/cni"),
        base_images=images.base_archive() if real else None,
    )


def all_fleets() -> list[Fleet]:
    """Every fleet of this checkout that is up or has data."""
    root = FleetLayout.of(DEFAULT_FLEET).folder.parent
    if not root.exists():
        return []
    return [Fleet(folder.name) for folder in sorted(root.iterdir()) if (folder / "fleet.json").exists()]


@contextlib.contextmanager
def _machine_lock() -> Iterator[None]:
    """One fleet at a time chooses addresses and makes interfaces, whatever checkout it belongs to."""
    path = Path(tempfile.gettempdir()) / f"farlet-devcluster-{os.getuid()}.lock"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _start_all(clusters: Sequence[Cluster], tools: Tools) -> None:
    """Start clusters side by side; when one fails, or a person presses Ctrl-C, the others stop waiting."""
    give_up = threading.Event()

    def start(cluster: Cluster) -> None:
        with step(f"{cluster.name}: starting") as progress:
            try:
                cluster.start(tools, lambda what: progress.update(note=what), give_up)
            except BaseException:
                give_up.set()
                raise
            progress.update(note="")

    with ThreadPoolExecutor(max_workers=len(clusters)) as pool:
        futures = [pool.submit(start, cluster) for cluster in clusters]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        except BaseException:
            give_up.set()
            raise
    errors = [error for future in futures if (error := future.exception())]
    for error in sorted(errors, key=lambda error: isinstance(error, GivenUp)):
        raise error


def _free_index(specs: Sequence[ClusterSpec]) -> int:
    used = {spec.index for spec in specs}
    for index in range(1, MAX_CLUSTERS + 1):
        if index not in used:
            return index
    raise DevclusterError(f"a fleet has at most {MAX_CLUSTERS} clusters")
