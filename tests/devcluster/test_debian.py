"""What is missing, what is said about it, and when package lists count as fresh. Nothing is installed here."""

import os
import sys
from pathlib import Path

import pytest

from devcluster import debian
from devcluster.debian import CLUSTER_TOOLS, REQUIREMENTS, Machine, MissingPackages


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine of root that has nothing but apt-get."""
    monkeypatch.setattr(debian, "ADMIN_FOLDERS", ())
    program(tmp_path / "bin/apt-get")
    return Machine(uid=0, path=str(tmp_path / "bin"), root=tmp_path)


def program(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o755)


@pytest.mark.parametrize(
    ("tool", "package"),
    [
        ("containerd", "containerd"),
        ("ctr", "containerd"),
        ("runc", "runc"),
        ("cni-bridge", "containernetworking-plugins"),
        ("cni-portmap", "containernetworking-plugins"),
        ("busybox", "busybox-static"),
        ("iptables", "iptables"),
        ("ip", "iproute2"),
        ("conntrack", "conntrack"),
        ("socat", "socat"),
        ("nsenter", "util-linux"),
        ("buildah", "buildah"),
        ("debootstrap", "debootstrap"),
    ],
)
def test_package_of_a_tool(tool: str, package: str, bare: Machine) -> None:
    assert [requirement.package for requirement in debian.missing([tool], bare)] == [package]


def test_cluster_tools_are_all_known() -> None:
    assert set(CLUSTER_TOOLS) <= set(REQUIREMENTS)


def test_every_requirement_can_be_recognised() -> None:
    assert [tool for tool, wanted in REQUIREMENTS.items() if not (wanted.commands or wanted.files)] == []


def test_unknown_tool_is_a_mistake_of_the_caller(bare: Machine) -> None:
    with pytest.raises(ValueError, match="unknown tool 'kontainerd'"):
        debian.missing(["kontainerd"], bare)


def test_package_is_named_once_in_the_order_asked(bare: Machine) -> None:
    wanted = debian.missing(["socat", "cni-bridge", "ctr", "cni-loopback", "containerd"], bare)
    assert [requirement.package for requirement in wanted] == ["socat", "containernetworking-plugins", "containerd"]


@pytest.mark.parametrize("folder", debian.CNI_FOLDERS)
def test_plugins_count_wherever_they_are(folder: str, bare: Machine) -> None:
    program(bare.file(f"{folder}/bridge"))
    assert debian.missing(["cni-bridge"], bare) == []


def test_command_on_the_path_is_not_missing(bare: Machine) -> None:
    program(Path(bare.path) / "socat")
    assert debian.missing(["socat"], bare) == []


def test_command_where_only_the_path_of_root_looks(bare: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "ADMIN_FOLDERS", (str(bare.root / "sbin"),))
    program(bare.root / "sbin/iptables")
    assert debian.missing(["iptables"], bare) == []


def elf(*segments: int) -> bytes:
    """A 64-bit ELF file with segments of these kinds, as far as anybody reads it here."""
    header = b"\x7fELF\x02\x01\x01".ljust(32, b"\0") + (64).to_bytes(8, "little")
    header = header.ljust(54, b"\0") + (56).to_bytes(2, "little") + len(segments).to_bytes(2, "little")
    return header.ljust(64, b"\0") + b"".join(kind.to_bytes(4, "little").ljust(56, b"\0") for kind in segments)


@pytest.mark.parametrize(
    ("content", "static"),
    [
        (elf(1, 1, 4), True),
        (elf(1, 3, 2), False),
        (b"#!/bin/sh\n", False),
        (b"", False),
    ],
    ids=["static", "with an interpreter", "script", "empty"],
)
def test_only_a_static_busybox_will_do(content: bytes, static: bool, bare: Machine) -> None:
    bare.file("/usr/bin").mkdir(parents=True)
    bare.file("/usr/bin/busybox").write_bytes(content)
    assert debian.is_static(bare.file("/usr/bin/busybox")) is static
    assert (debian.missing(["busybox"], bare) == []) is static


def test_python_here_is_judged_without_a_crash() -> None:
    assert isinstance(debian.is_static(Path(sys.executable)), bool)


def test_without_root_the_message_has_the_line_to_run(bare: Machine) -> None:
    user = Machine(uid=1000, path=bare.path, root=bare.root)
    with pytest.raises(MissingPackages) as raised:
        debian.ensure("containerd", "ctr", "busybox", machine=user)
    assert raised.value.packages == ("containerd", "busybox-static")
    assert str(raised.value) == (
        "missing Debian packages: containerd busybox-static (only root can install them). "
        "Install them with: sudo apt-get install -y --no-install-recommends containerd busybox-static"
    )


def test_without_apt_the_message_says_so(bare: Machine) -> None:
    (Path(bare.path) / "apt-get").unlink()
    with pytest.raises(MissingPackages, match=r"this machine has no apt-get.*: apt-get install .* socat"):
        debian.ensure("socat", machine=bare)


def test_nothing_missing_needs_neither_root_nor_apt(bare: Machine) -> None:
    (Path(bare.path) / "apt-get").unlink()
    program(Path(bare.path) / "socat")
    debian.ensure("socat", machine=Machine(uid=1000, path=bare.path, root=bare.root))


def test_one_call_installs_all_and_waits_for_dpkg() -> None:
    assert debian.install_command(["a", "b"]) == [
        *("apt-get", "-o", "DPkg::Lock::Timeout=120", "install", "-y", "--no-install-recommends", "a", "b")
    ]


def test_lists_are_fresh_for_a_day_after_an_update(tmp_path: Path) -> None:
    (tmp_path / "partial").mkdir()
    assert not debian.lists_are_fresh(tmp_path, now=0), "no lists at all"
    package_list = tmp_path / "mirror_dists_stable_main_binary-amd64_Packages.lz4"
    package_list.touch()
    os.utime(package_list, (0, 0))  # The mirror's date: says when the list changed, not when it was fetched.
    for folder in (tmp_path, tmp_path / "partial"):
        os.utime(folder, (1000, 1000))
    assert debian.lists_are_fresh(tmp_path, now=1000 + 23 * 3600)
    assert not debian.lists_are_fresh(tmp_path, now=1000 + 25 * 3600)
