"""Builds the project's own image from its Dockerfile, with no Docker and no registry.

Manifests are to be tested as a user runs them, so the image is built from the very Dockerfile that users
build. What differs is where things come from: the base image is a Debian bootstrapped from this machine's apt
source (made once and cached), and the Python packages come as wheels in the build context, chosen by the
lock. Nothing in the build needs the network after that.

All of it happens in the cache folder, in a work folder that is removed afterwards: buildah gets its storage,
its runtime folder and its HOME there. What is kept is complete or absent, since it is renamed into place.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from devcluster import aptsource, binaries, debian, images, progress
from devcluster.errors import DevclusterError

SUITE: Final = "bookworm"
PYTHON: Final = "3.11"
"""The Python of that suite, which the wheels must be for."""

GLIBC: Final = (2, 36)
"""The C library of that suite: the newest `manylinux` that its pip accepts."""

BASE_PACKAGES: Final = ("python3", "python3-venv", "ca-certificates")
BASE_RECIPE: Final = 1
"""Raise it when `_slim` changes: cached base images are then made anew."""

DISK_NEEDED: Final = 4 * 1024**3
"""With the `vfs` driver every layer is a full copy of those below: works on any file system, and is large."""

PRIVATE_MOUNTS: Final = ("unshare", "--mount", "--propagation", "private")
"""What a command mounts goes away with it, however it ends, and nobody else sees it."""

RUNTIME_LOCK: Final = "requirements.lock"
PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")


class ImageBuildError(DevclusterError):
    """A step of a build failed; the message names it and where all of its output is."""


def build(project: Path, tag: str, *, output: Path | None = None) -> Path:
    """Build the Dockerfile of a project and return the image as a docker-archive.

    `tag` is the full name that the archive gives the image, such as `docker.io/farlet/farlet:dev`. The
    archive replaces an older one of the same project and tag.
    """
    project = project.resolve()
    if not (project / "Dockerfile").is_file():
        raise ImageBuildError(f"no Dockerfile in {project}")
    debian.ensure("buildah", "debootstrap", "debian-archive-keyring", "unshare")
    target = output or default_output(project, tag)
    with _workshop(tag) as workshop:
        base = _base_archive(workshop)
        context = workshop.folder / "context"
        _fill_context(workshop, project, context)
        workshop.buildah("loading the base image", "pull", f"docker-archive:{base}")
        workshop.buildah(
            "building the Dockerfile",
            "bud",
            "--isolation=chroot",
            "--pull-never",
            f"--build-arg=BASE={base_reference()}",
            f"--tag={tag}",
            str(context),
        )
        _push(workshop, tag, target)
    return target


def default_output(project: Path, tag: str) -> Path:
    """Return where an image is kept: two checkouts that use the same tag do not overwrite each other's."""
    checkout = hashlib.sha256(str(project).encode()).hexdigest()[:8]
    return _images_folder() / f"{_file_name(tag)}-{checkout}.tar"


def base_reference() -> str:
    """Return the name of the base image, which says what is in it."""
    ingredients = repr((SUITE, BASE_PACKAGES, BASE_RECIPE, images.this_architecture()))
    return f"localhost/farlet-base:{SUITE}-{hashlib.sha256(ingredients.encode()).hexdigest()[:12]}"


def wheel_platforms(machine: str, glibc: tuple[int, int] = GLIBC) -> list[str]:
    """Return the platform tags of wheels that run in the base image, newest first.

    pip chooses by the machine it runs on unless it is told, and that may have another Python or a newer C
    library.
    """
    major, newest = glibc
    perennial = [f"manylinux_{major}_{minor}_{machine}" for minor in range(newest, 4, -1)]
    return [
        *perennial,
        *(f"{legacy}_{machine}" for legacy in ("manylinux2014", "manylinux2010", "manylinux1")),
    ]


def debootstrap_command(source: aptsource.Source, target: Path) -> list[str]:
    """Return the call that bootstraps the base, in a mount namespace of its own.

    debootstrap mounts /proc and /sys in the target, and removing that folder must never reach into them.
    """
    return [
        *(*PRIVATE_MOUNTS, "debootstrap", "--variant=minbase"),
        f"--include={','.join(BASE_PACKAGES)}",
        f"--keyring={source.signed_by or '/usr/share/keyrings/debian-archive-keyring.gpg'}",
        *(SUITE, str(target), source.uri),
    ]


def debootstrap_environment(source: aptsource.Source, transport: aptsource.Transport, wgetrc: Path) -> dict[str, str]:
    """Return what makes debootstrap, which fetches with wget, reach the archive the way apt does."""
    environment: dict[str, str] = {}
    proxy = transport.proxy(source.uri)
    if proxy:
        environment |= {"http_proxy": proxy, "https_proxy": proxy}
    if transport.ca_file:
        wgetrc.write_text(f"ca_certificate = {transport.ca_file}\n")
        environment["WGETRC"] = str(wgetrc)
    return environment


@dataclass(frozen=True, slots=True)
class Workshop:
    """The folder that one build works in, and how it runs commands there."""

    folder: Path
    log: Path
    lock: int
    """A descriptor that every command inherits: while one that outlived us works here, nobody else starts."""

    def run(self, step: str, command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> None:
        """Run one step, with its output in the log."""
        with progress.step(step), self.log.open("a") as log:
            log.write(f"\n== {step}: {shlex.join(command)}\n")
            log.flush()
            done = subprocess.run(
                command,
                cwd=self.folder,
                env={**os.environ, "TMPDIR": str(self.inner("tmp")), **(environment or {})},
                pass_fds=(self.lock,),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        if done.returncode != 0:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-12:])
            raise ImageBuildError(f"{step} failed (exit code {done.returncode}); all of it is in {self.log}:\n{tail}")

    def buildah(self, step: str, subcommand: str, *arguments: str) -> None:
        """Run buildah so that all it stores is in this folder.

        Its cache of where blobs were seen has a fixed place for root; a mount that only it sees moves that
        too.
        """
        with _mount_point(Path("/var/lib/containers")) as cache:
            self.run(
                step,
                [
                    *(*PRIVATE_MOUNTS, "sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"'),
                    *(str(self.inner("containers")), str(cache)),
                    *("buildah", "--storage-driver=vfs"),
                    f"--root={self.inner('storage')}",
                    f"--runroot={self.inner('run')}",
                    subcommand,
                    *arguments,
                ],
                environment={
                    "STORAGE_DRIVER": "vfs",
                    "HOME": str(self.inner("home")),
                    "XDG_RUNTIME_DIR": str(self.inner("run")),
                    "CONTAINERS_CONF": str(self._containers_conf()),
                },
            )

    def inner(self, name: str) -> Path:
        """Return a folder of this one, made if need be."""
        path = self.folder / name
        path.mkdir(exist_ok=True)
        return path

    def _containers_conf(self) -> Path:
        """Return a configuration that keeps buildah out of /etc/cni/net.d, where others look for networks."""
        path = self.folder / "containers.conf"
        path.write_text(f'[network]\nnetwork_config_dir = "{self.inner("networks")}"\n')
        return path


@contextlib.contextmanager
def _mount_point(path: Path) -> Iterator[Path]:
    """Give a folder that something can be mounted on; if it is made for that, it goes away again."""
    existed = path.exists()
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield path
    finally:
        if not existed:
            with contextlib.suppress(OSError):  # Someone has put something into it meanwhile.
                path.rmdir()


@contextlib.contextmanager
def _workshop(tag: str) -> Iterator[Workshop]:
    """Give one build at a time a folder to work in, and remove what an earlier one that was killed left."""
    root = _images_folder()
    free = shutil.disk_usage(root).free
    if free < DISK_NEEDED:
        raise ImageBuildError(
            f"{root} has {free / 1e9:.1f} GB free, building an image takes {DISK_NEEDED / 1e9:.1f}: "
            "make room, or set XDG_CACHE_HOME to a larger disk"
        )
    with (root / "build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say("another image build is at work, or a step of one that was killed: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        for leftover in root.glob(".build-*"):
            shutil.rmtree(leftover)
        descriptor, log = tempfile.mkstemp(prefix=f"farlet-image-{_file_name(tag)}-", suffix=".log")
        os.close(descriptor)
        with tempfile.TemporaryDirectory(dir=root, prefix=".build-") as folder:
            yield Workshop(Path(folder), Path(log), lock.fileno())
        Path(log).unlink()  # Not reached after an error, whose message names the log.


def _base_archive(workshop: Workshop) -> Path:
    """Return the base image in the cache folder, bootstrapped if it is not there yet."""
    target = _images_folder() / f"{_file_name(base_reference())}.tar"
    if target.exists():
        return target
    source = aptsource.choose(SUITE, aptsource.read_sources())
    root = workshop.folder / "root"
    environment = debootstrap_environment(source, aptsource.read_transport(), workshop.folder / "wgetrc")
    workshop.run(
        f"bootstrapping Debian {SUITE} (about a minute, once)",
        debootstrap_command(source, root),
        environment=environment,
    )
    _slim(root)
    workshop.buildah("making it a base image", "from", "--name=base", "scratch")
    workshop.buildah("copying its files", "add", "base", str(root), "/")
    workshop.buildah("committing the base image", "commit", "--rm", "base", base_reference())
    _push(workshop, base_reference(), target)
    return target


def _slim(root: Path) -> None:
    """Take out what a container does not use, as Debian's slim images do, and what tells of this machine."""
    for pattern in (
        "dev/*",
        "var/cache/apt/*",
        "var/cache/debconf/*-old",
        "var/lib/apt/lists/*",
        "var/log/*",
        "usr/share/doc/*/[!c]*",  # Only the copyright files stay.
        "usr/share/doc/*/c[!o]*",
        "usr/share/man/*",
        "usr/share/locale/*",
        "etc/hostname",
        "etc/resolv.conf",
        "etc/machine-id",
        "etc/apt/sources.list",
    ):
        for path in list(root.glob(pattern)):
            # A folder on the way may be a link: to another one in here, or, if absolute, to one of this machine.
            if not path.parent.resolve().is_relative_to(root.resolve()):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def _fill_context(workshop: Workshop, project: Path, context: Path) -> None:
    """Put into the build context what the Dockerfile uses: itself and all wheels.

    The project's own sources stay out: with its wheel there, nothing else of it may end up in the image.
    """
    shutil.copytree(_locked_wheels(workshop, project / RUNTIME_LOCK), context / "wheels")
    shutil.copy2(project / "Dockerfile", context / "Dockerfile")
    workshop.run(
        f"building the wheel of {project.name}",
        [
            *PIP,
            "wheel",
            "--no-deps",
            "--no-build-isolation",
            f"--wheel-dir={context / 'wheels'}",
            str(project),
        ],
    )


def _locked_wheels(workshop: Workshop, lock: Path) -> Path:
    """Return the folder of the cache with the wheels that a lock names, downloaded if it is not there yet."""
    ingredients = f"{PYTHON} {GLIBC} {platform.machine()}\n{lock.read_text()}"
    target = _images_folder() / f"wheels-{hashlib.sha256(ingredients.encode()).hexdigest()[:16]}"
    if target.exists():
        return target
    aside = workshop.folder / "wheels"
    workshop.run(
        "downloading the locked wheels",
        [
            *(*PIP, "download", f"--dest={aside}", "--only-binary=:all:"),
            *("--implementation=cp", f"--python-version={PYTHON}"),
            *(f"--platform={name}" for name in wheel_platforms(platform.machine())),
            *("--require-hashes", f"--requirement={lock}"),
        ],
    )
    aside.rename(target)
    return target


def _push(workshop: Workshop, name: str, target: Path) -> None:
    """Write an image of the storage as a docker-archive, in place only when it is whole."""
    aside = workshop.folder / "image.tar"
    workshop.buildah(f"writing {target.name}", "push", name, f"docker-archive:{aside}:{name}")
    aside.rename(target)


def _images_folder() -> Path:
    folder = binaries.cache_folder() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _file_name(reference: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", reference)
