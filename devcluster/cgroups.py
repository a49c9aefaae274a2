"""The cgroup of a cluster: every process of it, containers included, is found there, whatever became of its parent.

Machines have one unified hierarchy (v2) or a folder per controller (v1, also "hybrid"); the kubelet needs its root
to exist in all of them. Our own components join ``system`` below it, in one hierarchy, so that nothing that we
started can hide from ``down``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.process import kill_all, wait_for

_TRACKING = ("pids", "systemd", "memory")
"""Version 1 hierarchies that serve to find processes, the first that is there."""


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Where cgroups are mounted on this machine."""

    controllers: dict[str, Path]
    """Version 1: controller -> mount point; empty when the machine has version 2 only."""
    unified: Path | None

    @classmethod
    def detect(cls) -> Hierarchies:
        controllers: dict[str, Path] = {}
        unified = None
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            fields, _, rest = line.partition(" - ")
            kind = rest.split()[0]
            mount_point = Path(fields.split()[4])
            if kind == "cgroup":
                controllers[mount_point.name] = mount_point
            elif kind == "cgroup2":
                unified = mount_point
        if not controllers and unified is None:
            raise DevclusterError("no cgroups are mounted under /sys/fs/cgroup: the kubelet cannot run here")
        return cls(controllers, unified)

    def roots(self) -> list[Path]:
        """Every mount point, version 2 last."""
        return [*self.controllers.values(), *([self.unified] if self.unified else [])]

    def tracking(self) -> Path:
        """The hierarchy in which our own processes are found."""
        for name in _TRACKING:
            if name in self.controllers:
                return self.controllers[name]
        return self.roots()[0]


_PODS = "kubepods"
"""Below the cluster's group: where the kubelet puts its pods."""


class ClusterCgroup:
    """The cgroup of one cluster in all hierarchies."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._hierarchies = Hierarchies.detect()

    @property
    def system(self) -> Path:
        """Where our own components are."""
        return self._hierarchies.tracking() / self.name / "system"

    def create(self) -> None:
        for controller, root in self._hierarchies.controllers.items():
            folder = root / self.name
            folder.mkdir(exist_ok=True)
            if controller.startswith("cpuset"):
                # a new cpuset is empty, and no process can join it before it has cores and memory nodes
                for setting in ("cpuset.cpus", "cpuset.mems"):
                    (folder / setting).write_text((root / setting).read_text())
        if not self._hierarchies.controllers and self._hierarchies.unified is not None:
            folder = self._hierarchies.unified / self.name
            folder.mkdir(exist_ok=True)
            available = (folder / "cgroup.controllers").read_text().split()
            (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in available))
        self.system.mkdir(exist_ok=True)

    def processes(self) -> list[int]:
        """Every process in the cluster's cgroup or below."""
        found: set[int] = set()
        for folder in self._folders():
            with contextlib.suppress(OSError):
                found.update(int(pid) for pid in (folder / "cgroup.procs").read_text().split())
        return sorted(found)

    def exists(self) -> bool:
        return any(True for _ in self._folders())

    def remove(self, timeout: float = 20.0) -> None:
        """End what still runs in it (kill -9) and remove it everywhere."""

        def emptied() -> bool:
            processes = self.processes()
            kill_all(processes)
            return not processes

        if not wait_for(emptied, timeout, 0.05):
            raise DevclusterError(f"cgroup {self.name}: processes {self.processes()} do not end after SIGKILL")

        self._remove(lambda: list(self._folders()), timeout)

    def remove_pods(self, timeout: float = 20.0) -> None:
        """Remove the groups of pods that have ended; a kubelet that finds such groups waits for each in vain."""
        self._remove(lambda: [path for path in self._folders() if _PODS in path.parts], timeout)

    def _remove(self, remaining: Callable[[], list[Path]], timeout: float) -> None:
        def removed() -> bool:
            for folder in sorted(remaining(), key=lambda path: len(path.parts), reverse=True):
                with contextlib.suppress(OSError):  # busy for a moment after its last process ended
                    folder.rmdir()
            return not remaining()

        if not wait_for(removed, timeout, 0.05):
            left = ", ".join(str(folder) for folder in remaining())
            raise DevclusterError(f"these cgroups could not be removed: {left}")

    def _folders(self) -> Iterator[Path]:
        for root in self._hierarchies.roots():
            top = root / self.name
            if top.exists():
                for folder, _, _ in os.walk(top):
                    yield Path(folder)
