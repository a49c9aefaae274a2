"""What must hold for the repository as a whole: nothing secret or machine-bound in it, dependencies bounded
and locked, the wheel holds the product only, and `make help` tells everything."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ("requirements.lock", "requirements-dev.lock")

# Each is written so that it does not match its own text here.
SECRETS = {
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----(\\n|\s)*[A-Za-z0-9+/=]{16}"),
    "a private key or certificate in base64": re.compile(r"LS0tLS1CRUdJTi[A-Za-z0-9+/]{40}"),
    "credentials of a kubeconfig": re.compile(r"client-(key|certificate)-data[\"']?:\s*[\"']?[A-Za-z0-9+/]{40}"),
    "a token": re.compile(r"eyJ[A-Za-z0-9_-]{16,}\.eyJ[A-Za-z0-9_-]{16,}"),
}
SECRET_NAMES = re.compile(r"(\.(key|pem|p12|pfx|kubeconfig)|(^|/)(kubeconfig|id_[a-z0-9]+|\.env))$")
BOUND_TO_A_MACHINE = {
    "the address of a package registry": re.compile(
        r"https?://[^\s/]*(pypi|pythonhosted|proxy\.golang)[^\s/]*|--(extra-)?index-url[ =]\S*/"
    ),
    "somebody's home": re.compile(r"(?<![\w.~}-])/(home|Users)/[A-Za-z]\w*/|(?<![\w.~}-])/roo[t]/"),
}


def tracked_files() -> Iterator[tuple[str, str]]:
    """Path and text of every file that is, or with `git add .` would be, in git."""
    try:
        listing = subprocess.run(
            ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"not a git checkout: {error}")
    for name in filter(None, listing.split("\0")):
        path = ROOT / name
        if path.is_file():  # not so if deleted and not yet committed
            yield name, path.read_text(encoding="utf-8", errors="replace")


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def dependencies() -> list[str]:
    project = pyproject()
    return [
        *project["project"]["dependencies"],
        *project["dependency-groups"]["dev"],
        *project["build-system"]["requires"],
    ]


def locked(lock: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9._-]+)==([^\s;]+)", (ROOT / lock).read_text(), re.MULTILINE))


def test_no_secrets() -> None:
    found = [f"{name}: named like a secret" for name, _ in tracked_files() if SECRET_NAMES.search(name)]
    found += [f"{name}: {what}" for name, text in tracked_files() for what, p in SECRETS.items() if p.search(text)]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "-----BEGIN EC PRIVATE KEY-----\n" + "MHcCAQEEIA" * 3,
        'KEY = "-----BEGIN PRIVATE KEY-----\\n' + "MHcCAQEEIA" * 3,
        "client-key-data: " + "LS0tLS1C" * 8,
        '"client-key-data": "' + "abcd" * 16,
        "token: eyJ" + "a" * 20 + ".eyJ" + "b" * 20,
    ],
)
def test_secrets_would_be_found(text: str) -> None:
    assert any(pattern.search(text) for pattern in SECRETS.values())


def test_nothing_is_bound_to_one_machine() -> None:
    found = [
        f"{name}: {what}: {match.group()}"
        for name, text in tracked_files()
        for what, pattern in BOUND_TO_A_MACHINE.items()
        if (match := pattern.search(text))
    ]
    found += [f"{name}: this checkout's own path" for name, text in tracked_files() if f"{ROOT}/" in text]
    assert found == []


@pytest.mark.parametrize("dependency", dependencies())
def test_every_dependency_has_a_lower_bound(dependency: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9._-]+(\[[a-z,]+\])?>=[0-9][0-9a-z.]*(,<[0-9.]+)?", dependency)


def test_every_dependency_has_a_reason() -> None:
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    without = [
        line
        for above, line in pairwise(lines)
        if re.match(r'\s+"[^"]+>=', line) and "#" not in line and not above.strip().startswith("#")
    ]
    assert without == []


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_is_exact_hashed_and_names_no_place(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    assert not re.search(r"^\s*--(?!hash=)", text, re.MULTILINE)
    entries = re.split(r"\n(?=[a-z])", text.strip())
    assert [entry.splitlines()[0] for entry in entries if "--hash=sha256:" not in entry] == []
    assert len(entries) == len(locked(lock))


def test_locks_hold_every_dependency() -> None:
    names = {re.split(r"[\[>]", dependency)[0].lower() for dependency in dependencies()}
    assert names - locked("requirements-dev.lock").keys() == set(), "make lock computes the locks anew"
    runtime = locked("requirements.lock").items()
    assert runtime <= locked("requirements-dev.lock").items(), "what is tested must be what is shipped"


def test_the_image_is_built_with_every_package() -> None:
    packages = set(pyproject()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert packages <= let_through, "docker build does not see them"


def test_wheel_holds_the_product_only(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    top = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert top == set(pyproject()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    assert "app/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_make_help_is_the_default_and_tells_every_target() -> None:
    targets = set(re.findall(r"^\.PHONY: (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    environment.pop("MFLAGS", None)
    help_text = subprocess.run(["make"], cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^  make (\S+)  +\S", help_text, re.MULTILINE)) == targets
