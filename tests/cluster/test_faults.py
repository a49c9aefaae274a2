"""Each fault does what it says, and is undone."""

from __future__ import annotations

import socket
import subprocess
import time

import pytest

from devcluster import faults
from devcluster.cluster import Cluster, node_is_ready
from devcluster.errors import DevclusterError
from devcluster.faults import CutMode, Method
from devcluster.fleet import Fleet
from devcluster.layout import MACHINE
from devcluster.relay import Weather
from tests.cluster.pods import pod_ip, run_pod, shell
from tests.eventually import eventually

pytestmark = pytest.mark.faults

PAGE = "mkdir /www; echo here >/www/page; exec httpd -f -p 8080 -h /www"


@pytest.fixture
def remote(faulty: Fleet) -> Cluster:
    return faulty.cluster("remote")


def connect_from(cluster: Cluster, address: str, port: int) -> str:
    """What a TCP connection from a cluster's host comes to: ``open``, ``refused`` or ``silence``."""
    script = (
        "import socket\n"
        f"try: socket.create_connection(({address!r}, {port}), timeout=2); print('open')\n"
        "except TimeoutError: print('silence')\n"
        "except ConnectionRefusedError: print('refused')\n"
    )
    command = ["nsenter", f"--net={cluster.layout.netns_path}", "--", "python3", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


class TestLinks:
    @pytest.mark.parametrize(("mode", "seen"), [(CutMode.DROP, "silence"), (CutMode.REFUSE, "refused")])
    def test_between_clusters(self, faulty: Fleet, faulty_namespace: str, mode: CutMode, seen: str) -> None:
        local, remote = faulty.cluster("local"), faulty.cluster("remote")
        run_pod(local, faulty_namespace, "client")
        run_pod(remote, faulty_namespace, "web", PAGE)
        fetch = f"wget -qO- http://{pod_ip(remote, faulty_namespace, 'web')}:8080/page"
        assert shell(local, faulty_namespace, "client", fetch) == "here\n"

        faults.cut(faulty, "local", "remote", mode)
        assert faults.active(faulty) == ["link local - remote is cut"]
        assert connect_from(local, str(remote.layout.ip), 6443) == seen
        assert connect_from(remote, str(local.layout.ip), 6443) == seen, "both ways"
        script = f"nc -w 2 {pod_ip(remote, faulty_namespace, 'web')} 8080 </dev/null"
        with pytest.raises(DevclusterError):
            shell(local, faulty_namespace, "client", script)
        assert local.healthy(), "this machine still reaches one side"
        assert remote.healthy(), "and the other"

        faults.restore(faulty, "local", "remote")
        assert connect_from(local, str(remote.layout.ip), 6443) == "open"
        assert shell(local, faulty_namespace, "client", fetch) == "here\n"
        assert faults.active(faulty) == []

    @pytest.mark.parametrize(
        ("mode", "error"), [(CutMode.DROP, TimeoutError), (CutMode.REFUSE, ConnectionRefusedError)]
    )
    def test_to_this_machine(self, faulty: Fleet, remote: Cluster, mode: CutMode, error: type[OSError]) -> None:
        local = faulty.cluster("local")
        faults.cut(faulty, "remote", MACHINE, mode)
        with pytest.raises(error):
            socket.create_connection((str(remote.layout.ip), 6443), timeout=2)
        assert connect_from(local, str(remote.layout.ip), 6443) == "open", "the other cluster still reaches it"
        faults.restore(faulty, "remote", MACHINE)
        socket.create_connection((str(remote.layout.ip), 6443), timeout=10).close()

    def test_an_open_connection_falls_silent(self, faulty: Fleet, faulty_namespace: str) -> None:
        """Not only new connections are cut."""
        remote = faulty.cluster("remote")
        command = remote.kubectl_command("-n", faulty_namespace, "get", "configmaps", "--watch", "-o", "name")
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
            assert watch.stdout is not None
            assert watch.stdout.readline() == "configmap/kube-root-ca.crt\n"
            faults.cut(faulty, "remote", MACHINE)
            # behind the cut, from the cluster's own network namespace
            inside = ["nsenter", f"--net={remote.layout.netns_path}", "--"]
            create = remote.kubectl_command("-n", faulty_namespace, "create", "configmap", "unseen")
            subprocess.run([*inside, *create], check=True, capture_output=True, timeout=30)
            time.sleep(1)
            faults.restore(faulty, "remote", MACHINE)
            line = watch.stdout.readline()
            watch.terminate()
        assert line == "configmap/unseen\n", "TCP delivers it once the link is back"


class TestComponents:
    def test_killed_and_started(self, remote: Cluster) -> None:
        before = remote.component("kube-apiserver").identity()
        faults.kill(remote, "kube-apiserver")
        assert remote.component("kube-apiserver").state() == "dead"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((str(remote.layout.ip), 6443), timeout=5)
        with pytest.raises(DevclusterError, match="kube-apiserver of cluster remote is not running"):
            faults.kill(remote, "kube-apiserver")
        faults.start(remote, "kube-apiserver")
        eventually(remote.healthy, "the cluster is healthy again", timeout=60)
        assert remote.component("kube-apiserver").identity() != before

    def test_paused_and_resumed(self, faulty: Fleet, remote: Cluster) -> None:
        before = remote.component("kube-apiserver").identity()
        faults.pause(remote, "kube-apiserver")
        assert "kube-apiserver of remote is paused" in faults.active(faulty)
        hung = remote.kubectl("get", "namespaces", "--request-timeout=2s", check=False)
        assert hung.returncode != 0
        faults.resume(remote, "kube-apiserver")
        eventually(remote.healthy, "the cluster is healthy again", timeout=60)
        assert remote.component("kube-apiserver").identity() == before, "the same process goes on"

    @pytest.mark.parametrize(
        "component", ["etcd", "kube-controller-manager", "kube-scheduler", "coredns", "containerd"]
    )
    def test_restarted(self, remote: Cluster, faulty_namespace: str, component: str) -> None:
        run_pod(remote, faulty_namespace, "box", "echo $$ >/tmp/pid; exec sleep 1000000")
        before = remote.component(component).identity()
        faults.restart(remote, component)
        after = remote.component(component).identity()
        assert after is not None
        assert after != before
        eventually(remote.healthy, "the cluster is healthy again", timeout=60)
        restarts = "jsonpath={.status.containerStatuses[0].restartCount}"
        count = remote.kubectl("-n", faulty_namespace, "get", "pod", "box", "-o", restarts).stdout
        assert count == "0", "running containers do not notice"

    def test_a_kubelet_stopped_and_started(self, remote: Cluster, faulty_namespace: str) -> None:
        run_pod(remote, faulty_namespace, "box")
        faults.stop(remote, "kubelet")
        refused = remote.kubectl("-n", faulty_namespace, "exec", "box", "--", "true", check=False)
        assert "connection refused" in refused.stderr
        eventually(lambda: not any(map(node_is_ready, remote.nodes())), "the node becomes NotReady", timeout=120)
        faults.start(remote, "kubelet")
        eventually(lambda: all(map(node_is_ready, remote.nodes())), "the node is Ready again", timeout=60)
        echo = lambda: shell(remote, faulty_namespace, "box", "echo same")  # noqa: E731
        assert eventually(echo, "the container can be reached again") == "same\n"

    def test_an_unknown_component_is_refused_with_the_known_ones(self, remote: Cluster) -> None:
        with pytest.raises(DevclusterError, match=r"has no component 'kubectl'; it has: etcd, kube-apiserver"):
            faults.kill(remote, "kubectl")


class TestLatency:
    def test_relay(self, faulty: Fleet, remote: Cluster) -> None:
        slow = faults.slow(remote, Weather(delay=0.3), Method.RELAY)
        assert faults.active(faulty) == ["the way to remote is slow"]
        assert remote.kubectl("get", "nodes", "-o", "name", kubeconfig=slow).stdout == "node/remote-node\n"
        faults.fast(remote)
        refused = remote.kubectl("get", "nodes", kubeconfig=slow, check=False)
        assert "refused" in refused.stderr
        assert faults.active(faulty) == []

    def test_relay_that_hangs(self, remote: Cluster) -> None:
        slow = faults.slow(remote, Weather(hang=True), Method.RELAY)
        hung = remote.kubectl("get", "nodes", "--request-timeout=2s", kubeconfig=slow, check=False)
        assert "imeout" in hung.stderr or "deadline exceeded" in hung.stderr, hung.stderr
        assert remote.healthy(), "the straight way is not touched"

    def test_relay_with_loss_carries_everything(self, remote: Cluster, faulty_namespace: str) -> None:
        run_pod(remote, faulty_namespace, "box", "seq 1 20000; exec sleep 1000000")
        slow = faults.slow(remote, Weather(delay=0.005, jitter=0.005, loss=0.1), Method.RELAY)
        log = remote.kubectl("-n", faulty_namespace, "logs", "box", kubeconfig=slow).stdout
        assert log.split() == [str(number) for number in range(1, 20001)]


class TestCredentials:
    def test_an_expired_certificate(self, remote: Cluster) -> None:
        remote.kubectl("get", "nodes")
        faults.expire(remote, remote.kubeconfig)
        refused = remote.kubectl("get", "nodes", check=False)
        assert "Unauthorized" in refused.stderr or "must be logged in" in refused.stderr, refused.stderr
        faults.renew(remote.kubeconfig)
        remote.kubectl("get", "nodes")

    def test_an_expired_token(self, remote: Cluster, faulty_namespace: str) -> None:
        kubeconfig = remote.service_account_kubeconfig(faulty_namespace, "caller", cluster_role="view")
        remote.kubectl("get", "pods", kubeconfig=kubeconfig)
        faults.expire(remote, kubeconfig)
        refused = remote.kubectl("get", "pods", kubeconfig=kubeconfig, check=False)
        assert "must be logged in" in refused.stderr, refused.stderr
        faults.renew(kubeconfig)
        remote.kubectl("get", "pods", kubeconfig=kubeconfig)

    def test_a_revoked_token(self, remote: Cluster, faulty_namespace: str) -> None:
        kubeconfig = remote.service_account_kubeconfig(faulty_namespace, "caller", cluster_role="view")
        remote.kubectl("get", "pods", kubeconfig=kubeconfig)
        faults.revoke(remote, faulty_namespace, "caller")

        def refused() -> bool:
            answer = remote.kubectl("get", "pods", kubeconfig=kubeconfig, check=False)
            return "must be logged in" in answer.stderr

        eventually(refused, "the API server forgets the token", timeout=30)
        again = remote.service_account_kubeconfig(faulty_namespace, "caller")
        remote.kubectl("get", "pods", kubeconfig=again)
