"""Twins and pods are taken away with the grace that the local pod was given."""

from __future__ import annotations

import pytest

from app.pods.deletion import Deletion, Object, plan_clean_up, plan_removal


def twin(kind: str = "ReplicaSet", grace: int = 30, *, deleted: bool = False) -> Object:
    metadata: Object = {"namespace": "far", "name": "twin", "uid": "t1"}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {
        "kind": kind,
        "metadata": metadata,
        "spec": {"template": {"spec": {"terminationGracePeriodSeconds": grace}}},
    }


def pod(grace: int = 30, *, deleting_with: int | None = None) -> Object:
    metadata: Object = {"namespace": "far", "name": "pod", "uid": "p1"}
    if deleting_with is not None:
        metadata |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": deleting_with}
    return {"metadata": metadata, "spec": {"terminationGracePeriodSeconds": grace}}


def gone(kind: str, propagation: str) -> Deletion:
    return Deletion(kind, "far", "twin", "t1", propagation=propagation)


def ended(grace: int) -> Deletion:
    return Deletion("Pod", "far", "pod", "p1", grace=grace)


@pytest.mark.parametrize("kind", ["ReplicaSet", "Job"])
@pytest.mark.parametrize(
    ("grace", "propagation", "pods"),
    [
        (30, "Background", ()),  # as in the template: the garbage collector does just that
        (None, "Background", ()),
        (5, "Background", (ended(5),)),  # shorter: the collector would take the pod's own
        (0, "Background", (ended(0),)),
        (90, "Orphan", (ended(90),)),  # longer: the collector must not come first, a grace can only shrink
    ],
)
def test_with_the_grace_given(kind: str, grace: int | None, propagation: str, pods: tuple[Deletion, ...]) -> None:
    removal = plan_removal(grace, [twin(kind)], [pod()])
    assert removal.deletions == (gone(kind, propagation), *pods)
    assert not removal.finished


def test_nothing_is_sent_twice() -> None:
    assert plan_removal(30, [twin(deleted=True)], [pod(deleting_with=30)]).deletions == ()
    assert plan_removal(30, [], [pod(deleting_with=30)]).deletions == ()


def test_a_grace_that_shrinks_later_is_passed_on() -> None:
    assert plan_removal(0, [], [pod(deleting_with=30)]).deletions == (ended(0),)
    assert plan_removal(60, [], [pod(deleting_with=30)]).deletions == (), "it cannot grow"


def test_a_pod_that_lost_its_twin_is_deleted_by_us() -> None:
    assert plan_removal(None, [], [pod(7)]).deletions == (ended(7),)


def test_finished_when_nothing_is_left() -> None:
    assert plan_removal(30, [], []).finished
    assert not plan_removal(30, [], [pod(deleting_with=30)]).finished
    assert not plan_removal(30, [twin(deleted=True)], []).finished


def in_phase(phase: str) -> Object:
    return pod() | {"status": {"phase": phase}}


def with_condition(kind: str, status: str = "True") -> Object:
    return twin("Job") | {"status": {"conditions": [{"type": kind, "status": status}]}}


@pytest.mark.parametrize(
    ("twins", "pods", "runs_once", "deletions"),
    [
        pytest.param([twin()], [in_phase("Running")], False, (gone("ReplicaSet", "Background"),), id="runs for ever"),
        pytest.param([twin()], [in_phase("Failed")], False, (gone("ReplicaSet", "Background"),), id="would run again"),
        pytest.param([twin()], [], False, (gone("ReplicaSet", "Background"),), id="about to run"),
        pytest.param([], [in_phase("Running")], False, (ended(30),), id="left behind"),
        pytest.param([], [], False, (), id="nothing"),
        pytest.param([with_condition("Complete")], [], True, (), id="a Job that is over stays"),
        pytest.param([with_condition("FailureTarget")], [in_phase("Running")], True, (), id="a Job that is ending"),
        pytest.param([twin("Job")], [in_phase("Succeeded")], True, (), id="a pod that is over stays"),
        pytest.param(
            [with_condition("Complete", "False")], [], True, (gone("Job", "Background"),), id="a Job that came late"
        ),
        pytest.param([], [in_phase("Running")], True, (ended(30),), id="of a Job that was deleted"),
    ],
)
def test_nothing_goes_on_running_for_a_pod_that_is_over(
    twins: list[Object], pods: list[Object], runs_once: bool, deletions: tuple[Deletion, ...]
) -> None:
    assert plan_clean_up(twins, pods, runs_once=runs_once).deletions == deletions
