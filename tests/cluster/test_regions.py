"""Three clusters: a namespace is extended to the one of a region, to the one of another, and to both. The webhook and
the scheduler send pods nowhere else, and pods of both regions find each other."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from app import names
from devcluster.fleet import Fleet
from tests.cluster.farlet import Farlet, running
from tests.cluster.objects import Object, apply, get, make_namespace, rolled_out
from tests.cluster.operators import operating
from tests.cluster.pods import shell
from tests.cluster.test_namespace_offloading import REGION, entry, gone, offload, remote_namespace, selector, there
from tests.eventually import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.xdist_group("scratch"),  # one at a time: each has clusters of its own besides the shared ones
]

REGIONS = ("north", "south")
"""Their clusters and their virtual nodes are called so, too."""
SPACE = "shop"


@pytest.fixture
def regions(elsewhere: Path, tmp_path: Path) -> Iterator[dict[str, Farlet]]:
    """Nothing can run in the local cluster itself; there is a Farlet for each of the others, and an operator."""
    fleet = Fleet("regions")
    try:
        fleet.up(REGIONS, metrics=False)
        fleet.up(["local"], real=False, metrics=False)
        local = fleet.cluster("local")
        with contextlib.ExitStack() as stack:
            _, labels = stack.enter_context(operating(local, fleet.cluster("north"), tmp_path))
            found = {}
            for region in REGIONS:
                (tmp_path / region).mkdir()
                remote = fleet.cluster(region)
                remote.kubectl("label", "node", "--all", f"{REGION}={region}")  # the virtual node takes it over
                farlet = running(local, remote, region, tmp_path / region, "--unmap-grace", "1")
                found[region] = stack.enter_context(farlet)
            make_namespace(local, SPACE, labels)
            yield found
    finally:
        fleet.down()


def deployment(name: str) -> Object:
    """Two pods, evenly spread over the nodes that it may run on, which serve their names."""
    labels = {"app": name}
    script = "mkdir /www; hostname >/www/page; exec httpd -f -p 8080 -h /www"
    spread = {
        "topologyKey": REGION,
        "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": labels},
    }
    container = {
        "name": "main",
        "image": "farlet/busybox:1",
        "command": ["sh", "-c", script],
        "readinessProbe": {"httpGet": {"path": "/page", "port": 8080}, "periodSeconds": 1},
    }
    spec = {"containers": [container], "topologySpreadConstraints": [spread], "terminationGracePeriodSeconds": 0}
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template},
    }


def test_a_selector_by_region(regions: dict[str, Farlet]) -> None:
    north, south = regions["north"], regions["south"]
    local, far = north.local, there(north.local, SPACE)

    def choose(*chosen: str) -> None:
        offload(local, SPACE, podOffloadingStrategy="Remote", clusterSelector=selector(REGION, *chosen))

    def placed(name: str) -> list[str]:
        """The nodes of its pods, as many as it should have."""
        pods = get(local, SPACE, "pods", "-l", f"app={name}")["items"]
        nodes = sorted(pod["spec"].get("nodeName", "") for pod in pods if "deletionTimestamp" not in pod["metadata"])
        return nodes if len(nodes) == 2 else []

    def running_in(farlet: Farlet) -> int:
        return len(get(farlet.remote, far, "pods")["items"])

    # one, and the other knows nothing of it
    choose("north")
    apply(local, SPACE, json.dumps(deployment("web")))
    rolled_out(local, SPACE, "web")
    assert placed("web") == ["north", "north"]
    assert running_in(north) == 2
    assert gone(south.remote, far)

    # the other: what runs is moved there, and nothing is left in the first
    choose("south")
    eventually(lambda: placed("web"), "the pods move", until=["south", "south"].__eq__, timeout=120)
    rolled_out(local, SPACE, "web")
    eventually(lambda: gone(north.remote, far), "nothing is left in the north", timeout=120)
    eventually(lambda: entry(local, SPACE, "north") == {}, "nor said of it")
    assert running_in(south) == 2

    # both: running pods stay, new ones are spread over both, and each region reaches the other
    before = {pod["metadata"]["uid"] for pod in get(local, SPACE, "pods", "-l", "app=web")["items"]}
    choose("north", "south")
    eventually(lambda: remote_namespace(north.remote, far), "the north is back")
    ports = [{"port": 80, "targetPort": 8080}]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "api"}}
    apply(
        local,
        SPACE,
        json.dumps({**service, "spec": {"selector": {"app": "api"}, "ports": ports}}),
        json.dumps(deployment("api")),
    )
    rolled_out(local, SPACE, "api")
    assert placed("api") == ["north", "south"]
    assert {pod["metadata"]["uid"] for pod in get(local, SPACE, "pods", "-l", "app=web")["items"]} == before
    names_of = {pod["metadata"]["name"] for pod in get(local, SPACE, "pods", "-l", "app=api")["items"]}
    script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do wget -qO- http://api/page; done"
    for client in names_of:
        eventually(
            lambda c=client: set(shell(local, SPACE, c, script).split()),  # type: ignore[misc]
            f"{client} reaches both",
            until=names_of.__eq__,
        )

    # none: nothing is left anywhere, and what should run waits
    local.kubectl("-n", SPACE, "delete", "nso", names.OFFLOADING, timeout=180)
    assert gone(north.remote, far)
    assert gone(south.remote, far)
    eventually(lambda: placed("api"), "they wait", until=["", ""].__eq__)
