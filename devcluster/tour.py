"""The tour of the product that ``make demo`` gives: named steps, each with its commands and their real output.

It only needs two kubeconfigs and a kubectl, so it runs on devcluster's clusters and on those that a user already
has. What is shown is what is run: every line after a ``$`` can be pasted.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from devcluster.errors import DevclusterError

Object = dict[str, Any]

NAMESPACE = "farlet-demo"
NODE = "far"
"""The virtual node's name."""
_COMMAND_TIMEOUT = 180
_CERTIFICATE_TIMEOUT = 60
_CHECKOUT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two clusters of the tour."""

    name: str
    kubeconfig: Path

    @property
    def variable(self) -> str:
        """What stands for its kubeconfig in the commands that are printed."""
        name = f"${self.name.upper()}"
        return name if shlex.quote(str(self.kubeconfig)) == str(self.kubeconfig) else f'"{name}"'


@dataclass(frozen=True, slots=True)
class Stage:
    """What the steps work with."""

    local: Side
    remote: Side
    kubectl: Path
    image: str
    cache: Path
    """Where kubectl keeps what it discovers; by itself it would do so in the user's home."""
    run_farlet: Callable[[Sequence[str]], None] | None = None
    """Starts ``farlet`` with these arguments, in the background; None: the tour ends before it."""
    address: str | None = None
    """Where the local API server reaches this machine; None: the clusters are not devcluster's, and it may not."""

    @property
    def ours(self) -> bool:
        """Whether the clusters are devcluster's."""
        return self.address is not None

    def sides(self) -> tuple[Side, Side]:
        return self.local, self.remote


@dataclass(frozen=True, slots=True)
class Step:
    """A named part of the tour."""

    title: str
    run: Callable[[Stage], None]


def tour(stage: Stage) -> None:
    """Run every step; stops with the command's own message at the first that fails."""
    for side in stage.sides():
        print(f"{side.name.upper()}={shlex.quote(str(side.kubeconfig))}", flush=True)
    for number, step in enumerate(STEPS + (FARLET_STEPS if stage.run_farlet else ()), 1):
        print(f"\n{_bold(f'{number}. {step.title}')}", flush=True)
        step.run(stage)


def leave(stage: Stage) -> None:
    """Take back what runs on the virtual node, while Farlet is there to do so."""
    print(f"\n{_bold('Farlet leaves your clusters')}", flush=True)
    _kubectl(stage, stage.local, "-n", NAMESPACE, "delete", "deployment", "web", "shop-there", "--cascade=foreground")


def clean(stage: Stage) -> None:
    """Remove what the tour made."""
    _kubectl(stage, stage.local, "delete", "node", NODE, "--ignore-not-found")
    for side in stage.sides():
        _kubectl(stage, side, "delete", "namespace", *_namespaces(stage, side), "--ignore-not-found", "--wait=false")


def _nodes(stage: Stage) -> None:
    for side in stage.sides():
        _kubectl(stage, side, "get", "nodes", "-o", "wide")


def _namespace(stage: Stage) -> None:
    for side in stage.sides():
        # a demo before this one may be on its way out
        _quiet(stage, side, "delete", "namespace", *_namespaces(stage, side), "--ignore-not-found", "--timeout=120s")
        _kubectl(stage, side, "create", "namespace", NAMESPACE)


def _pods(stage: Stage) -> None:
    for side in stage.sides():
        script = f"echo hello from the {side.name} cluster; exec sleep 1000000"
        pod = ["run", "hello", f"--image={stage.image}", "--restart=Always", "--grace-period=1"]
        _kubectl(stage, side, "-n", NAMESPACE, *pod, "--", "sh", "-c", script)
    for side in stage.sides():
        _kubectl(stage, side, "-n", NAMESPACE, "wait", "--for=condition=Ready", "pod/hello", "--timeout=120s")
        _kubectl(stage, side, "-n", NAMESPACE, "get", "pods", "-o", "wide")


def _inside(stage: Stage) -> None:
    for side in stage.sides():
        _kubectl(stage, side, "-n", NAMESPACE, "logs", "hello")
        _kubectl(stage, side, "-n", NAMESPACE, "exec", "hello", "--", "hostname")


def _farlet(stage: Stage) -> None:
    _start(stage, "run", "--kubeconfig", "LOCAL", "--remote-kubeconfig", "REMOTE", "--node-name", NODE)
    _quiet(stage, stage.local, "wait", "--for=create", f"node/{NODE}", "--timeout=60s")
    _kubectl(stage, stage.local, "wait", "--for=condition=Ready", f"node/{NODE}", "--timeout=60s")
    _kubectl(stage, stage.local, "get", "nodes")


def _start(stage: Stage, *arguments: str) -> None:
    """Show a command of Farlet's and leave it running; LOCAL and REMOTE stand for the kubeconfigs."""
    assert stage.run_farlet is not None
    sides = {"LOCAL": stage.local, "REMOTE": stage.remote}
    shown = [sides[word].variable if word in sides else word for word in arguments]
    print(f"{_bold('$')} farlet {' '.join(shown)} &", flush=True)
    stage.run_farlet([str(sides[word].kubeconfig) if word in sides else word for word in arguments])


def _extend(stage: Stage) -> None:
    _kubectl(stage, stage.local, "label", "namespace", NAMESPACE, "farlet.dev/enabled=true")
    _quiet(stage, stage.remote, "wait", "--for=create", f"namespace/{_there(stage)}", "--timeout=60s")
    _kubectl(stage, stage.remote, "get", "namespace", _there(stage))


def _there(stage: Stage) -> str:
    """The remote namespace of the tour's: its name and the local cluster's id, so that no other cluster has it."""
    uid = _output(stage, stage.local, "get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}")
    return f"{NAMESPACE}-{hashlib.sha256(uid.encode()).hexdigest()[:8]}"


def _namespaces(stage: Stage, side: Side) -> list[str]:
    """Those that the tour makes."""
    return [NAMESPACE, _there(stage)] if side is stage.remote else [NAMESPACE]


def _deployment(stage: Stage) -> None:
    script = "echo hello from $(hostname); hostname > /tmp/index.html; exec httpd -f -p 8080 -h /tmp"
    pod = {"runtimeClassName": "farlet", "terminationGracePeriodSeconds": 1}
    container = {"name": "busybox", "image": stage.image, "command": ["sh", "-c", script]}
    metadata = {"name": "web", "labels": {"app": "web"}}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {**pod, "containers": [container]}}
    spec = {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    manifest = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
    _kubectl(stage, stage.local, "apply", "-f", "manifests/runtimeclass.yaml")
    _kubectl(stage, stage.local, "-n", NAMESPACE, "apply", "-f", "-", stdin=yaml.safe_dump(manifest, sort_keys=False))
    _kubectl(stage, stage.local, "-n", NAMESPACE, "rollout", "status", "deployment/web", "--timeout=120s")
    _kubectl(stage, stage.local, "-n", NAMESPACE, "get", "pods", "-l", "app=web", "-o", "wide")
    _kubectl(stage, stage.remote, "-n", _there(stage), "get", "pods", "-l", "app=web", "-o", "wide")


def _reach_in(stage: Stage) -> None:
    """What people do with a pod: the local API server asks the virtual node, and that the remote cluster."""
    names = _output(stage, stage.local, "-n", NAMESPACE, "get", "pods", "-l", "app=web", "-o", "name").split()
    pod = names[0].removeprefix("pod/")
    # until its certificate is signed, a node's pods cannot be reached into
    works = _in_time(lambda: bool(_output(stage, stage.local, "-n", NAMESPACE, "logs", pod)), _CERTIFICATE_TIMEOUT)
    if not works and not stage.ours:
        print("(left out: your local API server does not reach Farlet on this machine, see docs/certificates.md)")
        return
    _kubectl(stage, stage.local, "-n", NAMESPACE, "logs", pod)
    _kubectl(stage, stage.local, "-n", NAMESPACE, "exec", pod, "--", "sh", "-c", "hostname; exit 3", ends_with=3)
    with tempfile.TemporaryDirectory(prefix="farlet-demo-") as folder:
        note = Path(folder) / "note.txt"
        note.write_text("written on this machine\n")
        _kubectl(stage, stage.local, "-n", NAMESPACE, "cp", str(note), f"{pod}:/tmp/note.txt")
    _kubectl(stage, stage.local, "-n", NAMESPACE, "exec", pod, "--", "cat", "/tmp/note.txt")
    _forward(stage, pod)


def _forward(stage: Stage, pod: str) -> None:
    """Forward a port, fetch a page through it, and end."""
    arguments = ["-n", NAMESPACE, "port-forward", f"pod/{pod}", ":8080"]
    print(f"{_bold('$')} kubectl --kubeconfig {stage.local.variable} {shlex.join(arguments)} &", flush=True)
    command = [str(stage.kubectl), f"--kubeconfig={stage.local.kubeconfig}", *arguments]
    environment = {**os.environ, "KUBECACHEDIR": str(stage.cache)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as forward:
        try:
            assert forward.stdout is not None
            line = forward.stdout.readline()  # Forwarding from 127.0.0.1:PORT -> 8080
            print(line, end="", flush=True)
            address = f"http://{line.split()[2]}/" if line.startswith("Forwarding from ") else None
            if address is None:
                raise DevclusterError(f"the tour ends here: kubectl {shlex.join(arguments)} failed")
            print(f"{_bold('$')} curl {address}", flush=True)
            with urllib.request.urlopen(address, timeout=30) as page:
                print(page.read().decode(), end="", flush=True)
        finally:
            forward.terminate()


def _return(stage: Stage) -> None:
    names = _output(stage, stage.remote, "-n", _there(stage), "get", "pods", "-l", "app=web", "-o", "name").split()
    _kubectl(stage, stage.remote, "-n", _there(stage), "delete", names[0])
    _kubectl(stage, stage.local, "-n", NAMESPACE, "wait", "--for=condition=Ready", "pods", "-l", "app=web")
    _kubectl(stage, stage.remote, "-n", _there(stage), "get", "pods", "-l", "app=web")
    _kubectl(stage, stage.local, "-n", NAMESPACE, "get", "pods", "-l", "app=web")


def _usage(stage: Stage) -> None:
    """What pods use, and an autoscaler that acts on it: the local metrics-server asks the virtual node."""
    if not _output(stage, stage.remote, "get", "apiservice", "v1beta1.metrics.k8s.io", "-o", "name"):
        print("(left out: your remote cluster has no metrics-server)")
        return
    command = ["sh", "-c", "while true; do :; done"]
    size = {"requests": {"cpu": "100m"}, "limits": {"cpu": "200m"}}
    container = {"name": "busybox", "image": stage.image, "command": command, "resources": size}
    pod = {"runtimeClassName": "farlet", "terminationGracePeriodSeconds": 1, "containers": [container]}
    template = {"metadata": {"labels": {"app": "load"}}, "spec": pod}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "load"}}, "template": template}
    manifest = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "load"}, "spec": spec}
    local = ["-n", NAMESPACE]
    _kubectl(stage, stage.local, *local, "apply", "-f", "-", stdin=yaml.safe_dump(manifest, sort_keys=False))
    _kubectl(stage, stage.local, *local, "autoscale", "deployment/load", "--cpu=50%", "--min=1", "--max=2")
    print("(two metrics-servers look, one after the other: this takes a minute)", flush=True)
    replicas = [*local, "get", "deployment", "load", "-o", "jsonpath={.spec.replicas}"]
    if not _in_time(lambda: _output(stage, stage.local, *replicas) == "2", _COMMAND_TIMEOUT):
        if not stage.ours:
            print("(left out: metrics-server of your local cluster does not reach Farlet on this machine)")
            return
        raise DevclusterError("the tour ends here: the autoscaler did not act on what the pod uses")
    _kubectl(stage, stage.local, "top", "node", NODE)
    _kubectl(stage, stage.local, *local, "top", "pod", "-l", "app in (web,load)")
    _kubectl(stage, stage.remote, "-n", _there(stage), "top", "pod", "-l", "app in (web,load)")
    _kubectl(stage, stage.local, *local, "rollout", "status", "deployment/load", "--timeout=120s")
    _kubectl(stage, stage.local, *local, "get", "hpa,deployment", "load")
    _kubectl(stage, stage.local, *local, "delete", "hpa,deployment", "load")


def _operator(stage: Stage) -> None:
    """Who steers the pods of the extended namespace, asked by the API server for each that is made."""
    if stage.address is None:
        print("(left out: your local API server would have to reach this machine, see docs/operator.md)")
        return
    _kubectl(stage, stage.local, "apply", "-f", "manifests/crds/", "-f", "manifests/local-rbac.yaml")
    with socket.create_server(("0.0.0.0", 0)) as listener:
        port = listener.getsockname()[1]
    listens = ["--webhook-address", f"0.0.0.0:{port}", "--webhook-url", f"https://{stage.address}:{port}"]
    _start(stage, "operator", "--kubeconfig", "LOCAL", *listens)
    trusted = ["--for=jsonpath={.webhooks[0].clientConfig.caBundle}", "mutatingwebhookconfiguration/farlet"]
    _quiet(stage, stage.local, "wait", "--for=create", "mutatingwebhookconfiguration/farlet", "--timeout=60s")
    _kubectl(stage, stage.local, "wait", *trusted, "--timeout=60s")


def _application(stage: Stage) -> None:
    """One Service with pods in both clusters; what they read comes along."""
    local = ["-n", NAMESPACE]
    objects: list[Object] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "words"}, "data": {"word": "hello"}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "shop"},
            "spec": {"selector": {"app": "shop"}, "ports": [{"port": 80, "targetPort": 8080}]},
        },
    ]
    if stage.ours:  # nothing in it says where
        evenly = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
        spread = [{**evenly, "nodeTaintsPolicy": "Honor", "labelSelector": {"matchLabels": {"app": "shop"}}}]
        parts = {"shop": _shop(stage, "shop", 4, topologySpreadConstraints=spread)}
    else:
        parts = {"shop-here": _shop(stage, "shop-here", 1)}
        parts["shop-there"] = _shop(stage, "shop-there", 1, runtimeClassName="farlet")
    manifest = yaml.safe_dump_all([*objects, *parts.values()], sort_keys=False)
    _kubectl(stage, stage.local, *local, "apply", "-f", "-", stdin=manifest)
    for name in parts:
        _kubectl(stage, stage.local, *local, "rollout", "status", f"deployment/{name}", "--timeout=120s")
    _kubectl(stage, stage.local, *local, "get", "pods", "-l", "app=shop", "-o", "wide")
    _kubectl(stage, stage.remote, "-n", _there(stage), "get", "configmaps,services")
    if not stage.ours:
        print("(left out: whether pods of your two clusters reach each other is up to your networks)")
        return
    for there in ("!=", "="):
        chosen = ["-l", "app=shop", "--field-selector", f"spec.nodeName{there}{NODE}", "-o", "name"]
        clients = _output(stage, stage.local, *local, "get", "pods", *chosen).split()
        if len(clients) != 2:
            raise DevclusterError(f"the tour ends here: of four pods {len(clients)} are where two should be")
        script = "for i in $(seq 20); do wget -qO- http://shop; done | sort | uniq -c"
        command = [*local, "exec", clients[0], "--", "sh", "-c", script]
        # both kube-proxies learn of the other half in a moment
        all_of_them = _in_time(
            lambda c=command: len(_output(stage, stage.local, *c).splitlines()) == 4,  # type: ignore[misc]
            _CERTIFICATE_TIMEOUT,
        )
        _kubectl(stage, stage.local, *command)
        if not all_of_them:
            raise DevclusterError(f"the tour ends here: {clients[0]} does not reach the Service in both clusters")


def _shop(stage: Stage, name: str, replicas: int, **pod: object) -> Object:
    """A Deployment of the shop, or of a part of it."""
    labels = {"app": "shop", "part": name}
    word = {"name": "WORD", "valueFrom": {"configMapKeyRef": {"name": "words", "key": "word"}}}
    script = 'echo "$WORD from $(hostname)" > /tmp/index.html; exec httpd -f -p 8080 -h /tmp'
    container = {"name": "busybox", "image": stage.image, "command": ["sh", "-c", script], "env": [word]}
    spec = {"terminationGracePeriodSeconds": 1, **pod, "containers": [container]}
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": dict(labels)}, "template": template},
    }


def _resize(stage: Stage) -> None:
    size = ["get", "node", NODE, "-o", "custom-columns=NODE:.metadata.name,CPU:.status.allocatable.cpu"]
    _kubectl(stage, stage.local, *size)
    before = _output(stage, stage.local, *size)
    resources = {"requests": {"cpu": "500m"}}
    container = {"name": "other", "image": stage.image, "command": ["sleep", "1000000"], "resources": resources}
    overrides = json.dumps({"spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}})
    _kubectl(stage, stage.remote, "-n", NAMESPACE, "run", "other", f"--image={stage.image}", f"--overrides={overrides}")
    _until_changed(lambda: _output(stage, stage.local, *size), before)
    _kubectl(stage, stage.local, *size)
    used = _output(stage, stage.local, *size)
    _kubectl(stage, stage.remote, "-n", NAMESPACE, "delete", "pod", "other")
    print("(growth is believed after it has lasted 30 seconds)", flush=True)
    _until_changed(lambda: _output(stage, stage.local, *size), used)
    _kubectl(stage, stage.local, *size)


STEPS = (
    Step("Two clusters and their nodes", _nodes),
    Step("A namespace for the tour in each", _namespace),
    Step("A pod with a real container in each", _pods),
    Step("Its log, and a command in it", _inside),
)

FARLET_STEPS = (
    Step("Farlet shows the remote cluster as a node of the local one", _farlet),
    Step("One label extends the namespace to the remote cluster", _extend),
    Step("A Deployment of three on that node runs in the remote cluster", _deployment),
    Step("Its logs, a command in it, a file to it and a port of it, through that node", _reach_in),
    Step("What pods use: kubectl top, and an autoscaler", _usage),
    Step("Who steers pods: the operator, asked by the API server", _operator),
    Step("An application spreads over both clusters: one Service, and what its pods read comes along", _application),
    Step("A remote pod is deleted: it returns, and the local one stays", _return),
    Step("Others use the remote cluster: the node is resized, and back", _resize),
)


def _until_changed(probe: Callable[[], str], before: str) -> None:
    if not _in_time(lambda: probe() != before, _COMMAND_TIMEOUT):
        raise DevclusterError(f"the tour ends here: still {before.strip()!r} after {_COMMAND_TIMEOUT} s")


def _in_time(probe: Callable[[], bool], timeout: float) -> bool:
    """Wait until something is so; whether it was in time."""
    deadline = time.monotonic() + timeout
    while not probe():
        if time.monotonic() > deadline:
            return False
        time.sleep(1)
    return True


def _output(stage: Stage, side: Side, *arguments: str) -> str:
    """What a kubectl command prints; it is not shown."""
    command = [str(stage.kubectl), f"--kubeconfig={side.kubeconfig}", *arguments]
    environment = {**os.environ, "KUBECACHEDIR": str(stage.cache)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return result.stdout


def _kubectl(stage: Stage, side: Side, *arguments: str, stdin: str | None = None, ends_with: int = 0) -> None:
    """Show a kubectl command and run it with its output on the screen."""
    given = f" <<'EOF'\n{stdin}EOF" if stdin else ""
    print(f"{_bold('$')} kubectl --kubeconfig {side.variable} {shlex.join(arguments)}{given}", flush=True)
    if _run(stage, side, arguments, quiet=False, stdin=stdin) != ends_with:
        raise DevclusterError(f"the tour ends here: kubectl {shlex.join(arguments)} failed on the {side.name} cluster")


def _quiet(stage: Stage, side: Side, *arguments: str) -> None:
    _run(stage, side, arguments, quiet=True)


def _run(stage: Stage, side: Side, arguments: tuple[str, ...], *, quiet: bool, stdin: str | None = None) -> int:
    command = [str(stage.kubectl), f"--kubeconfig={side.kubeconfig}", *arguments]
    sink = subprocess.DEVNULL if quiet else None
    try:
        return subprocess.run(
            command,
            env={**os.environ, "KUBECACHEDIR": str(stage.cache)},
            cwd=_CHECKOUT,
            input=stdin or "",
            text=True,
            stdout=sink,
            stderr=sink,
            timeout=_COMMAND_TIMEOUT,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        raise DevclusterError(
            f"kubectl {shlex.join(arguments)} did not end within {_COMMAND_TIMEOUT} s on the {side.name} cluster"
        ) from None


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() else text
