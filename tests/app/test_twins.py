"""Where pods run, found in caches: the same answer for one pod and for all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app import names
from app.caches import Caches
from app.kube.objects import Envelope, Key, Object
from app.pods.known import BY_POD_UID
from app.twins import CachedTwins
from kubelet_api.twins import Twin

STARTED = "2023-11-14T22:13:20Z"


class Cache:
    """Objects as an informer holds them."""

    synced = True

    def __init__(self, *objects: Object) -> None:
        self.items = [Envelope.of(item) for item in objects]

    def list(self) -> Sequence[Envelope]:
        return self.items

    def get(self, key: Key) -> Envelope | None:
        return next((item for item in self.items if item.key == key), None)

    def by_index(self, name: str, value: str) -> Sequence[Envelope]:
        assert name == BY_POD_UID
        return [item for item in self.items if item.metadata.labels.get(names.LABEL_POD_UID) == value]

    def each_by_index(self, name: str, values: Sequence[str]) -> Sequence[tuple[Envelope, ...]]:
        return [tuple(self.by_index(name, value)) for value in values]


def pod(name: str, uid: str, labels: dict[str, str] | None = None, **rest: Any) -> Object:
    metadata = {"name": name, "namespace": "shop", "uid": uid, "labels": labels or {}, **rest.pop("metadata", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, **rest}


def remote(name: str, of: str, owner: str = "rs", **metadata: Any) -> Object:
    running = {
        "name": "main",
        "image": "i:1",
        "containerID": "containerd://abc",
        "state": {"running": {"startedAt": STARTED}},
    }
    ended = {"name": "ended", "state": {"terminated": {"exitCode": 0}}}
    status = {"phase": "Running", "startTime": STARTED, "containerStatuses": [running, ended]}
    owners = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": owner}]
    extra = {"ownerReferences": owners, "creationTimestamp": STARTED, **metadata}
    labels = {names.LABEL_POD_UID: of}
    return pod(name, f"uid-of-{name}", labels, metadata=extra, spec={"nodeName": "far-1"}, status=status)


def replica_set(of: str, uid: str = "rs") -> Object:
    metadata = {
        "name": "x", "namespace": "shop", "uid": uid, "labels": {names.LABEL_POD_UID: of}, "creationTimestamp": STARTED
    }  # fmt: skip
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata}


def twins(local: Cache, remote_pods: Cache, replica_sets: Cache) -> CachedTwins:
    caches = SimpleNamespace(local_pods=local, remote_pods=remote_pods, replica_sets=replica_sets, jobs=Cache())
    return CachedTwins(lambda: cast(Caches, caches))


def test_what_runs_is_found_with_its_containers() -> None:
    found = twins(
        Cache(pod("web", "a"), pod("alone", "b")), Cache(remote("web-1", "a"), remote("other", "zzz")), Cache()
    )
    (placed,) = found.placed()
    assert (placed.namespace, placed.name, placed.uid, placed.node) == ("shop", "web", "a", "far-1")
    assert placed.twin == Twin("shop", "web-1", "uid-of-web-1")
    (running,) = placed.containers
    assert (running.name, running.started, running.container_id) == ("main", 1_700_000_000.0, "abc")


def test_it_is_the_same_choice_as_for_one() -> None:
    """Of a remote pod that goes, one that another twin made, and one that lives, it is the last."""
    going = remote("going", "a", deletionTimestamp=STARTED)
    found = twins(
        Cache(pod("web", "a")),
        Cache(going, remote("foreign", "a", owner="x"), remote("alive", "a")),
        Cache(replica_set("a")),
    )
    (placed,) = found.placed()
    local = found.local_pod("shop", "web")
    assert local is not None
    assert placed.twin == found.twin(local) == Twin("shop", "alive", "uid-of-alive")


def test_pods_are_read_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten thousand, whoever lists them may let others have their turn in between."""
    read: list[Key] = []
    whole = Envelope.object

    def noted(envelope: Envelope) -> Object:
        read.append(envelope.key)
        return whole(envelope)

    monkeypatch.setattr(Envelope, "object", noted)
    listed = iter(twins(Cache(pod("a", "a"), pod("b", "b")), Cache(), Cache()).local_pods())
    assert next(listed)["metadata"]["name"] == "a"
    assert read == [Key("shop", "a")]
    assert [item["metadata"]["name"] for item in listed] == ["b"]
    assert list(CachedTwins(lambda: None).local_pods()) == []


def test_many_are_each_found_with_their_own() -> None:
    """Looked up together, so many at a time."""
    names_of = [f"web-{number}" for number in range(150)]
    local = Cache(*(pod(name, f"uid-{name}") for name in names_of))
    remote_pods = Cache(*(remote(f"{name}-x", f"uid-{name}", owner=f"rs-{name}") for name in reversed(names_of[1:])))
    owners = Cache(*(replica_set(f"uid-{name}", f"rs-{name}") for name in names_of[::2]))
    found = twins(local, remote_pods, owners)
    for _ in range(2):
        assert [(placed.name, placed.twin.pod) for placed in found.placed()] == [(n, f"{n}-x") for n in names_of[1:]]
    local.items[140] = Envelope.of(pod("web-140", "uid-web-141"))
    assert [placed.twin.pod for placed in found.placed()][139:141] == ["web-141-x", "web-141-x"]


def test_what_did_not_change_is_not_read_again() -> None:
    remote_pods = Cache(remote("web-1", "a"))
    found = twins(Cache(pod("web", "a")), remote_pods, Cache())
    (first,) = found.placed()
    (again,) = found.placed()
    assert again is first
    remote_pods.items = [Envelope.of(remote("web-2", "a"))]
    (changed,) = found.placed()
    assert changed.twin.pod == "web-2"
