"""Takes away remote namespaces that Farlet made, when they are over: their local ones are gone, or are not mapped to
them any more.

Deleting a namespace deletes all that is in it, so everything speaks against it until it is proven: the local cluster
is asked at the API server itself, and the remote namespace is looked into. A namespace that somebody else made, or
that was given by name, is never touched.

A local namespace that is still there is only left if a label or a NamespaceOffloading mapped it, and these are read
to be gone, for some time: then its pods on this node are evicted, as their budgets allow, and when nothing is left the
remote namespace goes. What a flag mapped is never drained: a restart with other flags may be a mistake.

What somebody else put into a remote namespace of ours keeps it, and keeps nobody waiting: what is ours goes, it is said
what stays and why, and the namespace is left. It is still ours: offloaded again, it is used again.

Level-based: looked at are all namespaces of our origin at the start, and later each that may be over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Set
from typing import Final

from app import names
from app.kube.client import Client
from app.kube.errors import Conflict, Forbidden, KubeError, NotFound
from app.kube.events import EventRecorder, Reference
from app.kube.eviction import NotNow, evict
from app.kube.informers import Cache
from app.kube.objects import Envelope, Key, Object, decode_list
from app.kube.queue import Result, WorkQueue, done, requeue_after
from app.kube.resources import NAMESPACE_OFFLOADINGS, NAMESPACES
from app.namespaces.content import Content, RemoteContent
from app.namespaces.controller import NamespaceController
from app.namespaces.mapping import Asked, By, remote_name
from app.namespaces.wishes import Unknown, Wishes

log = logging.getLogger(__name__)

_ALL: Final = ""
"""The key that stands for looking which namespaces there are."""
# Seconds after which a namespace with something in it is looked at again: ours, which should be on its way out, and
# each time later if it is not; somebody else's.
_OURS_GO: Final = 3.0
_OURS_STAY: Final = 120.0
_OTHERS_STAY: Final = 600.0
_UNSEEN: Final = "it is about to be looked at"
_ROUND: Final = 2.0
"""Seconds between two looks at pods that are to go."""
_UNKNOWN: Final = 15.0
_AT_ONCE: Final = 20
"""Evictions."""
_SHOWN: Final = 3
_REMEMBERED: Final = 4096


class Recent:
    """The names that were added last, so many of them: who is not remembered is looked at again."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def add(self, name: str) -> None:
        self._names[name] = None
        self._names.move_to_end(name)
        if len(self._names) > self._most:
            self._names.popitem(last=False)

    def discard(self, name: str) -> None:
        self._names.pop(name, None)


class NamespaceCleaner:
    """Deletes remote namespaces whose time is over."""

    def __init__(
        self,
        *,
        local: Client,
        remote: Client,
        local_namespaces: Cache,
        namespaces: NamespaceController,
        wishes: Wishes,
        places: Callable[[str], Mapping[str, Set[str]]],
        local_pod: Callable[[str], Envelope | None],
        reflected: Callable[[str], bool],
        recorder: EventRecorder,
        grace: float,
    ) -> None:
        """
        :param places: for a local namespace, the remote ones in which something stands for its pods, with their UIDs.
        :param local_pod: a local pod by its UID.
        :param reflected: whether copies in a remote namespace are still kept, or on their way out.
        :param grace: seconds for which a namespace must not be mapped before its pods are asked to go.
        """
        self.queue: WorkQueue[str] = WorkQueue(name="namespaces")
        self._local = local
        self._remote = remote
        self._local_namespaces = local_namespaces
        self._namespaces = namespaces
        self._wishes = wishes
        self._map = wishes.map
        self._places = places
        self._local_pod = local_pod
        self._reflected = reflected
        self._recorder = recorder
        self._inside = RemoteContent(remote, wishes.map.origin)
        self._grace = grace
        self._said: dict[str, str] = {}
        """What was last logged of a namespace that stays."""
        self._waits: dict[str, float] = {}
        """The next wait for a namespace with something of ours in it."""
        self._since: dict[str, float] = {}
        """When a remote namespace was first seen to be unmapped."""
        self._left: dict[str, str] = {}
        """What is still to be done for those that are being left."""
        self._over = Recent(_REMEMBERED)
        """Those that were left."""
        self._mapped: set[str] = set()
        """Those that a label or an object was seen to map: they go with it, also if a flag had them made before."""
        self._told: list[Callable[[str], None]] = []
        self._may_delete = True

    def listen(self, on_left: Callable[[str], None]) -> None:
        """Have this called with a local namespace whenever there is news of leaving its remote one."""
        self._told.append(on_left)

    def keep(self, remote_namespace: str) -> None:
        """One is mapped (again)."""
        self._forget(remote_namespace)
        self._over.discard(remote_namespace)
        if not self._map.named:
            self._mapped.add(remote_namespace)

    def departing(self, remote_namespace: str) -> str | None:
        """Have one looked at that may be over; what is still to be done before it is left, None if it was."""
        if remote_namespace in self._over:
            return None
        if self._left.setdefault(remote_namespace, _UNSEEN) == _UNSEEN:
            self.queue.add(remote_namespace)
        return self._left[remote_namespace]

    def on_local_namespace(self, key: Key, _old: Envelope | None, new: Envelope | None) -> None:
        if new is None:
            self.queue.add(remote_name(key.name, self._map.origin))
            for remote in self._places(key.name):
                self.queue.add(remote)

    async def run(self) -> None:
        """Work until cancelled; the caches are complete by now."""
        self.queue.add(_ALL)
        await self.queue.run(self.reconcile, 1)

    async def _look_for_all(self) -> None:
        """Namespaces whose local ones went while no Farlet looked."""
        params = {"labelSelector": f"{names.LABEL_ORIGIN}={self._map.origin}", "limit": "500"}
        try:
            while True:
                page = decode_list(await self._remote.request("GET", NAMESPACES.path(), params=params))
                for namespace in page.items:
                    self.queue.add(namespace.key.name)
                if not page.continue_token:
                    return
                params["continue"] = page.continue_token
        except Forbidden as error:
            log.info("remote namespaces are not looked for: %s", error.message)

    async def reconcile(self, name: str) -> Result:
        """Take one remote namespace away if it is ours, over, and nothing is in it."""
        if name == _ALL:
            await self._look_for_all()
            return done()
        try:
            return await self._reconcile(name)
        except Forbidden as error:
            return self._refused(name, error)
        except KubeError as error:
            if name in self._left:  # whoever waits is to know what for
                self._left[name] = f"it is tried again: {error}"
            raise

    async def _reconcile(self, name: str) -> Result:
        try:
            namespace = await self._remote.get(NAMESPACES.path(name=name))
        except NotFound:
            self._forget(name)
            self._over.add(name)
            return done()
        local_name = self._made_for(namespace)
        if local_name is None:
            if namespace["metadata"].get("deletionTimestamp"):
                self._left[name] = "the remote namespace is being deleted"
                return requeue_after(_ROUND)
            self._forget(name)
            self._over.add(name)
            return done()
        if not self._local_namespaces.synced:
            return requeue_after(_ROUND)
        if self._local_namespaces.get(Key("", local_name)) is not None:
            return await self._leave(namespace, local_name)
        if not self._may_delete:
            self._forget(name)
            return done()
        # from here on no pod is sent there, so that what is found out stays true
        with self._namespaces.closed(name):
            if await self._exists(local_name):
                return requeue_after(_ROUND)
            if content := await self._inside.find(name):
                if content.ours:
                    return self._wait_for_ours(name)
                if self._reflected(name):
                    return requeue_after(_ROUND)
                await self._keep_for_others(name, local_name, content)
                return requeue_after(_OTHERS_STAY)
            if not await self._delete(namespace, "its local one is gone, and nothing was in it"):
                return requeue_after(_ROUND)
        return done()

    def _made_for(self, namespace: Object) -> str | None:
        """The local namespace that we made a remote one for; None if we did not, or if it is going already."""
        metadata = namespace["metadata"]
        labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
        local_name = annotations.get(names.ANNOTATION_LOCAL_NAMESPACE)
        if metadata.get("deletionTimestamp") or labels.get(names.LABEL_ORIGIN) != self._map.origin or not local_name:
            return None
        given = metadata["name"] in self._map.named.values()
        ours = metadata["name"] == remote_name(local_name, self._map.origin) or _mapped_by(namespace) is not None
        return str(local_name) if ours and not given else None

    async def _exists(self, local_name: str) -> bool:
        """Ask the API server itself: a cache can lag behind. Where it does not say, the namespace exists."""
        try:
            await self._local.get(NAMESPACES.path(name=local_name))
        except NotFound:
            return False
        except Forbidden:
            return True
        return True

    # ------------------------------------------------------------------ the local namespace is there

    async def _leave(self, namespace: Object, local_name: str) -> Result:
        """Leave a remote namespace that its local one is not mapped to any more."""
        name = namespace["metadata"]["name"]
        target = self._wishes.target(local_name)
        if target is not None and target.name == name:
            self.keep(name)
            return done()
        if self._map.named or (_mapped_by(namespace) is None and name not in self._mapped):
            # whoever waits for its end waits for nothing: it was not made for what is over now, and stays
            self._forget(name)
            self._over.add(name)
            self._tell(local_name)
            return done()
        wait = self._grace_left(name, local_name)
        if wait > 0:
            self._progress(name, local_name, f"its pods are asked to go in {wait:.0f} s, unless it is mapped again")
            return requeue_after(wait)
        try:
            asked = await self._wishes.really_asked(local_name)
        except Unknown as error:
            self._progress(name, local_name, f"it is not sure that it is over: {error}")
            return requeue_after(_UNKNOWN)
        if asked is None:
            return requeue_after(_ROUND)  # gone by now: the cache will tell
        really = self._map.decide(asked)
        if really is not None and really.name == name:
            return requeue_after(_ROUND)  # the cache lags behind
        if left := await self._drain(name, local_name):
            self._progress(name, local_name, left)
            return requeue_after(_ROUND)
        return await self._end(namespace, local_name, asked)

    def _grace_left(self, name: str, local_name: str) -> float:
        """Seconds to wait; none if a person deleted the object or the namespace, which cannot be taken back."""
        since = self._since.setdefault(name, time.monotonic())
        asked = self._wishes.asked(local_name)
        if asked.going or (asked.offloading is not None and asked.offloading.deleting):
            return 0.0
        return max(0.0, since + self._grace - time.monotonic())

    async def _drain(self, name: str, local_name: str) -> str | None:
        """Have the pods go that run there; what is left of them, None if nothing is."""
        uids = sorted(self._places(local_name).get(name, ()))
        if not uids:
            return None
        results = await asyncio.gather(*(self._evict(uid) for uid in uids[:_AT_ONCE]), return_exceptions=True)
        why: dict[str, None] = {}
        for result in results:
            if isinstance(result, NotNow):
                why[str(result)] = None
            elif isinstance(result, Forbidden):
                why[f"a right is missing: {result.message}"] = None
            elif isinstance(result, BaseException):
                raise result
        pods = [str(pod.key) for uid in uids[:_SHOWN] if (pod := self._local_pod(uid)) is not None]
        shown = f" ({', '.join(pods)}{', ...' if len(uids) > len(pods) else ''})" if pods else ""
        return f"waiting for {len(uids)} pods{shown}" + (f": {'; '.join(why)}" if why else "")

    async def _evict(self, uid: str) -> None:
        pod = self._local_pod(uid)
        if pod is None or pod.metadata.deletionTimestamp:
            return  # on its way; without a local pod what stands for it is removed by the pods' own controller
        if await evict(self._local, pod.key.namespace, pod.key.name, uid):
            log.info("evicted %s: its namespace is not offloaded here any more", pod.key)

    async def _end(self, namespace: Object, local_name: str, asked: Asked) -> Result:
        """Nothing of ours runs there: the remote namespace goes, unless another virtual node uses it."""
        name = namespace["metadata"]["name"]
        if users := await self._wishes.others(asked, name):
            log.info("remote namespace %s is left; it stays for %s", name, ", ".join(users))
        elif self._may_delete:
            with self._namespaces.closed(name):
                if content := await self._inside.find(name):
                    return await self._kept(namespace, local_name, content)
                await self._delete(namespace, "its local one is not mapped to it any more, and nothing was in it")
            if self._may_delete:
                self._left[name] = "the remote namespace is being deleted"
                return requeue_after(_ROUND)
        self._forget(name)
        self._over.add(name)
        self._tell(local_name)
        return done()

    async def _kept(self, namespace: Object, local_name: str, content: Content) -> Result:
        """Something is in a namespace that is left: of ours, it is waited for; somebody else's only keeps it."""
        name = namespace["metadata"]["name"]
        if content.ours:
            self._progress(name, local_name, f"remote namespace {name} stays while {content.what}")
            return self._wait_for_ours(name)
        if self._reflected(name):
            self._progress(name, local_name, f"what was reflected into remote namespace {name} is being removed")
            return requeue_after(_ROUND)
        if await self._keep_for_others(name, local_name, content):
            about = self._asked_by(namespace, local_name)
            self._recorder.record(about, "Warning", names.NAMESPACE_STAYS, _why_kept(name, content))
        self._over.add(name)
        self._tell(local_name)
        return requeue_after(_OTHERS_STAY)

    def _asked_by(self, namespace: Object, local_name: str) -> Reference:
        """What a person looks at who wonders what has become of a remote namespace."""
        asked = self._wishes.asked(local_name)
        if _mapped_by(namespace) is By.OFFLOADING:
            uid = asked.offloading.uid if asked.offloading is not None else ""
            kind = NAMESPACE_OFFLOADINGS
            return Reference(kind.api_version, kind.kind, local_name, names.OFFLOADING, uid)
        known = self._local_namespaces.get(Key("", local_name))
        uid = known.metadata.uid if known is not None else ""
        return Reference(NAMESPACES.api_version, NAMESPACES.kind, "", local_name, uid)

    def _progress(self, name: str, local_name: str, left: str) -> None:
        if self._left.get(name) != left:
            self._left[name] = left
            self._tell(local_name)

    def _tell(self, local_name: str) -> None:
        for told in self._told:
            told(local_name)

    # ------------------------------------------------------------------ something is in it

    def _wait_for_ours(self, name: str) -> Result:
        wait = self._waits.get(name, _OURS_GO)
        self._waits[name] = min(2 * wait, _OURS_STAY)
        return requeue_after(wait)

    async def _keep_for_others(self, name: str, local_name: str, content: Content) -> bool:
        """Take away what is ours, and say what keeps the rest; whether that is news."""
        if removed := await self._inside.remove_copies(name, local_name):
            log.info("remote namespace %s is over: %d copies in it are removed", name, removed)
        news = self._said.get(name) != content.what
        if news:
            self._said[name] = content.what
            log.warning("%s", _why_kept(name, content))
        return news

    async def _delete(self, namespace: Object, why: str) -> bool:
        """False if it is to be looked at again."""
        metadata = namespace["metadata"]
        try:
            await self._remote.delete(
                NAMESPACES.path(name=metadata["name"]),
                uid=metadata["uid"],
                resource_version=metadata["resourceVersion"],
                missing_ok=True,
            )
        except Conflict:
            return False  # not the one that was looked at
        except Forbidden as error:
            self._may_delete = False
            log.info("remote namespaces stay when they are over: %s", error.message)
            return True
        self._forget(metadata["name"])
        log.info("deleted remote namespace %s: %s", metadata["name"], why)
        return True

    def _refused(self, name: str, error: Forbidden) -> Result:
        """A right is missing, perhaps for a moment: nothing is known of the namespace, so it was not left. Who waits
        is told; for nobody it is tried a few times."""
        if name in self._left:
            self._left[name] = (
                f"a right is missing: {error.message} (manifests/ has the roles to apply; "
                f"annotation {names.ANNOTATION_ABANDON}=true leaves it as it is)"
            )
        elif self._waits.get(name, 0.0) >= _OURS_STAY:
            log.info("remote namespace %s is not looked at any more: %s", name, error.message)
            self._forget(name)
            return done()
        return self._wait_for_ours(name)

    def _forget(self, name: str) -> None:
        for known in (self._said, self._waits, self._since, self._left):
            known.pop(name, None)
        self._mapped.discard(name)


def _mapped_by(namespace: Object) -> By | None:
    """What a remote namespace of ours was made for; None if that was a flag, or is not known."""
    text = (namespace["metadata"].get("annotations") or {}).get(names.ANNOTATION_MAPPED_BY)
    return By(text) if text in (By.LABEL, By.OFFLOADING) else None


def _why_kept(name: str, content: Content) -> str:
    return (
        f"remote namespace {name} stays although it is over: {content.what}. It goes when nothing of others is in it, "
        f"or with `kubectl delete namespace {name}` there"
    )
