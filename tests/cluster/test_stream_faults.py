"""Streams through real faults: the remote kubelet dies, the link is cut silently or loudly."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
    return with_box(farlet, faulty_namespace)


def with_box(farlet: Farlet, namespace: str) -> Kubectl:
    """kubectl, with the pod ``box`` there."""
    kubectl = Kubectl(program(OWN), farlet.local, namespace)
    kubectl.says("apply", "-f", "-", stdin=pod_manifest("box", farlet.node).encode())
    kubectl.says("wait", "--for=condition=Ready", "pod/box", "--timeout=120s", timeout=130)
    return kubectl


def say(process: subprocess.Popen[bytes], text: bytes) -> None:
    """As a person types: nothing stays in a buffer of ours, which would be written again when it is closed."""
    assert process.stdin is not None
    os.write(process.stdin.fileno(), text)


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
        with contextlib.suppress(BrokenPipeError):  # it may have noticed by itself
            say(process, b"into the void\n")
        assert process.wait(60) != 0
    for command in (["exec", "box", "--", "true"], ["logs", "box"]):
        refused = kubectl(*command)
        assert refused.code != 0
        assert "remote API server is not reachable" in refused.stderr
    eventually(lambda: farlet.figure("farlet_sessions_open") == 0, "no stream is left")
    faults.restore(faulty, "remote", MACHINE)
    eventually(lambda: kubectl("exec", "box", "--", "sh", "-c", "exit 6").code == 6, "it works again")


def test_streams_over_a_link_that_stays_cut(
    faulty: Fleet, faulty_namespace: str, virtual_node: str, tmp_path: Path
) -> None:
    """Into one the system would send what nobody acknowledges again and again, for a quarter of an hour.

    Of the other, a quiet log, nothing is missed; only the remote's system, asked, no longer answers.
    """
    mapped = ["--namespace", f"{faulty_namespace}={faulty_namespace}"]
    options = [*mapped, "--on-unreachable", "keep", "--stream-stall", "2"]
    with running(faulty.cluster("local"), faulty.cluster("remote"), virtual_node, tmp_path, *options) as farlet:
        kubectl = with_box(farlet, faulty_namespace)
        with kubectl.started("logs", "-f", "box") as log, kubectl.started("exec", "-i", "box", "--", "cat") as process:
            say(process, b"before\n")
            assert read_line(process) == b"before\n"
            eventually(lambda: farlet.figure("farlet_sessions_open") == 2, "the log is followed")
            with pytest.raises(subprocess.TimeoutExpired):
                log.wait(8)  # several times what a silent end is given
            assert process.poll() is None
            faults.cut(faulty, "remote", MACHINE)
            try:
                say(process, b"into the void\n")
                assert process.wait(60) != 0
                log.wait(60)  # API servers tell their clients of no difference between this and a log's own end
            finally:
                faults.restore(faulty, "remote", MACHINE)
        eventually(lambda: farlet.figure("farlet_sessions_open") == 0, "no stream is left")
        text = farlet.local.api.text(f"/api/v1/nodes/{farlet.node}/proxy/metrics")
        for kind in ("exec", "logs"):
            assert f'farlet_sessions_total{{kind="{kind}",result="stalled"}} 1.0' in text
        assert 'result="stalled"' in farlet.log.read_text(), "the audit line"


def test_a_link_that_is_cut_silently(faulty: Fleet, farlet: Farlet, kubectl: Kubectl) -> None:
    """New calls are told so; a stream outlives a short cut, with nothing lost."""
    with kubectl.started("exec", "-i", "box", "--", "cat") as process:
        say(process, b"before\n")
        assert read_line(process) == b"before\n"
        faults.cut(faulty, "remote", MACHINE)
        say(process, b"into the void\n")
        commands = (["exec", "box", "--", "true"], ["logs", "box"])
        with ThreadPoolExecutor() as pool:  # the longer the cut, the longer the system waits before it sends again
            for refused in pool.map(lambda command: kubectl(*command), commands):
                assert refused.code != 0
                assert "remote API server is not reachable" in refused.stderr
        faults.restore(faulty, "remote", MACHINE)
        assert read_line(process) == b"into the void\n"
    eventually(lambda: farlet.figure("farlet_sessions_open") == 0, "no stream is left")
    eventually(lambda: kubectl("exec", "box", "--", "sh", "-c", "exit 6").code == 6, "new calls work again")
