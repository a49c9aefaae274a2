"""The statuses of real remote pods at every moment of their lives, written to a local pod that a real API server keeps.

The API server must accept each of them, keep what was meant, and leave nothing to write afterwards.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from app import names
from app.kube.objects import Object
from app.pods import status
from devcluster.addons import BUSYBOX_IMAGE
from devcluster.api import Api, ApiError
from devcluster.cluster import Cluster
from tests.eventually import eventually

pytestmark = pytest.mark.cluster

MISSING_IMAGE = "farlet/there-is-no-such-image:1"


def shell(script: str, name: str = "main", **fields: Any) -> Object:
    return {"name": name, "image": BUSYBOX_IMAGE, "command": ["sh", "-c", script], **fields}


@dataclass
class Life:
    """A local pod, and a twin whose pods it tells of: what the worker does, one step at a time."""

    local: Cluster
    remote: Cluster
    namespace: str
    policy: str = "Always"
    spec: Object = field(default_factory=dict)
    remote_spec: Object = field(default_factory=dict)
    told: list[Object] = field(default_factory=list)
    """The statuses that were written."""
    _seen: tuple[str, ...] = ()
    _uid: str = ""

    def begin(self) -> None:
        spec = {"terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False, **self.spec}
        pod = {
            "metadata": {"name": "pod"},
            "spec": {"restartPolicy": self.policy, "schedulerName": "nobody", **spec},
        }
        made = self.local.api.post(self._pods(), {"apiVersion": "v1", "kind": "Pod", **pod})
        assert made["status"]["phase"] == "Pending"
        self._uid = made["metadata"]["uid"]
        labels = {names.LABEL_POD_UID: self._uid}
        template = {"metadata": {"labels": labels}, "spec": spec | self.remote_spec}
        if self.policy == "Always":
            twin: Object = {"spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}}
        else:
            template["spec"]["restartPolicy"] = self.policy
            twin = {"spec": _job_spec(self.policy, labels, template)}
        self.remote.api.post(self._twins(), twin | {"metadata": {"name": "twin"}})

    def pod(self) -> Object:
        return self.local.api.get(f"{self._pods()}/pod")

    def remote_pods(self) -> list[Object]:
        return self.remote.api.items(f"{self._pods()}?labelSelector={names.LABEL_POD_UID}={self._uid}")

    def remote_pod(self) -> Object:
        found = status.choose(self.remote_pods(), self._twin())
        assert found is not None
        return found

    def until(self, reached: Callable[[Object], bool], what: str, *, timeout: float = 60.0) -> Object:
        """Go on telling until the local pod is as wanted."""
        deadline = time.monotonic() + timeout
        while True:
            pod = self.step()
            if reached(pod):
                return pod
            assert time.monotonic() < deadline, (
                f"{what}: not within {timeout:g} s; {json.dumps(pod['status'], indent=1)}"
            )
            time.sleep(0.05)

    def step(self) -> Object:
        """One turn of the worker."""
        twin, pods = self._twin(), self.remote_pods()
        local = self.pod()
        seen = (twin["metadata"]["resourceVersion"], *(pod["metadata"]["resourceVersion"] for pod in pods))
        if seen == self._seen:
            return local
        self._seen = seen
        remote = status.choose(pods, twin)
        return self.write(status.local_status(local, remote, twin), status.restart_annotations(local, remote), local)

    def write(self, desired: Object, annotations: dict[str, str], local: Object) -> Object:
        body = status.status_patch(local, desired, annotations)
        if body is None:
            return local
        stored = patch(self.local.api, f"{self._pods()}/pod/status", body)
        self.told.append(desired)
        left = status.status_patch(stored, desired, annotations)
        assert left is None, f"the API server did not keep all of it: {left}\nsent: {body}"
        return stored

    def _twin(self) -> Object:
        kind = "ReplicaSet" if self.policy == "Always" else "Job"
        return self.remote.api.get(f"{self._twins()}/twin") | {"kind": kind}

    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def _twins(self) -> str:
        kind = "apps/v1/namespaces/{}/replicasets" if self.policy == "Always" else "batch/v1/namespaces/{}/jobs"
        return f"/apis/{kind.format(self.namespace)}"


def _job_spec(policy: str, labels: dict[str, str], template: Object) -> Object:
    spec: Object = {
        "manualSelector": True,
        "selector": {"matchLabels": labels},
        "template": template,
        "podReplacementPolicy": "Failed",
        "backoffLimit": 0 if policy == "Never" else 2147483647,
    }
    if policy == "Never":
        disrupted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
        spec["podFailurePolicy"] = {"rules": [disrupted]}
    return spec


def patch(api: Api, path: str, body: Object) -> Object:
    """Send a strategic merge patch; the object as it is then, or the API server's refusal."""
    connection = api.connection(timeout=10)
    try:
        headers = {"Content-Type": "application/strategic-merge-patch+json"}
        connection.request("PATCH", f"{path}?fieldManager={names.FIELD_MANAGER_PODS}", json.dumps(body), headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
    finally:
        connection.close()
    if response.status >= 300:
        raise ApiError(response.status, f"{answer.get('message')}\nsent: {json.dumps(body)}")
    assert isinstance(answer, dict)
    return answer


@pytest.fixture
def life(local: Cluster, remote: Cluster, namespace: str) -> Callable[..., Life]:
    def make(policy: str = "Always", remote_spec: Object | None = None, **spec: Any) -> Life:
        made = Life(local, remote, namespace, policy, spec, remote_spec or {})
        made.begin()
        return made

    return make


def is_condition(pod: Object, kind: str, value: str = "True") -> bool:
    return any(each["type"] == kind and each["status"] == value for each in pod["status"].get("conditions") or [])


def entry(pod: Object, name: str = "main") -> Object:
    """The status of one container; empty while there is none."""
    kinds = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
    found = [each for kind in kinds for each in pod["status"].get(kind) or [] if each["name"] == name]
    return found[0] if found else {"state": {}, "lastState": {}, "restartCount": 0}


def waits_for(pod: Object, reason: str, name: str = "main") -> bool:
    return (entry(pod, name)["state"].get("waiting") or {}).get("reason") == reason


def test_running(life: Callable[..., Life]) -> None:
    lived = life(containers=[shell("exec sleep 10000"), shell("exec sleep 10000", "another")])
    pod = lived.until(lambda pod: is_condition(pod, "Ready"), "Ready")
    remote = lived.remote_pod()
    assert pod["status"]["phase"] == "Running"
    for same in ("podIP", "podIPs", "hostIP", "hostIPs", "startTime", "containerStatuses"):
        assert pod["status"][same] == remote["status"][same], same
    assert pod["status"]["observedGeneration"] == pod["metadata"]["generation"]
    assert pod["metadata"]["annotations"][names.ANNOTATION_REMOTE_UID] == remote["metadata"]["uid"]
    assert len(lived.told) <= 3, "pending, creating, running"


def test_an_image_that_is_not_there(life: Callable[..., Life]) -> None:
    lived = life(containers=[shell("true") | {"image": MISSING_IMAGE}])
    pod = lived.until(lambda pod: waits_for(pod, "ImagePullBackOff"), "ImagePullBackOff")
    assert pod["status"]["phase"] == "Pending"
    assert is_condition(pod, "Ready", "False")


def test_no_node_fits(life: Callable[..., Life]) -> None:
    lived = life(containers=[shell("true")], remote_spec={"nodeSelector": {"there": "is-none"}})
    pod = lived.until(lambda pod: pod["status"].get("reason") == "RemoteUnschedulable", "RemoteUnschedulable")
    assert "didn't match" in pod["status"]["message"]
    assert pod["status"]["phase"] == "Pending"


def test_a_crash_loop(life: Callable[..., Life]) -> None:
    lived = life(containers=[shell("exit 3")])
    pod = lived.until(lambda pod: waits_for(pod, "CrashLoopBackOff"), "CrashLoopBackOff")
    assert entry(pod)["lastState"]["terminated"]["exitCode"] == 3
    lived.until(lambda pod: entry(pod)["restartCount"] >= 2, "restarts")
    assert all(told["phase"] in ("Pending", "Running") for told in lived.told)


def test_an_init_container_that_fails(life: Callable[..., Life]) -> None:
    lived = life(initContainers=[shell("exit 1", "setup")], containers=[shell("exec sleep 10000")])
    pod = lived.until(lambda pod: waits_for(pod, "CrashLoopBackOff", "setup"), "the init container loops")
    assert is_condition(pod, "Initialized", "False")
    assert pod["status"]["phase"] == "Pending"


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (3, "Failed")])
def test_the_end(life: Callable[..., Life], code: int, phase: str) -> None:
    lived = life("Never", containers=[shell(f"sleep 1; exit {code}")])
    pod = lived.until(status.is_terminal, "a terminal phase")
    assert pod["status"]["phase"] == phase
    assert entry(pod)["state"]["terminated"]["exitCode"] == code
    assert is_condition(pod, "Ready", "False")
    eventually(lambda: (lived._twin().get("status") or {}).get("completionTime") or code, "the Job is over")
    assert lived.step() == pod, "what is over is left alone"


def test_a_sidecar(life: Callable[..., Life]) -> None:
    sidecar = shell("trap 'exit 0' TERM; sleep 10000 & wait", "helper", restartPolicy="Always")
    lived = life("Never", initContainers=[shell("true", "setup"), sidecar], containers=[shell("sleep 1")])
    pod = lived.until(status.is_terminal, "a terminal phase")
    assert pod["status"]["phase"] == "Succeeded"
    assert [each["name"] for each in pod["status"]["initContainerStatuses"]] == ["setup", "helper"]


def test_it_fails_and_then_succeeds(life: Callable[..., Life]) -> None:
    script = "sleep 0.5; test -e /data/done && exit 0; touch /data/done; exit 1"
    main = shell(script, volumeMounts=[{"name": "data", "mountPath": "/data"}])
    lived = life("OnFailure", containers=[main], volumes=[{"name": "data", "emptyDir": {}}])
    pod = lived.until(status.is_terminal, "a terminal phase")
    assert (pod["status"]["phase"], entry(pod)["restartCount"]) == ("Succeeded", 1)


def test_deleted_by_somebody(life: Callable[..., Life]) -> None:
    lived = life(containers=[shell("exec sleep 10000")])
    lived.until(lambda pod: is_condition(pod, "Ready"), "Ready")
    first = lived.remote_pod()["metadata"]
    lived.remote.kubectl("-n", lived.namespace, "delete", "pod", first["name"], "--wait=false")
    pod = lived.until(lambda pod: entry(pod)["restartCount"] == 1 and is_condition(pod, "Ready"), "Ready again")
    assert pod["metadata"]["annotations"][names.ANNOTATION_REMOTE_UID] != first["uid"]
    assert json.loads(pod["metadata"]["annotations"][names.ANNOTATION_RESTARTS_BEFORE]) == {"main": 1}
    assert pod["status"]["phase"] == "Running"
    assert pod["status"]["podIP"] == lived.remote_pod()["status"]["podIP"]
    assert "terminated" in entry(pod)["lastState"]


def test_a_job_pod_that_is_evicted_runs_again(life: Callable[..., Life]) -> None:
    """Its container ends with 143, which the API server would not let it leave; so that must not be told."""
    lived = life("Never", containers=[shell("trap 'exit 143' TERM; sleep 10000 & wait"), shell("true", "short")])
    lived.until(lambda pod: is_condition(pod, "Initialized") and "terminated" in entry(pod, "short")["state"], "runs")
    name = lived.remote_pod()["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    lived.remote.api.post(f"/api/v1/namespaces/{lived.namespace}/pods/{name}/eviction", eviction)
    pod = lived.until(lambda pod: entry(pod)["restartCount"] == 1 and "running" in entry(pod)["state"], "runs again")
    assert pod["status"]["phase"] == "Running"
    assert "terminated" in entry(pod, "short")["state"], "kept, because the API server refuses anything else"
    assert all(told["phase"] in ("Pending", "Running") for told in lived.told)


def test_a_job_pod_that_somebody_deletes_is_over(life: Callable[..., Life]) -> None:
    lived = life("Never", containers=[shell("trap 'exit 143' TERM; sleep 10000 & wait")])
    lived.until(lambda pod: "running" in entry(pod)["state"], "runs")
    lived.remote.kubectl("-n", lived.namespace, "delete", "pod", lived.remote_pod()["metadata"]["name"], "--wait=false")
    pod = lived.until(status.is_terminal, "a terminal phase")
    assert pod["status"]["phase"] == "Failed"
    assert entry(pod)["state"]["terminated"]["exitCode"] == 143


def test_out_of_time(life: Callable[..., Life]) -> None:
    lived = life("Never", containers=[shell("trap 'exit 0' TERM; sleep 10000 & wait")])
    lived.until(lambda pod: "running" in entry(pod)["state"], "runs")
    body = {"spec": {"activeDeadlineSeconds": 1}}
    patch(lived.remote.api, f"{lived._twins()}/twin", body)
    pod = lived.until(status.is_terminal, "a terminal phase")
    assert (pod["status"]["phase"], pod["status"]["reason"]) == ("Failed", "DeadlineExceeded")


def test_an_ephemeral_container(life: Callable[..., Life]) -> None:
    lived = life(containers=[shell("exec sleep 10000")])
    lived.until(lambda pod: is_condition(pod, "Ready"), "Ready")
    first = lived.remote_pod()["metadata"]
    body = {"spec": {"ephemeralContainers": [shell("exec sleep 10000", "debug"), shell("exit 4", "short")]}}
    for cluster, name in ((lived.remote, first["name"]), (lived.local, "pod")):
        patch(cluster.api, f"{lived._pods()}/{name}/ephemeralcontainers", body)
    pod = lived.until(
        lambda pod: "running" in entry(pod, "debug")["state"] and "terminated" in entry(pod, "short")["state"],
        "both were there",
    )
    assert pod["status"]["observedGeneration"] == pod["metadata"]["generation"] == 2
    lived.remote.kubectl("-n", lived.namespace, "delete", "pod", first["name"], "--wait=false")
    pod = lived.until(lambda pod: entry(pod)["restartCount"] == 1 and is_condition(pod, "Ready"), "Ready again")
    assert entry(pod, "debug")["state"]["terminated"]["exitCode"] == 137
    assert entry(pod, "short")["state"]["terminated"]["exitCode"] == 4


def test_readiness_gates_and_conditions_of_others(life: Callable[..., Life]) -> None:
    gate = "example.com/in-the-load-balancer"
    lived = life(containers=[shell("exec sleep 10000")])
    lived.local.api.delete(f"{lived._pods()}/pod", {"gracePeriodSeconds": 0})
    with_gate = {"containers": [shell("exec sleep 10000")], "readinessGates": [{"conditionType": gate}]}
    spec = {"schedulerName": "nobody", **with_gate}
    lived.local.api.post(lived._pods(), {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec})
    pod = lived.until(lambda pod: is_condition(pod, "ContainersReady"), "ContainersReady")
    assert is_condition(pod, "Ready", "False")
    theirs = {"type": gate, "status": "True"}
    body = {"status": {"conditions": [theirs]}}
    pod = patch(lived.local.api, f"{lived._pods()}/pod/status", body)
    lived._seen = ()
    pod = lived.step()
    assert is_condition(pod, "Ready")
    assert is_condition(pod, gate)


def test_statuses_that_no_remote_pod_has(life: Callable[..., Life]) -> None:
    """Those that are made here: not offloaded, out of reach and back, over; and addresses that change."""
    lived = life(containers=[shell("exec sleep 10000")])
    pod = lived.write(status.pending_status(lived.pod(), names.NOT_OFFLOADED, "namespace not mapped"), {}, lived.pod())
    assert pod["status"]["reason"] == names.NOT_OFFLOADED
    pod = lived.until(lambda pod: is_condition(pod, "Ready"), "Ready")
    assert "reason" not in pod["status"]

    pod = lived.write(status.unreachable_status(pod, "no answer"), {}, pod)
    assert is_condition(pod, "Ready", "False")
    lived._seen = ()
    assert is_condition(lived.step(), "Ready")

    pod = lived.pod()
    remote = lived.remote_pod()
    for addresses in (["10.1.1.1", "fd00::1"], ["10.1.1.2", "fd00::1"], ["fd00::1", "10.1.1.2"], ["10.1.1.3"]):
        listed = [{"ip": ip} for ip in addresses]
        remote["status"] |= {"podIP": addresses[0], "podIPs": listed, "hostIP": addresses[0], "hostIPs": listed}
        for size in ({"cpu": "1", "memory": "1Gi"}, {"cpu": "2"}):
            remote["status"]["resources"] = {"requests": size}
            remote["status"]["allocatedResources"] = size
            asks = pod | {"spec": pod["spec"] | {"resources": {"requests": size}}}  # only such pods are told of theirs
            pod = lived.write(status.local_status(asks, remote, lived._twin()), {}, pod)
            assert pod["status"]["podIPs"] == pod["status"]["hostIPs"] == listed
            assert pod["status"]["allocatedResources"] == size
    pod = lived.write(status.local_status(pod, None, lived._twin()), {}, pod)
    assert "podIP" not in pod["status"]
    assert pod["status"]["phase"] == "Running"
    pod = lived.write(status.failed_status(pod, names.REMOTE_TWIN_LOST, "it was deleted"), {}, pod)
    assert pod["status"]["phase"] == "Failed"


def test_a_newer_pod_of_the_same_name_is_left_alone(life: Callable[..., Life]) -> None:
    lived = life(containers=[shell("exec sleep 10000")])
    old = lived.pod()
    old["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
    with pytest.raises(ApiError, match="uid: Invalid value") as refused:
        lived.write(status.pending_status(old, "Late", "a late write"), {}, old)
    assert refused.value.status == 422
