"""``make demo`` on clusters that are there already: no root, no build."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from devcluster.addons import BUSYBOX_IMAGE
from devcluster.binaries import ensure
from devcluster.fleet import Fleet

pytestmark = pytest.mark.faults
"""Not that it breaks anything: its Farlet goes by the label, and would take up other tests' namespaces."""

NO_POWERS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
"""Runs a program as a user without any of root's powers."""


def test_the_tour_on_given_clusters(faulty: Fleet, tmp_path: Path) -> None:
    local, remote = faulty.cluster("local"), faulty.cluster("remote")
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
        [*NO_POWERS, *demo], env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    for side in ("local", "remote"):
        assert f"hello from the {side} cluster\n" in result.stdout
        assert f"{side}-node" in result.stdout
    assert re.search(r"\nfar +\d+m +\d+% ", result.stdout), "kubectl top node"
    assert re.search(r"\ndeployment.apps/load +2/2 ", result.stdout), "an autoscaler that acted"
    assert re.search(r"\nshop-there-\S+ +1/1 +Running .* far ", result.stdout), "half of an application is there"
    assert re.search(r"\nconfigmap/words ", result.stdout), "what it reads is there, too"
    assert not cache.exists(), "something was built or fetched"

    down = [sys.executable, "-m", "devcluster", "demo-down", *given]
    subprocess.run([*NO_POWERS, *down], env=environment, capture_output=True, timeout=60, check=True)
    for cluster in (local, remote):
        gone = ["wait", "--for=delete", "namespace/farlet-demo", "--timeout=120s"]
        cluster.kubectl(*gone, timeout=130)
