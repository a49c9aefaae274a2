"""One cluster: which programs it consists of, how they start and stop, and what can be asked of it while it runs."""

from __future__ import annotations

import datetime
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from devcluster import addons, controlplane, host, kwok, network, pki
from devcluster.api import Api, Object
from devcluster.cgroups import ClusterCgroup
from devcluster.errors import DevclusterError
from devcluster.layout import ClusterLayout
from devcluster.process import Command, Component, kill_all, proportional_memory, wait_for

CSR_PATH = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
_KUBELET_SERVING = "kubernetes.io/kubelet-serving"
_START_TIMEOUT = 120.0
_APPLY_THREADS = 8


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """What a cluster is made of; recorded, so that the next start makes the same."""

    name: str
    index: int
    real: bool = True
    """Has a kubelet with containers."""
    kwok: bool = False
    """Has fake nodes for load."""
    metrics: bool = True
    """Has metrics-server."""
    dual_stack: bool = False
    """Services have addresses of both families. Only its API knows of it, so it has no real node."""

    def binaries(self) -> list[str]:
        """The programs to have before it can start."""
        names = [*controlplane.CONTROL_PLANE, "kubectl", addons.COREDNS]
        if self.real:
            names += [host.KUBELET, host.KUBE_PROXY, addons.LOCAL_PATH, "pause"]
        if self.metrics:
            names.append(addons.METRICS_SERVER)
        if self.kwok:
            names.append(kwok.KWOK)
        return names


@dataclass(frozen=True, slots=True)
class Tools:
    """Programs from outside: ours by name, and Debian's."""

    binaries: Mapping[str, Path]
    containerd: Path
    runc: Path
    cni_plugins: Path
    base_images: Path | None


class GivenUp(DevclusterError):
    """A start that was called off because another one failed or a person wanted it."""


class Cluster:
    """A cluster of a fleet. Its verbs work from any process that finds its folder."""

    def __init__(self, layout: ClusterLayout, spec: ClusterSpec, kubectl: Callable[[], Path]) -> None:
        self.layout = layout
        self.spec = spec
        self._kubectl = kubectl
        self._cgroup = ClusterCgroup(layout.cgroup)
        self._api: Api | None = None
        self._give_up = threading.Event()

    @property
    def name(self) -> str:
        return self.layout.name

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.layout.kubeconfig()

    @property
    def api(self) -> Api:
        """The cluster's API as its administrator."""
        if self._api is None:
            self._api = Api(self.kubeconfig)
        return self._api

    # ------------------------------------------------------------------ programs

    def component_names(self) -> list[str]:
        """Its programs, in the order in which they start."""
        names = [controlplane.ETCD, controlplane.API_SERVER]
        if self.spec.real:
            names += [host.HOST, host.CONTAINERD]
        names += [controlplane.CONTROLLER_MANAGER, controlplane.SCHEDULER]
        if self.spec.real:
            names += [host.KUBELET, host.KUBE_PROXY]
        names.append(addons.COREDNS)
        if self.spec.real:
            names.append(addons.LOCAL_PATH)
        if self.spec.metrics:
            names.append(addons.METRICS_SERVER)
        if self.spec.kwok:
            names.append(kwok.KWOK)
        return names

    def components(self) -> list[Component]:
        return [self._make_component(name) for name in self.component_names()]

    def component(self, name: str) -> Component:
        """One of its programs, by name."""
        if name not in self.component_names():
            known = ", ".join(self.component_names())
            raise DevclusterError(f"cluster {self.name} has no component {name!r}; it has: {known}")
        return self._make_component(name)

    def companion(self, name: str) -> Component:
        """A program beside the cluster's own, such as a relay: it ends with the cluster."""
        return self._make_component(name)

    def _make_component(self, name: str) -> Component:
        return Component(name, self.layout.run, self.layout.logs, [self._cgroup.system])

    def start_component(self, name: str, command: Command | None = None) -> None:
        """Start a component, as given or as it was started last."""
        component = self.component(name)
        command = command or component.command()
        if command is None:
            raise DevclusterError(f"{name} of cluster {self.name} was never started: run `devcluster up` first")
        holder = self.component(host.HOST).identity() if command.mount_holder else None
        component.start(command, mount_namespace=holder)

    def restart_component(self, name: str) -> None:
        """Stop a component and start it again as it was."""
        self.component(name).stop()
        self.start_component(name)

    # ------------------------------------------------------------------ start

    def start(self, tools: Tools, say: Callable[[str], None], give_up: threading.Event) -> None:
        """Start what does not run yet; returns when the nodes are Ready and DNS answers."""
        self._give_up = give_up
        pki.make(self.layout)
        self._cgroup.create()
        control = controlplane.commands(self.layout, tools.binaries, dual_stack=self.spec.dual_stack)
        for name in (controlplane.ETCD, controlplane.API_SERVER):
            self.start_component(name, control[name])
        if self.spec.real:
            self._start_containerd(tools)
        say("kube-apiserver")
        self._await("the API server to be ready", self._ready, [controlplane.ETCD, controlplane.API_SERVER])
        for name in (controlplane.CONTROLLER_MANAGER, controlplane.SCHEDULER):
            self.start_component(name, control[name])
        if self.spec.real:
            say("images")
            self._import_base_images(tools)
            # the node of a stopped cluster still says Ready, until its new kubelet speaks
            since = 0 if self.component(host.KUBELET).alive() else int(time.time())
            self.start_component(host.KUBELET, host.kubelet_command(self.layout, tools.binaries))
        say("add-ons")
        self._apply_addons()
        self._start_addons(tools.binaries)
        if self.spec.real:
            say("node")
            self._await("the kubelet's certificate", self._kubelet_has_certificate, [host.KUBELET])
            self._await("node Ready", lambda: self._node_ready(since), [host.KUBELET, host.CONTAINERD])
        self._await("the default ServiceAccount", self._service_account_there, [controlplane.CONTROLLER_MANAGER])
        self._await("DNS to answer", self._dns_ready, [addons.COREDNS])

    def _start_containerd(self, tools: Tools) -> None:
        if not self.component(host.HOST).alive():
            self._end_strays()
            self.start_component(host.HOST, host.host_command(self.layout))
        ready = host.host_ready(self.layout)
        self._await("the host's mounts", ready.exists, [host.HOST])
        command = host.containerd_command(
            self.layout, containerd=tools.containerd, runc=tools.runc, cni_plugins=tools.cni_plugins
        )
        self.start_component(host.CONTAINERD, command)

    def _end_strays(self) -> None:
        """End what a crash left: containers and shims whose mount namespace has lost its holder."""
        for name in (host.KUBELET, host.CONTAINERD):
            self.component(name).kill()
        known = {identity.pid for component in self.components() if (identity := component.identity())}

        def gone() -> bool:
            strays = [pid for pid in self._cgroup.processes() if pid not in known]
            kill_all(strays)
            return not strays

        if not wait_for(gone, 20, 0.05):
            raise DevclusterError(f"cluster {self.name}: old containers do not end after SIGKILL")
        self._cgroup.remove_pods()

    def _start_addons(self, binaries: Mapping[str, Path]) -> None:
        if self.spec.real:
            self.start_component(host.KUBE_PROXY, host.proxy_command(self.layout, binaries))
            self.start_component(addons.LOCAL_PATH, addons.local_path_command(self.layout, binaries))
        self.start_component(addons.COREDNS, addons.coredns_command(self.layout, binaries))
        if self.spec.metrics:
            self.start_component(addons.METRICS_SERVER, addons.metrics_server_command(self.layout, binaries))
        if self.spec.kwok:
            self.start_component(kwok.KWOK, kwok.command(self.layout, binaries, metrics=self.spec.metrics))

    def _apply_addons(self) -> None:
        # once for each set of them: a warm start writes nothing
        done = self.layout.run / "addons.json"
        wanted = json.dumps(addons.objects(self.layout, metrics=self.spec.metrics))
        if not done.exists() or done.read_text() != wanted:
            self.api.apply(json.loads(wanted))
            done.write_text(wanted)

    def _import_base_images(self, tools: Tools) -> None:
        if tools.base_images is None:
            return
        done = self.layout.folder / "host" / "images.done"
        if done.exists() and done.read_text() == str(tools.base_images):
            return
        self._await("containerd", self._containerd_ready, [host.CONTAINERD])
        self.load_image(tools.base_images)
        done.write_text(str(tools.base_images))

    def _await(self, what: str, condition: Callable[[], bool], needed: Sequence[str]) -> None:
        """Wait for a condition as long as the programs that it needs are alive."""
        deadline = time.monotonic() + _START_TIMEOUT
        problem = ""
        while True:
            try:
                if condition():
                    return
                problem = ""
            except (OSError, DevclusterError, ValueError) as error:
                problem = f": {error}"
            for name in needed:
                component = self.component(name)
                if not component.alive():
                    raise DevclusterError(
                        f"{name} of cluster {self.name} ended while waiting for {what}; its log ({component.log}) "
                        f"ends with:\n{component.tail(8)}"
                    )
            if self._give_up.wait(0.1):
                raise GivenUp(f"cluster {self.name}: no longer waiting for {what}")
            if time.monotonic() > deadline:
                logs = self.layout.logs
                raise DevclusterError(
                    f"cluster {self.name}: waited {_START_TIMEOUT:.0f} s for {what}{problem} (logs: {logs})"
                )

    def _ready(self) -> bool:
        return self.api.text("/readyz", timeout=5) == "ok"

    def _containerd_ready(self) -> bool:
        self.ctr("version")
        return True

    def _kubelet_has_certificate(self) -> bool:
        # a link to where the kubelet sees it, which is nowhere for us: that it is there is all there is to know
        if host.serving_certificate(self.layout).is_symlink():
            return True
        self.approve_kubelet_certificates()
        return False

    def approve_kubelet_certificates(self) -> None:
        """Approve what our own kubelet asked for, as an operator's approver would, and nobody else's request."""
        for request in self.api.items(CSR_PATH):
            spec, status = request["spec"], request.get("status") or {}
            ours = spec["signerName"] == _KUBELET_SERVING and spec["username"] == (
                f"system:node:{self.layout.node_name}"
            )
            if ours and not status.get("conditions"):
                approved = {
                    "type": "Approved",
                    "status": "True",
                    "reason": "Devcluster",
                    "message": "made by this cluster's own kubelet",
                }
                request["status"] = {**status, "conditions": [approved]}
                self.api.put(f"{CSR_PATH}/{request['metadata']['name']}/approval", request)

    def _node_ready(self, since: int = 0) -> bool:
        return node_is_ready(self.api.get(f"/api/v1/nodes/{self.layout.node_name}"), since)

    def _service_account_there(self) -> bool:
        return self.api.exists("/api/v1/namespaces/default/serviceaccounts/default")

    def _dns_ready(self) -> bool:
        command = ["nsenter", f"--net={self.layout.netns_path}", "--", sys.executable, "-c"]
        check = "import urllib.request as u; u.urlopen('http://127.0.0.1:8181/ready', timeout=2)"
        return subprocess.run([*command, check], capture_output=True, check=False).returncode == 0

    # ------------------------------------------------------------------ stop

    def stop(self) -> None:
        """Stop every program in order, keeping the data."""
        names = [name for name in self.component_names() if name != host.HOST]
        for name in reversed(names):
            self.component(name).stop()
        self.kill()

    def kill(self) -> None:
        """End every process of the cluster at once, recorded or not, containers included."""
        for component in self.components():
            component.kill()
        if self._cgroup.exists():
            self._cgroup.remove()

    def leftovers(self) -> list[str]:
        """What of the cluster is on the machine: nothing, after it was stopped."""
        found = [f"process {pid}" for pid in self._cgroup.processes()]
        found += [f"process {c.name}" for c in self.components() if c.alive()]
        if self._cgroup.exists():
            found.append(f"cgroup {self.layout.cgroup}")
        if network.exists(self.layout):
            found.append(f"network namespace {self.layout.netns}")
        return found

    # ------------------------------------------------------------------ questions and small changes

    def processes(self) -> list[int]:
        """Every process of the cluster, shims and containers included."""
        return self._cgroup.processes()

    def memory(self) -> int:
        """Bytes that all its processes use, containers included, shared pages counted once."""
        return sum(proportional_memory(pid) for pid in self.processes())

    def kubectl(
        self,
        *arguments: str,
        stdin: str | None = None,
        check: bool = True,
        timeout: float = 60.0,
        kubeconfig: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run the cluster's own kubectl; raises with kubectl's message unless *check* is false."""
        result = subprocess.run(
            self.kubectl_command(*arguments, kubeconfig=kubeconfig),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and result.returncode != 0:
            message = result.stderr.strip() or result.stdout.strip()
            raise DevclusterError(f"kubectl {' '.join(arguments)} (cluster {self.name}): {message}")
        return result

    def kubectl_command(self, *arguments: str, kubeconfig: Path | None = None) -> list[str]:
        """The command line of kubectl for this cluster; its discovery cache stays in the cluster's folder."""
        cache = self.layout.folder / "kubectl-cache"
        path = str(kubeconfig or self.kubeconfig)
        return [str(self._kubectl()), f"--kubeconfig={path}", f"--cache-dir={cache}", *arguments]

    def ctr(self, *arguments: str) -> str:
        """Run containerd's own client on the cluster's images and containers."""
        holder = self.component(host.HOST).identity()
        if holder is None or not holder.alive():
            raise DevclusterError(f"cluster {self.name} has no running containerd: `python -m devcluster up`")
        enter = ["nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", "--"]
        command = [shutil.which("ctr") or "ctr", "--address", host.CONTAINERD_SOCKET, "--namespace", "k8s.io"]
        return network.run([*enter, *command, *arguments])

    def load_image(self, archive: Path) -> list[str]:
        """Import an image archive (docker or OCI); returns the names that are new or changed."""
        if not archive.is_file():
            raise DevclusterError(f"image archive {archive} does not exist")
        printed = self.ctr("images", "import", str(archive))
        return [line.split()[1] for line in printed.splitlines() if line.startswith("unpacking ")]

    def running(self) -> bool:
        """Whether all of its programs run."""
        return all(component.alive() for component in self.components())

    def healthy(self) -> bool:
        """Whether every program runs, the API server is ready and so is the real node."""
        if any(component.state() != "running" for component in self.components()):
            return False
        return self._ready() and (not self.spec.real or self._node_ready())

    def nodes(self) -> list[Object]:
        return self.api.items("/api/v1/nodes")

    def set_kwok_nodes(self, count: int) -> None:
        """Add or remove fake nodes until there are *count*; those with the highest numbers go first."""
        self.check_kwok()
        have = {node["metadata"]["name"] for node in self.nodes() if kwok.is_fake(node)}
        want = {f"kwok-{index}": index for index in range(count)}
        missing = [index for name, index in want.items() if name not in have]
        surplus = [name for name in have if name not in want]

        with ThreadPoolExecutor(_APPLY_THREADS) as pool:
            made = [pool.submit(self.api.post, "/api/v1/nodes", kwok.node(index)) for index in missing]
            gone = [pool.submit(self.api.delete, f"/api/v1/nodes/{name}") for name in surplus]
        for change in (*made, *gone):
            change.result()
        self._await(f"{count} fake nodes to be Ready", lambda: self._fake_ready() == count, [kwok.KWOK])

    def check_kwok(self) -> None:
        """Refuse fake nodes where nothing would play their kubelet."""
        if not self.spec.kwok:
            raise DevclusterError(f"cluster {self.name} has no KWOK: start it with `up --nodes kwok` or `real,kwok`")

    def _fake_ready(self) -> int:
        return sum(1 for node in self.nodes() if kwok.is_fake(node) and node_is_ready(node))

    def service_account_kubeconfig(
        self, namespace: str, name: str, *, cluster_role: str | None = None, hours: int = 24
    ) -> Path:
        """A kubeconfig with a token of a ServiceAccount, which is made if it is not there.

        With *cluster_role* it is bound to that role in the whole cluster.
        """
        account: Object = {"metadata": {"name": name, "namespace": namespace}}
        objects: list[Object] = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}]
        objects.append({"apiVersion": "v1", "kind": "ServiceAccount", **account})
        if cluster_role:
            objects.append(_bind_account(namespace, name, cluster_role))
        self.api.apply(objects)
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        request: Object = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        request["spec"] = {"expirationSeconds": hours * 3600}
        token = self.api.post(path, request)["status"]["token"]
        return pki.write_kubeconfig_user(self.layout, f"{namespace}-{name}", {"token": token})


def node_is_ready(node: Object, since: int = 0) -> bool:
    """Whether a Node's Ready condition is True, and was said so at or after *since* (seconds of the epoch)."""
    for condition in node.get("status", {}).get("conditions", []):
        if condition["type"] == "Ready" and condition["status"] == "True":
            heartbeat = datetime.datetime.fromisoformat(condition["lastHeartbeatTime"])
            return heartbeat.timestamp() >= since
    return False


def _bind_account(namespace: str, name: str, cluster_role: str) -> Object:
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"devcluster:{namespace}:{name}"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": cluster_role},
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": name}],
    }
