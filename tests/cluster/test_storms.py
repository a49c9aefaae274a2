"""Farlet killed again and again while people work, and a flood of pods: nothing is lost, doubled or late.

Only control planes, and fake nodes in the remote cluster: what is tested is Farlet, not what a kubelet can take.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app import names
from app.node.heartbeat import NAMESPACE as LEASES
from devcluster import kwok
from devcluster.api import ApiError
from devcluster.cluster import Cluster
from devcluster.fleet import Fleet
from tests.cluster.farlet import Farlet, running
from tests.cluster.following import Following
from tests.cluster.objects import Object
from tests.eventually import eventually

pytestmark = pytest.mark.faults

KILLS = 8
OLD = 10
FLOOD = 5000
SATURATED = 30.0
"""Seconds for which the flood is watched: it takes much longer until the last pod is Ready."""
RUN_ONCE = ("Never", "OnFailure")
LEASES_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{LEASES}/leases"


@pytest.fixture(scope="module")
def control_planes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two clusters without a kubelet; pods of the remote one run on fake nodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FARLET_DEVCLUSTER_STATE", str(tmp_path_factory.mktemp("storms")))
        fleet = Fleet("storms")
        try:
            fleet.up(["remote"], real=False, kwok_nodes=10, metrics=False)
            fleet.up(["local"], real=False, metrics=False)
            yield fleet
        finally:
            fleet.down()


@pytest.fixture
def farlet(control_planes: Fleet, virtual_node: str, tmp_path: Path) -> Iterator[Farlet]:
    """Offloads from the namespace of the node's name."""
    local, remote = control_planes.cluster("local"), control_planes.cluster("remote")
    for cluster in (local, remote):
        cluster.kubectl("create", "namespace", virtual_node)
    options = ["--namespace", f"{virtual_node}={virtual_node}", "--remote-toleration", kwok.TAINT["key"]]
    options += ["--capacity", "cpu=10k,memory=100Ti,pods=20k"]
    with running(local, remote, virtual_node, tmp_path, *options) as farlet:
        yield farlet


def pod(name: str, node: str, policy: str) -> Object:
    spec = {
        "nodeName": node,
        "restartPolicy": policy,
        "containers": [{"name": "main", "image": "fake"}],
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def pods_path(farlet: Farlet) -> str:
    return f"/api/v1/namespaces/{farlet.node}/pods"


def local_pods(farlet: Farlet) -> dict[str, Object]:
    return {item["metadata"]["name"]: item for item in farlet.local.api.items(pods_path(farlet))}


def owner(item: Object) -> str:
    return str(item["metadata"]["labels"][names.LABEL_POD_UID])


def settled(item: Object) -> bool:
    """Whether a pod is as it will stay: it runs, or it has ended."""
    status = item["status"]
    if item["spec"]["restartPolicy"] in RUN_ONCE:
        return status["phase"] in ("Succeeded", "Failed")
    return any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", []))


def everything_settles(farlet: Farlet, timeout: float = 120) -> dict[str, Object]:
    def unsettled() -> list[str]:
        return [name for name, item in local_pods(farlet).items() if not settled(item)]

    eventually(unsettled, "every pod runs, has ended or is gone", until=lambda left: not left, timeout=timeout)
    return local_pods(farlet)


class History:
    """Every remote pod that there ever was, by the local pod that it stood for."""

    def __init__(self) -> None:
        self.pods: defaultdict[str, set[str]] = defaultdict(set)

    def take(self, _kind: str, item: Object) -> None:
        self.pods[owner(item)].add(item["metadata"]["uid"])


class Person:
    """Makes, changes and deletes pods in bursts, in an order that chance decides."""

    def __init__(self, farlet: Farlet, chance: random.Random) -> None:
        self.run_once: set[str] = set()
        """UIDs of the pods that may run once at most."""
        self._farlet = farlet
        self._chance = chance
        self._made = 0
        self._there: list[str] = []

    def work(self) -> None:
        """One burst."""
        changes = [self._create] * 4 + [self._relabel, self._delete] * 2
        self._chance.shuffle(changes)
        for change in changes:
            change()

    def _create(self) -> None:
        self._made += 1
        name = f"new-{self._made}"
        item = pod(name, self._farlet.node, self._chance.choice(["Always", *RUN_ONCE]))
        made = self._farlet.local.api.post(pods_path(self._farlet), item)
        if item["spec"]["restartPolicy"] in RUN_ONCE:
            self.run_once.add(made["metadata"]["uid"])
        self._there.append(name)

    def _relabel(self) -> None:
        if not self._there:
            return
        name = self._chance.choice(self._there)
        label = f"example.com/number={self._chance.randrange(1000)}"
        self._farlet.local.kubectl("-n", self._farlet.node, "label", "pod", name, label, "--overwrite")

    def _delete(self) -> None:
        if not self._there:
            return
        name = self._there.pop(self._chance.randrange(len(self._there)))
        grace: Object = {"gracePeriodSeconds": 0} if self._chance.random() < 0.3 else {}
        self._farlet.local.api.delete(f"{pods_path(self._farlet)}/{name}", grace)


def leads(farlet: Farlet, times: int) -> None:
    eventually(lambda: farlet.log.read_text().count("is the leader") >= times, "it leads", timeout=60)


def start(farlet: Farlet) -> None:
    """Start a new one, which need not wait for the lock of the old: an administrator knows that it is dead."""
    lock = f"/apis/coordination.k8s.io/v1/namespaces/{names.LOCK_NAMESPACE}/leases/{names.lock_name(farlet.node)}"
    try:
        farlet.local.api.delete(lock)
    except ApiError as error:
        if error.status != 404:
            raise
    farlet.start()


def test_killed_at_any_moment(farlet: Farlet) -> None:
    """Pods are made, changed and deleted all the while; in the end each has one twin, and nothing ran twice."""
    seed = int(os.environ.get("FARLET_TEST_SEED") or random.randrange(2**32))
    print(f"FARLET_TEST_SEED={seed}")  # noqa: T201 - to have the same once more
    chance = random.Random(seed)
    history = History()
    selector = f"labelSelector={names.LABEL_NODE}={farlet.node}"
    with Following(farlet.remote, pods_path(farlet), selector, history.take) as following:
        for number in range(OLD):
            policy = "Always" if number % 2 else "Never"
            farlet.local.api.post(pods_path(farlet), pod(f"old-{number}", farlet.node, policy))
        old = everything_settles(farlet)
        before = {item["metadata"]["uid"]: set(history.pods[item["metadata"]["uid"]]) for item in old.values()}

        person = Person(farlet, random.Random(chance.random()))
        with ThreadPoolExecutor(1) as thread:
            for kill in range(KILLS):
                leads(farlet, kill + 1)
                burst = thread.submit(person.work)
                time.sleep(chance.uniform(0, 1))
                farlet.kill()
                start(farlet)
                burst.result(60)
        left = everything_settles(farlet)
        _exactly_one_twin_each(farlet)
        assert not following.broken

    for uid, remote in before.items():
        assert history.pods[uid] == remote, "what ran before the first kill runs undisturbed, or ran once"
    print(f"{sum(map(lost, left.values()))} of {len(person.run_once)} were given up")  # noqa: T201 - a figure
    counts = {uid: len(history.pods[uid]) for uid in person.run_once}
    assert [uid for uid, count in counts.items() if count > 1] == [], "no pod that runs once ran twice"
    for name, item in left.items():
        if item["spec"]["restartPolicy"] == "Always":
            assert len(history.pods[item["metadata"]["uid"]]) == 1, f"{name} was never started anew"


def test_an_orderly_end_loses_no_pod_that_runs_once(farlet: Farlet) -> None:
    """SIGTERM in the middle of starting them: what is in flight is finished, the rest is for the next."""

    def jobs() -> list[Object]:
        return farlet.remote.api.items(f"/apis/batch/v1/namespaces/{farlet.node}/jobs")

    def end_amid(number: int) -> None:
        leads(farlet, number + 1)
        items = [pod(f"once-{number}-{index}", farlet.node, "Never") for index in range(20)]
        with ThreadPoolExecutor(1) as thread:
            creating = thread.submit(_create, farlet.local, items)
            eventually(jobs, "the first are started", until=lambda found: len(found) > 20 * number)
            assert farlet.stop() == 0
            creating.result(60)
        farlet.start()

    for number in range(3):
        end_amid(number)
    phases = {name: item["status"]["phase"] for name, item in everything_settles(farlet).items()}
    assert [name for name, phase in phases.items() if phase != "Succeeded"] == []
    assert len(phases) == 60


def _exactly_one_twin_each(farlet: Farlet) -> None:
    def differences() -> list[str]:
        # a run-once pod that was about to be started when Farlet died is given up, and has no twin
        local = {item["metadata"]["uid"]: name for name, item in local_pods(farlet).items() if not lost(item)}
        twins = [
            owner(item)
            for group in ("apis/apps/v1/{}/replicasets", "apis/batch/v1/{}/jobs")
            for item in farlet.remote.api.items("/" + group.format(f"namespaces/{farlet.node}"))
        ]
        remote_pods = [owner(item) for item in farlet.remote.api.items(pods_path(farlet))]
        found = [f"{name} has {twins.count(uid)} twins" for uid, name in local.items() if twins.count(uid) != 1]
        return found + [f"an orphan of {uid}" for uid in (*twins, *remote_pods) if uid not in local]

    eventually(differences, "every pod has one twin, and there is nothing else", until=lambda found: not found)


def lost(item: Object) -> bool:
    return bool(item["status"].get("reason") == names.REMOTE_TWIN_LOST)


class Renewals:
    """When each Lease of the local cluster's nodes was renewed, and by whom."""

    def __init__(self) -> None:
        self._times: defaultdict[str, list[float]] = defaultdict(list)
        self.holders: defaultdict[str, set[str]] = defaultdict(set)

    def take(self, _kind: str, lease: Object) -> None:
        spec, name = lease["spec"], lease["metadata"]["name"]
        self._times[name].append(datetime.datetime.fromisoformat(spec["renewTime"]).timestamp())
        self.holders[name].add(spec.get("holderIdentity", ""))

    def oldest(self, cluster: Cluster, name: str) -> float:
        """The greatest age that a Lease had, until now; asked for once more, as what a watch brings may be late."""
        now = time.time()
        self.take("", cluster.api.get(f"{LEASES_PATH}/{name}"))
        times = sorted([*self._times[name], now])
        return max(after - before for before, after in itertools.pairwise(times))


def renewed(farlet: Farlet) -> str:
    """When the node's Lease was."""
    return str(farlet.local.api.get(f"{LEASES_PATH}/{farlet.node}")["spec"]["renewTime"])


def test_a_flood_of_pods_delays_no_heartbeat(farlet: Farlet) -> None:
    """5,000 pods at once, then all deleted at once: the node's Lease stays young, and the lock is never lost."""
    farlet.kill()  # so that all of them are there when it starts
    _create(farlet.local, [pod(f"flood-{number}", farlet.node, "Always") for number in range(FLOOD)])
    before = renewed(farlet)
    start(farlet)
    leads(farlet, 2)
    eventually(lambda: renewed(farlet) > before, "the new one looks after the node", timeout=60)
    lock = names.lock_name(farlet.node)
    renewals = Renewals()
    deletion = farlet.local.api.connection(timeout=60)
    with Following(farlet.local, LEASES_PATH, "", renewals.take) as following, contextlib.closing(deletion):
        time.sleep(SATURATED)
        deletion.request("DELETE", pods_path(farlet))  # the answer comes when all are deleted
        time.sleep(SATURATED / 2)
        assert not following.broken
        ages = {name: renewals.oldest(farlet.local, name) for name in (farlet.node, lock)}
        farlet.kill()  # what is left of the pods goes with the clusters
    log = farlet.log.read_text()
    print(f"the oldest Leases: {ages}")  # noqa: T201 - figures for whoever looks
    assert ages[farlet.node] < 15
    assert len(renewals.holders[lock]) == 1
    assert "no longer the leader" not in log


def _create(cluster: Cluster, items: list[Object]) -> None:
    """Over a few connections that are kept, for the sake of time."""

    def send(share: list[Object]) -> None:
        connection = cluster.api.connection(timeout=60)
        try:
            for item in share:
                path = f"/api/v1/namespaces/{item['spec']['nodeName']}/pods"
                connection.request("POST", path, json.dumps(item), {"Content-Type": "application/json"})
                response = connection.getresponse()
                content = response.read()
                assert response.status == 201, content
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(send, items[offset::4]) for offset in range(4)]:
            done.result()
