"""Rights in some remote namespaces, and none cluster-wide, are enough: made by the commands of docs/rbac.md."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app import names
from app.facts import short_id
from devcluster.cluster import Cluster
from tests.cluster import audit
from tests.cluster.farlet import ANY_PORT, MANIFESTS, Farlet, install_rights, pod_manifest, running
from tests.cluster.objects import get, twins
from tests.eventually import eventually

# one at a time: the audit log knows them by their account, which is the same
pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("confined")]

Object = dict[str, Any]

ACCOUNT = "system:serviceaccount:farlet:farlet-confined"
GROUP = "metrics.k8s.io"
SIZE = ["--capacity", "cpu=4,memory=8Gi,pods=20"]
DOCUMENT = MANIFESTS.parent / "docs" / "rbac.md"


@dataclass(frozen=True)
class Given:
    """Namespaces that were given away in a cluster, and the kubeconfig that reaches no further."""

    kubeconfig: Path
    spaces: tuple[str, str]


def give_away(cluster: Cluster, spaces: tuple[str, str], folder: Path) -> Given:
    """Do what the documentation says, to the letter, with these namespaces in place of its own."""
    (block,) = re.findall(r"```bash\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    script = block.replace("team-a", spaces[0]).replace("team-b", spaces[1])
    for made_before in ("create namespace farlet", "create serviceaccount farlet-confined"):  # by another test
        assert made_before in script
        script = re.sub(f"({made_before}.*)", r"\1 || true", script)
    folder.mkdir()
    (folder / "manifests").symlink_to(MANIFESTS)
    kubectl = cluster.kubectl_command()[0]
    environment = {
        **os.environ,
        "PATH": f"{Path(kubectl).parent}:{os.environ['PATH']}",
        "KUBECONFIG": str(cluster.kubeconfig),
    }
    command = ["bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return Given(folder / "far.kubeconfig", spaces)


@pytest.fixture
def given(remote: Cluster, tmp_path: Path) -> Iterator[Given]:
    """Two namespaces of the remote cluster, of which only one may be read as an object."""
    stem = f"given-{uuid.uuid4().hex[:8]}"
    spaces = (f"{stem}-a", f"{stem}-b")
    for space in spaces:
        remote.kubectl("create", "namespace", space)
        eventually(lambda s=space: exists(remote, s, "serviceaccount", "default"), "its ServiceAccount")  # type: ignore[misc]
    yield give_away(remote, spaces, tmp_path / "given")
    for space in spaces:
        remote.kubectl("delete", "namespace", space, "--wait=false", check=False)


@pytest.fixture
def spaces(local: Cluster, namespace: str) -> Iterator[tuple[str, str]]:
    """Two local namespaces."""
    second = f"{namespace}-2"
    local.kubectl("create", "namespace", second)
    eventually(lambda: exists(local, second, "serviceaccount", "default"), "its ServiceAccount")
    yield namespace, second
    local.kubectl("delete", "namespace", second, "--wait=false", check=False)


def mapping(spaces: tuple[str, ...], given: Given) -> list[str]:
    pairs = [f"{ours}={theirs}" for ours, theirs in zip(spaces, given.spaces, strict=False)]
    return [part for pair in pairs for part in ("--namespace", pair)]


@pytest.fixture
def farlet(
    local: Cluster, remote: Cluster, spaces: tuple[str, str], given: Given, virtual_node: str, tmp_path: Path
) -> Iterator[Farlet]:
    options = [*mapping(spaces, given), *SIZE]
    with running(local, remote, virtual_node, tmp_path, *options, remote_kubeconfig=given.kubeconfig) as farlet:
        yield farlet


def exists(cluster: Cluster, namespace: str, *what: str) -> bool:
    return cluster.kubectl("-n", namespace, "get", *what, "--ignore-not-found", "-o", "name").stdout != ""


def run_pod(farlet: Farlet, namespace: str, name: str, **spec: Any) -> None:
    farlet.local.kubectl("-n", namespace, "apply", "-f", "-", stdin=pod_manifest(name, farlet.node, **spec))


def wait_ready(farlet: Farlet, namespace: str, name: str) -> None:
    wait = ["wait", "--for=condition=Ready", f"pod/{name}", "--timeout=120s"]
    farlet.local.kubectl("-n", namespace, *wait, timeout=130)


def requests(cluster: Cluster, since: int = 0) -> list[Object]:
    """What Farlet with few rights asked of a cluster."""
    events = audit.events(cluster, since)
    return [event for event in events if event["user"].get("username") == ACCOUNT and "objectRef" in event]


def come_to_rest(farlet: Farlet, spaces: tuple[str, str], given: Given) -> None:
    """Wait until nothing is left to say: a kubelet goes on a little after its pod is Ready."""
    seen: list[list[str]] = [[]]

    def quiet() -> bool:
        time.sleep(3)
        pods = [*(get(farlet.local, s, "pod", "box") for s in spaces), *(twins(farlet, s)[0] for s in given.spaces)]
        seen.append([pod["metadata"]["resourceVersion"] for pod in pods])
        return seen[-1] == seen[-2]

    eventually(quiet, "the pods come to rest")


def ends(command: str, *arguments: str) -> tuple[int, str]:
    """Run a command that ends by itself; its exit code and what it said, besides its log."""
    done = subprocess.run(
        [sys.executable, "-m", "app", command, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout + done.stderr


def start_fails(local: Cluster, kubeconfig: Path, node: str, *options: str) -> str:
    """The one line that ``farlet run`` ends with."""
    account = local.service_account_kubeconfig("farlet", "farlet")
    credentials = ["--kubeconfig", str(account), "--remote-kubeconfig", str(kubeconfig)]
    code, said = ends("run", *credentials, "--node-name", node, *ANY_PORT, *options)
    assert code == 1, said
    (line,) = [line for line in said.splitlines() if line.startswith("farlet run: ")]
    return line


def test_offloading_with_no_right_outside_of_the_given_namespaces(
    farlet: Farlet, spaces: tuple[str, str], given: Given
) -> None:
    local, remote = farlet.local, farlet.remote
    for question in (["list", "pods", "-A"], ["get", "namespaces/kube-system"], ["list", "nodes"], ["get", "secrets"]):
        answer = remote.kubectl("auth", "can-i", *question, kubeconfig=given.kubeconfig, check=False).stdout
        assert answer.strip() == "no", question

    # out, and the status back; from both namespaces into both
    for index, space in enumerate(spaces):
        run_pod(farlet, space, "box")
        wait_ready(farlet, space, "box")
        (twin,) = twins(farlet, given.spaces[index])
        assert get(local, space, "pod", "box")["status"]["podIP"] == twin["status"]["podIP"]

    # a pod that runs once
    once = {"name": "main", "image": "farlet/busybox:1", "command": ["true"]}
    run_pod(farlet, spaces[0], "once", restartPolicy="Never", containers=[once])
    eventually(
        lambda: get(local, spaces[0], "pod", "once")["status"]["phase"],
        "it has run",
        until=lambda phase: phase == "Succeeded",
    )

    # warnings
    missing = {"name": "main", "image": "farlet/no-such-image:1"}
    run_pod(farlet, spaces[1], "stuck", containers=[missing])
    about = "involvedObject.name=stuck,reason=Failed"
    eventually(lambda: get(local, spaces[1], "events", "--field-selector", about)["items"], "the warning is told")

    # deletion
    for space, name in ((spaces[0], "once"), (spaces[1], "stuck"), (spaces[0], "box")):
        local.kubectl("-n", space, "delete", "pod", name, timeout=60)
    eventually(lambda: not twins(farlet, given.spaces[0], "pods,jobs,replicasets"), "nothing is left of them")
    (left,) = twins(farlet, given.spaces[1])
    assert left["metadata"]["annotations"][names.ANNOTATION_LOCAL_NAME] == "box"

    node = get(local, "default", "node", farlet.node)
    uid = get(remote, "default", "namespace", given.spaces[0])["metadata"]["uid"]
    assert node["metadata"]["labels"][names.LABEL_REMOTE_CLUSTER] == short_id(uid)
    asked = requests(remote)
    assert {given.spaces[0], given.spaces[1]} <= {event["objectRef"].get("namespace") for event in asked}
    for event in asked:
        item, code = event["objectRef"], event["responseStatus"]["code"]
        inside = item.get("namespace", "").startswith("given-")
        # a namespace that another test took away ends this one's reading of it with an error
        assert inside or code == 403 or item["resource"] == "selfsubjectaccessreviews", event


def test_a_quota_sizes_the_node_and_people_reach_into_its_pods(
    local: Cluster, remote: Cluster, spaces: tuple[str, str], given: Given, virtual_node: str, tmp_path: Path
) -> None:
    remote.kubectl("-n", given.spaces[0], "create", "quota", "size", "--hard=pods=7,requests.cpu=3,requests.memory=1Gi")
    options = [*mapping(spaces, given), "--capacity-quota", f"{given.spaces[0]}/size"]
    with running(local, remote, virtual_node, tmp_path, *options, remote_kubeconfig=given.kubeconfig) as farlet:
        small = {"requests": {"cpu": "100m", "memory": "16Mi"}}
        command = ["sh", "-c", "echo hello; exec sleep 1000000"]
        container = {"name": "main", "image": "farlet/busybox:1", "command": command, "resources": small}
        run_pod(farlet, spaces[0], "box", containers=[container])
        wait_ready(farlet, spaces[0], "box")
        allocatable = get(local, "default", "node", virtual_node)["status"]["allocatable"]
        assert {name: allocatable[name] for name in ("pods", "cpu", "memory")} == {
            "pods": "7",  # what our own pods use of it is ours
            "cpu": "3",
            "memory": "1Gi",
        }
        remote.kubectl("-n", given.spaces[0], "patch", "quota", "size", "-p", '{"spec": {"hard": {"pods": "5"}}}')
        eventually(
            lambda: get(local, "default", "node", virtual_node)["status"]["allocatable"]["pods"],
            "the node shrinks with the quota",
            until=lambda pods: pods == "5",
        )
        assert local.kubectl("-n", spaces[0], "logs", "box").stdout == "hello\n"
        said = local.kubectl("-n", spaces[0], "exec", "box", "-i", "--", "sh", "-c", "hostname; cat", stdin="in")
        assert said.stdout == "box\nin"


def test_a_restart_adopts_and_writes_nothing(farlet: Farlet, spaces: tuple[str, str], given: Given) -> None:
    for space in spaces:
        run_pod(farlet, space, "box")
        wait_ready(farlet, space, "box")

    def uids() -> list[str]:
        ours = [get(farlet.local, space, "pod", "box") for space in spaces]
        return [pod["metadata"]["uid"] for pod in (*ours, *(twins(farlet, space)[0] for space in given.spaces))]

    before = uids()
    come_to_rest(farlet, spaces, given)
    farlet.stop()
    marks = [audit.mark(cluster) for cluster in (farlet.local, farlet.remote)]
    farlet.start()
    # what follows the first look at everything shows that this look is over
    farlet.local.kubectl("-n", spaces[0], "annotate", "pod", "box", "example.com/after=start")
    eventually(
        lambda: "example.com/after" in twins(farlet, given.spaces[0])[0]["metadata"]["annotations"],
        "a change after the start is carried over",
    )
    assert uids() == before
    assert audit.writes(farlet.local, marks[0], spaces[1]) == []
    assert audit.writes(farlet.remote, marks[1], given.spaces[1], user=ACCOUNT) == []
    carried = audit.writes(farlet.remote, marks[1], given.spaces[0], user=ACCOUNT)
    assert {tuple(line.split()[:2]) for line in carried} <= {("patch", "pods"), ("patch", "replicasets")}

    # a mapping by which they would be out of sight is refused, and nothing happens to them
    farlet.stop()
    swapped = mapping((spaces[1], spaces[0]), given)
    line = start_fails(farlet.local, given.kubeconfig, farlet.node, *swapped, *SIZE)
    for pair in zip(spaces, given.spaces, strict=True):
        assert "=".join(pair) in line
    assert uids() == before


def test_a_given_namespace_need_not_be_readable_itself(
    local: Cluster, remote: Cluster, spaces: tuple[str, str], given: Given, virtual_node: str, tmp_path: Path
) -> None:
    without = (
        '[{"op": "test", "path": "/rules/0/resources/0", "value": "namespaces"}, {"op": "remove", "path": "/rules/0"}]'
    )
    remote.kubectl("-n", given.spaces[1], "patch", "role", "farlet:remote", "--type=json", "-p", without)
    question = ["auth", "can-i", "get", f"namespaces/{given.spaces[1]}", "-n", given.spaces[1]]
    eventually(
        lambda: remote.kubectl(*question, kubeconfig=given.kubeconfig, check=False).stdout.strip() == "no",
        "the right is gone",
    )
    options = [*mapping(spaces, given), *SIZE]
    with running(local, remote, virtual_node, tmp_path, *options, remote_kubeconfig=given.kubeconfig) as farlet:
        run_pod(farlet, spaces[1], "box")
        wait_ready(farlet, spaces[1], "box")
        local.kubectl("-n", spaces[1], "delete", "pod", "box", timeout=60)
    # with none of them readable, nobody knows which cluster it is
    alone = ["--namespace", f"{spaces[1]}={given.spaces[1]}", *SIZE]
    assert "who the remote cluster is" in start_fails(local, given.kubeconfig, virtual_node, *alone)


def test_what_cannot_work_is_said_at_start(
    local: Cluster, remote: Cluster, namespace: str, given: Given, virtual_node: str, tmp_path: Path
) -> None:
    install_rights(local, remote)

    def fails(*options: str) -> str:
        return start_fails(local, given.kubeconfig, virtual_node, *options)

    good = ["--namespace", f"{namespace}={given.spaces[0]}"]

    line = fails(*good, "--namespace", f"other={namespace}", *SIZE)
    assert f"pods in namespace {namespace};" in line
    assert given.spaces[0] not in line, "there is nothing missing there"
    assert "apply manifests/remote-rbac-confined.yaml" in line
    for incomplete in ([], ["--namespace", namespace], [*good, "--namespace", "other"]):
        assert "--namespace LOCAL=REMOTE" in fails(*incomplete, *SIZE)
    many = [part for index in range(51) for part in ("--namespace", f"a{index}=b{index}")]
    assert "50 is the most" in fails(*many, *SIZE)
    line = fails(*good)
    for flag in ("--capacity ", "--capacity-quota", "--capacity-command", "--capacity-url"):
        assert flag in line
    # a health port that somebody has
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = fails(*good, *SIZE, "--health-address", address)
    assert f"cannot be served on {address}: " in line
    assert "--health-address HOST:PORT" in line
    assert not exists(local, "default", "node", virtual_node), "nothing was made"

    # the same cluster on both sides
    local.kubectl("create", "namespace", f"{namespace}-2")
    try:
        own = give_away(local, (namespace, f"{namespace}-2"), tmp_path / "own")
        line = start_fails(local, own.kubeconfig, virtual_node, "--namespace", f"a={namespace}", *SIZE)
        assert "the same cluster" in line
    finally:
        local.kubectl("delete", "namespace", f"{namespace}-2", "--wait=false")


def test_remove(farlet: Farlet, spaces: tuple[str, str], given: Given) -> None:
    for space in spaces:
        run_pod(farlet, space, "box")
        wait_ready(farlet, space, "box")
    farlet.kill()
    local = ["--kubeconfig", str(farlet.local.service_account_kubeconfig("farlet", "farlet"))]
    remote = ["--remote-kubeconfig", str(given.kubeconfig)]

    # the remote is thought to be gone: the pods go, and what runs for them stays
    code, said = ends("remove", farlet.node, *local, "--force")
    assert code == 0, said
    assert not exists(farlet.local, "default", "node", farlet.node)
    assert all(twins(farlet, space, "replicasets") for space in given.spaces)

    # it is back; without the node nobody knows where to look
    code, said = ends("remove", farlet.node, *local, *remote)
    assert code == 1
    assert "--namespace LOCAL=REMOTE" in said
    code, said = ends("remove", farlet.node, *local, *remote, *mapping(spaces, given))
    assert code == 0, said
    assert not any(twins(farlet, space, "replicasets,pods") for space in given.spaces)

    # with the node, its annotation says where
    farlet.start()
    run_pod(farlet, spaces[1], "box")
    wait_ready(farlet, spaces[1], "box")
    farlet.stop()
    code, said = ends("remove", farlet.node, *local, *remote)
    assert code == 0, said
    assert "remote namespaces" not in said
    assert not exists(farlet.local, "default", "node", farlet.node)
    assert not any(twins(farlet, space, "replicasets,pods") for space in given.spaces)
    assert not exists(farlet.local, spaces[1], "pod", "box")


def test_what_pods_use_is_read_in_each_given_namespace(farlet: Farlet, spaces: tuple[str, str], given: Given) -> None:
    """metrics.k8s.io is asked in these namespaces and nowhere else."""
    for space in spaces:
        run_pod(farlet, space, "box")
    for space in spaces:
        wait_ready(farlet, space, "box")
    since = audit.mark(farlet.remote)

    def told() -> set[str]:
        text = farlet.local.api.text(f"/api/v1/nodes/{farlet.node}/proxy/metrics/resource")
        assert "resource_scrape_error 0" in text
        return set(re.findall(r'^pod_cpu_usage_seconds_total{namespace="([^"]*)",pod="box"}', text, re.MULTILINE))

    eventually(told, "both are told of", timeout=120, until=lambda seen: seen == set(spaces))
    asked = [event for event in requests(farlet.remote, since) if event["objectRef"].get("apiGroup") == GROUP]
    assert {event["objectRef"].get("namespace") for event in asked} == set(given.spaces)
    assert {event["responseStatus"]["code"] for event in asked} == {200}
