"""What is known of a pod while the caches are late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from app import names
from app.kube.informers import Cache
from app.kube.objects import Envelope, Object
from app.pods.known import BY_UID, Known, by_pod_uid, by_uid, content, is_settled
from tests.app.pods.pods import UID, local_pod, twin_of


class Seen:
    """Objects as an informer holds them."""

    def __init__(self, *objects: Object) -> None:
        self.items = [Envelope.of(item) for item in objects]
        self.reached = 0

    def by_index(self, name: str, value: str) -> Sequence[Envelope]:
        index = by_uid if name == BY_UID else by_pod_uid
        return [item for item in self.items if value in index(item)]

    def has_reached(self, namespace: str, resource_version: str) -> bool:
        return self.reached >= int(resource_version)


def known(*, local: Seen | None = None, remote: Seen | None = None, twins: Seen | None = None) -> Known:
    caches = [local or Seen(local_pod()), remote or Seen(), twins or Seen(), twins or Seen()]
    found = cast(list[Cache], caches)
    return Known(local_pods=found[0], remote_pods=found[1], replica_sets=found[2], jobs=found[3])


def twin(**spec: Any) -> Object:
    made = twin_of(local_pod(**spec))
    made["metadata"] |= {"resourceVersion": "20", "creationTimestamp": "2026-02-01T12:00:00Z"}
    return made


ONCE = {"restartPolicy": "Never"}


def test_a_twin_that_was_made_is_seen_until_its_cache_could_show_it() -> None:
    twins = Seen()
    pods = known(twins=twins)
    assert not pods.has_twin(UID)
    pods.made(UID, twin())
    assert pods.view(UID).twin == twin()
    assert (pods.has_twin(UID), list(pods.unseen())) == (True, [UID])
    twins.reached = 20
    assert pods.view(UID).twins == [], "the cache is past it: it is gone"
    assert (pods.has_twin(UID), list(pods.unseen())) == (False, [])


def test_what_the_cache_shows_is_what_is_known() -> None:
    pods = known(twins=Seen(twin()))
    pods.made(UID, twin() | {"made": True})
    assert "made" not in pods.view(UID).twins[0]
    assert list(pods.unseen()) == []


@pytest.mark.parametrize("gone", [False, True])
def test_from_when_a_twin_is_shown_on_the_cache_knows_better(gone: bool) -> None:
    pods = known()
    pods.made(UID, twin())
    assert pods.shown(UID, "ReplicaSet", None if gone else Envelope.of(twin())) == twin()
    assert pods.shown(UID, "ReplicaSet", None) is None
    assert pods.view(UID).twins == []


@pytest.mark.parametrize("seen", [False, True])
def test_a_pod_that_runs_once_was_started_when_its_twin_was_made_or_seen(seen: bool) -> None:
    pods, job = known(), twin(**ONCE)
    pods.starting[UID] = True
    if seen:
        pods.shown(UID, "Job", Envelope.of(job))
    else:
        pods.made(UID, job)
    assert (pods.starting, pods.started) == ({}, {UID})
    pods.forget(UID)
    assert not pods.started


def test_what_we_wrote_comes_back_once() -> None:
    pods, local = known(), local_pod()
    stored = local_pod(metadata={"resourceVersion": "18"})
    pods.wrote(local, stored)
    assert not pods.is_echo(UID, Envelope.of(local))
    assert not pods.is_echo(UID, None), "that it is gone is news"
    assert pods.is_echo(UID, Envelope.of(stored))
    assert not pods.is_echo(UID, Envelope.of(stored))
    pods.wrote(local, stored)
    pods.expect_no_echo(UID)
    assert not pods.is_echo(UID, Envelope.of(stored))


@pytest.mark.parametrize(
    ("stored", "settled"),
    [
        (local_pod(), True),
        (local_pod(metadata={"annotations": {"note": "hello", names.ANNOTATION_STARTED: "true"}}), True),
        (local_pod(metadata={"annotations": {"note": "bye"}}), False),
        (local_pod(metadata={"labels": {"app": "web"}}), False),
        (local_pod(metadata={"generation": 2}), False),
        (local_pod(metadata={"deletionTimestamp": "2026-02-01T12:00:00Z"}), False),
        (local_pod(activeDeadlineSeconds=30), False),
        (local_pod() | {"status": {"phase": "Failed"}}, False),
    ],
)
def test_which_writes_leave_nothing_to_be_decided(stored: Object, settled: bool) -> None:
    assert is_settled(local_pod(), stored) is settled


def test_a_remote_pod_that_says_nothing_is_waited_for_once_its_twin_was_forged_from_the_pod_as_it_is() -> None:
    local = Seen(local_pod())
    pods = known(local=local)
    silent = Envelope.of({"kind": "Pod", "metadata": {"name": "web", "namespace": "far", "uid": "r"}, "status": {}})
    assert not pods.waits_for_word(UID, silent)
    pods.carried[UID] = (content(local_pod()), "")
    assert pods.waits_for_word(UID, silent)
    local.items = [Envelope.of(local_pod(metadata={"labels": {"app": "other"}}))]
    assert not pods.waits_for_word(UID, silent), "the change is to be carried"
    local.items = []
    assert not pods.waits_for_word(UID, silent)
