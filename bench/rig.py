"""What is measured: two control planes, KWOK nodes in the remote one, and a Farlet between them, as a user runs it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench import usage
from bench.usage import Cpu
from bench.ways import NAMESPACE, NODE
from devcluster import kwok
from devcluster.api import Api
from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.fleet import Fleet
from devcluster.process import wait_for

FLEET, LOCAL, REMOTE = "bench", "near", "load"
_STARTED = f"node {NODE} is looked after"
MANIFESTS = Path(__file__).resolve().parents[1] / "manifests"
_LOCAL_RIGHTS, _REMOTE_RIGHTS = ("crds", "local-rbac.yaml"), ("remote-rbac.yaml",)


class Rig:
    """Two clusters, and Farlet once it was started."""

    def __init__(self, local: Cluster, remote: Cluster, nodes: int, *, profile: Path | None = None) -> None:
        self.local, self.remote, self.nodes = local, remote, nodes
        self.farlet = Farlet(local, remote, profile=profile)
        self.apis = Api(local.kubeconfig), Api(remote.kubeconfig)
        self._programs = usage.programs({"local": local, "remote": remote})

    def cpu(self) -> Cpu:
        """CPU seconds of every program so far."""
        used = {name: usage.cpu_of(pids) for name, pids in self._programs.items()}
        return used | {"Farlet": self.farlet.cpu()}


@contextlib.contextmanager
def rig(nodes: int, *, keep: bool, profile: Path | None = None) -> Iterator[Rig]:
    """Clusters for one benchmark; with *keep* they are left for the next one, with *profile* Farlet is profiled."""
    fleet = Fleet(FLEET)
    try:
        fleet.up([REMOTE], real=False, kwok_nodes=nodes, metrics=False)
        fleet.up([LOCAL], real=False, metrics=False)
        made = Rig(fleet.cluster(LOCAL), fleet.cluster(REMOTE), nodes, profile=profile)
        try:
            yield made
        finally:
            made.farlet.stop()
    finally:
        if not keep:
            fleet.down()


class Farlet:
    """One ``farlet run``."""

    def __init__(
        self,
        local: Cluster,
        remote: Cluster,
        *,
        profile: Path | None = None,
        reachable: bool = False,
        options: Sequence[str] = (),
    ) -> None:
        """With *reachable*, the local API server gets at its kubelet API."""
        self._health = f"127.0.0.1:{_free_port()}"
        self._module = ["app"] if profile is None else ["bench.profiler", str(profile), "app"]
        near, far = _as_a_service_account(local, *_LOCAL_RIGHTS), _as_a_service_account(remote, *_REMOTE_RIGHTS)
        self._arguments = ["--kubeconfig", str(near), "--remote-kubeconfig", str(far)]
        self._arguments += ["--node-name", NODE, "--namespace", f"{NAMESPACE}={NAMESPACE}"]
        self._arguments += ["--health-address", self._health]
        self._arguments += ["--kubelet-address", "0.0.0.0:0" if reachable else "127.0.0.1:0"]
        self._arguments += ["--serving-certificate", "csr" if reachable else "self-signed"]
        self._arguments += ["--remote-toleration", kwok.TAINT["key"], "--capacity", "cpu=10k,memory=100Ti,pods=20k"]
        self._arguments += options
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory()
        self._log = Path(self._folder.name) / "farlet.log"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def cpu(self) -> float:
        return usage.cpu_of([self._process.pid]) if self._process else 0.0

    def start(self) -> tuple[float, float]:
        """Start it; the seconds until its caches were complete, and until it worked."""
        start = time.monotonic()
        with self._log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._module, "run", *self._arguments],
                stdout=file,
                stderr=file,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self._until(self._synced, "its caches were not complete")
        synced = time.monotonic() - start
        self._until(lambda: _STARTED in self._log.read_text(), "it did not begin to work")
        return synced, time.monotonic() - start

    def stop(self) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)
        self._process = None

    def wait_idle(self, timeout: float = 120.0) -> None:
        """Wait until it uses next to no CPU."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            before = self.cpu()
            time.sleep(1)
            if self.cpu() - before <= 0.03:
                return
        raise DevclusterError(f"farlet was not idle within {timeout:.0f} s")

    def _until(self, condition: Callable[[], bool], problem: str) -> None:
        process = self._process
        assert process is not None
        reached = wait_for(lambda: process.poll() is not None or condition(), 120, 0.05)
        if not reached or process.poll() is not None:
            raise DevclusterError(f"farlet: {problem}: {self._log.read_text()[-2000:]}")

    def _synced(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self._health}/readyz?verbose", timeout=5) as answer:
                return b"[+]caches ok" in answer.read()
        except OSError:
            return False


def _as_a_service_account(cluster: Cluster, *rights: str) -> Path:
    """A kubeconfig with the rights of ``manifests/``. A token also costs API servers less than a certificate does,
    which they check anew with each request."""
    for manifest in rights:
        cluster.kubectl("apply", "-f", str(MANIFESTS / manifest))
    return cluster.service_account_kubeconfig("farlet", "farlet")


def _free_port() -> int:
    """Several benchmarks can run on one machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
