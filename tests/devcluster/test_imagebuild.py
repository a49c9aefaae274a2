"""The parts of an image build that decide something; the build itself takes root and minutes."""

import os
from pathlib import Path

import pytest

from devcluster import imagebuild
from devcluster.aptsource import Source, Transport
from devcluster.imagebuild import ImageBuildError, Workshop

SOURCE = Source("https://mirror.example/debian", ("bookworm",), ("main",))


def test_bootstrap_uses_the_source_and_its_keyring() -> None:
    signed = Source(SOURCE.uri, SOURCE.suites, SOURCE.components, Path("/keys/company.gpg"))
    command = imagebuild.debootstrap_command(signed, Path("/some/root"))
    assert command[:4] == ["unshare", "--mount", "--propagation", "private"]
    assert "--keyring=/keys/company.gpg" in command
    assert "--include=python3,python3-venv,ca-certificates" in command
    assert command[-3:] == ["bookworm", "/some/root", "https://mirror.example/debian"]


def test_bootstrap_checks_signatures_when_the_source_names_no_keyring() -> None:
    command = imagebuild.debootstrap_command(SOURCE, Path("/some/root"))
    assert "--keyring=/usr/share/keyrings/debian-archive-keyring.gpg" in command


def test_bootstrap_reaches_the_archive_as_apt_does(tmp_path: Path) -> None:
    transport = Transport({"https": "http://proxy.example:3128"}, "/etc/ssl/company.pem")
    wgetrc = tmp_path / "wgetrc"
    assert imagebuild.debootstrap_environment(SOURCE, transport, wgetrc) == {
        "http_proxy": "http://proxy.example:3128",
        "https_proxy": "http://proxy.example:3128",
        "WGETRC": str(wgetrc),
    }
    assert wgetrc.read_text() == "ca_certificate = /etc/ssl/company.pem\n"


def test_bootstrap_with_nothing_special(tmp_path: Path) -> None:
    assert imagebuild.debootstrap_environment(SOURCE, Transport(), tmp_path / "wgetrc") == {}
    assert not (tmp_path / "wgetrc").exists()


def test_wheels_for_the_base_image_not_for_this_machine() -> None:
    platforms = imagebuild.wheel_platforms("x86_64", glibc=(2, 36))
    assert platforms[0] == "manylinux_2_36_x86_64"
    assert {"manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"} <= set(platforms)
    assert "manylinux_2_37_x86_64" not in platforms


def test_checkouts_do_not_share_an_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tag = "docker.io/farlet/farlet:dev"
    one = imagebuild.default_output(Path("/src/one"), tag)
    two = imagebuild.default_output(Path("/src/two"), tag)
    assert one != two
    assert one.name.startswith("docker.io-farlet-farlet-dev-")
    assert one.is_relative_to(tmp_path)


def test_project_without_a_dockerfile(tmp_path: Path) -> None:
    with pytest.raises(ImageBuildError, match="no Dockerfile in"):
        imagebuild.build(tmp_path, "docker.io/farlet/farlet:dev")


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    (tmp_path / "work").mkdir()
    return Workshop(tmp_path / "work", tmp_path / "build.log", os.dup(0))


def test_failed_step_is_named_with_its_last_lines_and_its_log(workshop: Workshop) -> None:
    script = "for i in $(seq 30); do echo line $i; done; echo went wrong >&2; exit 7"
    with pytest.raises(ImageBuildError) as raised:
        workshop.run("baking", ["sh", "-c", script])
    message = str(raised.value)
    assert message.startswith(f"baking failed (exit code 7); all of it is in {workshop.log}:\n")
    assert message.endswith("line 30\nwent wrong")
    assert "line 1\n" not in message
    assert "line 1\n" in workshop.log.read_text()


def test_step_works_inside_its_folder(workshop: Workshop) -> None:
    workshop.run("looking", ["sh", "-c", 'pwd; echo "$TMPDIR"'])
    assert f"{workshop.folder}\n{workshop.folder}/tmp\n" in workshop.log.read_text()


def test_slim_takes_out_what_tells_of_the_machine(tmp_path: Path) -> None:
    kept = ["usr/share/doc/python3/copyright", "etc/passwd", "usr/bin/python3"]
    gone = [
        *("etc/hostname", "etc/resolv.conf", "etc/apt/sources.list", "var/lib/apt/lists/mirror_Packages"),
        *("usr/share/doc/python3/README", "usr/share/doc/python3/changelog.gz", "usr/share/man/man1/python3.1"),
    ]
    for name in (*kept, *gone):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "usr/share/doc/python3-venv").symlink_to("python3")
    imagebuild._slim(tmp_path)
    assert [name for name in kept if not (tmp_path / name).exists()] == []
    assert [name for name in gone if (tmp_path / name).exists()] == []


def test_slim_never_leaves_the_folder(tmp_path: Path) -> None:
    outside = tmp_path / "machine/doc"
    outside.mkdir(parents=True)
    (outside / "README").touch()
    root = tmp_path / "root"
    for name in ("usr/share/doc", "var", "dev"):
        (root / name).mkdir(parents=True)
    (root / "usr/share/doc/python3").symlink_to(outside)
    (root / "var/log").symlink_to(outside)
    (root / "dev/fd").symlink_to(outside)
    imagebuild._slim(root)
    assert (outside / "README").exists()
    assert not (root / "dev/fd").is_symlink()
