"""The local namespaces whose remote ones are there, for whoever has something to put into them before a pod comes.

Remote namespaces are made as soon as their local ones are mapped, not only with the first pod, and made again when
somebody deletes them. What is known is kept while it cannot be found out anew; a namespace that is not mapped any more
leaves when no pod of it runs there. What this virtual node has to say of a namespace with a NamespaceOffloading is
written into its status, in an entry that is ours alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Set
from typing import Final, Protocol

from app.kube.client import Client, PatchKind
from app.kube.errors import ApiError, Conflict, Forbidden, KubeError, NotFound
from app.kube.informers import Cache
from app.kube.objects import Envelope, Key
from app.kube.queue import Result, WorkQueue, done, requeue_after
from app.kube.resources import NAMESPACE_OFFLOADINGS
from app.names import ANNOTATION_LOCAL_NAMESPACE, OFFLOADING, offloading_manager
from app.namespaces.controller import NamespaceController, NotMapped
from app.namespaces.offloading import (
    DRAINING,
    FAILED,
    FORBIDDEN,
    NAMESPACE_READY,
    NOT_GIVEN,
    Entry,
    Offloading,
    entries,
)
from app.namespaces.wishes import Unknown, Wishes

log = logging.getLogger(__name__)

_LEFT_AGAIN: Final = 3.0
_DRAINING_AGAIN: Final = 2.0
_AGAIN: Final = 30.0
"""Seconds after which a remote namespace that cannot be used is looked at again."""
_REPORT_AGAIN: Final = 1.0


class Departures(Protocol):
    """Whoever takes remote namespaces away that are over."""

    def keep(self, remote_namespace: str) -> None:
        """One is mapped (again)."""

    def departing(self, remote_namespace: str) -> str | None:
        """Have one looked at that may be over; what is still to be done before it is left, None if it was."""


class ExtendedNamespaces:
    """Follows what is asked for of local namespaces and has the remote ones made."""

    def __init__(
        self,
        *,
        local: Client,
        cluster: str,
        wishes: Wishes,
        namespaces: NamespaceController,
        local_namespaces: Cache,
        offloadings: Cache,
        places: Callable[[str], Mapping[str, Set[str]]],
        departures: Departures,
    ) -> None:
        """
        :param cluster: the remote cluster's id.
        :param places: for a local namespace, the remote ones in which something stands for its pods, with their UIDs.
        """
        self.queue: WorkQueue[str] = WorkQueue(name="extensions")
        self._local = local
        self._node, self._cluster = wishes.map.node, cluster
        self._wishes = wishes
        self._namespaces = namespaces
        self._local_namespaces = local_namespaces
        self._offloadings = offloadings
        self._places = places
        self._departures = departures
        self._current: dict[str, str] = {}
        self._usable: set[str] = set()
        """Local namespaces whose remote ones were there when they were last looked at."""
        self._listeners: list[Callable[[], None]] = []
        self._said: dict[str, str] = {}
        """What was last logged of a namespace that is not extended although it should be."""

    # ------------------------------------------------------------------ for reflection

    def current(self) -> Mapping[str, str]:
        return dict(self._current)

    def listen(self, on_change: Callable[[], None]) -> None:
        self._listeners.append(on_change)

    def lost(self, namespace: str) -> None:
        if remote := self._current.get(namespace):
            self._namespaces.forget(remote)
        self.queue.add(namespace)

    def runs_in(self, namespace: str, remote_namespace: str) -> bool:
        return remote_namespace in self._places(namespace)

    async def has_ended(self, namespace: str, remote_namespace: str) -> bool:
        if self.runs_in(namespace, remote_namespace):
            return False  # what runs there may need it to its end
        try:
            asked = await self._wishes.really_asked(namespace)
        except Unknown:
            named = self._wishes.map.named
            return bool(named) and namespace not in named
        target = self._wishes.map.decide(asked) if asked is not None else None
        return target is None or target.name != remote_namespace

    # ------------------------------------------------------------------ what wakes a key

    def on_local_namespace(self, key: Key, _old: Envelope | None, _new: Envelope | None) -> None:
        self.queue.add(key.name)

    def on_offloading(self, key: Key, _old: Envelope | None, _new: Envelope | None) -> None:
        if key.name == OFFLOADING:
            self.queue.add(key.namespace)

    def on_own_node(self, _key: Key, old: Envelope | None, new: Envelope | None) -> None:
        """Selectors look at its labels."""
        if (old.metadata.labels if old else None) != (new.metadata.labels if new else None):
            self.wake_all()

    def on_remote_namespace(self, key: Key, _old: Envelope | None, new: Envelope | None) -> None:
        """One of ours changed, or was deleted."""
        if new is None or new.metadata.deletionTimestamp:
            self._namespaces.forget(key.name)
        envelope = new or _old
        local = (envelope.metadata.annotations or {}).get(ANNOTATION_LOCAL_NAMESPACE) if envelope else None
        if local:
            self.queue.add(local)

    def wake(self, namespace: str) -> None:
        self.queue.add(namespace)

    def wake_all(self) -> None:
        for namespace in self._local_namespaces.list():
            self.queue.add(namespace.key.name)

    # ------------------------------------------------------------------ work

    async def run(self) -> None:
        """Work until cancelled; the caches are complete by now."""
        self.wake_all()
        await self.queue.run(self.reconcile, 2)

    async def reconcile(self, namespace: str) -> Result:
        """Find out the remote namespace of a local one, have it made, and say how it went."""
        found = self._local_namespaces.get(Key("", namespace))
        if found is None:
            self._said.pop(namespace, None)
            self._usable.discard(namespace)
            if remote := self._current.get(namespace):
                self._departures.departing(remote)  # nobody else knows one that is not called as all are
            self._set(namespace, None)
            return done()
        if found.metadata.deletionTimestamp:
            # what is in it goes one by one; its NamespaceOffloading is let go when this node has nothing left to say
            return await self._leave(namespace)
        target = self._wishes.target(namespace)
        if target is None:
            return await self._leave(namespace)
        before = self._current.get(namespace)
        again: float | None = None
        try:
            remote = await self._namespaces.resolve(namespace)
        except NotMapped as problem:
            self._usable.discard(namespace)
            again = problem.again or _AGAIN
            entry = self._entry(target.name, ready=False, reason=problem.reason, message=str(problem))
            self._say(namespace, str(problem))
        except Forbidden as problem:
            self._usable.discard(namespace)
            again = _AGAIN
            message = f"a right is missing in the remote cluster: {problem.message} (manifests/ has the roles to apply)"
            entry = self._entry(target.name, ready=False, reason=FORBIDDEN, message=message)
            self._say(namespace, message)
        except KubeError as problem:
            self._usable.discard(namespace)
            failed = self._entry(target.name, ready=False, reason=FAILED, message=f"it is tried again: {problem}")
            await self._report(namespace, self._words(namespace, target.name, failed))
            raise
        else:
            self._said.pop(namespace, None)
            self._departures.keep(remote)
            self._found(namespace, remote)
            entry = self._entry(remote, ready=True, reason=NAMESPACE_READY)
        words = self._words(namespace, target.name, entry)
        if words is not None and words is not entry:
            again = _DRAINING_AGAIN
        if not await self._report(namespace, words):
            again = _REPORT_AGAIN
        for other in {*self._places(namespace), *([before] if before else [])} - {target.name}:
            self._departures.departing(other)
        return done() if again is None else requeue_after(again)

    def _words(self, namespace: str, target: str, entry: Entry) -> Entry | None:
        """What the object is told of a namespace that is mapped: *entry*, unless the object is being deleted and
        something else maps it. Then nothing is to be waited for but what only the object had asked for."""
        envelope = self._offloadings.get(Key(namespace, OFFLOADING))
        if envelope is None or not envelope.metadata.deletionTimestamp:
            return entry
        content = envelope.object()
        own = self._own(entries(content))
        if own is None or own.remote_namespace == target:
            return None
        return self._last_words(namespace, Offloading.of(content), own)

    async def _leave(self, namespace: str) -> Result:
        """Not mapped here (any more)."""
        self._said.pop(namespace, None)
        self._usable.discard(namespace)
        remote = self._current.get(namespace)
        places = self._places(namespace)
        if places and remote not in places:
            remote = min(places)
        if not places:
            self._set(namespace, None)
        elif remote is not None:
            self._set(namespace, remote)
        envelope = self._offloadings.get(Key(namespace, OFFLOADING))
        if remote is not None:
            self._departures.departing(remote)
        if envelope is None:
            return requeue_after(_LEFT_AGAIN) if places else done()  # nobody tells when its last pod is gone
        content = envelope.object()
        entry = self._last_words(namespace, Offloading.of(content), self._own(entries(content)))
        if not await self._report(namespace, entry):
            return requeue_after(_REPORT_AGAIN)
        return done() if entry is None or entry.reason == NOT_GIVEN else requeue_after(_DRAINING_AGAIN)

    def _last_words(self, namespace: str, offloading: Offloading, before: Entry | None) -> Entry | None:
        """What is left to say of an object that does not, or no longer, lead here."""
        if self._wishes.map.named:
            message = f"this Farlet was started with --namespace and offloads only those: add --namespace {namespace}"
            return self._not_given(namespace, offloading, message)
        if before is not None and before.remote_namespace:
            left = self._departures.departing(before.remote_namespace)
            if left is not None:
                return self._entry(before.remote_namespace, ready=False, reason=DRAINING, message=left)
        if self._wishes.map.is_reserved(namespace):
            return self._not_given(namespace, offloading, self._wishes.map.why_not(namespace))
        return None

    def _not_given(self, namespace: str, offloading: Offloading, message: str) -> Entry | None:
        """What is said of an object that asks for what is not done; nothing if it does not ask this node."""
        if offloading.deleting or not offloading.selects(self._node, self._wishes.asked(namespace).node_labels):
            return None
        return self._entry("", ready=False, reason=NOT_GIVEN, message=message)

    def _own(self, every: list[Entry]) -> Entry | None:
        return next((entry for entry in every if entry.node == self._node), None)

    def _entry(self, remote: str, *, ready: bool, reason: str, message: str = "") -> Entry:
        return Entry(
            node=self._node,
            cluster=self._cluster,
            remote_namespace=remote,
            ready=ready,
            reason=reason,
            message=message,
        )

    async def _report(self, namespace: str, entry: Entry | None) -> bool:
        """Write our entry, if it differs; with None there is none. False if it has to be tried again."""
        envelope = self._offloadings.get(Key(namespace, OFFLOADING))
        if envelope is None:
            return True
        content = envelope.object()
        metadata = content["metadata"]
        wanted = entry.object() | {"observedGeneration": metadata.get("generation", 0)} if entry else None
        own = self._own(entries(content))
        if wanted == (own.object() if own else None):
            return True
        body = {
            "apiVersion": NAMESPACE_OFFLOADINGS.api_version,
            "kind": NAMESPACE_OFFLOADINGS.kind,
            "metadata": {"name": OFFLOADING, "namespace": namespace, "uid": metadata["uid"]},
            # a list without it: with no list, a status in which nobody else says anything would be null, and refused
            "status": {"clusters": [wanted] if wanted else []},
        }
        params = {"fieldManager": offloading_manager(self._node), "force": "true"}
        path = NAMESPACE_OFFLOADINGS.path(namespace, OFFLOADING, "status")
        try:
            await self._local.patch(path, body, PatchKind.APPLY, params)
        except (NotFound, Conflict) as error:
            # another object by now, or none, which the cache will show; or somebody wrote at the same time
            log.info("namespace %s: its NamespaceOffloading is told again in a moment: %s", namespace, error)
            return False
        except ApiError as error:
            if error.is_another_object():
                return False
            if not isinstance(error, Forbidden):
                raise
            self._say(namespace, f"its NamespaceOffloading cannot be told how it went: {error.message}")
        return True

    def _say(self, namespace: str, problem: str) -> None:
        if self._said.get(namespace) != problem:
            self._said[namespace] = problem
            log.warning("namespace %s is not extended: %s", namespace, problem)

    def _found(self, namespace: str, remote: str) -> None:
        """The remote namespace is there; it may have been there before, and away meanwhile, with pods that wait."""
        news = namespace not in self._usable
        self._usable.add(namespace)
        if not self._set(namespace, remote) and news:
            self._tell()

    def _set(self, namespace: str, remote: str | None) -> bool:
        """Whether that is another one than before."""
        if self._current.get(namespace) == remote:
            return False
        if remote is None:
            del self._current[namespace]
        else:
            self._current[namespace] = remote
        self._tell()
        return True

    def _tell(self) -> None:
        for told in self._listeners:
            told()
