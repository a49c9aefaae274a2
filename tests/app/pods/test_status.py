from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import names
from app.kube.objects import Object
from app.pods import status
from app.pods.addresses import IpMap
from tests.app.pods.samples import (
    EARLIER,
    NOW,
    condition,
    container,
    fresh_pod,
    job,
    local_pod,
    remote_pod,
    replica_set,
    running,
    shown,
    terminated,
    told_of,
    waiting,
)

DISRUPTED = condition("DisruptionTarget", reason="EvictionByEvictionAPI")


def tell(local: Object, remote: Object | None, twin: Object | None, **options: Any) -> Object:
    return status.local_status(local, remote, twin, now=NOW, **options)


def step(local: Object, remote: Object | None, twin: Object | None) -> Object:
    """The local pod after one turn of the worker; the next turn has nothing to write."""
    desired = tell(local, remote, twin)
    annotations = status.restart_annotations(local, remote)
    after = shown(local, desired, annotations)
    again = status.local_status(after, remote, twin, now="2026-02-01T13:00:00Z")
    assert status.status_patch(after, again, status.restart_annotations(after, remote)) is None
    return after


def find(found: Object, kind: str) -> Object:
    """A condition of a status, or of a pod."""
    listed = (found.get("status") or found)["conditions"]
    return next(each for each in listed if each["type"] == kind)


def state(pod: Object, index: int = 0) -> Object:
    found: Object = pod["status"]["containerStatuses"][index]["state"]
    return found


class TestChoose:
    def test_the_newest_live_pod_of_the_twin(self) -> None:
        old = remote_pod(uid="old", created="2026-01-01T00:00:00Z")
        new = remote_pod(uid="new", created="2026-01-02T00:00:00Z")
        newest_but_failed = remote_pod(uid="failed", phase="Failed", created="2026-01-03T00:00:00Z")
        newest_but_going = remote_pod(uid="going", deleting=True, created="2026-01-04T00:00:00Z")
        foreign = remote_pod(uid="foreign", owner="somebody", created="2026-01-05T00:00:00Z")
        found = status.choose([newest_but_failed, old, newest_but_going, new, foreign], replica_set())
        assert found is new

    def test_the_newest_when_none_lives(self) -> None:
        old = remote_pod(uid="old", phase="Failed", created="2026-01-01T00:00:00Z")
        new = remote_pod(uid="new", phase="Failed", created="2026-01-02T00:00:00Z")
        assert status.choose([new, old], job()) is new

    def test_none(self) -> None:
        assert status.choose([], replica_set()) is None
        assert status.choose([remote_pod(owner="an earlier twin")], replica_set()) is None

    @pytest.mark.parametrize("twin", [None, replica_set(deleting=True)])
    def test_a_pod_may_have_lost_its_owner_while_the_twin_is_taken_away(self, twin: Object | None) -> None:
        orphan = remote_pod(owner="nobody")
        assert status.choose([orphan], twin) is orphan


class TestPhase:
    @pytest.mark.parametrize(
        ("policy", "remote", "twin", "phase"),
        [
            ("Always", remote_pod(phase="Pending", ready=False), replica_set(), "Pending"),
            ("Always", remote_pod(), replica_set(), "Running"),
            ("Always", remote_pod(terminated(code=1), phase="Failed"), replica_set(), "Pending"),
            ("Always", remote_pod(terminated(), phase="Succeeded"), replica_set(), "Pending"),
            ("Never", remote_pod(terminated(), phase="Succeeded"), job(), "Succeeded"),
            ("Never", remote_pod(terminated(code=1), phase="Failed"), job(), "Failed"),
            ("Never", remote_pod(terminated(code=1), phase="Failed", conditions=[DISRUPTED]), job(), "Pending"),
            ("Never", remote_pod(terminated(code=143), phase="Failed", deleting=True), job(), "Pending"),
            ("Never", remote_pod(terminated(), phase="Succeeded", deleting=True), job(), "Pending"),
            ("OnFailure", remote_pod(terminated(code=1), phase="Failed"), job(backoff=2**31 - 1), "Pending"),
            ("OnFailure", remote_pod(terminated(), phase="Succeeded"), job(backoff=2**31 - 1), "Succeeded"),
            (
                "OnFailure",
                remote_pod(terminated(code=1), phase="Failed"),
                job(condition("Failed", reason="BackoffLimitExceeded"), backoff=6),
                "Failed",
            ),
            (
                "Never",
                remote_pod(terminated(code=1), phase="Failed", conditions=[DISRUPTED]),
                job(condition("FailureTarget")),
                "Pending",
            ),
            (
                "Never",
                remote_pod(terminated(), phase="Succeeded", deleting=True),
                job(condition("Failed", reason="DeadlineExceeded")),
                "Failed",
            ),
            ("Never", None, job(condition("Complete")), "Succeeded"),
            ("Never", None, job(condition("Failed", reason="BackoffLimitExceeded")), "Failed"),
            ("Never", None, job(condition("Complete", status="False")), "Pending"),
            ("Never", remote_pod(terminated(code=3), phase="Failed"), None, "Failed"),
        ],
    )
    def test_of_a_pod_that_was_pending(
        self, policy: str, remote: Object | None, twin: Object | None, phase: str
    ) -> None:
        assert step(local_pod(policy=policy), remote, twin)["status"]["phase"] == phase

    def test_a_pod_that_runs_is_not_pending_again(self) -> None:
        local = step(local_pod(), remote_pod(), replica_set())
        for remote in (
            None,
            fresh_pod("remote-2"),
            remote_pod(waiting(), uid="remote-2", phase="Pending", ready=False),
        ):
            assert step(local, remote, replica_set())["status"]["phase"] == "Running"

    @pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
    @pytest.mark.parametrize("remote", [None, remote_pod(), fresh_pod(), remote_pod(phase="Failed")])
    @pytest.mark.parametrize("twin", [None, job(), replica_set()])
    def test_a_finished_pod_never_changes(self, phase: str, remote: Object | None, twin: Object | None) -> None:
        local = local_pod(policy="Never", status={"phase": phase, "reason": "Because"}, annotations=told_of("another"))
        for desired in (
            tell(local, remote, twin),
            status.failed_status(local, "Other", "text"),
            status.pending_status(local, "Other", "text"),
            status.unreachable_status(local, "text"),
            status.ended_status(local),
        ):
            assert desired == local["status"]
        assert status.restart_annotations(local, remote) == {}

    def test_why_it_ended(self) -> None:
        remote = remote_pod(terminated(code=1), phase="Failed", reason="OutOfMemory", message="it was too much")
        found = tell(local_pod(policy="Never"), remote, job())
        assert (found["reason"], found["message"]) == ("OutOfMemory", "it was too much")
        late = job(
            condition("Failed", reason="DeadlineExceeded", message="Job was active longer than specified deadline")
        )
        assert tell(local_pod(policy="Never"), remote, late)["reason"] == "DeadlineExceeded"
        assert tell(local_pod(policy="Never"), None, late)["reason"] == "DeadlineExceeded"

    def test_a_finished_pod_is_not_ready(self) -> None:
        for remote in (remote_pod(terminated(), phase="Succeeded"), None):  # a remote that still says Ready
            found = tell(local_pod(policy="Never"), remote, job(condition("Complete")))
            for kind in ("Ready", "ContainersReady"):
                assert find(found, kind)["status"] == "False"
                assert find(found, kind)["reason"] == "PodCompleted"

    def test_a_job_that_is_complete_while_its_pod_is_gone(self) -> None:
        local = step(local_pod(policy="Never"), remote_pod(), job())
        after = step(local, None, job(condition("Complete")))
        assert after["status"]["phase"] == "Succeeded"
        assert state(after)["terminated"]["exitCode"] == 0


class TestReplacement:
    """A remote pod ends or goes, and another takes its place; the local pod stays."""

    def test_evicted_then_replaced(self) -> None:
        local = step(local_pod(), remote_pod(running(restarts=2)), replica_set())

        evicted = remote_pod(
            terminated(code=137, restarts=2), phase="Failed", reason="Evicted", message="disk", ready=False
        )
        local = step(local, evicted, replica_set())
        assert local["status"]["phase"] == "Running"
        assert state(local)["waiting"]["reason"] == names.REMOTE_REPLACED
        assert "Evicted: disk" in state(local)["waiting"]["message"]
        entry = local["status"]["containerStatuses"][0]
        assert entry["lastState"]["terminated"]["exitCode"] == 137
        assert entry["restartCount"] == 2
        assert find(local, "Ready")["status"] == find(local, "ContainersReady")["status"] == "False"
        assert find(local, "Ready")["reason"] == names.REMOTE_REPLACED

        local = step(local, fresh_pod("remote-2"), replica_set())
        assert local["metadata"]["annotations"] == told_of("remote-2", '{"main":3}')
        assert local["status"]["containerStatuses"][0]["restartCount"] == 3
        assert state(local) == {"waiting": {"reason": "ContainerCreating"}}
        assert "podIP" not in local["status"]

        local = step(local, remote_pod(running(restarts=0), uid="remote-2"), replica_set())
        entry = local["status"]["containerStatuses"][0]
        assert entry["restartCount"] == 3
        assert entry["lastState"]["terminated"]["exitCode"] == 137, "what the pod before did is still there to read"
        assert find(local, "Ready")["status"] == "True"

        crashed = terminated(code=9)["state"]
        local = step(local, remote_pod(running(restarts=1, lastState=crashed), uid="remote-2"), replica_set())
        entry = local["status"]["containerStatuses"][0]
        assert (entry["restartCount"], entry["lastState"]) == (4, crashed)

    def test_replaced_unseen(self) -> None:
        local = step(local_pod(), remote_pod(), replica_set())
        local = step(local, remote_pod(uid="remote-2"), replica_set())
        entry = local["status"]["containerStatuses"][0]
        assert entry["restartCount"] == 1
        last = entry["lastState"]["terminated"]
        assert (last["reason"], last["exitCode"], last["startedAt"]) == ("ContainerStatusUnknown", 137, EARLIER)

    def test_gone_and_not_yet_replaced(self) -> None:
        local = step(step(local_pod(), remote_pod(), replica_set()), None, replica_set())
        assert local["status"]["phase"] == "Running"
        assert state(local)["waiting"]["reason"] == names.REMOTE_REPLACED
        assert not {"podIP", "podIPs", "hostIP", "hostIPs"} & local["status"].keys()
        assert find(local, "PodReadyToStartContainers")["status"] == "False"
        local = step(local, remote_pod(uid="remote-2"), replica_set())
        assert local["status"]["containerStatuses"][0]["restartCount"] == 1

    def test_a_replacement_that_never_ran_is_no_restart(self) -> None:
        local = step(local_pod(), remote_pod(), replica_set())
        for number in range(2, 5):
            local = step(local, fresh_pod(f"remote-{number}"), replica_set())
        assert local["status"]["containerStatuses"][0]["restartCount"] == 1

    def test_a_replacement_that_finds_no_node(self) -> None:
        local = step(local_pod(), remote_pod(), replica_set())
        local = step(local, fresh_pod("remote-2"), replica_set())
        full = condition("PodScheduled", "False", "Unschedulable", "0/1 nodes are available")
        local = step(local, fresh_pod("remote-2", full), replica_set())
        assert state(local)["waiting"] == {"reason": "RemoteUnschedulable", "message": "0/1 nodes are available"}
        assert local["status"]["reason"] == "RemoteUnschedulable"
        local = step(local, remote_pod(uid="remote-2"), replica_set())
        assert "reason" not in local["status"]

    def test_a_quota_stops_the_replacement(self) -> None:
        local = step(local_pod(), remote_pod(), replica_set())
        refused = condition("ReplicaFailure", reason="FailedCreate", message="exceeded quota")
        local = step(local, None, replica_set(refused))
        assert state(local)["waiting"] == {"reason": "RemoteFailedCreate", "message": "exceeded quota"}

    def test_a_disrupted_job_pod_runs_again(self) -> None:
        """The API refuses a container of a Never pod that leaves Terminated: so it must not get there."""
        local = step(local_pod(policy="Never"), remote_pod(), job())
        leaving = remote_pod(terminated(code=143), conditions=[DISRUPTED], deleting=True, ready=False)
        local = step(local, leaving, job())
        assert state(local)["waiting"]["reason"] == names.REMOTE_REPLACED
        local = step(local, remote_pod(terminated(code=143), phase="Failed", conditions=[DISRUPTED]), job())
        assert state(local)["waiting"]["reason"] == names.REMOTE_REPLACED
        local = step(local, remote_pod(uid="remote-2"), job())
        assert "running" in state(local)
        assert local["status"]["containerStatuses"][0]["restartCount"] == 1
        local = step(local, remote_pod(terminated(), uid="remote-2", phase="Succeeded"), job())
        assert local["status"]["phase"] == "Succeeded"

    def test_an_end_that_was_held_back_is_told_when_the_job_is_over(self) -> None:
        local = step(local_pod(policy="Never"), remote_pod(), job())
        local = step(local, remote_pod(terminated(code=143), phase="Failed", deleting=True), job())
        local = step(local, None, job())
        local = step(local, None, job(condition("Failed", reason="BackoffLimitExceeded")))
        assert local["status"]["phase"] == "Failed"
        assert state(local)["terminated"]["exitCode"] == 143

    def test_what_was_done_stays_done(self) -> None:
        local = local_pod(policy="Never", containers=[container("one"), container("two")])
        local = step(local, remote_pod(terminated("one"), running("two")), job())
        local = step(local, remote_pod(running("one"), running("two"), uid="remote-2"), job())
        assert "terminated" in state(local, 0), "the API refuses anything else"
        assert "running" in state(local, 1)

    def test_the_twin_of_a_pod_that_runs_once_is_lost(self) -> None:
        local = step(local_pod(policy="OnFailure"), remote_pod(), job())
        local = step(local, None, None)
        assert (local["status"]["phase"], local["status"]["reason"]) == ("Failed", names.REMOTE_TWIN_LOST)

    def test_the_twin_of_a_pod_that_always_runs_is_made_again(self) -> None:
        local = step(step(local_pod(), remote_pod(), replica_set()), None, None)
        assert local["status"]["phase"] == "Running"
        assert state(local)["waiting"]["reason"] == names.REMOTE_REPLACED


class TestBeforeItRuns:
    def test_a_pod_that_waits_for_its_turn_costs_no_write(self) -> None:
        local = local_pod()
        scheduled = condition("PodScheduled")
        for remote in (None, fresh_pod(), fresh_pod("remote-1", scheduled)):
            desired = tell(local, remote, replica_set())
            assert status.status_patch(local, desired, status.restart_annotations(local, remote)) is None

    def test_no_node_fits(self) -> None:
        full = condition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available")
        local = step(local_pod(), fresh_pod("remote-1", full), replica_set())
        assert (local["status"]["reason"], local["status"]["message"]) == (
            "RemoteUnschedulable",
            "0/3 nodes are available",
        )
        assert find(local, "Ready")["message"] == "0/3 nodes are available"
        assert find(local, "PodScheduled")["status"] == "True", "that is the local scheduler's"

    def test_quota(self) -> None:
        refused = condition("ReplicaFailure", reason="FailedCreate", message="exceeded quota")
        local = step(local_pod(), None, replica_set(refused))
        assert (local["status"]["phase"], local["status"]["reason"]) == ("Pending", "RemoteFailedCreate")

    def test_a_kubelet_that_refuses_the_pod(self) -> None:
        remote = remote_pod(phase="Failed", reason="OutOfcpu", message="not enough", containerStatuses=[])
        local = step(local_pod(), remote, replica_set())
        assert local["status"]["phase"] == "Pending"
        assert "OutOfcpu" in local["status"]["message"]

    def test_an_explanation_goes_when_it_is_no_longer_so(self) -> None:
        local = local_pod()
        after = shown(local, status.pending_status(local, names.NOT_OFFLOADED, "namespace not mapped", now=NOW), {})
        assert after["status"]["phase"] == "Pending"
        assert after["status"]["reason"] == names.NOT_OFFLOADED
        assert find(after, "Ready")["message"] == "namespace not mapped"
        again = status.pending_status(after, names.NOT_OFFLOADED, "namespace not mapped", now="2026-02-02T00:00:00Z")
        assert status.status_patch(after, again, {}) is None
        assert tell(after, fresh_pod(), replica_set()) == local["status"] | {"observedGeneration": 1}


class TestConditions:
    def test_those_of_others_are_kept_and_the_remote_ones_not_taken(self) -> None:
        theirs = [condition("example.com/mesh", "False"), condition("DisruptionTarget", reason="Local")]
        local = local_pod(status={"conditions": theirs})
        remote = remote_pod(conditions=[condition("remote.example/only"), DISRUPTED])
        found = tell(local, remote, replica_set())["conditions"]
        assert found[:2] == theirs
        assert {each["type"] for each in found[2:]} == {
            "PodScheduled",
            "PodReadyToStartContainers",
            "Initialized",
            "Ready",
            "ContainersReady",
        }

    def test_the_local_scheduler_is_never_overruled(self) -> None:
        mine = condition("PodScheduled", "False", "Hm")
        assert find(tell(local_pod(status={"conditions": [mine]}), remote_pod(), replica_set()), "PodScheduled") == mine

    def test_disruption_is_told_with_the_end(self) -> None:
        remote = remote_pod(terminated(code=1), phase="Failed", conditions=[DISRUPTED])
        found = tell(local_pod(policy="Never"), remote, job(condition("Failed")))
        assert find(found, "DisruptionTarget")["reason"] == "EvictionByEvictionAPI"

    def test_unreachable_and_back(self) -> None:
        local = step(local_pod(), remote_pod(), replica_set())
        gone = status.unreachable_status(local, "no answer since 12:00", now=NOW)
        away = shown(local, gone, {})
        for kind in ("Ready", "ContainersReady"):
            assert find(away, kind) | {"observedGeneration": 1} == {
                "type": kind,
                "status": "False",
                "reason": names.REMOTE_UNREACHABLE,
                "message": "no answer since 12:00",
                "lastTransitionTime": NOW,
                "observedGeneration": 1,
            }
        later = status.unreachable_status(
            away, "no answer since 12:00, last error: refused", now="2026-02-01T12:05:00Z"
        )
        assert status.status_patch(away, later, {}) is None, "one write each way"
        assert {**gone, "conditions": []} == {**local["status"], "conditions": []}
        back = status.local_status(away, remote_pod(), replica_set(), now="2026-02-01T12:10:00Z")
        assert find(back, "Ready")["status"] == "True"
        assert find(back, "Ready")["lastTransitionTime"] == "2026-02-01T12:10:00Z"

    def test_unreachable_before_it_was_ready(self) -> None:
        local = local_pod()
        assert status.status_patch(local, status.unreachable_status(local, "no answer"), {}) is None


class TestFields:
    def test_addresses_of_all_families(self) -> None:
        both = [{"ip": "10.1.2.3"}, {"ip": "fd00::3"}]
        hosts = [{"ip": "192.168.1.9"}, {"ip": "fd99::9"}]
        found = tell(local_pod(), remote_pod(podIPs=both, hostIPs=hosts), replica_set())
        assert (found["podIP"], found["podIPs"]) == ("10.1.2.3", both)
        assert (found["hostIP"], found["hostIPs"]) == ("192.168.1.9", hosts)

        ip_map = IpMap.parse(["10.1.0.0/16=10.201.0.0/16", "fd00::/64=fd77::/64", "192.168.0.0/16=1.2.0.0/16"])
        found = tell(local_pod(), remote_pod(podIPs=both, hostIPs=hosts), replica_set(), ip_map=ip_map)
        assert (found["podIP"], found["podIPs"]) == ("10.201.2.3", [{"ip": "10.201.2.3"}, {"ip": "fd77::3"}])
        assert found["hostIP"] == "192.168.1.9", "the map is for pods"

    def test_what_is_not_ours_is_left(self) -> None:
        own = {"qosClass": "BestEffort", "nominatedNodeName": "n", "resourceClaimStatuses": [{"name": "gpu"}]}
        remote = remote_pod(nominatedNodeName="far", resourceClaimStatuses=[{"name": "far"}])
        found = tell(local_pod(status=own), remote, replica_set())
        assert {key: found[key] for key in own} == own

    def test_fields_of_the_future_are_carried(self) -> None:
        entry = running(cgroupWeather="sunny")
        found = tell(local_pod(status={"schedulersOwn": 1}), remote_pod(entry, volumeHealth=[{"a": 1}]), replica_set())
        assert found["volumeHealth"] == [{"a": 1}]
        assert found["schedulersOwn"] == 1
        assert found["containerStatuses"][0]["cgroupWeather"] == "sunny"

    def test_resize(self) -> None:
        resources = {"requests": {"cpu": "2"}}
        pending = condition("PodResizePending", reason="Deferred") | {"observedGeneration": 7}
        remote = remote_pod(resources=resources, allocatedResources={"cpu": "1"}, conditions=[pending])
        asks = local_pod()
        asks["spec"]["resources"] = resources
        local = step(asks, remote, replica_set())
        assert local["status"]["resources"] == resources
        assert local["status"]["allocatedResources"] == {"cpu": "1"}
        assert find(local, "PodResizePending")["observedGeneration"] == 1
        local = step(local, remote_pod(), replica_set())
        assert not {"resources", "allocatedResources"} & local["status"].keys()
        assert all(each["type"] != "PodResizePending" for each in local["status"]["conditions"])

    def test_resources_of_a_pod_that_asked_for_none_are_not_told(self) -> None:
        """A kubelet on cgroup v1 tells of a limit that is its machine's, now and then."""
        remote = remote_pod(resources={"limits": {"memory": "9007199254740988Ki"}}, allocatedResources={"cpu": "1"})
        assert not {"resources", "allocatedResources"} & tell(local_pod(), remote, replica_set()).keys()

    def test_the_first_start_time_stays(self) -> None:
        local = step(local_pod(), remote_pod(startTime=EARLIER), replica_set())
        later = remote_pod(uid="remote-2", startTime="2026-02-01T11:30:00Z")
        assert step(local, later, replica_set())["status"]["startTime"] == EARLIER

    def test_generations_are_local_and_never_fall(self) -> None:
        local = step(local_pod(), remote_pod(), replica_set())
        assert local["status"]["observedGeneration"] == 1
        assert {each["observedGeneration"] for each in local["status"]["conditions"]} == {1}

        changed = local | {"metadata": local["metadata"] | {"generation": 2}}
        behind = remote_pod(observedGeneration=6)
        assert tell(changed, behind, replica_set())["observedGeneration"] == 1, "the remote kubelet has not seen it"
        assert tell(changed, remote_pod(), replica_set())["observedGeneration"] == 2
        ahead = local_pod(status={"observedGeneration": 5})
        assert tell(ahead, remote_pod(), replica_set())["observedGeneration"] == 5

    def test_an_api_server_whose_pods_have_no_generation(self) -> None:
        local = local_pod(status={"conditions": []})
        del local["metadata"]["generation"]
        found = tell(local, remote_pod(), replica_set())
        assert "observedGeneration" not in found
        assert all("observedGeneration" not in each for each in found["conditions"])


class TestDeletion:
    def test_the_end_of_a_pod_being_deleted_is_told(self) -> None:
        local = step(local_pod(), remote_pod(), replica_set())
        local["metadata"]["deletionTimestamp"] = NOW
        ended = remote_pod(terminated(code=143), phase="Failed", deleting=True, ready=False)
        assert step(local, ended, None)["status"]["phase"] == "Failed"
        assert step(local, ended, replica_set(deleting=True))["status"]["phase"] == "Failed"
        assert step(local, ended, replica_set())["status"]["phase"] == "Running", "its twin could make another"

    def test_a_pod_of_a_job_being_deleted_shows_its_containers_end(self) -> None:
        local = step(local_pod(policy="Never"), remote_pod(), job())
        local["metadata"]["deletionTimestamp"] = NOW
        local = step(local, remote_pod(terminated(code=143), deleting=True, ready=False), job(deleting=True))
        assert state(local)["terminated"]["exitCode"] == 143

    def test_nothing_is_left(self) -> None:
        local = step(local_pod(), remote_pod(), replica_set())
        local["metadata"]["deletionTimestamp"] = NOW
        assert step(local, None, replica_set(deleting=True)) == local
        ended = step(local, None, None)
        assert ended["status"]["phase"] == "Failed"
        last = state(ended)["terminated"]
        assert (last["reason"], last["exitCode"], last["containerID"]) == (
            "ContainerStatusUnknown",
            137,
            "containerd://main",
        )

    def test_all_had_succeeded(self) -> None:
        local = step(local_pod(), remote_pod(terminated(code=0), ready=False), replica_set())
        local["metadata"]["deletionTimestamp"] = NOW
        assert step(local, None, None)["status"]["phase"] == "Succeeded"

    def test_it_never_started(self) -> None:
        local = local_pod()
        local["metadata"]["deletionTimestamp"] = NOW
        assert step(local, None, None)["status"]["phase"] == "Failed"


class TestFailed:
    def test_everything_says_so(self) -> None:
        local = step(local_pod(policy="Never"), remote_pod(), job())
        found = status.failed_status(local, "RemoteTwinLost", "somebody deleted it", now=NOW)
        assert (found["phase"], found["reason"], found["message"]) == (
            "Failed",
            "RemoteTwinLost",
            "somebody deleted it",
        )
        assert found["containerStatuses"][0]["state"]["terminated"] == {
            "exitCode": 137,
            "reason": "RemoteTwinLost",
            "message": "somebody deleted it",
            "startedAt": EARLIER,
            "finishedAt": NOW,
            "containerID": "containerd://main",
        }
        assert find(found, "Ready")["reason"] == "PodFailed"


ENTRIES = st.sampled_from(
    [
        running(),
        running(restarts=3, lastState=terminated(code=1)["state"]),
        waiting(),
        waiting(reason="CrashLoopBackOff", restarts=2, lastState=terminated(code=1)["state"]),
        terminated(code=0),
        terminated(code=1),
    ]
)
REMOTES = st.one_of(
    st.none(),
    st.builds(fresh_pod, st.sampled_from(["remote-1", "remote-2"])),
    st.builds(
        remote_pod,
        ENTRIES,
        phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
        uid=st.sampled_from(["remote-1", "remote-2", "remote-3"]),
        ready=st.booleans(),
        deleting=st.booleans(),
        conditions=st.sampled_from([[], [DISRUPTED]]),
    ),
)
JOBS = st.sampled_from([None, job(), job(backoff=9), job(condition("Complete")), job(condition("Failed"))])


@given(
    policy=st.sampled_from(["Always", "Never", "OnFailure"]),
    life=st.lists(st.tuples(REMOTES, JOBS), min_size=1, max_size=8),
)
def test_whatever_happens(policy: str, life: list[tuple[Object | None, Object | None]]) -> None:
    """Each turn settles at once, restarts never fall, what is over stays so, and no refused transition is asked for."""
    local = local_pod(policy=policy)
    for remote, twin in life:
        before = local["status"]
        local = step(local, remote, replica_set() if policy == "Always" and twin is not None else twin)
        after = local["status"]
        if before["phase"] in ("Succeeded", "Failed"):
            assert after == before
        if policy == "Always":
            assert after["phase"] in ("Pending", "Running")
        for old in before.get("containerStatuses") or []:
            new = next(each for each in after["containerStatuses"] if each["name"] == old["name"])
            if policy != "Always" and "terminated" in old["state"]:
                may = policy == "OnFailure" and old["state"]["terminated"]["exitCode"] != 0
                assert may or "terminated" in new["state"]
            if remote is None or remote["metadata"]["uid"] != local["metadata"]["annotations"].get(
                names.ANNOTATION_REMOTE_UID
            ):
                assert new["restartCount"] >= old["restartCount"]


def test_a_deletion_alone_is_not_written() -> None:
    """It raises the generation; the last status, when the remote pod is gone, tells of it."""
    remote = remote_pod(running())
    local = local_pod(annotations=told_of())
    local["status"] = status.local_status(local, remote, replica_set(), now=NOW)
    local["metadata"] |= {"generation": 2, "deletionTimestamp": NOW, "deletionGracePeriodSeconds": 30}
    desired = status.leaving_status(local, remote, replica_set(), now=NOW)
    assert status.status_patch(local, desired, status.restart_annotations(local, remote)) is None
    remote["status"]["containerStatuses"] = [terminated(code=0)]
    desired = status.leaving_status(local, remote, replica_set(), now=NOW)
    assert "terminated" in desired["containerStatuses"][0]["state"], "what happens meanwhile is told"
    assert status.ended_status(local, now=NOW)["observedGeneration"] == 2
