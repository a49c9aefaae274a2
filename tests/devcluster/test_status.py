"""What a person and a program are told about a fleet."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from devcluster.status import ClusterState, ComponentState, FleetState, as_json, as_text

MIB = 1024 * 1024

ETCD = ComponentState("etcd", "running", 4242, 50 * MIB)
PROVISIONER = ComponentState("local-path-provisioner", "not started", None, 0)
LOCAL = ClusterState(
    name="local",
    server="https://10.254.1.2:6443",
    kubeconfig="/state/dev/local/kubeconfigs/admin.kubeconfig",
    logs="/state/dev/local/logs",
    components=(ETCD,),
    memory=700 * MIB,
    nodes=3,
    nodes_ready=2,
    problem="",
)
REMOTE = replace(LOCAL, name="remote", memory=300 * MIB)
FLEET = FleetState("dev", (LOCAL, REMOTE), ())


def with_component(component: ComponentState) -> FleetState:
    return replace(FLEET, clusters=(LOCAL, replace(REMOTE, components=(ETCD, component))))


@pytest.mark.parametrize("state", ["paused", "dead", "not started"])
def test_one_program_that_does_not_run_is_enough(state: str) -> None:
    assert FLEET.healthy
    assert not with_component(replace(ETCD, state=state)).healthy


def test_health_needs_an_api_that_answers_and_a_cluster() -> None:
    assert not replace(FLEET, clusters=(replace(LOCAL, problem="timed out"),)).healthy
    assert not replace(FLEET, clusters=()).healthy


def test_text() -> None:
    lines = as_text(FLEET).splitlines()
    assert lines[0] == "local  https://10.254.1.2:6443  2/3 nodes Ready  700 MiB with containers"
    assert lines[1] == "  export KUBECONFIG=/state/dev/local/kubeconfigs/admin.kubeconfig"
    assert lines[2] == "  logs: /state/dev/local/logs"
    assert lines[3].split() == ["etcd", "running", "4242", "50", "MiB"]
    assert lines[-1] == "all clusters: 1000 MiB"


def test_columns_are_aligned() -> None:
    lines = as_text(with_component(PROVISIONER)).splitlines()
    rows = [line for line in lines if line.endswith(" MiB") and line.startswith("  ")]
    assert rows[-1].split() == ["local-path-provisioner", "not", "started", "-", "0", "MiB"]
    assert len({len(row) for row in rows}) == 1


def test_problem_takes_the_place_of_the_nodes() -> None:
    text = as_text(replace(FLEET, clusters=(replace(LOCAL, problem="connection refused"),)))
    assert "connection refused" in text.splitlines()[0]
    assert "nodes Ready" not in text


def test_faults_are_shown() -> None:
    text = as_text(replace(FLEET, faults=("link local - remote is cut", "the way to local is slow")))
    assert text.splitlines()[-2:] == ["fault: link local - remote is cut", "fault: the way to local is slow"]


def test_not_up_says_how_to_start() -> None:
    text = as_text(FleetState("dev", (), ()))
    assert text == "fleet dev is not up: start it with `python -m devcluster up`"


def test_json() -> None:
    found = json.loads(as_json(with_component(PROVISIONER)))
    assert (found["fleet"], found["healthy"], found["faults"]) == ("dev", False, [])
    local, remote = found["clusters"]
    assert (local["name"], local["nodes"], local["nodes_ready"], local["memory"]) == ("local", 3, 2, 700 * MIB)
    assert remote["components"][1] == {
        "name": "local-path-provisioner",
        "state": "not started",
        "pid": None,
        "memory": 0,
    }
    assert json.loads(as_json(FLEET))["healthy"] is True
