from __future__ import annotations

import json

import pytest

from app import names
from app.kube.objects import Object
from app.pods.restarts import hidden_restarts, restart_annotations
from tests.app.pods.samples import fresh_pod, local_pod, remote_pod, running, terminated, told_of, waiting


def test_the_first_remote_pod() -> None:
    local = local_pod()
    assert not hidden_restarts(local, remote_pod()).replaced
    assert restart_annotations(local, remote_pod()) == told_of("remote-1")


@pytest.mark.parametrize("annotations", [None, {names.ANNOTATION_REMOTE_UID: ""}])
def test_nothing_is_written_before_anything_can_restart(annotations: dict[str, str] | None) -> None:
    """An empty UID: the twin is about to be made."""
    assert restart_annotations(local_pod(annotations=annotations), fresh_pod()) == {}
    assert restart_annotations(local_pod(annotations=annotations), None) == {}


def test_the_same_remote_pod() -> None:
    local = local_pod(annotations=told_of("remote-1", '{"main":4}'))
    assert hidden_restarts(local, remote_pod()).before == {"main": 4}
    assert restart_annotations(local, remote_pod()) == {}


@pytest.mark.parametrize(
    ("entry", "before"),
    [
        (running(restarts=0), 1),
        (running(restarts=5), 6),
        (terminated(code=1, restarts=2), 3),
        (waiting(reason="CrashLoopBackOff", restarts=2) | {"containerID": "containerd://x"}, 3),
        (waiting(reason=names.REMOTE_REPLACED, restarts=2), 3),
        (waiting(reason="ImagePullBackOff"), None),
        (waiting(reason="ContainerCreating", restarts=2), None),
    ],
)
def test_another_remote_pod(entry: Object, before: int | None) -> None:
    local = local_pod(status={"containerStatuses": [entry]}, annotations=told_of("remote-1"))
    found = hidden_restarts(local, remote_pod(uid="remote-2"))
    assert found.replaced
    assert found.before.get("main") == before


def test_containers_that_did_not_run_keep_their_count() -> None:
    status = {
        "initContainerStatuses": [terminated("setup", restarts=1)],
        "containerStatuses": [running("one"), waiting("two", restarts=3)],
    }
    local = local_pod(status=status, annotations=told_of("remote-1", '{"two":3}'))
    written = restart_annotations(local, remote_pod(uid="remote-2"))
    assert written[names.ANNOTATION_REMOTE_UID] == "remote-2"
    assert json.loads(written[names.ANNOTATION_RESTARTS_BEFORE]) == {"setup": 2, "one": 1, "two": 3}


@pytest.mark.parametrize(
    "text", ["", "nonsense", "[1]", '{"main":"4"}', '{"main":-1}', '{"main":true}', '{"main":1e99}']
)
def test_an_annotation_that_somebody_edited(text: str) -> None:
    assert hidden_restarts(local_pod(annotations=told_of("remote-1", text)), remote_pod()).before == {}
