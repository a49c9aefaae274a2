"""Where each local pod runs, found in the caches: what the kubelet API asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from app.caches import Caches
from app.kube.objects import Key, Object
from app.pods import status
from app.pods.controller import BY_POD_UID
from kubelet_api.twins import Twin


class CachedTwins:
    """Looks into the caches of the worker, which may belong to another thread."""

    def __init__(self, caches: Callable[[], Caches | None]) -> None:
        self._caches = caches

    def synced(self) -> bool:
        caches = self._caches()
        return caches is not None and all(
            cache.synced for cache in (caches.local_pods, caches.remote_pods, caches.replica_sets, caches.jobs)
        )

    def local_pod(self, namespace: str, name: str) -> Object | None:
        caches = self._caches()
        found = caches.local_pods.get(Key(namespace, name)) if caches is not None else None
        return found.object() if found is not None else None

    def local_pods(self) -> Iterable[Object]:
        caches = self._caches()
        return [found.object() for found in caches.local_pods.list()] if caches is not None else []

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

    def is_running(self, pod: Object) -> bool:
        return bool(pod.get("status", {}).get("phase") == "Running" and self.twin(pod) is not None)


def _age(twin: Object) -> str:
    return str(twin["metadata"]["creationTimestamp"])
