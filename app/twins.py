"""Where each local pod runs, found in the caches: what the kubelet API asks for."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Struct

from app.caches import Caches
from app.kube.objects import Envelope, Key, Object
from app.pods import status
from app.pods.known import BY_POD_UID
from kubelet_api.twins import Placed, Running, Twin

_BATCH: Final = 128
"""Pods that are looked up at once, while which the caches' own thread has to wait: some microseconds."""


class CachedTwins:
    """Looks into the caches of the worker, which may belong to another thread."""

    def __init__(self, caches: Callable[[], Caches | None]) -> None:
        self._caches = caches
        self._placed: dict[Key, _Remembered] = {}

    def synced(self) -> bool:
        caches = self._caches()
        return caches is not None and all(
            cache.synced for cache in (caches.local_pods, caches.remote_pods, caches.replica_sets, caches.jobs)
        )

    def local_pod(self, namespace: str, name: str) -> Object | None:
        caches = self._caches()
        found = caches.local_pods.get(Key(namespace, name)) if caches is not None else None
        return found.object() if found is not None else None

    def local_pods(self) -> Iterator[Object]:
        """Each is read when it is asked for: ten thousand at once would keep everybody else waiting."""
        caches = self._caches()
        return (found.object() for found in caches.local_pods.list()) if caches is not None else iter(())

    def twin(self, pod: Object) -> Twin | None:
        caches = self._caches()
        if caches is None:
            return None
        uid = pod["metadata"]["uid"]
        owners = [*caches.replica_sets.by_index(BY_POD_UID, uid), *caches.jobs.by_index(BY_POD_UID, uid)]
        remote = [found.object() for found in caches.remote_pods.by_index(BY_POD_UID, uid)]
        owner = min((found.object() for found in owners), key=_age, default=None)
        chosen = status.choose(remote, owner)
        if chosen is None:
            return None
        metadata = chosen["metadata"]
        return Twin(namespace=metadata["namespace"], pod=metadata["name"], uid=metadata["uid"])

    def placed(self) -> Iterator[Placed]:
        """What did not change since the last time is not read again: of ten thousand pods nearly all did not."""
        caches = self._caches()
        if caches is None:
            return
        remembered: dict[Key, _Remembered] = {}
        every = caches.local_pods.list()
        for start in range(0, len(every), _BATCH):
            batch = [(local, self._known(local)) for local in every[start : start + _BATCH]]
            uids = [local.metadata.uid if known is None else known.uid for local, known in batch]
            replica_sets = caches.replica_sets.each_by_index(BY_POD_UID, uids)
            jobs = caches.jobs.each_by_index(BY_POD_UID, uids)
            remotes = caches.remote_pods.each_by_index(BY_POD_UID, uids)
            for (local, known), uid, of_sets, of_jobs, remote in zip(
                batch, uids, replica_sets, jobs, remotes, strict=True
            ):
                owners = of_sets + of_jobs
                made_of = owners + remote
                if known is None or known.made_of != made_of:
                    known = _Remembered(local, uid, made_of, _placed(local.key, uid, owners, remote))
                remembered[local.key] = known
                if known.placed is not None:
                    yield known.placed
        self._placed = remembered

    def _known(self, local: Envelope) -> _Remembered | None:
        """What was found of this very version of a pod."""
        known = self._placed.get(local.key)
        return known if known is not None and known.local is local else None

    def is_running(self, pod: Object) -> bool:
        return bool(pod.get("status", {}).get("phase") == "Running" and self.twin(pod) is not None)


def _age(twin: Object) -> str:
    return str(twin["metadata"]["creationTimestamp"])


# ---------------------------------------------------------------------- what runs where, of many


class _Remembered(Struct, frozen=True, gc=False):
    """What was found of a pod, and what it was found in."""

    local: Envelope
    uid: str
    made_of: tuple[Envelope, ...]
    placed: Placed | None


class _Started(Struct, frozen=True, gc=False):
    startedAt: str | None = None


class _State(Struct, frozen=True, gc=False):
    running: _Started | None = None


class _Container(Struct, gc=False):
    name: str
    state: _State = _State()
    image: str = ""
    containerID: str = ""


class _Status(Struct):
    phase: str = ""
    startTime: str | None = None
    containerStatuses: list[_Container] | None = None
    initContainerStatuses: list[_Container] | None = None
    ephemeralContainerStatuses: list[_Container] | None = None


class _Spec(Struct, gc=False):
    nodeName: str = ""


_STATUS: Final = msgspec.json.Decoder(_Status)
_SPEC: Final = msgspec.json.Decoder(_Spec)


def _placed(key: Key, uid: str, owners: Sequence[Envelope], remote: Sequence[Envelope]) -> Placed | None:
    """Where a pod runs, by the same choice as :meth:`CachedTwins.twin`, but without reading all of everything."""
    if not remote:
        return None
    statuses = {pod.key: _STATUS.decode(pod.status or b"{}") for pod in remote}
    owner = min((_metadata(envelope) for envelope in owners), key=_age, default=None)
    chosen = status.choose([_metadata(pod) | {"status": {"phase": statuses[pod.key].phase}} for pod in remote], owner)
    if chosen is None:
        return None
    metadata = chosen["metadata"]
    found = next(pod for pod in remote if pod.key == (metadata["namespace"], metadata["name"]))
    told = statuses[found.key]
    lists = (told.containerStatuses, told.initContainerStatuses, told.ephemeralContainerStatuses)
    return Placed(
        namespace=key.namespace,
        name=key.name,
        uid=uid,
        twin=Twin(metadata["namespace"], metadata["name"], metadata["uid"]),
        node=_SPEC.decode(found.spec or b"{}").nodeName,
        started=told.startTime or "",
        containers=tuple(_running(container) for listed in lists for container in listed or () if _runs(container)),
    )


def _metadata(envelope: Envelope) -> Object:
    return {"metadata": msgspec.json.decode(envelope.raw_metadata)}


def _runs(container: _Container) -> bool:
    return container.state.running is not None and container.state.running.startedAt is not None


def _running(container: _Container) -> Running:
    assert container.state.running is not None
    return Running(
        container.name,
        _seconds(container.state.running.startedAt or ""),
        container.image,
        container.containerID.rpartition("//")[2],
    )


@lru_cache(maxsize=4096)
def _seconds(timestamp: str) -> float:
    return datetime.datetime.fromisoformat(timestamp).timestamp()
