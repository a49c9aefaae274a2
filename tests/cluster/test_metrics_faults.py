"""What pods use while what tells of it is broken: told on for a while, then said to be missing, then back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster import faults
from devcluster.addons import METRICS_SERVER
from devcluster.fleet import Fleet
from devcluster.kwok import KWOK, TAINT
from tests.cluster.farlet import Farlet, pod_manifest, running
from tests.cluster.objects import apply, wait_ready
from tests.eventually import eventually

pytestmark = pytest.mark.faults

ALONE = {"labelSelector": {"matchLabels": {"app": "box"}}, "topologyKey": "kubernetes.io/hostname"}
NOT_WITH_BOX = {
    "tolerations": [{"key": TAINT["key"], "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [ALONE]}},
}
"""On another remote node than the pod of that name: on the fake one."""
OPTIONS = ("--metrics-interval", "2")
PROXY = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "test:nodes-proxy"},
    "rules": [{"apiGroups": [""], "resources": ["nodes/proxy"], "verbs": ["get"]}],
}
BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "test:nodes-proxy"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "test:nodes-proxy"},
    "subjects": [{"kind": "ServiceAccount", "name": "farlet", "namespace": "farlet"}],
}


def page(farlet: Farlet, path: str = "metrics/resource") -> str:
    """Within the 10 s that a scraper waits."""
    return farlet.local.api.text(f"/api/v1/nodes/{farlet.node}/proxy/{path}")


def told(farlet: Farlet) -> tuple[set[str], str]:
    """The pods that are told of, and what is said of errors."""
    text = page(farlet)
    error = re.findall(r"^resource_scrape_error (\d)$", text, re.MULTILINE)[0]
    return {*re.findall(r'^pod_cpu_usage_seconds_total{.*pod="(\w+)"}', text, re.MULTILINE)}, error


def start(faulty: Fleet, namespace: str, node: str, folder: Path, *options: str) -> Iterator[Farlet]:
    local, remote = faulty.cluster("local"), faulty.cluster("remote")
    with running(local, remote, node, folder, "--namespace", f"{namespace}={namespace}", *OPTIONS, *options) as farlet:
        apply(local, namespace, pod_manifest("box", node))
        wait_ready(local, namespace, "pod/box")
        yield farlet


@pytest.fixture
def by_metrics_api(faulty: Fleet, faulty_namespace: str, virtual_node: str, tmp_path: Path) -> Iterator[Farlet]:
    yield from start(faulty, faulty_namespace, virtual_node, tmp_path)


@pytest.fixture
def by_proxy(faulty: Fleet, faulty_namespace: str, virtual_node: str, tmp_path: Path) -> Iterator[Farlet]:
    """The remote kubelets through the remote API server, by a right that its owner has given knowingly.

    There are two: that of the real node, and KWOK for a fake one, where a second pod runs.
    """
    faulty.up(["remote"], kwok_nodes=1)
    remote = faulty.cluster("remote")
    for item in (PROXY, BINDING):
        remote.kubectl("apply", "-f", "-", stdin=json.dumps(item))
    for farlet in start(faulty, faulty_namespace, virtual_node, tmp_path, "--metrics-source", "kubelets"):
        apply(farlet.local, faulty_namespace, pod_manifest("other", virtual_node, **NOT_WITH_BOX))
        wait_ready(farlet.local, faulty_namespace, "pod/other")
        yield farlet
        farlet.local.kubectl("-n", faulty_namespace, "delete", "pod", "other", "--timeout=60s", check=False)
    remote.set_kwok_nodes(0)
    remote.kubectl("delete", "clusterrole,clusterrolebinding", "test:nodes-proxy")


def comes_back(farlet: Farlet, *pods: str) -> None:
    eventually(lambda: told(farlet), "usage is told", timeout=120, until=lambda seen: seen == ({*pods}, "0"))


def test_the_remote_metrics_api_goes_and_comes_back(by_metrics_api: Farlet) -> None:
    comes_back(by_metrics_api, "box")
    faults.stop(by_metrics_api.remote, METRICS_SERVER)
    eventually(
        lambda: told(by_metrics_api), "it is said to be missing", timeout=90, until=lambda seen: seen == (set(), "1")
    )
    assert "usage of pods cannot be read" in by_metrics_api.log.read_text()
    faults.start(by_metrics_api.remote, METRICS_SERVER)
    comes_back(by_metrics_api, "box")


def test_one_of_several_remote_nodes_hangs(by_proxy: Farlet) -> None:
    """The other goes on, on every page, in the time that a scraper waits; the one that hangs is said to be missing."""
    assert "nodes/proxy" in by_proxy.log.read_text()
    comes_back(by_proxy, "box", "other")

    def measured() -> int:
        """When what is told of the pod on the real node was measured, in milliseconds."""
        (time,) = re.findall(r'^pod_cpu_usage_seconds_total{.*pod="box"} \S+ (\d+)$', page(by_proxy), re.MULTILINE)
        return int(time)

    faults.pause(by_proxy.remote, KWOK)
    before = measured()
    eventually(measured, "what the other node tells is new", timeout=90, until=lambda time: time > before)
    eventually(
        lambda: told(by_proxy), "one is said to be missing", timeout=90, until=lambda seen: seen == ({"box"}, "1")
    )
    assert "usage of pods cannot be read (kwok-0)" in by_proxy.log.read_text()
    for path, says in (
        ("metrics/cadvisor", ('pod="box"', "\ncontainer_scrape_error 1\n")),
        ("metrics/probes", ("process_start_time_seconds",)),
        ("stats/summary", ('"name":"box"', '"name":"other"', '"rxBytes"')),
    ):
        eventually(
            lambda path=path: page(by_proxy, path),  # type: ignore[misc]
            f"/{path} answers",
            timeout=90,
            until=lambda text, says=says: all(word in text for word in says),  # type: ignore[misc]
        )
    faults.resume(by_proxy.remote, KWOK)
    comes_back(by_proxy, "box", "other")
