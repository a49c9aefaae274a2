"""What devcluster needs from the machine, and the Debian packages that hold it.

A container runtime, CNI plugins and the usual network tools come from the distribution: it maintains them,
and they need no build. A caller names what it is about to use (`ensure("containerd", "iptables")`), so that a
command never waits for, or installs, a package that only another command wants.

Where this may not install anything (no root, no apt-get), the error names the packages and the line to run.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from devcluster import progress
from devcluster.errors import DevclusterError

ADMIN_FOLDERS: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Searched besides the PATH: a user's PATH leaves them out, yet iptables and debootstrap live there."""

LISTS_FRESH_SECONDS: Final = 24 * 3600
"""Older package lists name versions that a mirror may have dropped."""

LOCK_WAIT_SECONDS: Final = 120


class DebianError(DevclusterError):
    """A package could not be installed; the message says what was tried and what to do."""


class MissingPackages(DebianError):
    """Packages are missing and may not be installed from here."""

    def __init__(self, packages: Iterable[str], why: str, command: str) -> None:
        self.packages = tuple(packages)
        self.command = command
        super().__init__(f"missing Debian packages: {' '.join(self.packages)} ({why}). Install them with: {command}")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One thing devcluster uses: present if any of its commands or files is."""

    package: str
    commands: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    static: bool = False
    """Whether a file counts only if it is a program that needs no shared library."""
    services: tuple[str, ...] = ()
    """Units that the package brings and that its installation would start."""


CNI_FOLDERS: Final = ("/usr/lib/cni", "/opt/cni/bin")
"""Debian's own place, and where the upstream release and most installers put the plugins."""

BUSYBOX_FILES: Final = ("/bin/busybox", "/usr/bin/busybox")


def _cni(plugin: str) -> Requirement:
    return Requirement("containernetworking-plugins", files=tuple(f"{folder}/{plugin}" for folder in CNI_FOLDERS))


_CONTAINERD: Final = Requirement("containerd", commands=("containerd",), services=("containerd.service",))

REQUIREMENTS: Final[Mapping[str, Requirement]] = {
    "containerd": _CONTAINERD,
    "ctr": Requirement("containerd", commands=("ctr",), services=_CONTAINERD.services),
    "runc": Requirement("runc", commands=("runc",)),
    "cni-bridge": _cni("bridge"),
    "cni-host-local": _cni("host-local"),
    "cni-loopback": _cni("loopback"),
    "cni-portmap": _cni("portmap"),
    # The package `busybox` has one at the same path that needs a C library, which our image has not.
    "busybox": Requirement("busybox-static", files=BUSYBOX_FILES, static=True),
    "iptables": Requirement("iptables", commands=("iptables",)),
    "nft": Requirement("nftables", commands=("nft",)),
    "ip": Requirement("iproute2", commands=("ip",)),
    "conntrack": Requirement("conntrack", commands=("conntrack",)),
    "socat": Requirement("socat", commands=("socat",)),
    "nsenter": Requirement("util-linux", commands=("nsenter",)),
    "unshare": Requirement("util-linux", commands=("unshare",)),
    # A gateway between the clusters, for tests of what it does not let through.
    "nginx": Requirement("nginx-light", commands=("nginx",), services=("nginx.service",)),
    "buildah": Requirement("buildah", commands=("buildah",)),
    "debootstrap": Requirement("debootstrap", commands=("debootstrap",)),
    "debian-archive-keyring": Requirement(
        "debian-archive-keyring", files=("/usr/share/keyrings/debian-archive-keyring.gpg",)
    ),
}
"""What is needed, by the name a caller asks for."""

CLUSTER_TOOLS: Final = (
    "containerd",
    "ctr",
    "runc",
    "cni-bridge",
    "cni-host-local",
    "cni-loopback",
    "cni-portmap",
    "busybox",
    "iptables",
    "ip",
    "conntrack",
    "socat",
    "nsenter",
    "unshare",
)
"""What a cluster with a real node uses."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts about this machine that decide what is missing and whether it may be installed."""

    uid: int = field(default_factory=os.geteuid)
    path: str = field(default_factory=lambda: os.environ.get("PATH", os.defpath))
    root: Path = Path("/")

    def command(self, name: str) -> str | None:
        """Return where a command is, looking also where only root's PATH looks."""
        return shutil.which(name, path=os.pathsep.join((self.path, *ADMIN_FOLDERS)))

    def file(self, path: str) -> Path:
        """Return a file of this machine."""
        return self.root / path.lstrip("/")

    def has(self, requirement: Requirement) -> bool:
        """Say whether the thing is already here, from whatever package or source."""
        files = [self.file(path) for path in requirement.files]
        return any(self.command(name) for name in requirement.commands) or any(
            path.exists() and (not requirement.static or is_static(path)) for path in files
        )


def missing(tools: Iterable[str], machine: Machine) -> list[Requirement]:
    """Return what is not here yet, in the order asked, one entry a package."""
    found: dict[str, Requirement] = {}
    for tool in tools:
        try:
            requirement = REQUIREMENTS[tool]
        except KeyError:
            raise ValueError(f"unknown tool {tool!r}: add it to devcluster.debian.REQUIREMENTS") from None
        if not machine.has(requirement):
            found.setdefault(requirement.package, requirement)
    return list(found.values())


def install_command(packages: Iterable[str]) -> list[str]:
    """Return the one apt-get call that installs the packages and nothing that they only recommend."""
    return [
        "apt-get",
        "-o",
        f"DPkg::Lock::Timeout={LOCK_WAIT_SECONDS}",
        "install",
        "-y",
        "--no-install-recommends",
        *packages,
    ]


def lists_are_fresh(lists: Path, now: float) -> bool:
    """Say whether `apt-get update` ran within a day.

    The lists themselves carry the mirror's dates, so the folders that an update writes into are asked.
    """
    if not any(lists.glob("*_Packages*")):
        return False
    written = max(folder.stat().st_mtime for folder in (lists, lists / "partial") if folder.is_dir())
    return now - written < LISTS_FRESH_SECONDS


def ensure(*tools: str, machine: Machine | None = None) -> None:
    """Install, in one go, the packages of those tools that are missing.

    Raises MissingPackages where that cannot be done here, DebianError where apt-get fails.
    """
    machine = machine or Machine()
    if not missing(tools, machine):
        return
    _refuse_if_not_possible(missing(tools, machine), machine)
    with _one_at_a_time():
        wanted = missing(tools, machine)  # Another process may have installed them while this one waited.
        if wanted:
            _install(wanted, machine)
    still = [requirement.package for requirement in missing(tools, machine)]
    if still:
        raise DebianError(
            f"apt-get installed {' '.join(still)}, but what devcluster looks for in it is still not here: "
            "is it at an unusual place? See devcluster.debian.REQUIREMENTS"
        )


def busybox() -> Path:
    """Return the statically linked busybox of this machine (/bin may or may not be a link to /usr/bin)."""
    for candidate in map(Path, BUSYBOX_FILES):
        if candidate.exists() and is_static(candidate):
            return candidate
    raise MissingPackages(["busybox-static"], "no busybox", _advice(["busybox-static"], Machine()))


def cni_bin_folder() -> Path:
    """Return the folder that holds the CNI plugins."""
    for folder in CNI_FOLDERS:
        if Path(folder, "bridge").exists():
            return Path(folder)
    packages = ["containernetworking-plugins"]
    raise MissingPackages(packages, "no CNI plugins", _advice(packages, Machine()))


def is_static(program: Path) -> bool:
    """Say whether a program runs without shared libraries: a 64-bit ELF file that asks for no interpreter."""
    with program.open("rb") as file:
        header = file.read(64)
        if len(header) < 64 or header[:5] != b"\x7fELF\x02":
            return False
        order: Literal["<", ">"] = "<" if header[5] == 1 else ">"
        (table,) = struct.unpack_from(f"{order}Q", header, 32)
        size, count = struct.unpack_from(f"{order}HH", header, 54)
        file.seek(table)
        segments = file.read(size * count)
    kinds = [struct.unpack_from(f"{order}I", segments, index * size)[0] for index in range(count)]
    return _ELF_INTERPRETER not in kinds


_ELF_INTERPRETER: Final = 3
"""PT_INTERP of elf(5): the segment that names the dynamic linker."""


def _refuse_if_not_possible(wanted: list[Requirement], machine: Machine) -> None:
    packages = [requirement.package for requirement in wanted]
    if not machine.command("apt-get"):
        why = "this machine has no apt-get: take what its distribution calls them"
        raise MissingPackages(packages, why, _advice(packages, machine))
    if machine.uid != 0:
        raise MissingPackages(packages, "only root can install them", _advice(packages, machine))


def _advice(packages: list[str], machine: Machine) -> str:
    sudo = "" if machine.uid == 0 else "sudo "
    return f"{sudo}apt-get install -y --no-install-recommends {' '.join(packages)}"


def _install(wanted: list[Requirement], machine: Machine) -> None:
    packages = [requirement.package for requirement in wanted]
    update = ["apt-get", "update"]
    updated = not lists_are_fresh(machine.file("/var/lib/apt/lists"), time.time())
    title = f"installing Debian packages {' '.join(packages)}"
    with progress.step(title, announce=True), _services_held_back(wanted, machine):
        if updated:
            _run(update)
        try:
            _run(install_command(packages))
        except DebianError:
            if updated:
                raise
            # Fresh lists may still name a version that the mirror replaced since.
            _run(update)
            _run(install_command(packages))


def _run(command: list[str]) -> None:
    """Run apt-get; its output is shown only if it fails, whole in a file and its end in the error."""
    # RUNLEVEL=1: on a machine without systemd, invoke-rc.d starts no service in single-user mode.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode == 0:
        return
    with tempfile.NamedTemporaryFile("w", prefix="farlet-apt-", suffix=".log", delete=False) as log:
        log.write(done.stdout)
    tail = "\n".join(done.stdout.splitlines()[-8:])
    raise DebianError(f"`{' '.join(command)}` failed with {done.returncode}; all of it is in {log.name}:\n{tail}")


@contextlib.contextmanager
def _services_held_back(wanted: list[Requirement], machine: Machine) -> Iterator[None]:
    """Keep the packages' services from being started by their installation: devcluster runs its own.

    Under systemd a mask that lives only in /run does it, and goes away with the next boot at the latest. A
    policy-rc.d would do it for both kinds of init, but is a file of the machine's owner in a place that every
    other installation reads too. Elsewhere RUNLEVEL is enough (see _run).
    """
    services = [unit for requirement in wanted for unit in requirement.services]
    if not services or not machine.file("/run/systemd/system").is_dir():
        yield
        return
    subprocess.run(["systemctl", "mask", "--runtime", *services], check=False, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["systemctl", "unmask", "--runtime", *services], check=False, capture_output=True)


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Let one of our processes at a time run apt-get: `update` does not wait for its lock, as dpkg does."""
    # In /run, which only root writes to; a fixed name in a shared temporary folder could be anyone's.
    with Path("/run/farlet-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
