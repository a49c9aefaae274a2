"""The host part of a cluster: a mount namespace, containerd, a kubelet and kube-proxy, beside others of their kind.

containerd, libcni and the kubelet have paths fixed in their code (``/run/containerd``, ``/var/lib/kubelet``...) that
two clusters would share. So a *host* process holds a private mount namespace in which these are the cluster's own;
containerd and the kubelet run in it. Every mount that they make ends with it, and this machine never sees one.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from devcluster.layout import ClusterLayout
from devcluster.process import Command, write_changed

HOST, CONTAINERD, KUBELET, KUBE_PROXY = "host", "containerd", "kubelet", "kube-proxy"

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
"""Inside the mount namespace."""

_PAUSE_IMAGE = "docker.io/farlet/pause:1"


def host_ready(cluster: ClusterLayout) -> Path:
    """A file that the host process makes when its mounts are in place."""
    return cluster.run / "host.ready"


def host_command(cluster: ClusterLayout) -> Command:
    """Holds the mount namespace.

    ``/run`` is new and empty, as after a boot. ``/var/lib`` is covered by an overlay in memory only to have mount
    points without making folders on the machine; the cluster's folder is bound again on top, in case the checkout
    itself is somewhere below.
    """
    own = cluster.folder / "host"
    binds = {"kubelet": "/var/lib/kubelet", "cni": "/var/lib/cni", "log": "/var/log"}
    for name in (*binds, "containerd"):
        (own / name).mkdir(parents=True, exist_ok=True)
    folder = shlex.quote(str(cluster.folder))
    layers = "lowerdir=/var/lib,upperdir=/run/layers/upper,workdir=/run/layers/work"
    script = [
        "mount --make-rprivate /",
        "mount -t tmpfs -o mode=755 tmpfs /run",
        "mkdir -p /run/layers/upper /run/layers/work /run/self /run/containerd /run/netns /run/lock",
        f"mount --bind {folder} /run/self",
        f"mount -t overlay -o {layers} overlay /var/lib",
        f"mkdir -p {' '.join(target for target in binds.values())}",
        *(f"mount --bind /run/self/host/{name} {target}" for name, target in binds.items()),
        f"mount --bind /run/self {folder}",
        "mkdir -p /var/log/pods /var/log/containers",
        "mount --make-rshared /",  # volumes that the kubelet mounts must be seen by the containers
        f"touch {shlex.quote(str(host_ready(cluster)))}",
        "exec sleep infinity",
    ]
    host_ready(cluster).unlink(missing_ok=True)
    shell = ["sh", "-ec", "\n".join(script)]
    return Command(["unshare", "--mount", "--propagation", "private", *shell], netns=str(cluster.netns_path))


def containerd_command(cluster: ClusterLayout, *, containerd: Path, runc: Path, cni_plugins: Path) -> Command:
    """containerd with everything it keeps in the cluster's folder."""
    own = cluster.folder / "host"
    networks = own / "cni-conf"
    write_changed(networks / "10-devcluster.conflist", json.dumps(_pod_network(cluster)))
    settings = own / "containerd.toml"
    write_changed(settings, _containerd_toml(own, networks, runc, cni_plugins))
    return Command([str(containerd), "--config", str(settings)], netns=str(cluster.netns_path), mount_holder=True)


def kubelet_command(cluster: ClusterLayout, binaries: Mapping[str, Path]) -> Command:
    """A kubelet that asks for its serving certificate, as production ones do."""
    own = cluster.folder / "host"
    write_changed(own / "resolv.conf", "")
    settings = own / "kubelet.json"
    write_changed(settings, json.dumps(_kubelet_configuration(cluster)))
    return Command(
        [
            str(binaries[KUBELET]),
            f"--config={settings}",
            f"--kubeconfig={cluster.kubeconfig('kubelet')}",
            f"--hostname-override={cluster.node_name}",
            f"--node-ip={cluster.ip}",
        ],
        netns=str(cluster.netns_path),
        mount_holder=True,
    )


def serving_certificate(cluster: ClusterLayout) -> Path:
    """Where the kubelet keeps the serving certificate that it was given."""
    return cluster.folder / "host" / "kubelet" / "pki" / "kubelet-server-current.pem"


def proxy_command(cluster: ClusterLayout, binaries: Mapping[str, Path]) -> Command:
    """kube-proxy; it leaves the connection table's size alone, which only the machine may set."""
    return Command(
        [
            str(binaries[KUBE_PROXY]),
            f"--kubeconfig={cluster.kubeconfig('kube-proxy')}",
            "--proxy-mode=iptables",
            f"--cluster-cidr={cluster.pods}",
            f"--hostname-override={cluster.node_name}",
            "--conntrack-max-per-core=0",
            "--healthz-bind-address=127.0.0.1:10256",
            "--metrics-bind-address=127.0.0.1:10249",
        ],
        netns=str(cluster.netns_path),
    )


def _pod_network(cluster: ClusterLayout) -> dict[str, Any]:
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "isDefaultGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": "/var/lib/cni/networks",
            # the one real node of a cluster is always the first to be given a pod range
            "ranges": [[{"subnet": str(next(cluster.pods.subnets(new_prefix=24)))}]],
        },
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "devcluster", "plugins": [bridge, portmap]}


def _containerd_toml(own: Path, networks: Path, runc: Path, cni_plugins: Path) -> str:
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""\
version = 2
root = {json.dumps(str(own / "containerd"))}
state = "/run/containerd"
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
  path = {json.dumps(str(own / "opt"))}
[{cri}]
  sandbox_image = "{_PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  disable_apparmor = true
  [{cri}.cni]
    bin_dir = {json.dumps(str(cni_plugins))}
    conf_dir = {json.dumps(str(networks))}
  [{cri}.containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [{cri}.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [{cri}.containerd.runtimes.runc.options]
        SystemdCgroup = false
        BinaryName = {json.dumps(str(runc))}
        Root = "/run/runc"
"""


def _kubelet_configuration(cluster: ClusterLayout) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": str(cluster.ip),
        "authentication": {
            "x509": {"clientCAFile": str(cluster.pki / "ca.crt")},
            "webhook": {"enabled": True},
            "anonymous": {"enabled": False},
        },
        "authorization": {"mode": "Webhook"},
        "serverTLSBootstrap": True,
        "rotateCertificates": False,
        "clusterDNS": [str(cluster.dns_service_ip)],
        "clusterDomain": "cluster.local",
        "resolvConf": str(cluster.folder / "host" / "resolv.conf"),
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "volumePluginDir": str(cluster.folder / "host" / "volume-plugins"),
        # one machine, several kubelets, and nothing of theirs may touch its own services
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cluster.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "oomScoreAdj": 0,
        "protectKernelDefaults": False,
        # percentages would be of the whole machine's disk, which is not ours to guard
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "200Mi",
            "imagefs.available": "200Mi",
        },
        "imageGCHighThresholdPercent": 100,
        "nodeStatusUpdateFrequency": "5s",
        "syncFrequency": "10s",
        "maxPods": 250,
        # a log that is measured has to stay one file
        "containerLogMaxSize": "1Gi",
    }
