"""Container images made from a few files, with no registry and no image builder.

Tests and demos need a shell in a container and the pause container that holds a pod's namespaces, nothing
more. Both are a handful of files, so they are written here as the tar that `docker save` writes
("docker-archive": a manifest, a config and a layer for each image), which every runtime can import.

The same input gives the same bytes (fixed times and owners, sorted entries): the digest then says whether a
node already has an image, and a cached archive never needs to be compared with what it was made from.

Debian 12's busybox is 1.35. What does not work in it, so that no test is built on it: `wget -T` crashes, `sh`
drops environment variables with a dash in their name, and `wget` cannot talk to a server with an
elliptic-curve certificate.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from devcluster import binaries, debian

BUSYBOX: Final = "docker.io/farlet/busybox:1"
PAUSE: Final = "docker.io/farlet/pause:1"
"""Names as containerd stores them. In a pod `farlet/busybox:1` is enough: the CRI plugin completes a name
without a registry to docker.io, and `imagePullPolicy` is by default IfNotPresent for a tag other than
`latest`."""

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NOBODY: Final = 65534
PAUSE_USER: Final = 65535
"""The user of Kubernetes' own pause image."""

CREATED: Final = "2020-01-01T00:00:00Z"
"""The same for every build; some tools show the zero time as an error."""

ARCHITECTURES: Final[Mapping[str, str]] = {"x86_64": "amd64", "aarch64": "arm64"}
"""Go's names, which image configurations use, by the kernel's."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One path in a layer, without a leading slash: a file, a folder, or a symbolic link."""

    path: str
    mode: int
    data: bytes | None = None
    target: str | None = None
    uid: int = 0
    gid: int = 0

    def header(self) -> tarfile.TarInfo:
        """Return the tar header, with nothing in it of the machine or the hour it is made on."""
        info = tarfile.TarInfo(self.path)
        info.mode, info.uid, info.gid, info.mtime = self.mode, self.uid, self.gid, 0
        if self.target is not None:
            info.type, info.linkname = tarfile.SYMTYPE, self.target
        elif self.data is None:
            info.type = tarfile.DIRTYPE
        else:
            info.size = len(self.data)
        return info


def file(path: str, data: bytes, mode: int = 0o644) -> Entry:
    """Return a file of root."""
    return Entry(path, mode, data=data)


def folder(path: str, mode: int = 0o755, owner: int = 0) -> Entry:
    """Return a folder, by default of root."""
    return Entry(path, mode, uid=owner, gid=owner)


def link(path: str, target: str) -> Entry:
    """Return a symbolic link."""
    return Entry(path, 0o777, target=target)


@dataclass(frozen=True, slots=True)
class Image:
    """An image: its full name, what is in it, and what runs by default."""

    name: str
    entries: Sequence[Entry]
    architecture: str
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    user: str = ""
    environment: Sequence[str] = field(default=(f"PATH={PATH}",))


def layer(entries: Iterable[Entry]) -> bytes:
    """Return a layer: the uncompressed tar of the entries, whatever order they come in.

    Sorted by path, a folder always comes before what is in it.
    """
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry in sorted(entries, key=lambda entry: entry.path):
            tar.addfile(entry.header(), io.BytesIO(entry.data or b""))
    return content.getvalue()


def configuration(image: Image, diff_ids: Sequence[str]) -> bytes:
    """Return the image's configuration, as the OCI image specification names its fields."""
    config: dict[str, object] = {"Env": list(image.environment), "WorkingDir": "/"}
    if image.entrypoint:
        config["Entrypoint"] = list(image.entrypoint)
    if image.command:
        config["Cmd"] = list(image.command)
    if image.user:
        config["User"] = image.user
    document = {
        "architecture": image.architecture,
        "os": "linux",
        "created": CREATED,
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff_id}" for diff_id in diff_ids]},
        "history": [{"created": CREATED, "created_by": "devcluster"} for _ in diff_ids],
    }
    return json.dumps(document, sort_keys=True).encode()


def archive(images: Iterable[Image]) -> bytes:
    """Return the docker-archive of the images, each with one layer.

    Layers and configurations are named by their digest, so what two images share is stored once.
    """
    members: dict[str, bytes] = {}
    manifest: list[dict[str, object]] = []
    for image in images:
        content = layer(image.entries)
        diff_id = hashlib.sha256(content).hexdigest()
        config = configuration(image, [diff_id])
        config_name = f"{hashlib.sha256(config).hexdigest()}.json"
        members[f"{diff_id}.tar"] = content
        members[config_name] = config
        manifest.append({"Config": config_name, "RepoTags": [image.name], "Layers": [f"{diff_id}.tar"]})
    members["manifest.json"] = json.dumps(manifest, sort_keys=True).encode()
    return layer(file(name, data) for name, data in members.items())


def busybox_image(binary: bytes, applets: Sequence[str], architecture: str) -> Image:
    """Return an image with a shell and the applets that `kubectl exec`, `cp` and the tests call.

    `applets` are paths without a leading slash, as `busybox --list-full` prints them ("usr/bin/env").
    """
    folders = [
        folder(path)
        for path in (
            "bin",
            "dev",
            "etc",
            "proc",
            "root",
            "run",
            "sbin",
            "sys",
            "usr",
            "usr/bin",
            "usr/sbin",
            "var",
        )
    ]
    # A pod may run as any user: /tmp and /home take files from all of them.
    folders += [folder("tmp", 0o1777), folder("home", 0o1777), folder("home/nobody", owner=NOBODY)]
    known = {entry.path for entry in folders}
    folders += [folder(path) for path in sorted({str(Path(applet).parent) for applet in applets} - known - {"."})]
    links = [link(applet, "/bin/busybox") for applet in applets if applet not in ("bin/busybox", "linuxrc")]
    texts = [
        file(
            "etc/passwd",
            b"root:x:0:0:root:/root:/bin/sh\nnobody:x:%d:%d:nobody:/home/nobody:/bin/sh\n" % (NOBODY, NOBODY),
        ),
        file("etc/group", b"root:x:0:\nnogroup:x:%d:\n" % NOBODY),
        # Without it the C library asks only DNS, and a pod's own name is in /etc/hosts.
        file("etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n"),
    ]
    return Image(
        BUSYBOX,
        [*folders, file("bin/busybox", binary, 0o755), *links, *texts],
        architecture,
        command=("sh",),
    )


def pause_image(binary: bytes, architecture: str) -> Image:
    """Return the image whose process holds the namespaces of a pod and reaps its orphans."""
    return Image(
        PAUSE,
        [file("pause", binary, 0o755)],
        architecture,
        entrypoint=("/pause",),
        user=f"{PAUSE_USER}:{PAUSE_USER}",
    )


def base_archive() -> Path:
    """Return the archive of both images in the cache folder, made if it is not there yet.

    Its name is its own digest: whatever it is made from or by changes, the name changes too. Making it takes
    milliseconds; what is spared is a file written and an import for every start.
    """
    debian.ensure("busybox")
    busybox = debian.busybox()
    architecture = this_architecture()
    pause = binaries.ensure(["pause"])["pause"]
    content = archive(
        [
            busybox_image(busybox.read_bytes(), applets_of(busybox), architecture),
            pause_image(pause.read_bytes(), architecture),
        ]
    )
    target = binaries.cache_folder() / "images" / f"base-{hashlib.sha256(content).hexdigest()[:16]}.tar"
    if not target.exists():
        write_aside(target, content)
    return target


def applets_of(busybox: Path) -> list[str]:
    """Return the paths at which a busybox wants its applets to be found."""
    listing = subprocess.run([busybox, "--list-full"], check=True, capture_output=True, text=True)
    return sorted(listing.stdout.split())


def this_architecture() -> str:
    """Return this machine's architecture by the name that image configurations use."""
    machine = platform.machine()
    return ARCHITECTURES.get(machine, machine)


def write_aside(target: Path, content: bytes) -> None:
    """Write a file so that nobody sees half of it: another process may read or write the same one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".aside-") as folder:
        aside = Path(folder) / target.name
        aside.write_bytes(content)
        aside.rename(target)
