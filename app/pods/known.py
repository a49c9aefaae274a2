"""What is known of each local pod: what the caches of both clusters hold of it, and what we did that they do not show.

A cache is late by the time that a watch takes. Who decided on it alone would make a twin twice, start a pod that runs
once again, or write a status for the second time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from app import names
from app.kube.informers import Cache
from app.kube.objects import Envelope, Object
from app.kube.resources import JOBS, REPLICA_SETS, Resource
from app.pods import status
from app.pods.forge import WRITTEN_BACK
from app.pods.news import is_silent

BY_UID: Final = "uid"
BY_POD_UID: Final = "pod-uid"
TWINS: Final[Mapping[str, Resource]] = {"ReplicaSet": REPLICA_SETS, "Job": JOBS}


def by_uid(envelope: Envelope) -> list[str]:
    """Index of local pods."""
    return [envelope.metadata.uid]


def by_pod_uid(envelope: Envelope) -> list[str]:
    """Index of everything of ours in the remote cluster: the local pod that it stands for."""
    uid = (envelope.metadata.labels or {}).get(names.LABEL_POD_UID)
    return [uid] if uid else []


@dataclass(frozen=True, slots=True)
class View:
    """What both clusters hold of one local pod."""

    uid: str
    local: Object | None
    twins: list[Object]
    remote: list[Object]

    @property
    def twin(self) -> Object | None:
        """The twin; of several (a crash between two writes) the oldest."""
        return min(self.twins, key=lambda twin: twin["metadata"]["creationTimestamp"]) if self.twins else None


class Known:
    """The pods of one virtual node, each by the UID of the local pod."""

    def __init__(self, *, local_pods: Cache, remote_pods: Cache, replica_sets: Cache, jobs: Cache) -> None:
        self._local_pods = local_pods
        self._remote_pods = remote_pods
        self._twins = {"ReplicaSet": replica_sets, "Job": jobs}
        self._made: dict[str, Object] = {}
        """Twins that were made and that the informers have not shown yet."""
        self._echoes: dict[str, str] = {}
        """Local pods whose status was written, and the version that the informer will show of them: UID -> version.

        Only where nothing is left to be decided on that version.
        """
        self.starting: dict[str, bool] = {}
        """Pods that run once, marked by this process, of whose twin it is not known yet that it was made.

        UID -> whether it may have been: a request for it was sent, and no answer was certain.
        """
        self.started: set[str] = set()
        """Pods that run once whose twin was made or seen: the local cache may be late with the mark."""
        self.carried: dict[str, tuple[int, str]] = {}
        """Local pods whose changes have been carried over: UID -> its ``content``, and to which remote pod.

        None yet (empty) if the twin was forged from it just now.
        """
        self.deleted: set[str] = set()
        """Local pods that were deleted at last and that the informer still shows."""

    # ------------------------------------------------------------------ now

    def view(self, uid: str) -> View:
        """What both clusters hold, and of what was made, what they are about to show."""
        twins = [
            envelope.object() | {"apiVersion": TWINS[kind].api_version, "kind": kind}
            for kind, informer in self._twins.items()
            for envelope in informer.by_index(BY_POD_UID, uid)
        ]
        if twins:
            self._made.pop(uid, None)
            self.starting.pop(uid, None)
        elif (made := self._unseen(uid)) is not None:
            twins = [made]
        local = self._local_pods.by_index(BY_UID, uid)
        return View(
            uid=uid,
            local=local[0].object() if local else None,
            twins=twins,
            remote=[envelope.object() for envelope in self._remote_pods.by_index(BY_POD_UID, uid)],
        )

    def _unseen(self, uid: str) -> Object | None:
        """The twin that was made and that its cache cannot show yet; if the cache is past that, the twin is gone."""
        made = self._made.get(uid)
        if made is None:
            return None
        metadata = made["metadata"]
        if self._twins[made["kind"]].has_reached(metadata["namespace"], metadata["resourceVersion"]):
            del self._made[uid]
            return None
        return made

    def unseen(self) -> Iterable[str]:
        """Pods whose twins were made and not seen yet."""
        return self._made

    def has_twin(self, uid: str) -> bool:
        return uid in self._made or any(cache.by_index(BY_POD_UID, uid) for cache in self._twins.values())

    def waits_for_word(self, uid: str, remote: Envelope) -> bool:
        """Whether a remote pod is only just there, and its local pod waits for what it will say.

        That is so until something happens to the local pod, or to what is known of it.
        """
        found = self._local_pods.by_index(BY_UID, uid)
        if not found or not is_silent(remote) or not is_silent(found[0]):
            return False
        return self.carried.get(uid) == (content({"metadata": found[0].whole_metadata()}), "")

    # ------------------------------------------------------------------ what was done, and what was shown of it

    def made(self, uid: str, twin: Object) -> None:
        """A twin was made."""
        self._made[uid] = twin
        self.starting.pop(uid, None)
        if twin["kind"] == "Job":
            self.started.add(uid)

    def shown(self, uid: str, kind: str, twin: Envelope | None) -> Object | None:
        """The cache shows a twin, or that it is gone (None), and knows better from here on; the one we had made."""
        made = self._made.pop(uid, None)
        self.starting.pop(uid, None)
        if twin is not None and kind == "Job":
            self.started.add(uid)
        return made

    def wrote(self, local: Object, stored: Object) -> None:
        """A local pod was seen, and its status written: unless that leaves something to be decided, it is no news."""
        if is_settled(local, stored):
            self._echoes[local["metadata"]["uid"]] = stored["metadata"]["resourceVersion"]

    def is_echo(self, uid: str, pod: Envelope | None) -> bool:
        """Whether a local pod is as we wrote it; that is so only once."""
        if self._echoes and pod is not None and self._echoes.get(uid) == pod.resource_version:
            del self._echoes[uid]
            return True
        return False

    def expect_no_echo(self, uid: str) -> None:
        self._echoes.pop(uid, None)

    def forget(self, uid: str) -> None:
        self._made.pop(uid, None)
        self.starting.pop(uid, None)
        self.started.discard(uid)
        self.carried.pop(uid, None)
        self._echoes.pop(uid, None)
        self.deleted.discard(uid)


def content(local: Object) -> int:
    """A hash of what of a local pod can change and be carried; what we write there ourselves does not count."""
    metadata = local["metadata"]
    annotations = {k: v for k, v in (metadata.get("annotations") or {}).items() if k not in WRITTEN_BACK}
    return hash(str((metadata.get("generation"), metadata.get("labels"), annotations)))


def is_settled(local: Object, stored: Object) -> bool:
    """Whether a pod whose status we wrote is otherwise as it was seen before, and leaves nothing to be decided.

    A pod that is over, is to go, or has a deadline is looked at again when its status is known.
    """
    return (
        not status.is_terminal(stored)
        and not stored["metadata"].get("deletionTimestamp")
        and stored["spec"].get("activeDeadlineSeconds") is None
        and content(stored) == content(local)
    )
