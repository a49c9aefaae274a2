"""``make demo`` on clusters that are there already: no root, no build."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from devcluster.addons import BUSYBOX_IMAGE
from devcluster.binaries import ensure
from devcluster.cluster import Cluster
from devcluster.fleet import Fleet

pytestmark = pytest.mark.cluster

NO_POWERS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
"""Runs a program as a user without any of root's powers."""


def test_the_tour_on_given_clusters(fleet: Fleet, local: Cluster, remote: Cluster, tmp_path: Path) -> None:
    programs, cache = tmp_path / "bin", tmp_path / "cache"
    programs.mkdir()
    shutil.copy(ensure(["kubectl"])["kubectl"], programs / "kubectl")
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("KUBE", "FARLET"))},
        "PATH": f"{programs}:/usr/bin:/bin",
        "XDG_CACHE_HOME": str(cache),
    }
    given = ["--local", str(local.kubeconfig), "--remote", str(remote.kubeconfig)]
    demo = [sys.executable, "-m", "devcluster", "demo", *given, "--image", BUSYBOX_IMAGE]
    result = subprocess.run(
        [*NO_POWERS, *demo], env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    for side in ("local", "remote"):
        assert f"hello from the {side} cluster\n" in result.stdout
        assert f"{side}-node" in result.stdout
    assert not cache.exists(), "something was built or fetched"

    down = [sys.executable, "-m", "devcluster", "demo-down", *given]
    subprocess.run([*NO_POWERS, *down], env=environment, capture_output=True, timeout=60, check=True)
    for cluster in (local, remote):
        gone = ["wait", "--for=delete", "namespace/farlet-demo", "--timeout=60s"]
        cluster.kubectl(*gone, timeout=70)
