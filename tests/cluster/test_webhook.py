"""``farlet operator`` beside a cluster, called by its API server over verified TLS: pods are steered by the strategy of
their namespace and placed by the real scheduler. Two operators, as two replicas."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app import names
from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.fleet import Fleet
from tests.cluster.farlet import Farlet, running
from tests.cluster.objects import Object, get, make_namespace
from tests.cluster.operators import SCOPE, Operator, registered, serving
from tests.cluster.test_namespace_offloading import entry, gone, offload, selector, there
from tests.eventually import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("labels")]

NODE = "operator-north"
REGION = "topology.kubernetes.io/region"


class Balancer:
    """What a Service does: connections to one port go to one of the operators that take them."""

    def __init__(self, ports: list[int]) -> None:
        self.ports = ports
        self._listener = socket.create_server(("0.0.0.0", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._turn = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(accepted,), daemon=True).start()
            del accepted

    def _carry(self, accepted: socket.socket) -> None:
        self._turn += 1
        with accepted:
            for step in range(len(self.ports)):
                port = self.ports[(self._turn + step) % len(self.ports)]
                try:
                    onward = socket.create_connection(("127.0.0.1", port), timeout=5)
                except OSError:
                    continue
                with onward:
                    onward.settimeout(None)
                    back = threading.Thread(target=_copy, args=(onward, accepted), daemon=True)
                    back.start()
                    _copy(accepted, onward)
                    back.join()
                return


def _copy(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
    for end in (one, other):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def scope() -> str:
    return f"scope-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def balancer(
    fleet: Fleet, scope: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Balancer, list[Operator]]]:
    """Two operators with the rights of the manifests, of which one leads, and what leads to both."""
    local, folder = fleet.cluster("local"), tmp_path_factory.mktemp("operator")
    with registered(local, fleet.cluster("remote"), scope) as name:
        # 3 minutes: renewed after two, so that it happens while the tests run, and early enough for a new leader
        operators = [Operator(local, name, folder / f"{n}.log", "--certificate-life", "0.05") for n in (1, 2)]
        balancer = Balancer([operator.port for operator in operators])
        try:
            with serving(operators, balancer.port):
                yield balancer, operators
        finally:
            balancer.close()


@pytest.fixture(scope="module")
def farlet(
    fleet: Fleet, balancer: tuple[Balancer, list[Operator]], scope: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Farlet]:
    options = ("--unmap-grace", "1", "--node-label", f"{REGION}=north", "--node-label", f"{SCOPE}={scope}")
    folder = tmp_path_factory.mktemp("farlet")
    with running(fleet.cluster("local"), fleet.cluster("remote"), NODE, folder, *options) as farlet:
        yield farlet


@pytest.fixture(scope="module")
def spaces(farlet: Farlet) -> Iterator[list[str]]:
    """Namespaces with objects: whoever ends their finalizers runs until all are gone."""
    made: list[str] = []
    yield made

    def left() -> set[str]:
        found = get(farlet.local, "default", "nso", "-A")["items"]
        return {item["metadata"]["namespace"] for item in found} & set(made)

    eventually(left, "their objects go", until=lambda found: not found, timeout=120)


@pytest.fixture
def space(farlet: Farlet, scope: str, spaces: list[str]) -> Iterator[Callable[..., str]]:
    """Makes namespaces that the webhook under test sees."""
    made: list[str] = []

    def make(labels: dict[str, str] | None = None) -> str:
        name = f"op-{uuid.uuid4().hex[:8]}"
        made.append(name)
        spaces.append(name)
        make_namespace(farlet.local, name, {SCOPE: scope, **(labels or {})})
        return name

    yield make
    for name in made:
        farlet.local.kubectl("delete", "namespace", name, "--wait=false", check=False)


def pod(name: str = "box", **spec: Any) -> Object:
    container = {"name": "main", "image": "farlet/busybox:1", "command": ["sleep", "1000000"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1, **spec},
    }


def not_others(scope: str) -> Object:
    """The affinity of a pod that may go to real nodes and to ours, but not to the virtual nodes of other tests."""
    real = {"key": names.LABEL_VIRTUAL_NODE, "operator": "DoesNotExist"}
    ours = {"key": SCOPE, "operator": "In", "values": [scope]}
    terms = [{"matchExpressions": [each]} for each in (real, ours)]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def dry(local: Cluster, namespace: str, content: Object) -> tuple[Object, str]:
    """The pod as it would be stored, and what kubectl shows beside."""
    command = ["-n", namespace, "create", "--dry-run=server", "-o", "json", "-f", "-"]
    done = local.kubectl(*command, stdin=json.dumps(content))
    found: Object = json.loads(done.stdout)
    return found, done.stderr


def tolerates(content: Object) -> bool:
    return any(t.get("key") == names.TAINT_KEY for t in content["spec"].get("tolerations", []))


def placed(local: Cluster, namespace: str, name: str, *, nowhere: bool = False) -> str:
    """The node that the scheduler chose, or "nowhere" if that may be: it tries again, and may have seen too little."""

    def look() -> str:
        found = get(local, namespace, "pod", name)
        if found["spec"].get("nodeName"):
            return str(found["spec"]["nodeName"])
        reasons = [c for c in found["status"].get("conditions", []) if c.get("reason") == "Unschedulable"]
        return "nowhere" if reasons and nowhere else ""

    return eventually(look, f"the scheduler decides on {name}")


NORTH, SOUTH = selector(REGION, "north"), selector(REGION, "south")


@pytest.mark.parametrize(
    ("strategy", "clusters", "anywhere", "not_here"),
    [
        # where a pod goes that may go anywhere, and one that may not run on real nodes
        ("Local", None, {"here"}, "nowhere"),
        ("LocalAndRemote", None, {"here", NODE}, NODE),
        ("LocalAndRemote", NORTH, {"here", NODE}, NODE),
        ("LocalAndRemote", SOUTH, {"here"}, "nowhere"),
        ("Remote", None, {NODE}, NODE),
        ("Remote", NORTH, {NODE}, NODE),
        ("Remote", SOUTH, {"nowhere"}, "nowhere"),
    ],
)
def test_strategies_and_selectors(
    farlet: Farlet,
    scope: str,
    space: Callable[..., str],
    strategy: str,
    clusters: Object | None,
    anywhere: set[str],
    not_here: str,
) -> None:
    local, name = farlet.local, space()
    spec = {"podOffloadingStrategy": strategy, **({"clusterSelector": clusters} if clusters else {})}
    # in one go: the pods are there in the same second as what extends their namespace
    offloading = {
        "apiVersion": "farlet.dev/v1alpha1",
        "kind": "NamespaceOffloading",
        "metadata": {"name": names.OFFLOADING},
        "spec": spec,
    }
    real = {
        node["metadata"]["name"] for node in local.nodes() if names.LABEL_VIRTUAL_NODE not in node["metadata"]["labels"]
    }
    # other tests have virtual nodes in this cluster too, and a strategy without a selector may choose those
    ours = not_others(scope)
    pods = [pod("any", affinity=ours), pod("away", affinity=ours, nodeSelector={"type": "virtual-kubelet"})]
    body = {"apiVersion": "v1", "kind": "List", "items": [offloading, *pods]}
    local.kubectl("-n", name, "create", "-f", "-", stdin=json.dumps(body))
    found = placed(local, name, "any", nowhere="nowhere" in anywhere)
    assert ("here" if found in real else found) in anywhere
    assert placed(local, name, "away", nowhere=not_here == "nowhere") == not_here
    if not_here == NODE:
        wait = ["wait", "--for=condition=Ready", "pod/away", "--timeout=120s"]
        local.kubectl("-n", name, *wait, timeout=130)


def test_what_is_kept_and_what_is_said(farlet: Farlet, space: Callable[..., str]) -> None:
    local, name = farlet.local, space({names.LABEL_ENABLED: "true"})
    found, said = dry(local, name, pod())
    assert tolerates(found)
    assert said == ""
    found, said = dry(local, name, pod(hostNetwork=True))
    assert not tolerates(found)
    assert "Warning: farlet: it needs hostNetwork" in said
    for alone in (pod(runtimeClassName="farlet"), pod(nodeName=NODE)):
        found, _ = dry(local, name, alone)
        assert "affinity" not in found["spec"]
    daemon = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
    owned = pod()
    owned["metadata"]["ownerReferences"] = [daemon]
    assert not tolerates(dry(local, name, owned)[0])
    # nothing in other namespaces
    assert not tolerates(dry(local, "default", pod())[0])

    # tighter, and the cluster's own
    offload(local, name)
    command = ["-n", name, "patch", "nso", names.OFFLOADING, "--type=merge", "-p"]
    done = local.kubectl(*command, '{"spec": {"podOffloadingStrategy": "Local"}}')
    assert "stay until they are replaced" in done.stderr
    labels = get(local, name, "namespace", name)["metadata"]["labels"]
    assert labels[names.LABEL_ENABLED] == "true", "a person put it there"
    # either operator may be asked, and hear of it a little later
    eventually(lambda: not tolerates(dry(local, name, pod())[0]), "pods are steered no more")
    done = local.kubectl(*command, json.dumps({"spec": {"clusterSelector": NORTH}}))
    assert "pods that run there are evicted" in done.stderr


def test_the_object_tells_how_it_is_and_waits_until_all_have_let_go(farlet: Farlet, space: Callable[..., str]) -> None:
    local, remote, name = farlet.local, farlet.remote, space()

    def condition() -> Object:
        found = get(local, name, "nso", names.OFFLOADING)
        assert found["metadata"]["finalizers"] == [names.FINALIZER_OFFLOADING]
        conditions: list[Object] = found["status"]["conditions"]
        return conditions[0]

    offload(local, name, clusterSelector=selector(REGION, "nowhere"))
    eventually(lambda: condition()["reason"] == "NoClusterSelected", "nothing is chosen")
    offload(local, name, clusterSelector=NORTH, podOffloadingStrategy="Remote")
    eventually(lambda: condition()["status"] == "True", "it is ready")
    assert condition()["observedGeneration"] == get(local, name, "nso", names.OFFLOADING)["metadata"]["generation"]
    local.kubectl("-n", name, "apply", "-f", "-", stdin=json.dumps(pod()))
    assert placed(local, name, "box") == NODE
    local.kubectl("-n", name, "wait", "--for=condition=Ready", "pod/box", "--timeout=120s", timeout=130)

    # what drains it is killed in the middle, and so is whoever waits for that
    farlet.kill()
    local.kubectl("-n", name, "delete", "nso", names.OFFLOADING, "--wait=false")
    eventually(lambda: condition()["reason"] == "Terminating", "it waits")
    farlet.start()
    eventually(lambda: not local.kubectl("-n", name, "get", "nso", "-o", "name").stdout, "the object goes", timeout=120)
    assert gone(remote, there(local, name)), "before it, the remote namespace"
    eventually(lambda: not get(local, name, "pods")["items"], "the pod is gone")
    metadata = get(local, name, "namespace", name)["metadata"]
    eventually(
        lambda: names.LABEL_ENABLED not in get(local, name, "namespace", name)["metadata"]["labels"],
        f"the label goes with it: {metadata}",
    )


def test_a_cluster_that_is_gone_is_not_waited_for(farlet: Farlet, space: Callable[..., str]) -> None:
    """One whose node is gone, and one that a person gives up."""
    local, gone_node, given_up = farlet.local, space(), space()
    for name in (gone_node, given_up):
        offload(local, name)
        eventually(lambda n=name: entry(local, n, NODE).get("ready"), "it is extended")  # type: ignore[misc]
    farlet.kill()
    try:
        for name in (gone_node, given_up):
            local.kubectl("-n", name, "delete", "nso", names.OFFLOADING, "--wait=false")
        local.kubectl("-n", given_up, "annotate", "nso", names.OFFLOADING, f"{names.ANNOTATION_ABANDON}=true")
        ask = ["get", "nso", "-o", "name"]
        eventually(lambda: not local.kubectl("-n", given_up, *ask).stdout, "it is let go at a person's word")
        assert local.kubectl("-n", gone_node, *ask).stdout, "its node is there"
        local.kubectl("delete", "node", NODE)
        eventually(lambda: not local.kubectl("-n", gone_node, *ask).stdout, "nobody is left to wait for")
    finally:
        farlet.start()


def test_nothing_is_refused_while_operators_die_and_certificates_change(
    farlet: Farlet, balancer: tuple[Balancer, list[Operator]], space: Callable[..., str]
) -> None:
    local, name = farlet.local, space({names.LABEL_ENABLED: "true"})
    _, operators = balancer
    failures: list[str] = []
    count = 0
    ending = threading.Event()

    def ask() -> None:
        nonlocal count
        while not ending.is_set():
            try:
                if not tolerates(dry(local, name, pod())[0]):
                    failures.append("not steered")
            except (DevclusterError, subprocess.TimeoutExpired) as error:
                failures.append(str(error))
            count += 1

    def serials() -> set[str]:
        lines = [line for o in operators for line in o.log.read_text().splitlines() if "certificate of serial" in line]
        return {line.rpartition(" ")[2] for line in lines}

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        # the authority is lost: both serve on, and with a new one as soon as there is one
        before = serials()
        secret = local.kubectl("-n", "farlet", "get", "secret", "-o", "name").stdout.split()
        (own,) = [item for item in secret if "farlet-webhook-tls-" in item]
        local.kubectl("-n", "farlet", "delete", own)
        eventually(lambda: serials() - before, "a new certificate", timeout=90)
        asked = count
        eventually(lambda: count > asked + 5, "calls go on")
        calm = list(failures)
        # one dies: the API server may lose the call that was on its way, and no other
        operators[0].kill()
        asked = count
        eventually(lambda: count > asked + 5, "calls go on with the one that is left")
        operators[0].start(balancer[0].port)
        eventually(lambda: operators[0].log.read_text().count("farlet operator: webhook on port") == 2, "it is back")
        asked = count
        eventually(lambda: count > asked + 5, "calls go on")
    finally:
        ending.set()
        thread.join()
    assert calm == []
    assert len(failures) <= 1, failures


def test_what_is_no_review_is_refused(farlet: Farlet, balancer: tuple[Balancer, list[Operator]]) -> None:
    port = balancer[1][0].port
    unverified = ssl.create_default_context()
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE

    def send(path: str, body: bytes) -> int:
        request = urllib.request.Request(f"https://127.0.0.1:{port}{path}", data=body, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=10, context=unverified) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    eventually(lambda: send("/mutate-pods", b"{}") == 400, "it serves")
    assert send("/mutate-pods", b"x" * (4 << 20)) in (413, 400)
    assert send("/elsewhere", b"{}") == 404
