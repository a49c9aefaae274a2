"""What every cluster has besides Kubernetes itself: DNS, metrics, storage, and a node agent.

CoreDNS, metrics-server and the local-path provisioner run as plain processes beside the control plane, each
with its own identity and no more rights than it needs; a Service without selector and an EndpointSlice lead to
them. So they are there a second after the API server, and need no image.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from devcluster.api import Object
from devcluster.kwok import KWOK
from devcluster.layout import ClusterLayout
from devcluster.process import Command, write_changed

COREDNS, METRICS_SERVER, LOCAL_PATH = "coredns", "metrics-server", "local-path-provisioner"

BUSYBOX_IMAGE = "farlet/busybox:1"

_STORAGE_NAMESPACE = "local-path-storage"
_RBAC = "rbac.authorization.k8s.io"
_READ = ["get", "list", "watch"]

_COREFILE = """\
.:53 {{
    bind {ip}
    errors
    health 127.0.0.1:8080
    ready 127.0.0.1:8181
    kubernetes cluster.local in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig}
        pods verified
        fallthrough in-addr.arpa ip6.arpa
        ttl 5
    }}
    cache 5
}}
"""

_HELPER_POD = f"""\
apiVersion: v1
kind: Pod
metadata:
  name: helper-pod
spec:
  containers:
  - name: helper-pod
    image: {BUSYBOX_IMAGE}
    imagePullPolicy: IfNotPresent
"""


def coredns_command(cluster: ClusterLayout, binaries: Mapping[str, Path]) -> Command:
    """CoreDNS on port 53 of the cluster's address."""
    corefile = cluster.folder / "Corefile"
    write_changed(corefile, _COREFILE.format(ip=cluster.ip, kubeconfig=cluster.kubeconfig(COREDNS)))
    return _command(cluster, [str(binaries[COREDNS]), "-conf", str(corefile)])


def metrics_server_command(cluster: ClusterLayout, binaries: Mapping[str, Path]) -> Command:
    """metrics-server, which verifies the kubelets' certificates."""
    kubeconfig = cluster.kubeconfig(METRICS_SERVER)
    return _command(
        cluster,
        [
            str(binaries[METRICS_SERVER]),
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            f"--bind-address={cluster.ip}",
            "--secure-port=4443",
            f"--cert-dir={cluster.run}",
            f"--tls-cert-file={cluster.pki / 'metrics-server-serving.crt'}",
            f"--tls-private-key-file={cluster.pki / 'metrics-server-serving.key'}",
            f"--kubelet-certificate-authority={cluster.pki / 'ca.crt'}",
            "--kubelet-preferred-address-types=InternalIP",
            "--kubelet-use-node-status-port",
            "--metric-resolution=15s",
        ],
    )


def local_path_command(cluster: ClusterLayout, binaries: Mapping[str, Path]) -> Command:
    """The provisioner behind the default StorageClass; it reads its ConfigMap."""
    return _command(
        cluster,
        [
            str(binaries[LOCAL_PATH]),
            "start",
            f"--kubeconfig={cluster.kubeconfig(LOCAL_PATH)}",
            f"--namespace={_STORAGE_NAMESPACE}",
            "--configmap-name=local-path-config",
            f"--helper-image={BUSYBOX_IMAGE}",
            "--service-account-name=local-path",
            "--provisioner-name=rancher.io/local-path",
        ],
    )


def objects(cluster: ClusterLayout, *, metrics: bool) -> list[Object]:
    """Everything that the add-ons need in the API."""
    return [
        *_kube_proxy_rights(),
        *_coredns(cluster),
        *_local_path(cluster),
        *_kwok_rights(),
        *(_metrics_server(cluster) if metrics else ()),
        _node_agent(),
    ]


def _kube_proxy_rights() -> Iterator[Object]:
    yield _bind("devcluster:kube-proxy", "system:node-proxier", "system:kube-proxy")


def _coredns(cluster: ClusterLayout) -> Iterator[Object]:
    yield from _rights(
        "devcluster:coredns",
        [
            ([""], ["services", "pods", "namespaces", "nodes"], _READ),
            (["discovery.k8s.io"], ["endpointslices"], _READ),
        ],
    )
    ports = [("dns", 53, 53, "UDP"), ("dns-tcp", 53, 53, "TCP")]
    yield from _service(cluster, "kube-dns", str(cluster.dns_service_ip), ports)


def _metrics_server(cluster: ClusterLayout) -> Iterator[Object]:
    yield from _rights(
        "devcluster:metrics-server",
        [([""], ["nodes/metrics"], ["get"]), ([""], ["pods", "nodes"], _READ)],
    )
    yield _bind("devcluster:metrics-server:auth", "system:auth-delegator", "devcluster:metrics-server")
    yield {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "devcluster:metrics-server", "namespace": "kube-system"},
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": "extension-apiserver-authentication-reader"},
        "subjects": [_user("devcluster:metrics-server")],
    }
    ports = [("https", 443, 4443, "TCP")]
    yield from _service(cluster, METRICS_SERVER, str(cluster.metrics_service_ip), ports)
    yield {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": "v1beta1.metrics.k8s.io"},
        "spec": {
            "group": "metrics.k8s.io",
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "caBundle": base64.b64encode((cluster.pki / "ca.crt").read_bytes()).decode(),
            "service": {"name": METRICS_SERVER, "namespace": "kube-system", "port": 443},
        },
    }


def _local_path(cluster: ClusterLayout) -> Iterator[Object]:
    everything = ["get", "list", "watch", "create", "patch", "update", "delete"]
    yield from _rights(
        "devcluster:local-path-provisioner",
        [
            ([""], ["nodes", "persistentvolumeclaims", "configmaps", "pods", "pods/log"], _READ),
            ([""], ["persistentvolumes"], everything),
            ([""], ["pods"], ["create", "delete"]),
            ([""], ["endpoints"], ["get", "list", "watch", "create", "update", "patch"]),
            ([""], ["events"], ["create", "patch"]),
            (["storage.k8s.io"], ["storageclasses"], _READ),
            (["coordination.k8s.io"], ["leases"], everything),
        ],
    )
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _STORAGE_NAMESPACE}}
    yield {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "local-path", "namespace": _STORAGE_NAMESPACE},
    }
    paths = [{"node": "DEFAULT_PATH_FOR_NON_LISTED_NODES", "paths": [str(cluster.folder / "volumes")]}]
    yield {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "local-path-config", "namespace": _STORAGE_NAMESPACE},
        "data": {
            "config.json": json.dumps({"nodePathMap": paths}),
            "setup": '#!/bin/sh\nset -eu\nmkdir -m 0777 -p "$VOL_DIR"\n',
            "teardown": '#!/bin/sh\nset -eu\nrm -rf "$VOL_DIR"\n',
            "helperPod.yaml": _HELPER_POD,
        },
    }
    yield {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": "local-path",
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": "rancher.io/local-path",
        "volumeBindingMode": "WaitForFirstConsumer",
        "reclaimPolicy": "Delete",
    }


def _kwok_rights() -> Iterator[Object]:
    yield from _rights(
        "devcluster:kwok",
        [
            ([""], ["nodes"], _READ),
            ([""], ["nodes/status", "pods/status"], ["patch", "update"]),
            ([""], ["pods"], [*_READ, "delete", "patch", "update"]),
            ([""], ["events"], ["create", "patch", "update"]),
            (["coordination.k8s.io"], ["leases"], [*_READ, "create", "patch", "update"]),
        ],
    )


def _node_agent() -> Object:
    """A DaemonSet that tolerates everything, as production clusters have several (network, logs, monitoring)."""
    labels = {"app.kubernetes.io/name": "node-agent"}
    not_on_fakes = {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "type", "operator": "NotIn", "values": [KWOK]}]}]
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "node-agent", "namespace": "kube-system", "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "automountServiceAccountToken": False,
                    "terminationGracePeriodSeconds": 1,
                    "tolerations": [{"operator": "Exists"}],
                    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": not_on_fakes}},
                    "containers": [
                        {
                            "name": "agent",
                            "image": BUSYBOX_IMAGE,
                            "imagePullPolicy": "IfNotPresent",
                            "command": ["sleep", "2147483647"],
                            "resources": {"requests": {"cpu": "10m", "memory": "8Mi"}},
                        }
                    ],
                },
            },
        },
    }


def _command(cluster: ClusterLayout, argv: Sequence[str]) -> Command:
    return Command(argv, netns=str(cluster.netns_path))


def _rights(user: str, rules: Sequence[tuple[list[str], list[str], list[str]]]) -> Iterator[Object]:
    """A ClusterRole for one user, and its binding."""
    yield {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": user},
        "rules": [{"apiGroups": groups, "resources": resources, "verbs": verbs} for groups, resources, verbs in rules],
    }
    yield _bind(user, user, user)


def _bind(name: str, role: str, user: str) -> Object:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [_user(user)],
    }


def _user(name: str) -> Object:
    return {"apiGroup": _RBAC, "kind": "User", "name": name}


def _service(
    cluster: ClusterLayout, name: str, address: str, ports: Sequence[tuple[str, int, int, str]]
) -> Iterator[Object]:
    """A Service of the cluster's own address: no selector, an EndpointSlice by hand."""
    metadata = {"name": name, "namespace": "kube-system"}
    yield {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "clusterIP": address,
            "ports": [
                {"name": port_name, "port": port, "targetPort": target, "protocol": protocol}
                for port_name, port, target, protocol in ports
            ],
        },
    }
    yield {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {**metadata, "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [str(cluster.ip)], "conditions": {"ready": True}}],
        "ports": [
            {"name": port_name, "port": target, "protocol": protocol} for port_name, _, target, protocol in ports
        ],
    }
