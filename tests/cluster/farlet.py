"""Farlet as a user runs it, for tests: its own process, with the rights of ``manifests/`` and no more."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from devcluster.api import ApiError
from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError
from tests.eventually import eventually

ANY_PORT = ("--health-address", "127.0.0.1:0", "--kubelet-address", "0.0.0.0:0")
"""Several of them run on one machine."""
DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")
"""Before a command: it ends when the test that started it does, also when pytest's workers are killed."""
MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
_with_rights: set[tuple[bytes, bytes]] = set()
"""Pairs of clusters, by their kubeconfigs: each cluster that is made has credentials of its own."""


class Farlet:
    """One ``farlet run`` between two clusters."""

    remote_kubeconfig: Path | None = None
    """None: that of the ServiceAccount of ``manifests/remote-rbac.yaml``."""
    within: tuple[str, ...] = ()
    """What its command is put after: something that starts it in another network, for example."""

    def __init__(self, local: Cluster, remote: Cluster, node: str, log: Path, options: list[str]) -> None:
        self.local, self.remote, self.node, self.log = local, remote, node, log
        self._options = options
        self._accounts: dict[str, Path] = {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def figure(self, name: str) -> float:
        """One of its figures, summed over its labels, asked for through the API server."""
        text = self.local.api.text(f"/api/v1/nodes/{self.node}/proxy/metrics")
        found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))

    def start(self) -> None:
        """Start it and wait until its node is Ready."""
        self.launch()
        eventually(self.ready, f"node {self.node} is Ready", timeout=120)

    def launch(self) -> None:
        """Start it."""
        credentials = {
            "--kubeconfig": self._account(self.local),
            "--remote-kubeconfig": self.remote_kubeconfig or self._account(self.remote),
        }
        given = [part for name, path in credentials.items() for part in (name, str(path))]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *DIES_WITH_US,
                    *self.within,
                    sys.executable,
                    "-m",
                    "app",
                    "run",
                    *given,
                    "--node-name",
                    self.node,
                    *self._options,
                ],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def _account(self, cluster: Cluster) -> Path:
        """The kubeconfig of its ServiceAccount, made once: a cluster that is away when it starts again makes none."""
        if cluster.name not in self._accounts:
            self._accounts[cluster.name] = cluster.service_account_kubeconfig("farlet", "farlet")
        return self._accounts[cluster.name]

    def ready(self) -> bool:
        """Whether it runs and its node is Ready."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"farlet ended with {self._process.returncode}: {self.log.read_text()[-3000:]}")
        try:
            conditions = self.local.api.get(f"/api/v1/nodes/{self.node}")["status"].get("conditions", [])
        except (OSError, ApiError):
            return False
        return any((condition["type"], condition["status"]) == ("Ready", "True") for condition in conditions)

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"farlet did not end after SIGTERM: {self.end_of_log()}") from None

    def end_of_log(self) -> str:
        """As much of it as helps whoever reads of a failure."""
        return self.log.read_text()[-6000:] if self.log.exists() else ""


RUNNING: list[Farlet] = []
"""Those that run now, for the report of a test that fails."""


@contextlib.contextmanager
def running(
    local: Cluster,
    remote: Cluster,
    node: str,
    folder: Path,
    *options: str,
    remote_kubeconfig: Path | None = None,
    within: tuple[str, ...] = (),
) -> Iterator[Farlet]:
    """A Farlet that runs while the block does; its node is removed afterwards."""
    install_rights(local, remote)
    farlet = Farlet(local, remote, node, folder / "farlet.log", [*ANY_PORT, *options])
    farlet.remote_kubeconfig = remote_kubeconfig
    farlet.within = within
    RUNNING.append(farlet)
    try:
        farlet.start()
        yield farlet
    except BaseException:
        print(farlet.end_of_log())  # noqa: T201 - in the report of the test that fails
        raise
    finally:
        RUNNING.remove(farlet)
        farlet.stop()
        local.kubectl("delete", "node", node, "--ignore-not-found", "--wait=false", check=False)


def install_rights(local: Cluster, remote: Cluster) -> None:
    """Apply the RBAC of ``manifests/`` once, as an administrator does; workers of one run may do it at one time."""
    clusters = local.kubeconfig.read_bytes(), remote.kubeconfig.read_bytes()
    if clusters in _with_rights:
        return
    for cluster, files in ((local, ["crds", "local-rbac.yaml", "runtimeclass.yaml"]), (remote, ["remote-rbac.yaml"])):
        for file in files:
            for _ in range(3):
                try:
                    cluster.kubectl("apply", "-f", str(MANIFESTS / file))
                    break
                except DevclusterError as error:
                    if "exists" not in str(error) and "conflict" not in str(error):
                        raise
                    time.sleep(0.2)
    _with_rights.add(clusters)


def pod_manifest(name: str, node: str, **spec: object) -> str:
    """A pod bound straight to the virtual node."""
    container = {"name": "main", "image": "farlet/busybox:1", "command": ["sleep", "1000000"]}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 1, **spec},
    }
    return json.dumps(body)
