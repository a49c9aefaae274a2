"""KWOK plays the kubelet of fake nodes, and of no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster import kwok
from devcluster.api import Object, object_path
from devcluster.layout import ClusterLayout
from devcluster.process import Command


@pytest.fixture
def command(layout: ClusterLayout) -> Command:
    layout.folder.mkdir(parents=True)
    return kwok.command(layout, {kwok.KWOK: Path("/bin/kwok")})


@pytest.fixture
def flags(command: Command) -> dict[str, str]:
    pairs = [argument.removeprefix("--").partition("=") for argument in command.argv[1:]]
    return {name: value for name, _, value in pairs}


def test_fake_node() -> None:
    node: dict[str, Any] = kwok.node(7)
    assert node["metadata"]["name"] == node["metadata"]["labels"]["kubernetes.io/hostname"] == "kwok-7"
    assert node["spec"]["taints"] == [kwok.TAINT]
    assert kwok.TAINT["effect"] == "NoSchedule"
    assert node["status"]["allocatable"] == node["status"]["capacity"]
    assert {"cpu", "memory", "pods"} <= node["status"]["capacity"].keys()
    assert object_path(node) == "/api/v1/nodes/kwok-7"
    assert kwok.node(8)["metadata"]["name"] == "kwok-8"


@pytest.mark.parametrize(
    ("node", "fake"),
    [
        (kwok.node(0), True),
        ({"metadata": {"name": "local-node"}}, False),
        ({"metadata": {"name": "kwok-0", "annotations": {}}}, False),
        ({"metadata": {"name": "kwok-0", "annotations": {"kwok.x-k8s.io/node": "real"}}}, False),
    ],
)
def test_is_fake(node: Object, fake: bool) -> None:
    assert kwok.is_fake(node) is fake


def test_manages_fake_nodes_alone(flags: dict[str, str]) -> None:
    assert flags["manage-all-nodes"] == "false"
    key, value = flags["manage-nodes-with-annotation-selector"].split("=")
    assert kwok.node(7)["metadata"]["annotations"][key] == value


def test_runs_in_the_cluster_with_its_own_identity(
    command: Command, flags: dict[str, str], layout: ClusterLayout
) -> None:
    assert (command.argv[0], command.netns) == ("/bin/kwok", str(layout.netns_path))
    assert flags["kubeconfig"] == str(layout.kubeconfig("kwok"))
    assert flags["server-address"] == f"{layout.ip}:{flags['node-port']}"
    assert flags["tls-private-key-file"] == str(layout.pki / "kwok-serving.key")
    assert not any("insecure" in flag for flag in flags)


def test_stages_are_written_as_kwok_reads_them(flags: dict[str, str]) -> None:
    assert list(yaml.safe_load_all(Path(flags["config"]).read_text())) == list(kwok.stages())


def test_usage_is_told_where_metrics_are_wanted(layout: ClusterLayout) -> None:
    layout.folder.mkdir(parents=True)
    kwok.command(layout, {kwok.KWOK: Path("/bin/kwok")}, metrics=True)
    written = list(yaml.safe_load_all((layout.folder / "kwok-stages.json").read_text()))
    assert written == [*kwok.stages(), *kwok.usage()]
    paths = {item["metadata"]["name"]: item["spec"]["path"] for item in written if item["kind"] == "Metric"}
    assert paths["kwok-0"] == "/metrics/resource"
    annotations = kwok.node(7)["metadata"]["annotations"]
    assert annotations["metrics.k8s.io/resource-metrics-path"] == paths["each-node"].format(nodeName="kwok-7")


def test_stages_are_complete() -> None:
    stages = list(kwok.stages())
    assert len({stage["metadata"]["name"] for stage in stages}) == len(stages)
    assert {stage["spec"]["resourceRef"]["kind"] for stage in stages} == {"Node", "Pod"}
    for stage in stages:
        expressions = stage["spec"]["selector"]["matchExpressions"]
        assert expressions, "a stage for everything never ends"
        for expression in expressions:
            assert ("values" in expression) == (expression["operator"] in ("In", "NotIn"))
        template = stage["spec"]["next"].get("statusTemplate", "")
        assert template.count("{") == template.count("}")
        assert len(re.findall(r"{{ (?:range|if|with) ", template)) == template.count("{{ end }}")


def test_a_pod_that_is_to_go_is_only_deleted() -> None:
    """Whatever else a stage does to a pod, it is not for one with a deletion timestamp."""
    for stage in kwok.stages():
        if stage["spec"]["resourceRef"]["kind"] == "Pod" and not stage["spec"]["next"].get("delete"):
            assert {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"} in (
                stage["spec"]["selector"]["matchExpressions"]
            )
