"""How long the admission webhook makes the API server wait: reviews sent at a steady rate, as an API server sends them.

On a machine that is shared, most of the time of the slowest reviews is that of the machine. So a server that says the
same to everyone is asked in turns with the webhook, and what counts is what is above it: see ``bench.reviews``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

from app.operator.webhook import PODS_PATH
from bench import reviews, table
from bench.reviews import Plain, Sent
from bench.rig import FLEET, LOCAL
from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.fleet import Fleet
from devcluster.process import wait_for

TARGET = 0.010
"""Seconds, the 99th percentile at 100 a second."""
_CRD = Path(__file__).resolve().parents[1] / "manifests" / "crds"
_PORT = 19443
_PLAIN = "always the same answer"
_LATE = 0.005
"""Seconds: the sender's own lateness that is worth telling."""
_SHARES = {"median": 0.5, "99 %": 0.99, "99.9 %": 0.999}
_CASES = {
    "label": {},
    "object with a selector": {
        "podOffloadingStrategy": "LocalAndRemote",
        "clusterSelector": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "topology.kubernetes.io/region", "operator": "In", "values": [region]}]}
                for region in ("north", "south")
            ]
        },
    },
}


def run(rate: int, *, rounds: int, seconds: float, keep: bool) -> None:
    """Measure at that many reviews a second, in turns of so many seconds, and print the tables."""
    fleet = Fleet(FLEET)
    with tempfile.TemporaryDirectory() as folder:
        try:
            fleet.up([LOCAL], real=False, metrics=False)
            local = fleet.cluster(LOCAL)
            spaces = _prepare(local)
            process = _start(local, Path(folder) / "operator.log")
            try:
                turns = _measure(spaces, process.pid, rate, rounds, seconds)
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(30)
            kinds = "mutatingwebhookconfiguration,validatingwebhookconfiguration"
            local.kubectl("delete", kinds, "farlet-bench", "--ignore-not-found")
            local.kubectl("delete", "namespace", *spaces.values(), "--wait=false")
        finally:
            if not keep:
                fleet.down()
    _show(turns, rate)


def _prepare(local: Cluster) -> dict[str, str]:
    local.kubectl("apply", "-f", str(_CRD))
    local.kubectl("wait", "--for=condition=Established", "crd/namespaceoffloadings.farlet.dev", "--timeout=30s")
    local.kubectl("create", "namespace", "farlet", check=False)
    spaces = {}
    for title, spec in _CASES.items():
        space = spaces[title] = f"bench-{uuid.uuid4().hex[:8]}"
        local.kubectl("create", "namespace", space)
        local.kubectl("label", "namespace", space, "farlet.dev/enabled=true")
        if spec:
            content = {
                "apiVersion": "farlet.dev/v1alpha1",
                "kind": "NamespaceOffloading",
                "metadata": {"name": "offloading", "namespace": space},
                "spec": spec,
            }
            local.kubectl("apply", "-f", "-", stdin=json.dumps(content))
    return spaces


def _start(local: Cluster, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "app", "operator", "--kubeconfig", str(local.kubeconfig)]
    command += ["--webhook-name", "farlet-bench", "--webhook-address", f"0.0.0.0:{_PORT}"]
    command += ["--webhook-url", f"https://{local.layout.gateway}:{_PORT}", "--health-address", "127.0.0.1:0"]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    if not wait_for(lambda: process.poll() is not None or "serves with a certificate" in log.read_text(), 60, 0.1):
        process.kill()
    if process.poll() is not None:
        raise DevclusterError(f"the operator does not serve: {log.read_text()[-2000:]}")
    return process


def _measure(spaces: dict[str, str], pid: int, rate: int, rounds: int, seconds: float) -> dict[str, list[Sent]]:
    """The turns of each, the plain server first; in every second round the other way round."""
    bodies = {title: json.dumps(_review(space)).encode() for title, space in spaces.items()}
    plain = Plain(reviews.one(_PORT, PODS_PATH, next(reversed(bodies.values()))))
    try:
        servers = {_PLAIN: (plain.port, plain.pid)} | dict.fromkeys(bodies, (_PORT, pid))
        turns: dict[str, list[Sent]] = {title: [] for title in servers}
        for number in range(rounds):
            for title in list(servers)[:: 1 if number % 2 == 0 else -1]:
                port, server = servers[title]
                body = bodies.get(title, next(reversed(bodies.values())))
                count = int(rate * seconds)
                turns[title].append(reviews.send(port, PODS_PATH, body, pid=server, rate=rate, count=count))
        return turns
    finally:
        plain.stop()


def _show(turns: dict[str, list[Sent]], rate: int) -> None:
    pooled = {title: _pooled(each) for title, each in turns.items()}
    plain = pooled[_PLAIN]
    rows = []
    for title, sent in pooled.items():
        row = [title, str(len(sent.times))]
        for share in _SHARES.values():
            time = table.percentile(sent.times, share)
            row += [table.milliseconds(time), f"{time / table.percentile(plain.times, share):.2f}"]
        row += [table.milliseconds(max(sent.times)), table.milliseconds(table.percentile(sent.once_sent(), 0.99))]
        row += [_each(sent.cpu, sent), _each(sent.waited, sent)]
        rows.append([*row, "yes" if table.percentile(sent.times, 0.99) <= TARGET else "NO"])
    columns = ["namespace by", "reviews"]
    for name in _SHARES:
        columns += [name, "ratio"]
    columns += ["worst", "99 % once sent", "CPU/review", "queued/review", f"99 % <= {TARGET * 1000:.0f} ms"]
    table.show(f"The admission webhook at {rate} reviews a second", columns, rows)
    rows = []
    for number, each in enumerate(zip(*turns.values(), strict=True), 1):
        for title, sent in zip(turns, each, strict=True):
            row = [
                f"{number} {title}",
                *(table.milliseconds(table.percentile(sent.times, share)) for share in (0.5, 0.99)),
            ]
            row += [table.milliseconds(table.percentile(sent.late, 0.99)), table.milliseconds(max(sent.late))]
            rows.append([*row, str(sum(late > _LATE for late in sent.late)), f"{sent.stolen:.0%}"])
    late = f"late > {_LATE * 1000:.0f} ms"
    columns = ["turn", "median", "99 %", "sender late: 99 %", "worst", late, "stolen by the host"]
    table.show("The same by turns, and what disturbed them", columns, rows)


def _pooled(turns: Sequence[Sent]) -> Sent:
    total = Sent()
    for sent in turns:
        total += sent
    return total


def _each(seconds: float, sent: Sent) -> str:
    return f"{seconds / len(sent.times) * 1000:.2f} ms"


def _review(space: str) -> dict[str, object]:
    """As of a pod of a Deployment that somebody wrote with some care, about 4 KB."""
    container = {
        "name": "main",
        "image": "example.com/shop/front:1.2.3",
        "env": [{"name": f"SETTING_{n}", "value": "x" * 40} for n in range(20)],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/shop"}],
    }
    zone = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a", "b"]}
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}
        }
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "front-", "namespace": space, "labels": {"app": "front"}},
        "spec": {"containers": [container, {**container, "name": "side"}], "affinity": affinity},
    }
    request = {"uid": "u", "operation": "CREATE", "namespace": space, "object": pod, "oldObject": None}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
