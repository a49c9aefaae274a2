"""kill -9 in the middle: of the operator while objects wait for their end, of the worker while it copies. Whoever is
started again finishes what was begun, once."""

from __future__ import annotations

import base64
import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from app import names
from devcluster.fleet import Fleet
from tests.cluster import audit
from tests.cluster.farlet import Farlet, running
from tests.cluster.objects import Object, apply, get, make_namespace, rolled_out
from tests.cluster.operators import operating
from tests.cluster.test_namespace_offloading import entry, gone, offload, remote_namespace, there
from tests.cluster.test_reflection import Reflected, made
from tests.eventually import eventually

pytestmark = pytest.mark.faults

COUNT = 200


def deployment(node: str) -> Object:
    """One pod, on the virtual node if it may."""
    labels = {"app": "web"}
    container = {"name": "main", "image": "farlet/busybox:1", "command": ["sleep", "1000000"]}
    wish = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    preferred = [{"weight": 100, "preference": {"matchExpressions": [wish]}}]
    spec = {
        "containers": [container],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}},
        "terminationGracePeriodSeconds": 0,
    }
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }


BUDGET = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "web"},
    "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
}


def test_the_operator_dies_while_objects_wait_for_their_end(faulty: Fleet, virtual_node: str, tmp_path: Path) -> None:
    local, remote = faulty.cluster("local"), faulty.cluster("remote")
    spaces = [f"{virtual_node}-{number}" for number in range(6)]
    held = spaces[0]

    def objects() -> set[str]:
        """The namespaces that still have one."""
        found = get(local, "default", "nso", "-A")["items"]
        return {item["metadata"]["namespace"] for item in found} & set(spaces)

    def pod() -> Object:
        """The Deployment's, if it is not going."""
        pods = get(local, held, "pods")["items"]
        return next((pod for pod in pods if "deletionTimestamp" not in pod["metadata"]), {})

    with (
        operating(local, remote, tmp_path) as (operator, labels),
        running(local, remote, virtual_node, tmp_path, "--unmap-grace", "1"),
    ):
        try:
            for name in spaces:
                make_namespace(local, name, labels)
                offload(local, name)
            # a budget holds the pod, and with it the object
            apply(local, held, json.dumps(deployment(virtual_node)), json.dumps(BUDGET))
            rolled_out(local, held, "web")
            assert pod()["spec"]["nodeName"] == virtual_node
            for name in spaces:
                eventually(lambda n=name: entry(local, n, virtual_node).get("ready"), "extended")  # type: ignore[misc]

            for name in spaces:
                local.kubectl("-n", name, "delete", "nso", names.OFFLOADING, "--wait=false")
            eventually(lambda: objects() < set(spaces), "the first of them goes")
            operator.kill()
            assert held in objects()
            # the worker goes on alone: all that is left are objects that wait for the operator
            local.kubectl("-n", held, "delete", "pdb", "web")
            for name in spaces:
                eventually(lambda n=name: gone(remote, there(local, n)), f"{name} is left", timeout=120)  # type: ignore[misc]
            assert held in objects()

            operator.start()
            eventually(objects, "all are let go", until=lambda left: not left, timeout=120)
            for name in spaces:
                metadata = get(local, name, "namespace", name)["metadata"]
                assert names.LABEL_ENABLED not in metadata["labels"], metadata
                assert names.ANNOTATION_ENABLED_BY not in metadata.get("annotations", {}), metadata
                assert remote_namespace(remote, there(local, name)) == {}
            # nobody could say where a new pod may run while no operator was there
            eventually(lambda: pod().get("spec", {}).get("nodeName"), "the pod is made again", timeout=150)
            assert pod()["spec"]["nodeName"] != virtual_node
        finally:
            local.kubectl("delete", "namespace", *spaces, "--ignore-not-found", "--wait=false")


def burst(kind: str, number: int) -> Object:
    value = str(number) if kind == "ConfigMap" else base64.b64encode(str(number).encode()).decode()
    return made(kind, f"burst-{number}", data={"n": value})


def test_the_worker_dies_while_it_copies(
    faulty: Fleet, faulty_namespace: str, virtual_node: str, tmp_path: Path
) -> None:
    local, remote, space = faulty.cluster("local"), faulty.cluster("remote"), faulty_namespace
    files = []
    for half in range(2):
        numbers = range(half * COUNT // 2, (half + 1) * COUNT // 2)
        items = [burst(kind, number) for number in numbers for kind in ("ConfigMap", "Secret")]
        files.append(tmp_path / f"burst-{half}.json")
        files[half].write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    theirs = {("ConfigMap", 7), ("Secret", COUNT - 1)}
    for kind, number in theirs:
        apply(remote, space, json.dumps(made(kind, f"burst-{number}", {"whose": "theirs"})))

    def found(farlet: Farlet) -> dict[tuple[str, int], Object]:
        """What is in the remote namespace of the burst, with our label or without."""
        every = get(farlet.remote, space, "configmaps,secrets")["items"]
        return {
            (item["kind"], int(item["metadata"]["name"].removeprefix("burst-"))): item
            for item in every
            if item["metadata"]["name"].startswith("burst-")
        }

    with running(local, remote, virtual_node, tmp_path, "--namespace", f"{space}={space}") as farlet:
        reflected = Reflected(farlet, space)
        before = {key: item["metadata"]["resourceVersion"] for key, item in found(farlet).items()}
        mark = audit.mark(remote)
        create = ["-n", space, "create", "-f"]
        with subprocess.Popen(local.kubectl_command(*create, str(files[0])), stdout=subprocess.DEVNULL) as creating:
            eventually(lambda: len(found(farlet)) > len(theirs) + 20, "it copies")
            farlet.kill()
            assert creating.wait(120) == 0
        # however quick it was: the other half comes while nobody copies
        local.kubectl(*create, str(files[1]), timeout=120)
        assert len(found(farlet)) <= COUNT + len(theirs)
        restart = audit.mark(remote)
        farlet.start()
        eventually(lambda: len(found(farlet)), "all are there", until=(2 * COUNT).__eq__, timeout=120)

        copies = found(farlet)
        for key in theirs:
            assert copies[key]["metadata"]["resourceVersion"] == before[key], "somebody else's is as it was"
        for (kind, number), item in copies.items():
            if (kind, number) not in theirs:
                assert item["data"] == burst(kind, number)["data"]
                assert item["metadata"]["labels"][names.LABEL_NODE] == farlet.node
        resources = {"ConfigMap": "configmaps", "Secret": "secrets"}
        creates = {(kind, number): f"create {resources[kind]} burst-{number}" for kind, number in copies}
        refused = {creates.pop(key) for key in theirs}

        def writes(since: int, *, tried: bool) -> list[str]:
            every = reflected.writes(since, tried=tried)
            return sorted(write for write in every if "burst-" in write and write not in refused)

        # of those that were on their way when it died the API server made some, and dropped some: nobody waited
        second = writes(restart, tried=True)
        assert second == writes(restart, tried=False), "the second makes none that is there"
        first = sorted((Counter(writes(mark, tried=True)) - Counter(second)).elements())
        assert {*first, *second} == {*creates.values()}
        assert len(first) == len({*first}), "the first tries each once"
        assert len(second) == len({*second}), "and so does the second"

        mark = audit.mark(remote)
        assert farlet.stop() == 0
        farlet.start()
        reflected.apply(made("ConfigMap", "marker", data={}))
        reflected.until("configmap", "marker", "is there", timeout=90)
        assert reflected.writes(mark) == ["create configmaps marker"]
