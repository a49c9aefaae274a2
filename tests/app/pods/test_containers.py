from __future__ import annotations

from typing import Any

import pytest

from app.kube.objects import Object
from app.pods.containers import Telling, Wait, may_restart, tell
from tests.app.pods.samples import NOW, container, local_pod, remote_pod, running, terminated, waiting


def telling(**options: Any) -> Telling:
    usual: dict[str, Any] = {
        "before": {},
        "replaced": False,
        "held": None,
        "missing": Wait("ContainerCreating"),
        "now": NOW,
    }
    return Telling(**usual | options)


def names_of(entries: list[Object]) -> list[str]:
    return [entry["name"] for entry in entries]


def test_only_containers_of_the_local_pod_and_in_a_kubelets_order() -> None:
    local = local_pod(
        initContainers=[container("z-first"), container("a-second", restartPolicy="Always")],
        containers=[container("web"), container("app")],
        ephemeralContainers=[container("debug-2"), container("debug-1")],
    )
    remote = remote_pod(
        running("web"),
        running("injected-by-a-remote-mesh"),
        running("app"),
        initContainerStatuses=[terminated("mesh-init"), running("a-second"), terminated("z-first")],
        ephemeralContainerStatuses=[running("debug-2"), running("debug-1"), running("of-a-remote-admin")],
    )
    found = tell(local, remote, telling())
    assert names_of(found["containerStatuses"]) == ["app", "web"]
    assert names_of(found["initContainerStatuses"]) == ["z-first", "a-second"]
    assert names_of(found["ephemeralContainerStatuses"]) == ["debug-1", "debug-2"]


def test_what_the_kubelet_says_is_copied() -> None:
    entry = running(restarts=2, resources={"requests": {"cpu": "1"}}, volumeMounts=[{"mountPath": "/a", "name": "a"}])
    assert tell(local_pod(), remote_pod(entry), telling())["containerStatuses"] == [entry]


def test_health_of_devices_that_the_local_pod_did_not_ask_for() -> None:
    """The API server refuses it: a remote webhook may have added the request."""
    health = [{"name": "nvidia.com/gpu", "resources": []}, {"name": "example.com/nic", "resources": []}]
    asks = container(resources={"requests": {"nvidia.com/gpu": "1"}})
    remote = remote_pod(running(allocatedResourcesStatus=health))
    found = tell(local_pod(containers=[asks]), remote, telling())["containerStatuses"][0]
    assert found["allocatedResourcesStatus"] == health[:1]
    found = tell(local_pod(), remote, telling())["containerStatuses"][0]
    assert "allocatedResourcesStatus" not in found


class TestEphemeral:
    local = local_pod(ephemeralContainers=[container("debug")])

    def shown(self, entry: Object, remote: Object) -> Object:
        local = self.local | {"status": {"ephemeralContainerStatuses": [entry]}}
        found: Object = tell(local, remote, telling(replaced=True, before={"debug": 1}))["ephemeralContainerStatuses"][
            0
        ]
        return found

    def test_it_ends_with_its_remote_pod(self) -> None:
        found = self.shown(running("debug"), remote_pod(uid="remote-2"))
        assert found["state"]["terminated"]["reason"] == "ContainerStatusUnknown"
        assert found["restartCount"] == 0
        assert self.shown(terminated("debug", 3), remote_pod(uid="remote-2")) == terminated("debug", 3)

    def test_it_never_runs_again(self) -> None:
        remote = remote_pod(ephemeralContainerStatuses=[running("debug")])
        assert self.shown(terminated("debug", 3), remote) == terminated("debug", 3)

    def test_it_is_on_its_way(self) -> None:
        remote = remote_pod(spec={"containers": [container()], "ephemeralContainers": [container("debug")]})
        assert self.shown(waiting("debug"), remote) == waiting("debug")


@pytest.mark.parametrize(
    ("spec", "pod", "code", "allowed"),
    [
        ({}, "Always", 0, True),
        ({}, "OnFailure", 1, True),
        ({}, "OnFailure", 0, False),
        ({}, "Never", 1, False),
        ({"restartPolicy": "Always"}, "Never", 0, True),
        ({"restartPolicy": "Never"}, "Always", 0, False),
        ({"restartPolicy": "OnFailure"}, "Never", 1, True),
        ({"restartPolicy": "Never", "restartPolicyRules": [("In", [42])]}, "Never", 42, True),
        ({"restartPolicy": "Never", "restartPolicyRules": [("In", [42])]}, "Never", 1, False),
        ({"restartPolicy": "Never", "restartPolicyRules": [("NotIn", [42])]}, "Never", 1, True),
        ({"restartPolicyRules": [("In", [42])]}, "Never", 42, False),
    ],
)
def test_may_restart(spec: dict[str, Any], pod: str, code: int, allowed: bool) -> None:
    rules = [
        {"action": "Restart", "exitCodes": {"operator": operator, "values": values}}
        for operator, values in spec.get("restartPolicyRules", [])
    ]
    made = container(**spec) | ({"restartPolicyRules": rules} if rules else {})
    assert may_restart(made, {"restartPolicy": pod, "containers": [made]}, code) is allowed


def test_a_container_that_restarts_all() -> None:
    other = container("other", restartPolicy="Never", restartPolicyRules=[{"action": "RestartAllContainers"}])
    assert may_restart(container(), {"restartPolicy": "Never", "containers": [container(), other]}, 0)
