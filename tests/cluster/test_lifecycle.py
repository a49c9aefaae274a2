"""Clusters come and go without a trace: twice is once, crashes are cleaned up, checkouts do not meet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.fleet import Fleet
from devcluster.process import wait_for
from tests.cluster.pods import run_pod, shell
from tests.eventually import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.xdist_group("scratch"),  # one at a time: each has clusters of its own besides the shared ones
]

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture
def scratch(elsewhere: Path) -> Iterator[Fleet]:
    """A fleet as another checkout has it, beside the shared one; whatever the test leaves is removed."""
    fleet = Fleet("scratch")
    yield fleet
    fleet.down()


def devcluster(*arguments: str, state: Path) -> subprocess.Popen[str]:
    """Start ``python -m devcluster ...`` in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "devcluster", *arguments],
        cwd=CHECKOUT,
        env={**os.environ, "FARLET_DEVCLUSTER_STATE": str(state)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def traces(fleet_id: str, state: Path) -> list[str]:
    """Everything on this machine that carries a fleet's name: found without asking devcluster."""
    found = [f"netns {path.name}" for path in Path("/run/netns").glob(f"farlet-{fleet_id}-*")]
    links = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True).stdout
    found += [f"link {line.split()[0]}" for line in links.splitlines() if line.startswith(f"fl{fleet_id}")]
    for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/*"):
        found += [f"cgroup {path}" for path in Path("/").glob(f"{root[1:]}/farlet-{fleet_id}-*")]
    found += [f"mount {line}" for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(state) in line]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            groups = (process / "cgroup").read_text()
            state_letter = (process / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if state_letter == "Z":  # ended; its new parent has not collected it yet
            continue
        # the state folder is in the arguments of everything but containers and shims, which the cgroup tells
        if (str(state) in command or f"farlet-{fleet_id}-" in groups) and int(process.name) != os.getpid():
            found.append(f"process {process.name}: {command[:120]}")
    return found


def pids(cluster: Cluster) -> dict[str, int]:
    return {part.name: identity.pid for part in cluster.components() if (identity := part.identity())}


def test_up_twice_is_a_no_op(fleet: Fleet) -> None:
    before = {cluster.name: pids(cluster) for cluster in fleet.clusters()}
    fleet.up()
    assert {cluster.name: pids(cluster) for cluster in fleet.clusters()} == before


def test_two_checkouts_do_not_collide(fleet: Fleet, scratch: Fleet, namespace: str) -> None:
    """The same cluster name in another checkout, while the shared one runs: other addresses, other everything."""
    scratch.up(["local"], metrics=False)
    here, there = fleet.cluster("local"), scratch.cluster("local")
    assert here.layout.node_network != there.layout.node_network
    assert here.layout.netns != there.layout.netns
    run_pod(there, "default", "box", "echo theirs >/tmp/whose; exec sleep 1000000")
    run_pod(here, namespace, "box", "echo ours >/tmp/whose; exec sleep 1000000")
    assert shell(there, "default", "box", "cat /tmp/whose") == "theirs\n"
    scratch.down()
    assert shell(here, namespace, "box", "cat /tmp/whose") == "ours\n", "taking theirs down left ours alone"
    assert here.healthy()


def test_down_leaves_nothing(scratch: Fleet) -> None:
    scratch.up(["one"], metrics=False)
    run_pod(scratch.cluster("one"), "default", "box")
    folder, identifier = scratch.layout.folder, scratch.layout.id
    assert traces(identifier, folder), "the search for traces finds a running fleet"
    scratch.down()
    assert traces(identifier, folder) == []
    assert not folder.exists()
    scratch.down()  # and again: nothing to do is not an error


def test_a_killed_starter_leaves_nothing_after_down(scratch: Fleet, elsewhere: Path) -> None:
    """kill -9 of ``up`` with its whole process group, at moments that are spread over the start."""
    folder, identifier = scratch.layout.folder, scratch.layout.id
    for milestone in ("etcd.pid", "host.pid", "kube-controller-manager.pid", "kubelet.pid"):
        starter = devcluster("up", "--clusters=one", "--no-metrics", "--fleet=scratch", state=elsewhere)
        record = folder / "one" / "run" / milestone
        reached = wait_for(record.exists, 60, 0.01)
        os.killpg(starter.pid, signal.SIGKILL)
        output, _ = starter.communicate()
        assert reached, f"up never came to {milestone}: {output}"
        assert traces(identifier, folder), f"killed at {milestone}: something is left to clean up"
        stopper = devcluster("down", "--fleet=scratch", state=elsewhere)
        output, _ = stopper.communicate(timeout=60)
        assert stopper.returncode == 0, output
        assert traces(identifier, folder) == [], f"killed at {milestone}"


def test_up_after_everything_was_killed_goes_on_with_the_data(scratch: Fleet) -> None:
    scratch.up(["one"], metrics=False)
    cluster = scratch.cluster("one")
    run_pod(cluster, "default", "box", restartPolicy="Always")
    uid = _uid(cluster)
    for pid in cluster.processes():  # components, shims and containers alike
        os.kill(pid, signal.SIGKILL)
    scratch.up(["one"], metrics=False)
    assert _uid(cluster) == uid, "the pod is the same object"

    def answers() -> str:
        return shell(cluster, "default", "box", "echo back")

    assert eventually(answers, "the pod's container runs again", timeout=120) == "back\n"


def test_stop_and_start_keep_the_data(scratch: Fleet) -> None:
    scratch.up(["one"], metrics=False)
    cluster = scratch.cluster("one")
    cluster.kubectl("create", "configmap", "kept", "--from-literal=a=b")
    scratch.down(keep=True)
    assert scratch.leftovers() == []
    scratch.up(["one"], metrics=False)
    assert cluster.kubectl("get", "configmap", "kept", "-o", "jsonpath={.data.a}").stdout == "b"


def test_after_a_reboot(scratch: Fleet) -> None:
    """Records of another boot name processes that are not ours, whatever their numbers are now."""
    scratch.up(["one"], real=False, metrics=False)
    cluster = scratch.cluster("one")
    innocent = subprocess.Popen(["sleep", "600"])
    try:
        stat = Path(f"/proc/{innocent.pid}/stat").read_text().strip()
        cluster.component("kube-scheduler").kill()
        record = cluster.layout.run / "kube-scheduler.pid"
        record.write_text(f"00000000-0000-0000-0000-000000000000\n{stat}\n")
        assert not cluster.component("kube-scheduler").alive()
        scratch.down()
        assert innocent.poll() is None, "down ended a process that it did not start"
    finally:
        innocent.kill()
        innocent.wait()


def test_isolated_clusters_have_no_routes_between_pods(scratch: Fleet) -> None:
    scratch.up(["one", "two"], metrics=False, isolated=True)
    one, two = scratch.cluster("one"), scratch.cluster("two")
    run_pod(one, "default", "client")
    run_pod(two, "default", "web", "exec nc -l -p 8080 -e echo hello")
    address = two.kubectl("get", "pod", "web", "-o", "jsonpath={.status.podIP}").stdout
    refused = one.kubectl("exec", "client", "--", "nc", "-w", "3", address, "8080", check=False)
    assert refused.returncode != 0, "a pod reached a pod of an isolated cluster"
    shell(one, "default", "client", f"nc -w 3 {two.layout.ip} 6443 </dev/null")  # their API server is reachable


def test_a_failing_component_is_named_with_its_log(
    scratch: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "bin"
    broken.mkdir()
    (broken / "etcd").write_text("#!/bin/sh\necho etcd is broken today >&2\nexit 1\n")
    (broken / "etcd").chmod(0o755)
    monkeypatch.setenv("FARLET_DEVCLUSTER_BIN", str(broken))
    with pytest.raises(DevclusterError, match=r"(?s)etcd of cluster one ended .*etcd is broken today"):
        scratch.up(["one"], real=False, metrics=False)


def test_up_can_be_interrupted(scratch: Fleet, elsewhere: Path) -> None:
    """Ctrl-C in the middle: one line, no traceback, soon; and `down` cleans up."""
    starter = devcluster("up", "--clusters=one,two", "--no-metrics", "--fleet=scratch", state=elsewhere)
    assert wait_for((scratch.layout.folder / "one" / "run" / "kube-apiserver.pid").exists, 60)
    starter.send_signal(signal.SIGINT)
    output, _ = starter.communicate(timeout=60)
    assert starter.returncode == 130, output
    assert "Traceback" not in output
    assert "interrupted" in output


def _uid(cluster: Cluster) -> str:
    return cluster.kubectl("get", "pod", "box", "-o", "jsonpath={.metadata.uid}").stdout
