"""Streams through real faults: the remote kubelet dies, the link is cut silently or loudly."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster import faults
from devcluster.faults import CutMode
from devcluster.fleet import Fleet
from devcluster.layout import MACHINE
from tests.cluster.farlet import Farlet, pod_manifest, running
from tests.cluster.reach import OWN, Kubectl, program, read_line
from tests.eventually import eventually

pytestmark = pytest.mark.faults


@pytest.fixture
def farlet(faulty: Fleet, faulty_namespace: str, virtual_node: str, tmp_path: Path) -> Iterator[Farlet]:
    mapped = ["--namespace", f"{faulty_namespace}={faulty_namespace}"]
    quick = tmp_path / "farlet.yaml"
    quick.write_text("probe-interval: 1\nprobe-timeout: 1\nprobe-failures: 2\non-unreachable: keep\n")
    local, remote = faulty.cluster("local"), faulty.cluster("remote")
    with running(local, remote, virtual_node, tmp_path, "--config", str(quick), *mapped) as farlet:
        yield farlet


@pytest.fixture
def kubectl(farlet: Farlet, faulty_namespace: str) -> Kubectl:
    """kubectl, with the pod ``box`` there."""
    kubectl = Kubectl(program(OWN), farlet.local, faulty_namespace)
    kubectl.says("apply", "-f", "-", stdin=pod_manifest("box", farlet.node).encode())
    kubectl.says("wait", "--for=condition=Ready", "pod/box", "--timeout=60s", timeout=70)
    return kubectl


def say(process: subprocess.Popen[bytes], text: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(text)
    process.stdin.flush()


def test_the_remote_kubelet_is_killed(farlet: Farlet, kubectl: Kubectl) -> None:
    with kubectl.started("exec", "-i", "box", "--", "cat") as process:
        say(process, b"before\n")
        assert read_line(process) == b"before\n"
        faults.kill(farlet.remote, "kubelet")
        assert process.wait(60) != 0
    refused = kubectl("logs", "box")
    assert refused.code == 1
    assert "connection refused" in refused.stderr, "the remote's own reason"
    faults.start(farlet.remote, "kubelet")
    eventually(lambda: kubectl("exec", "box", "--", "sh", "-c", "exit 6").code == 6, "it works again", timeout=120)
    eventually(lambda: farlet.figure("farlet_sessions_open") == 0, "no stream is left")


def test_a_link_that_is_cut_loudly(faulty: Fleet, farlet: Farlet, kubectl: Kubectl) -> None:
    with kubectl.started("exec", "-i", "box", "--", "cat") as process:
        say(process, b"before\n")
        assert read_line(process) == b"before\n"
        faults.cut(faulty, "remote", MACHINE, CutMode.REFUSE)
        say(process, b"into the void\n")
        assert process.wait(60) != 0
    for command in (["exec", "box", "--", "true"], ["logs", "box"]):
        refused = kubectl(*command)
        assert refused.code != 0
        assert "remote API server is not reachable" in refused.stderr
    eventually(lambda: farlet.figure("farlet_sessions_open") == 0, "no stream is left")
    faults.restore(faulty, "remote", MACHINE)
    eventually(lambda: kubectl("exec", "box", "--", "sh", "-c", "exit 6").code == 6, "it works again")


def test_a_link_that_is_cut_silently(faulty: Fleet, farlet: Farlet, kubectl: Kubectl) -> None:
    """New calls are told so; a stream outlives a short cut, with nothing lost."""
    with kubectl.started("exec", "-i", "box", "--", "cat") as process:
        say(process, b"before\n")
        assert read_line(process) == b"before\n"
        faults.cut(faulty, "remote", MACHINE)
        say(process, b"into the void\n")
        for command in (["exec", "box", "--", "true"], ["logs", "box"]):
            start = time.monotonic()
            refused = kubectl(*command)
            assert refused.code != 0
            assert "remote API server is not reachable" in refused.stderr
            assert time.monotonic() - start < 30, "long before anybody's own timeout"
        faults.restore(faulty, "remote", MACHINE)
        assert read_line(process) == b"into the void\n"
    eventually(lambda: farlet.figure("farlet_sessions_open") == 0, "no stream is left")
    eventually(lambda: kubectl("exec", "box", "--", "sh", "-c", "exit 6").code == 6, "new calls work again")
