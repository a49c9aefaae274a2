"""What offloaded pods use, as the real metrics-server of the local cluster sees it, with TLS verified.

It is compared with what the remote cluster's own metrics-server says of the same containers, and a real
HorizontalPodAutoscaler acts on it.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devcluster.addons import BUSYBOX_IMAGE
from devcluster.cluster import Cluster
from devcluster.fleet import Fleet
from tests.cluster.farlet import MANIFESTS, Farlet, pod_manifest, running
from tests.cluster.objects import apply, get, remote_of, twins, wait_ready
from tests.cluster.pods import run_pod
from tests.eventually import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("metrics")]

Object = dict[str, Any]

BUSY = "while true; do :; done"
"""A container that uses all that it may."""
CORES = 0.1
"""What it may."""
BUSY_SHARE = 0.3
"""How much of it it gets at least, on a machine that has other things to do."""
SCRAPES = 90.0
"""Seconds in which both metrics-servers have looked twice."""


def container(script: str, **limits: str) -> Object:
    found: Object = {"name": "main", "image": BUSYBOX_IMAGE, "command": ["sh", "-c", script]}
    if limits:
        found["resources"] = {"requests": limits, "limits": limits}
    return found


def busy_pod(name: str, node: str) -> str:
    return pod_manifest(name, node, containers=[container(BUSY, cpu=f"{int(CORES * 1000)}m", memory="16Mi")])


def top(cluster: Cluster, namespace: str) -> dict[str, tuple[int, int]]:
    """``kubectl top pod``: by name, millicores and MiB."""
    lines = cluster.kubectl("-n", namespace, "top", "pod", "--no-headers", check=False).stdout.splitlines()
    rows = (line.split() for line in lines)
    return {name: (int(cpu.removesuffix("m")), int(memory.removesuffix("Mi"))) for name, cpu, memory in rows}


def page(farlet: Farlet, path: str) -> str:
    return farlet.local.api.text(f"/api/v1/nodes/{farlet.node}/proxy/{path}")


def figures(text: str, name: str) -> dict[str, float]:
    """By the labels as they are written."""
    return {labels: float(value) for labels, value in re.findall(rf"^{name}(?:{{(.*)}})? (\S+)", text, re.MULTILINE)}


@pytest.fixture(scope="module")
def farlet(fleet: Fleet, module_namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farlet]:
    """One for all tests of the module, with a pod that works and one that does not."""
    local, remote = fleet.cluster("local"), fleet.cluster("remote")
    folder, node = tmp_path_factory.mktemp("farlet"), f"virtual-{uuid.uuid4().hex[:8]}"
    options = ["--namespace", f"{module_namespace}={module_namespace}", "--metrics-interval", "3"]
    with running(local, remote, node, folder, *options) as farlet:
        apply(local, module_namespace, busy_pod("busy", node), pod_manifest("idle", node))
        run_pod(remote, module_namespace, "foreign")  # somebody else's, in the very same remote namespace
        wait_ready(local, module_namespace, "pod/busy", "pod/idle")
        yield farlet
        local.kubectl("-n", module_namespace, "delete", "pod", "--all", "--wait=true", "--timeout=60s", check=False)


@pytest.fixture
def space(module_namespace: str) -> str:
    return module_namespace


def test_top_pod_says_what_the_remote_says(farlet: Farlet, space: str) -> None:
    """Up to 40 s late, and what a container gets of a busy machine goes up and down: compared until they agree."""

    def rows() -> list[tuple[str, int, int, int, int]]:
        """Of each pod: its name, and what both clusters say of it."""
        local, remote = top(farlet.local, space), top(farlet.remote, space)
        assert set(local) <= {"busy", "idle"}, "nobody else's pod"
        assert len(remote) == 3
        twin = {name: next(t for t in remote if t.startswith(f"{name}-")) for name in local}
        return [(name, *local[name], *remote[twin[name]]) for name in sorted(local)]

    def same(seen: list[tuple[str, int, int, int, int]]) -> bool:
        near = all(abs(cpu - there) <= 30 and abs(memory - used) <= 4 for _, cpu, memory, there, used in seen)
        return near and [row[0] for row in seen] == ["busy", "idle"] and seen[0][1] >= CORES * BUSY_SHARE * 1000

    eventually(rows, "both clusters say the same of the pods", timeout=2 * SCRAPES, until=same)


def test_top_node_is_the_sum_of_its_pods(farlet: Farlet, space: str) -> None:
    def row() -> list[str]:
        return farlet.local.kubectl("top", "node", farlet.node, "--no-headers", check=False).stdout.split()

    def works(seen: list[str]) -> bool:
        return len(seen) == 5 and CORES * BUSY_SHARE * 1000 <= int(seen[1].removesuffix("m")) <= CORES * 2000

    seen = eventually(row, "the node is known, and that a pod works there", timeout=SCRAPES, until=works)
    assert seen[2].endswith("%"), "a share of what the node offers"
    assert int(seen[3].removesuffix("Mi")) < 100, "and not of what the remote's own nodes use"


def test_pages_of_the_node_have_our_pods_and_no_others(farlet: Farlet, space: str) -> None:
    eventually(lambda: 'pod="busy"' in page(farlet, "metrics/resource"), "usage is there", timeout=SCRAPES)
    secrets = [twin["metadata"]["name"] for twin in twins(farlet, space)]
    for path in ("metrics/resource", "metrics/cadvisor", "metrics/probes", "stats/summary"):
        text = page(farlet, path)
        for word in ("foreign", "kube-system", *secrets):
            assert word not in text, f"{word} in /{path}"
    summary = json.loads(page(farlet, "stats/summary?only_cpu_and_memory=true"))
    uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in get(farlet.local, space, "pods")["items"]}
    for entry in summary["pods"]:
        assert entry["podRef"]["uid"] == uids[entry["podRef"]["name"]]
    assert summary["node"]["memory"]["workingSetBytes"] > 0


def test_a_replaced_remote_pod_never_makes_a_counter_fall(farlet: Farlet, space: str) -> None:
    """The container begins anew with another start; the pod and the node go on."""
    pod, whole = f'namespace="{space}",pod="busy"', f'container="main",namespace="{space}",pod="busy"'

    def seen() -> tuple[float, float, float, float]:
        text = page(farlet, "metrics/resource")
        return (
            figures(text, "container_start_time_seconds")[whole],
            figures(text, "container_cpu_usage_seconds_total")[whole],
            figures(text, "pod_cpu_usage_seconds_total")[pod],
            figures(text, "node_cpu_usage_seconds_total")[""],
        )

    before = eventually(seen, "it is known", timeout=SCRAPES)
    (twin,) = remote_of(farlet, space, get(farlet.local, space, "pod", "busy"))
    farlet.remote.kubectl("-n", space, "delete", "pod", twin["metadata"]["name"], "--wait=false")
    after = eventually(seen, "the new one is known", timeout=SCRAPES, until=lambda now: now[0] > before[0])
    assert after[1] > 0
    assert after[2] >= before[2]
    assert after[3] >= before[3]
    eventually(
        lambda: top(farlet.local, space).get("busy", (0, 0))[0],
        "kubectl top has it again",
        timeout=SCRAPES,
        until=lambda cpu: cpu >= CORES * BUSY_SHARE * 1000,
    )


def test_a_container_that_ends_is_not_told_of(farlet: Farlet, space: str) -> None:
    """It would hide the others of its pod."""
    ending = container("sleep 25") | {"name": "ending"}
    spec = {"containers": [container("exec sleep 1000000"), ending], "restartPolicy": "Never"}
    apply(farlet.local, space, pod_manifest("half", farlet.node, **spec))
    wait_ready(farlet.local, space, "pod/half")

    def told() -> set[str]:
        found = figures(page(farlet, "metrics/resource"), "container_cpu_usage_seconds_total")
        return {label.split('"')[1] for label in found if 'pod="half"' in label}

    eventually(told, "the one that goes on is told of", timeout=SCRAPES, until=lambda names: "main" in names)
    eventually(told, "the one that ended is not", timeout=SCRAPES, until=lambda names: names == {"main"})
    farlet.local.kubectl("-n", space, "delete", "pod", "half", "--wait=false")


@pytest.mark.timeout(600)
def test_an_autoscaler_scales_an_offloaded_deployment_up_and_down(farlet: Farlet, space: str) -> None:
    """At 15m of its 100m: one that works uses more also where it gets but a third, and two that sleep less."""
    script = "while [ ! -e /tmp/idle ]; do :; done; exec sleep 1000000"
    template = {
        "metadata": {"labels": {"app": "scaled"}},
        "spec": {
            "nodeName": farlet.node,
            "terminationGracePeriodSeconds": 0,
            "containers": [container(script, cpu="100m", memory="16Mi")],
        },
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "scaled"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "scaled"}}, "template": template},
    }
    metric = {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 15}},
    }
    scaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "scaled"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "scaled"},
            "minReplicas": 1,
            "maxReplicas": 2,
            "metrics": [metric],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        },
    }
    apply(farlet.local, space, json.dumps(deployment), json.dumps(scaler))

    def replicas() -> int:
        return int(get(farlet.local, space, "deployment", "scaled")["spec"]["replicas"])

    eventually(replicas, "it is scaled up under load", timeout=240, until=lambda count: count == 2)
    pods = eventually(
        lambda: get(farlet.local, space, "pods", "-l", "app=scaled")["items"],
        "the second one is made",
        until=lambda found: len(found) == 2,
    )
    names = [pod["metadata"]["name"] for pod in pods]
    wait_ready(farlet.local, space, *(f"pod/{name}" for name in names))
    for name in names:
        farlet.local.kubectl("-n", space, "exec", name, "--", "touch", "/tmp/idle")
    eventually(replicas, "and down when it is idle", timeout=240, until=lambda count: count == 1)
    farlet.local.kubectl("-n", space, "delete", "hpa,deployment", "scaled", "--wait=false")


def test_a_restart_of_farlet_is_a_reset_and_not_a_burst(farlet: Farlet, space: str) -> None:
    label = f'container="main",namespace="{space}",pod="idle"'

    def counter(name: str = "container_cpu_usage_seconds_total") -> float:
        return figures(page(farlet, "metrics/resource"), name)[label]

    eventually(counter, "it is known", timeout=SCRAPES)
    started = counter("container_start_time_seconds")
    assert farlet.stop() == 0
    farlet.start()
    after = eventually(counter, "it is known again", timeout=SCRAPES)
    assert 0 < after < 1
    assert counter("container_start_time_seconds") == started, "the container was not started anew"
    eventually(lambda: "busy" in top(farlet.local, space), "kubectl top has it again", timeout=SCRAPES)


# ---------------------------------------------------------------------- other sources


def test_the_remote_kubelets_as_the_source(
    local: Cluster, remote: Cluster, namespace: str, virtual_node: str, tmp_path: Path
) -> None:
    """Straight, with nodes/metrics and nodes/stats: their own counters, network, and all of cAdvisor's; ours only."""
    remote.kubectl("apply", "-f", str(MANIFESTS / "remote-rbac-kubelets.yaml"))
    options = ["--namespace", f"{namespace}={namespace}", "--metrics-source", "kubelets", "--metrics-interval", "2"]
    try:
        with running(local, remote, virtual_node, tmp_path, *options) as farlet:
            assert "from the remote kubelets, at their addresses" in farlet.log.read_text()
            probe = {"exec": {"command": ["true"]}, "periodSeconds": 1}
            probed = container("exec sleep 1000000") | {"livenessProbe": probe}
            apply(local, namespace, pod_manifest("box", virtual_node, containers=[probed]))
            wait_ready(local, namespace, "pod/box")
            run_pod(remote, namespace, "foreign")
            ours = f'container="main",namespace="{namespace}",pod="box"'
            eventually(
                lambda: figures(page(farlet, "metrics/resource"), "container_cpu_usage_seconds_total")[ours],
                "its counter is there",
                timeout=SCRAPES,
            )
            (twin,) = twins(farlet, namespace)
            cadvisor = eventually(
                lambda: page(farlet, "metrics/cadvisor"),
                "cAdvisor's figures are there",
                timeout=SCRAPES,
                until=lambda text: "container_network_receive_bytes_total" in text,
            )
            probes = eventually(
                lambda: page(farlet, "metrics/probes"), "probes", until=lambda text: "prober_probe_total" in text
            )
            summary = page(farlet, "stats/summary")
            (entry,) = json.loads(summary)["pods"]
            assert entry["network"]["rxBytes"] >= 0
            assert entry["containers"][0]["rootfs"]["usedBytes"] >= 0
            resource = page(farlet, "metrics/resource")
            foreign = ("foreign", "kube-system", "machine_", twin["metadata"]["name"], twin["metadata"]["uid"])
            for text in (cadvisor, probes, summary, resource):
                for word in foreign:
                    assert word not in text
    finally:
        remote.kubectl("delete", "-f", str(MANIFESTS / "remote-rbac-kubelets.yaml"), "--wait=false")
