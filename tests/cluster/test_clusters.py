"""Both clusters are what they claim to be: whole, strict, and joined."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from devcluster import versions
from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.fleet import Fleet
from devcluster.status import collect
from tests.cluster import audit
from tests.cluster.pods import pod_ip, run_pod, shell
from tests.eventually import eventually

pytestmark = pytest.mark.cluster


def test_everything_runs(fleet: Fleet) -> None:
    state = collect(fleet)
    assert [cluster.name for cluster in state.clusters] == ["local", "remote"]
    assert state.healthy, state
    assert all(cluster.nodes_ready >= 1 for cluster in state.clusters)  # other tests have virtual nodes in them
    assert all(cluster.memory > 0 for cluster in state.clusters)


def test_versions_are_what_we_say(cluster: Cluster) -> None:
    """An API server that reports v0.0.0 makes clients misbehave."""
    server = json.loads(cluster.kubectl("version", "-o", "json").stdout)["serverVersion"]
    kubelet = cluster.kubectl("get", "nodes", "-o", "jsonpath={.items[0].status.nodeInfo.kubeletVersion}").stdout
    assert server["gitVersion"] == kubelet == f"v{versions.KUBERNETES}"


def test_exec_logs_and_cp(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    run_pod(cluster, namespace, "box", "echo to the log; exec sleep 1000000")
    assert cluster.kubectl("-n", namespace, "logs", "box").stdout == "to the log\n"

    assert shell(cluster, namespace, "box", "cat; echo done", stdin="through stdin\n") == "through stdin\ndone\n"
    failing = cluster.kubectl("-n", namespace, "exec", "box", "--", "sh", "-c", "exit 3", check=False)
    assert failing.returncode == 3

    content = os.urandom(300_000)
    there, back = tmp_path / "there", tmp_path / "back"
    there.write_bytes(content)
    cluster.kubectl("-n", namespace, "cp", str(there), "box:/tmp/file")
    digest = shell(cluster, namespace, "box", "sha256sum /tmp/file").split()[0]
    assert digest == hashlib.sha256(content).hexdigest()
    cluster.kubectl("-n", namespace, "cp", "box:/tmp/file", str(back))
    assert back.read_bytes() == content


def test_port_forward(cluster: Cluster, namespace: str) -> None:
    run_pod(cluster, namespace, "web", "mkdir /www; echo over the tunnel >/www/page; exec httpd -f -p 8080 -h /www")
    with (
        _port_forward(cluster, namespace, "web", 8080) as port,
        urllib.request.urlopen(f"http://127.0.0.1:{port}/page", timeout=10) as answer,
    ):
        assert answer.read() == b"over the tunnel\n"


@contextlib.contextmanager
def _port_forward(cluster: Cluster, namespace: str, pod: str, port: int) -> Iterator[int]:
    command = cluster.kubectl_command("-n", namespace, "port-forward", f"pod/{pod}", f":{port}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            match = re.search(r"127\.0\.0\.1:(\d+) ->", line)
            assert match, f"kubectl port-forward said {line!r}"
            yield int(match[1])
        finally:
            process.terminate()


def test_service_and_dns(cluster: Cluster, namespace: str) -> None:
    run_pod(cluster, namespace, "web", "mkdir /www; echo by name >/www/page; exec httpd -f -p 8080 -h /www")
    cluster.kubectl("-n", namespace, "expose", "pod", "web", "--port=80", "--target-port=8080")
    run_pod(cluster, namespace, "client")

    def fetch() -> str:
        return shell(cluster, namespace, "client", f"wget -qO- http://web.{namespace}.svc.cluster.local/page")

    assert eventually(fetch, "the Service by its name") == "by name\n"
    assert shell(cluster, namespace, "client", "wget -qO- http://web/page") == "by name\n", "search domains"


def test_pods_reach_the_api_server(cluster: Cluster, namespace: str) -> None:
    """Through the kubernetes Service, with the pod's own token, as every controller in a cluster does."""
    run_pod(cluster, namespace, "client")
    environment = shell(cluster, namespace, "client", "echo $KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT")
    assert environment.strip() == f"{cluster.layout.kubernetes_service_ip}:443"
    shell(cluster, namespace, "client", "nc -w 5 $KUBERNETES_SERVICE_HOST 443 </dev/null")


@pytest.mark.parametrize(("here", "there"), [("local", "remote"), ("remote", "local")])
def test_pods_reach_pods_of_the_other_cluster(fleet: Fleet, namespace: str, here: str, there: str) -> None:
    one, other = fleet.cluster(here), fleet.cluster(there)
    name = f"web-{here}"
    run_pod(other, namespace, name, f"mkdir /www; echo from {there} >/www/page; exec httpd -f -p 8080 -h /www")
    run_pod(one, namespace, f"client-{here}")
    url = f"http://{pod_ip(other, namespace, name)}:8080/page"
    assert shell(one, namespace, f"client-{here}", f"wget -qO- {url}") == f"from {there}\n"


def test_a_volume_is_provisioned_and_keeps_its_data(cluster: Cluster, namespace: str) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "16Mi"}}},
    }
    cluster.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps(claim))
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    mount = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    run_pod(cluster, namespace, "writer", "echo kept >/data/file; exec sleep 1000000", volumes=volumes, container=mount)
    phase = cluster.kubectl("-n", namespace, "get", "pvc", "data", "-o", "jsonpath={.status.phase}").stdout
    assert phase == "Bound"
    cluster.kubectl("-n", namespace, "delete", "pod", "writer")
    run_pod(cluster, namespace, "reader", volumes=volumes, container=mount)
    assert shell(cluster, namespace, "reader", "cat /data/file") == "kept\n"


def test_a_certificate_request_is_signed(cluster: Cluster, namespace: str) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, namespace)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    body = {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": namespace},
        "spec": {
            "request": base64.b64encode(request.public_bytes(serialization.Encoding.PEM)).decode(),
            "signerName": "kubernetes.io/kube-apiserver-client",
            "usages": ["client auth"],
        },
    }
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(body))
    cluster.kubectl("certificate", "approve", namespace)

    def certificate() -> str:
        return cluster.kubectl("get", "csr", namespace, "-o", "jsonpath={.status.certificate}").stdout

    pem = base64.b64decode(eventually(certificate, "the controller signs the request"))
    ca = x509.load_pem_x509_certificate((cluster.layout.pki / "ca.crt").read_bytes())
    x509.load_pem_x509_certificate(pem).verify_directly_issued_by(ca)


def test_the_kubelet_serves_a_certificate_of_the_clusters_authority(cluster: Cluster) -> None:
    """Which the API server verifies (--kubelet-certificate-authority), so that a wrong one would fail every exec."""
    context = ssl.create_default_context(cafile=str(cluster.layout.pki / "ca.crt"))
    address = str(cluster.layout.ip)
    with (
        socket.create_connection((address, 10250), timeout=10) as raw,
        context.wrap_socket(raw, server_hostname=address) as secured,
    ):
        assert secured.version() == "TLSv1.3"


def test_kubectl_top(cluster: Cluster) -> None:
    def top() -> str:
        return cluster.kubectl("top", "node", "--no-headers", check=False).stdout

    row = eventually(top, "metrics-server answers `kubectl top node`", timeout=120).split()
    assert row[0] == cluster.layout.node_name
    assert row[1].endswith("m"), row


def test_a_daemonset_tolerates_everything(cluster: Cluster) -> None:
    """Its pod runs on the real node. On virtual nodes of other tests it has one too, which never will."""

    def phase() -> str:
        where = [
            "-l",
            "app.kubernetes.io/name=node-agent",
            f"--field-selector=spec.nodeName={cluster.layout.node_name}",
        ]
        shown = ["-o", "jsonpath={.items[*].status.phase}"]
        return cluster.kubectl("-n", "kube-system", "get", "pods", *where, *shown).stdout

    eventually(phase, "the agent runs on the real node", until=lambda seen: seen == "Running")
    path = "jsonpath={.spec.template.spec.tolerations}"
    shown = cluster.kubectl("-n", "kube-system", "get", "daemonset", "node-agent", "-o", path).stdout
    assert json.loads(shown) == [{"operator": "Exists"}]


class TestAsStrictAsProduction:
    def test_no_anonymous_access(self, cluster: Cluster) -> None:
        context = ssl.create_default_context(cafile=str(cluster.layout.pki / "ca.crt"))
        for path in ("/api", "/readyz", "/version"):
            with pytest.raises(urllib.error.HTTPError) as refusal:
                urllib.request.urlopen(cluster.layout.server + path, context=context, timeout=10)
            with refusal.value:
                assert refusal.value.code == 401, path

    def test_the_kubelet_refuses_strangers(self, cluster: Cluster) -> None:
        context = ssl.create_default_context(cafile=str(cluster.layout.pki / "ca.crt"))
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(f"https://{cluster.layout.ip}:10250/pods", context=context, timeout=10)
        with refusal.value:
            assert refusal.value.code == 401

    def test_etcd_wants_a_client_certificate(self, cluster: Cluster) -> None:
        authority = str(cluster.layout.pki / "etcd-ca.crt")
        script = (
            f"import ssl,urllib.request as u; c=ssl.create_default_context(cafile={authority!r});"
            "u.urlopen('https://127.0.0.1:2379/health', context=c, timeout=5)"
        )
        command = ["nsenter", f"--net={cluster.layout.netns_path}", "--", "python3", "-c", script]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode != 0
        assert "CERTIFICATE_REQUIRED" in result.stderr.upper().replace(" ", "_"), result.stderr[-500:]

    def test_a_service_account_has_no_rights_by_itself(self, cluster: Cluster, namespace: str) -> None:
        kubeconfig = cluster.service_account_kubeconfig(namespace, "nobody")
        refused = cluster.kubectl("get", "pods", kubeconfig=kubeconfig, check=False)
        assert refused.returncode == 1
        assert f'User "system:serviceaccount:{namespace}:nobody" cannot list resource "pods"' in refused.stderr

    def test_a_service_account_with_a_role(self, cluster: Cluster, namespace: str) -> None:
        kubeconfig = cluster.service_account_kubeconfig(namespace, "reader", cluster_role="view")
        cluster.kubectl("get", "pods", kubeconfig=kubeconfig)
        assert cluster.kubectl("get", "secrets", kubeconfig=kubeconfig, check=False).returncode == 1

    def test_a_kubelet_may_only_change_its_own_node(self, cluster: Cluster) -> None:
        kubelet = cluster.layout.kubeconfig("kubelet")
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "not-mine"}}
        refused = cluster.kubectl("create", "-f", "-", stdin=json.dumps(node), kubeconfig=kubelet, check=False)
        assert "is not allowed to modify node" in refused.stderr

    def test_pod_security_admission(self, cluster: Cluster, namespace: str) -> None:
        cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
        with pytest.raises(DevclusterError, match='violates PodSecurity "restricted'):
            run_pod(cluster, namespace, "refused")

    def test_the_audit_log_says_who_wrote_what(self, cluster: Cluster, namespace: str) -> None:
        before = audit.mark(cluster)
        cluster.kubectl("-n", namespace, "create", "configmap", "audited")

        def entries() -> list[str]:
            return [
                event["user"].get("username")
                for event, item in audit.about(cluster, before, namespace, user="*")
                if event["verb"] == "create" and item.get("name") == "audited"
            ]

        assert eventually(entries, "the audit log shows the write") == ["admin"]
