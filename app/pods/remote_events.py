"""Tells on the local pod what the remote cluster says about its pod and its twin.

Why a pod does not start (no such image, a quota, no node with room) is in events over there, where the local user
cannot look. ``warnings`` decides which events are told, and how; this module follows the remote's events and writes.

Events are followed without keeping them, not with an informer: a large cluster has more of them than of anything
else, and nearly all are about somebody else's pods. What is kept is a bounded memory of the ones that were told, so
that counts follow, at most one write in ten seconds each. What this memory does not know is looked up in the local
cluster before it is written: after a restart, what is told already costs a read and no write.

Events are a courtesy: nothing here ever fails or delays the work on pods; what cannot be told is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw, Struct

from app.kube import objects
from app.kube.client import Client, PatchKind
from app.kube.errors import (
    AlreadyExists,
    ApiError,
    Forbidden,
    Gone,
    KubeError,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
    api_error,
)
from app.kube.objects import Envelope, Key, Object
from app.kube.queue import Result, WorkQueue, done, requeue_after
from app.kube.resources import EVENTS
from app.pods.known import BY_UID, by_pod_uid
from app.pods.warnings import Mode, event_patch, identity, is_folded, local_event

log = logging.getLogger(__name__)

REMEMBERED: Final = 4096
"""Events that were told or are to be told; the one that was not heard of for longest is forgotten first."""
WAITING: Final = 1000
"""Events to be written above which a list pauses."""
PARTS: Final = 32
"""Events of the remote that are told as one and counted apart; the counts of older ones are kept as a sum."""
EARLY: Final = 256
"""Events held for a moment because what they are about is not known, or not yet."""
_WRITERS: Final = 2
_ATTEMPTS: Final = 12
"""Failures in a row (some 20 s) after which an event is dropped."""
_PAGE: Final = "250"

# One watch, and not one for each kind of object: the API server keeps no cache of events, so each watch of them makes
# it read all events from etcd, whatever the selector.
_SELECTORS: Final[Mapping[str, Mapping[str, str]]] = {"warnings": {"fieldSelector": "type=Warning"}, "all": {}}


@dataclass(frozen=True, slots=True)
class Timing:
    """In seconds."""

    interval: float = 10.0
    """Between two writes of one event."""
    look_again: float = 0.5
    """Between two attempts to find what an early event is about; its watch may be slower than that of events."""
    early: float = 5.0
    """How long an early event is held."""
    backoff: tuple[float, float] = (0.2, 30.0)
    """The shortest and the longest pause after something went wrong."""
    watch: tuple[int, int] = (60, 120)
    """When the server is to end a watch. Often, because a watch of events has no bookmarks that show it is alive."""
    grace: float = 15.0
    """How much later than that an end may come before the watch counts as broken."""


DEFAULT_TIMING: Final = Timing()


class Cache(Protocol):
    """What is needed of an informer."""

    def get(self, key: Key) -> Envelope | None: ...

    def by_index(self, name: str, value: str) -> Sequence[Envelope]: ...


class About(Struct, frozen=True):
    """The object that an event is about. Field names are the API's."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class _EventMeta(Struct):
    uid: str = ""
    resourceVersion: str = ""


class _Event(Struct):
    """The part of an event that says whether it concerns us."""

    metadata: _EventMeta
    involvedObject: About = About()


class _Line(Struct):
    type: str
    object: Raw


class _PageMeta(Struct):
    resourceVersion: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _Page(Struct):
    metadata: _PageMeta
    items: list[Raw] | None = None


_EVENT: Final = msgspec.json.Decoder(_Event)
_LINE: Final = msgspec.json.Decoder(_Line)
_LIST: Final = msgspec.json.Decoder(_Page)
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])


@dataclass(slots=True)
class _Told:
    """An event of the remote, or several that are told as one, on a local pod."""

    count: int | None
    """What the local event says; 0: there is none; None: not known."""
    wanted: Object | None = None
    """The local event as it should be; None: it is so."""
    not_before: float = 0.0
    """When the next write may be."""
    parts: OrderedDict[str, int] = field(default_factory=OrderedDict)
    """The count of each event that is told here, by its UID."""
    earlier: int = 0
    """The counts of those that are not known one by one any more."""
    folded: bool = False
    """Whether more than one can be told here."""

    def total(self, uid: str, count: int) -> int:
        """The count of all, given the newest count of one of them."""
        self.parts[uid] = max(count, self.parts.get(uid, 0))
        self.parts.move_to_end(uid)
        if len(self.parts) > PARTS:
            self.earlier += self.parts.popitem(last=False)[1]
        return self.earlier + sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class _Early:
    until: float
    raw: bytes
    new: bool


@dataclass(slots=True)
class Counts:
    """Since the start."""

    written: int = 0
    dropped: int = 0
    """Events of ours that were not told."""


class RemoteEvents:
    """Carries the remote's events about our pods to the local ones."""

    def __init__(
        self,
        *,
        local: Client,
        remote: Client,
        local_pods: Cache,
        remote_pods: Cache,
        replica_sets: Cache,
        jobs: Cache,
        mode: Mode = "warnings",
        namespaces: Sequence[str] | None = None,
        timing: Timing = DEFAULT_TIMING,
    ) -> None:
        """*local* is fenced. *namespaces* of the remote are followed one by one; None: all at once.

        The caches are synced before :meth:`run`.
        """
        self.counts = Counts()
        self._local = local
        self._local_pods = local_pods
        self._remote_objects = {"Pod": remote_pods, "ReplicaSet": replica_sets, "Job": jobs}
        self._mode: Mode = mode
        self._timing = timing
        self._told: OrderedDict[str, _Told] = OrderedDict()
        self._early: OrderedDict[str, _Early] = OrderedDict()
        self._some_early = asyncio.Event()
        self.queue: WorkQueue[str] = WorkQueue("remote events", limit=2 * REMEMBERED)
        self._feeds = [
            Feed(remote, namespace, _SELECTORS[mode], self.take, self._room, timing)
            for namespace in (namespaces if namespaces is not None else [None])
            if mode != "none"
        ]

    async def run(self) -> None:
        """Follow and tell until cancelled."""
        if not self._feeds:
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self.queue.run(self._write, _WRITERS))
            group.create_task(self._look_again())
            for feed in self._feeds:
                group.create_task(feed.run())

    # ------------------------------------------------------------------ whose event it is

    def take(self, raw: bytes, new: bool) -> None:
        """One event of the remote; *new* if it was just made, so that it cannot have been told before."""
        try:
            self._take(raw, new)
        except Exception:  # an odd event must not keep the others from being told
            log.exception("an event of the remote cluster could not be understood")

    def _take(self, raw: bytes, new: bool) -> None:
        event = _EVENT.decode(raw)
        if event.involvedObject.kind not in self._remote_objects:
            return
        uid = event.metadata.uid
        pod = self._pod_of(event.involvedObject)
        if pod is not None:
            held = self._early.pop(uid, None)
            self._tell(uid, raw, pod, new or (held is not None and held.new))
        else:
            self._hold(uid, raw, new)

    def _pod_of(self, about: About) -> Envelope | None:
        """The local pod that an object of the remote stands for."""
        found = self._remote_objects[about.kind].get(Key(about.namespace, about.name))
        if found is None or (about.uid and about.uid != found.metadata.uid):
            return None
        for pod_uid in by_pod_uid(found):
            for pod in self._local_pods.by_index(BY_UID, pod_uid):
                return pod
        return None

    def _hold(self, uid: str, raw: bytes, new: bool) -> None:
        """Perhaps the event came faster than what it is about; most often it is somebody else's."""
        held = self._early.pop(uid, None)
        until = held.until if held is not None else _now() + self._timing.early
        # a copy, because a slice of a list would keep the whole list alive
        self._early[uid] = _Early(until, bytes(raw), new or (held is not None and held.new))
        if len(self._early) > EARLY:
            self._early.popitem(last=False)
        self._some_early.set()

    async def _look_again(self) -> None:
        while True:
            await self._some_early.wait()
            await asyncio.sleep(self._timing.look_again)
            for uid, held in list(self._early.items()):
                pod = self._pod_of(_EVENT.decode(held.raw).involvedObject)
                if pod is not None:
                    self._tell(uid, held.raw, pod, held.new)
                if pod is not None or _now() >= held.until:
                    del self._early[uid]
            if not self._early:
                self._some_early.clear()

    # ------------------------------------------------------------------ telling it

    def _tell(self, uid: str, raw: bytes, pod: Envelope, new: bool) -> None:
        event = _OBJECT.decode(raw)
        wanted = local_event(event, pod.object(), mode=self._mode)
        if wanted is None:
            return
        key = identity(event)
        # one that is told together with others may be new, and what is told of them not
        folded = is_folded(event)
        told = self._told.setdefault(key, _Told(count=0 if new and not folded else None, folded=folded))
        self._told.move_to_end(key)
        wanted["count"] = told.total(uid, wanted["count"])
        if told.count is not None and wanted["count"] <= told.count:
            return
        told.wanted = wanted
        if not self.queue.add(key):
            del self._told[key]
            self.counts.dropped += 1
        elif len(self._told) > REMEMBERED:
            _, forgotten = self._told.popitem(last=False)
            self.counts.dropped += forgotten.wanted is not None

    async def _room(self) -> None:
        """Wait while there is much to write."""
        while len(self.queue) > WAITING:  # noqa: ASYNC110 - a queue tells nobody that it became shorter
            await asyncio.sleep(0.1)

    async def _write(self, key: str) -> Result:
        told = self._told.get(key)
        if told is None or told.wanted is None:
            return done()
        wait = told.not_before - _now()
        if wait > 0:
            return requeue_after(wait)
        wanted = told.wanted
        try:
            wrote = await self._bring_up_to_date(told, wanted)
        except KubeError as error:
            if _may_pass(error) and self.queue.failures(key) < _ATTEMPTS:
                raise
            self._give_up(wanted, error)
            wrote = False
        told.count = wanted["count"]
        if wrote:
            self.counts.written += 1
            told.not_before = _now() + self._timing.interval
        if told.wanted is wanted:
            told.wanted = None
            return done()
        return requeue_after(max(0.0, told.not_before - _now()))

    async def _bring_up_to_date(self, told: _Told, wanted: Object) -> bool:
        """Make the local event, or raise its count; whether that took a write."""
        count = told.count
        namespace, name = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
        path = EVENTS.path(namespace, name)
        stored: Object | None = {"count": count} if count else None
        if count is None:
            stored = await self._stored(path)
        if stored is None:
            try:
                await self._local.create(EVENTS.path(namespace), wanted)
                return True
            except AlreadyExists:  # an attempt whose answer was lost
                stored = await self._stored(path) or {}
        ahead = int(stored.get("count") or 0) - wanted["count"]
        if told.folded and ahead > 0:  # the remote has forgotten some that were told before a restart
            told.earlier += ahead
            wanted["count"] += ahead
        patch = event_patch(stored, wanted)
        if patch is None:
            return False
        try:
            await self._local.patch(path, patch, PatchKind.MERGE)
        except NotFound:  # events live for an hour; it is made again with its count
            await self._local.create(EVENTS.path(namespace), wanted)
        return True

    async def _stored(self, path: str) -> Object | None:
        try:
            return await self._local.get(path)
        except NotFound:
            return None

    def _give_up(self, wanted: Object, error: KubeError) -> None:
        self.counts.dropped += 1
        # that a namespace is going away, with all that is in it, is not worth a line
        leaving = isinstance(error, NotFound) or (
            isinstance(error, Forbidden) and error.has_cause("NamespaceTerminating")
        )
        about = wanted["involvedObject"]
        log.log(
            logging.DEBUG if leaving else logging.WARNING,
            "remote event %s is not told on pod %s/%s: %s",
            wanted["reason"],
            about["namespace"],
            about["name"],
            error,
        )


class Feed:
    """The events of a cluster, or of one namespace of it, as they come; none is kept.

    What is there at the start comes first, then what happens. It goes on from the last resourceVersion wherever the
    server still knows it; where not, everything comes once more.
    """

    def __init__(
        self,
        client: Client,
        namespace: str | None,
        selector: Mapping[str, str],
        take: Callable[[bytes, bool], None],
        room: Callable[[], Awaitable[None]],
        timing: Timing = DEFAULT_TIMING,
    ) -> None:
        """*take* is given each event and whether it was just made; *room* is awaited before each chunk of a list."""
        self.lists = 0
        """Lists that came to their end."""
        self._client = client
        self._path = EVENTS.path(namespace)
        self._selector = selector
        self._take = take
        self._room = room
        self._timing = timing
        self._pause = timing.backoff[0]
        self._resource_version = ""
        """Up to where everything was seen; empty when it must be listed."""
        self._heard = True
        """Whether the last watch brought anything."""
        self._forbidden = False

    async def run(self) -> None:
        while True:
            pause = await self._attempt()
            await asyncio.sleep(pause)

    async def _attempt(self) -> float:
        """Follow until that ends, for whatever reason; the seconds to wait before the next time."""
        began = time.monotonic()
        shortest, longest = self._timing.backoff
        error: Exception | None = None
        try:
            await self._follow()
        except (KubeError, msgspec.DecodeError) as failed:
            error = failed
            if isinstance(error, Gone) or (isinstance(error, ApiError) and error.has_cause("ResourceVersionTooLarge")):
                self._resource_version = ""
        if time.monotonic() - began > self._timing.watch[0] / 2:
            self._pause = shortest
            if error is None:
                return 0.0
        self._pause = min(longest, random.uniform(shortest, self._pause * 3))
        if error is None:
            return self._pause
        self._complain(error)
        asked_for = (error.retry_after or 0.0) if isinstance(error, ApiError) else 0.0
        return max(self._pause, min(asked_for, longest))

    def _complain(self, error: Exception) -> None:
        if isinstance(error, Forbidden):
            if not self._forbidden:
                log.warning("events of the remote cluster are not told: %s (manifests/ has the roles)", error)
            self._forbidden = True
        else:
            log.info("events of the remote cluster: %s; trying again in %.1f s", error, self._pause)

    async def _follow(self) -> None:
        if self._resource_version and not self._heard:
            await self._check_not_ahead()
        if not self._resource_version:
            await self._list()
        await self._watch()

    async def _list(self) -> None:
        params = {**self._selector, "limit": _PAGE}
        while True:
            await self._room()
            page = _LIST.decode(await self._client.request("GET", self._path, params=params, timeout=60.0))
            for raw in page.items or ():
                self._take(raw, False)
            if not page.metadata.continue_:
                break
            params["continue"] = page.metadata.continue_
        self._resource_version = page.metadata.resourceVersion
        self._heard = True
        self._forbidden = False
        self.lists += 1

    async def _watch(self) -> None:
        seconds = random.randint(*self._timing.watch)
        params = {
            **self._selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._resource_version,
            "timeoutSeconds": str(seconds),
        }
        silence = seconds + self._timing.grace
        async with self._client.stream(self._path, params=params, read_timeout=silence) as lines:
            self._heard = False
            async for line in lines:
                self._heard = True
                self._take_line(line)

    def _take_line(self, content: bytes) -> None:
        line = _LINE.decode(content)
        if line.type == objects.ERROR:
            raise api_error(_OBJECT.decode(line.object), f"watch {self._path}")
        if line.type in (objects.ADDED, objects.MODIFIED):
            self._take(line.object, line.type == objects.ADDED)
        self._resource_version = _EVENT.decode(line.object).metadata.resourceVersion

    async def _check_not_ahead(self) -> None:
        """Notice a server whose history is shorter than ours, as after its etcd was restored from a backup.

        A watch from a resourceVersion of the future is accepted, and silent until history catches up.
        """
        # without the selector, or the server may have to read all events to find one
        page = _LIST.decode(await self._client.request("GET", self._path, params={"limit": "1"}))
        now, known = page.metadata.resourceVersion, self._resource_version
        if now.isdecimal() and known.isdecimal() and int(now) < int(known):
            raise Gone(410, "Expired", f"the server is at resourceVersion {now}, behind {known}")


def _may_pass(error: KubeError) -> bool:
    """Whether trying again may help."""
    return not isinstance(error, ApiError) or isinstance(error, ServerError | TooManyRequests | Unauthorized)


def _now() -> float:
    return asyncio.get_running_loop().time()
