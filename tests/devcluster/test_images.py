"""The archives are what a runtime expects, and the same every time."""

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from devcluster import images
from devcluster.images import Entry, Image, file, folder, link

APPLETS = ["bin/busybox", "bin/cat", "bin/sh", "bin/tar", "linuxrc", "sbin/ip", "usr/bin/env", "usr/bin/nc"]


def members(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {info.name: content.read() for info in tar if info.isreg() and (content := tar.extractfile(info))}


def headers(layer: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        return {info.name: info for info in tar}


def manifest(archive: bytes) -> list[dict[str, Any]]:
    parsed: list[dict[str, Any]] = json.loads(members(archive)["manifest.json"])
    return parsed


@pytest.fixture
def both() -> Sequence[Image]:
    return [images.busybox_image(b"busybox!", APPLETS, "amd64"), images.pause_image(b"pause!", "amd64")]


@pytest.fixture
def busybox_layer() -> bytes:
    return images.layer(images.busybox_image(b"busybox!", APPLETS, "amd64").entries)


def test_same_input_same_bytes(both: Sequence[Image]) -> None:
    shuffled = [Image(image.name, list(reversed(image.entries)), image.architecture) for image in both]
    again = [Image(image.name, image.entries, image.architecture) for image in both]
    assert images.archive(shuffled) == images.archive(again)


def test_nothing_of_this_machine_or_hour_is_in_it(both: Sequence[Image]) -> None:
    archive = images.archive(both)
    layers = [content for name, content in members(archive).items() if name.endswith(".tar")]
    for tar in (archive, *layers):
        for info in headers(tar).values():
            assert (info.mtime, info.uname, info.gname) == (0, "", ""), info.name


def test_digests_agree(both: Sequence[Image]) -> None:
    archive = images.archive(both)
    content = members(archive)
    assert [entry["RepoTags"] for entry in manifest(archive)] == [[images.BUSYBOX], [images.PAUSE]]
    for entry in manifest(archive):
        config = content[entry["Config"]]
        assert entry["Config"] == f"{hashlib.sha256(config).hexdigest()}.json"
        diff_ids = [f"sha256:{hashlib.sha256(content[name]).hexdigest()}" for name in entry["Layers"]]
        assert json.loads(config)["rootfs"] == {"type": "layers", "diff_ids": diff_ids}


def test_shared_layers_are_stored_once() -> None:
    entries = [file("a", b"1")]
    archive = images.archive([Image("x:1", entries, "amd64"), Image("y:1", entries, "amd64")])
    assert len([name for name in members(archive) if name.endswith(".tar")]) == 1
    assert len(manifest(archive)) == 2


def test_configuration_says_what_runs(both: Sequence[Image]) -> None:
    busybox, pause = (json.loads(images.configuration(image, [])) for image in both)
    path = f"PATH={images.PATH}"
    assert (busybox["os"], busybox["architecture"]) == ("linux", "amd64")
    assert busybox["config"] == {"Cmd": ["sh"], "Env": [path], "WorkingDir": "/"}
    assert pause["config"] == {
        "Entrypoint": ["/pause"],
        "User": "65535:65535",
        "Env": [path],
        "WorkingDir": "/",
    }


def test_applets_are_links_to_the_one_binary(busybox_layer: bytes) -> None:
    found = headers(busybox_layer)
    links = {name: info.linkname for name, info in found.items() if info.issym()}
    assert set(links) == {"bin/cat", "bin/sh", "bin/tar", "sbin/ip", "usr/bin/env", "usr/bin/nc"}
    assert set(links.values()) == {"/bin/busybox"}
    assert found["bin/busybox"].isfile()
    assert found["bin/busybox"].mode == 0o755


def test_folders_come_before_what_is_in_them(busybox_layer: bytes) -> None:
    seen = {"."}
    for name in headers(busybox_layer):
        assert str(Path(name).parent) in seen, name
        seen.add(name)


def test_applet_in_a_folder_of_its_own() -> None:
    layer = images.layer(images.busybox_image(b"", ["opt/bin/odd"], "amd64").entries)
    assert headers(layer)["opt/bin"].isdir()


@pytest.mark.parametrize(
    ("path", "mode", "owner"),
    [("tmp", 0o1777, 0), ("home", 0o1777, 0), ("home/nobody", 0o755, 65534), ("root", 0o755, 0)],
)
def test_folders_of_users(path: str, mode: int, owner: int, busybox_layer: bytes) -> None:
    info = headers(busybox_layer)[path]
    assert (info.isdir(), info.mode, info.uid, info.gid) == (True, mode, owner, owner)


def test_users(busybox_layer: bytes) -> None:
    content = members(busybox_layer)
    users = [line.split(":") for line in content["etc/passwd"].decode().splitlines()]
    assert [(user[0], int(user[2]), user[5]) for user in users] == [
        ("root", 0, "/root"),
        ("nobody", 65534, "/home/nobody"),
    ]
    assert content["etc/group"] == b"root:x:0:\nnogroup:x:65534:\n"
    assert b"hosts: files dns\n" in content["etc/nsswitch.conf"]


@pytest.mark.parametrize(
    ("entry", "kind"),
    [(file("f", b"x"), tarfile.REGTYPE), (file("f", b""), tarfile.REGTYPE), (folder("d"), tarfile.DIRTYPE)],
)
def test_kinds_of_entries(entry: Entry, kind: bytes) -> None:
    assert entry.header().type == kind


def test_link_keeps_its_target() -> None:
    header = link("bin/sh", "busybox").header()
    assert (header.type, header.linkname) == (tarfile.SYMTYPE, "busybox")


def test_written_aside_and_renamed(tmp_path: Path) -> None:
    target = tmp_path / "images/x.tar"
    images.write_aside(target, b"old")
    images.write_aside(target, b"new")
    assert target.read_bytes() == b"new"
    assert list(target.parent.iterdir()) == [target]
