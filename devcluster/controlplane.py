"""The control plane of a cluster: etcd, kube-apiserver, kube-controller-manager and kube-scheduler.

As strict as a production cluster: TLS with client certificates everywhere, RBAC with the Node authorizer and
NodeRestriction, verified kubelet certificates, the aggregation layer, an audit log, no anonymous access. What
differs is only what one machine needs: etcd does not sync to disk, nobody elects a leader, and the clients of the
controllers are not held to 20 requests a second.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from devcluster.layout import API_PORT, ClusterLayout
from devcluster.process import Command, write_changed

ETCD, API_SERVER, CONTROLLER_MANAGER, SCHEDULER = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
)
CONTROL_PLANE = (ETCD, API_SERVER, CONTROLLER_MANAGER, SCHEDULER)

ISSUER = "https://kubernetes.default.svc.cluster.local"

_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        # what the cluster's own parts read is noise; what they write, and whatever anybody else does, is kept
        {
            "level": "None",
            "userGroups": ["system:nodes", "system:serviceaccounts:kube-system"],
            "verbs": ["get", "list", "watch"],
        },
        {
            "level": "None",
            "users": [
                "system:apiserver",
                "system:kube-controller-manager",
                "system:kube-scheduler",
                "system:kube-proxy",
                "devcluster:coredns",
                "devcluster:kwok",
                "devcluster:local-path-provisioner",
                "devcluster:metrics-server",
            ],
            "verbs": ["get", "list", "watch"],
        },
        {"level": "None", "nonResourceURLs": ["/readyz*", "/livez*", "/healthz*"]},
        {"level": "Metadata"},
    ],
}


def commands(cluster: ClusterLayout, binaries: Mapping[str, Path], *, dual_stack: bool) -> dict[str, Command]:
    """The control plane's programs, in the order in which they start."""
    policy = cluster.folder / "audit-policy.json"
    write_changed(policy, json.dumps(_AUDIT_POLICY))
    arguments = {
        ETCD: _etcd(cluster),
        API_SERVER: _api_server(cluster, policy, dual_stack),
        CONTROLLER_MANAGER: _controller_manager(cluster, dual_stack),
        SCHEDULER: _scheduler(cluster),
    }
    netns = str(cluster.netns_path)
    return {name: Command([str(binaries[name]), *flags], netns=netns) for name, flags in arguments.items()}


def _etcd(cluster: ClusterLayout) -> list[str]:
    pki = cluster.pki
    client, peer = "https://127.0.0.1:2379", "https://127.0.0.1:2380"
    return [
        f"--data-dir={cluster.folder / 'etcd'}",
        f"--name={cluster.name}",
        "--unsafe-no-fsync",
        "--quota-backend-bytes=8589934592",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster={cluster.name}={peer}",
        f"--cert-file={pki / 'etcd.crt'}",
        f"--key-file={pki / 'etcd.key'}",
        f"--trusted-ca-file={pki / 'etcd-ca.crt'}",
        "--client-cert-auth",
        f"--peer-cert-file={pki / 'etcd.crt'}",
        f"--peer-key-file={pki / 'etcd.key'}",
        f"--peer-trusted-ca-file={pki / 'etcd-ca.crt'}",
        "--peer-client-cert-auth",
        "--log-level=warn",
    ]


def _service_range(cluster: ClusterLayout, dual_stack: bool) -> str:
    ranges = f"{cluster.services},{cluster.services6}" if dual_stack else str(cluster.services)
    return f"--service-cluster-ip-range={ranges}"


def _api_server(cluster: ClusterLayout, policy: Path, dual_stack: bool) -> list[str]:
    pki = cluster.pki
    return [
        "--etcd-servers=https://127.0.0.1:2379",
        f"--etcd-cafile={pki / 'etcd-ca.crt'}",
        f"--etcd-certfile={pki / 'apiserver-etcd.crt'}",
        f"--etcd-keyfile={pki / 'apiserver-etcd.key'}",
        f"--bind-address={cluster.ip}",
        f"--advertise-address={cluster.ip}",
        f"--secure-port={API_PORT}",
        _service_range(cluster, dual_stack),
        f"--cert-dir={cluster.run}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        "--anonymous-auth=false",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--kubelet-certificate-authority={pki / 'ca.crt'}",
        f"--kubelet-client-certificate={pki / 'apiserver-kubelet.crt'}",
        f"--kubelet-client-key={pki / 'apiserver-kubelet.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-key-file={pki / 'sa.key'}",
        f"--service-account-signing-key-file={pki / 'sa.key'}",
        f"--requestheader-client-ca-file={pki / 'front-proxy-ca.crt'}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={pki / 'front-proxy-client.crt'}",
        f"--proxy-client-key-file={pki / 'front-proxy-client.key'}",
        # aggregated APIs are reached at their endpoint: no kube-proxy is needed for them
        "--enable-aggregator-routing=true",
        f"--audit-policy-file={policy}",
        f"--audit-log-path={cluster.audit_log}",
        "--audit-log-maxsize=300",  # MB: more than a whole run of the tests writes, since they read what was asked
        "--audit-log-maxbackup=1",
        "--profiling=false",
    ]


def _controller_manager(cluster: ClusterLayout, dual_stack: bool) -> list[str]:
    pki = cluster.pki
    pod_ranges = [f"--cluster-cidr={cluster.pods}", "--node-cidr-mask-size=24"]
    if dual_stack:
        pod_ranges = [f"--cluster-cidr={cluster.pods},{cluster.pods6}"]
        pod_ranges += ["--node-cidr-mask-size-ipv4=24", "--node-cidr-mask-size-ipv6=64"]
    return [
        *_credentials(cluster, CONTROLLER_MANAGER),
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        "--use-service-account-credentials",
        f"--cluster-signing-cert-file={pki / 'ca.crt'}",
        f"--cluster-signing-key-file={pki / 'ca.key'}",
        f"--root-ca-file={pki / 'ca.crt'}",
        f"--service-account-private-key-file={pki / 'sa.key'}",
        "--allocate-node-cidrs=true",
        *pod_ranges,
        _service_range(cluster, dual_stack),
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        "--profiling=false",
    ]


def _scheduler(cluster: ClusterLayout) -> list[str]:
    return [
        *_credentials(cluster, SCHEDULER),
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        "--profiling=false",
    ]


def _credentials(cluster: ClusterLayout, component: str) -> list[str]:
    path = cluster.kubeconfig(component)
    return [
        f"--kubeconfig={path}",
        f"--authentication-kubeconfig={path}",
        f"--authorization-kubeconfig={path}",
    ]
