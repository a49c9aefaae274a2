"""A local copy of the objects of one kind, kept up to date by a watch.

It is made to be wrong in one way only, late. An object is gone when the server said so, or when a list that came to
its end does not hold it; a connection that breaks, hangs or is refused changes nothing but the age of the copy.
So the watch goes on from the last resourceVersion wherever the server still knows it, and where not, everything is
listed again and only the differences are reported.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from app.kube import objects
from app.kube.client import Client
from app.kube.errors import ApiError, Gone, KubeError, api_error
from app.kube.objects import Envelope, Key, Object
from app.kube.resources import Resource
from app.kube.store import Change, Indexer, Store

log = logging.getLogger(__name__)

OnChange: TypeAlias = Callable[[Key, Envelope | None, Envelope | None], None]
"""Told of one change: the key, the object before, the object now (None: there was none, there is none)."""

Transform: TypeAlias = Callable[[Envelope], Envelope]
"""Makes of an object what is kept of it; its name and version must stay."""

_INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"
"""The annotation of the bookmark that ends a streaming list."""

_REFUSALS: Final = frozenset({400, 405, 422, 501})
"""How servers that have no streaming list answer when asked for one; with the feature off, Kubernetes says 422."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How patient an informer is, in seconds."""

    backoff: tuple[float, float] = (0.2, 30.0)
    """The shortest and the longest pause after something went wrong."""
    healthy: float = 60.0
    """A watch that lasted so long was a good one: the next pause is a short one again."""
    watch: tuple[int, int] = (240, 480)
    """When the server is to end a watch, at random between these, so that many do not come back at once."""
    silence: float = 95.0
    """A watch that brought nothing for so long is replaced: bookmarks come every minute."""
    list_silence: float = 30.0
    """A streaming list that brought nothing for so long is none: some aggregated servers never end it."""
    page: float = 60.0
    """What one chunk of a list may take."""


DEFAULT_TIMING: Final = Timing()


@dataclass(slots=True)
class Counts:
    """What an informer has done so far."""

    lists: int = 0
    """Lists that came to their end."""
    watches: int = 0
    """Watches that the server accepted, streaming lists among them."""
    changes: int = 0
    """Changes reported."""
    errors: int = 0
    """Lists and watches that failed; a watch that the server ended in time is no failure."""


class Informer:
    """Objects of one kind, in one namespace or all, that match the selectors."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        on_change: OnChange | None = None,
        transform: Transform | None = None,
        indexers: Mapping[str, Indexer] | None = None,
        streaming: bool = True,
        page_size: int = 500,
        timing: Timing = DEFAULT_TIMING,
    ) -> None:
        """*on_change* is called in the middle of reading the watch and must be quick; put the key into a queue.

        *transform* is given each object that arrives, and what it returns is kept: less, where less is needed.

        *streaming* is whether to try a streaming list (one watch that begins with all objects) before a chunked one.
        """
        self.resource = resource
        self.streaming = streaming
        """Whether lists are streamed; False once the server has refused to."""
        self.counts = Counts()
        self.error: Exception | None = None
        """Why the copy is not up to date; None while it is."""
        self._client = client
        self._path = resource.path(namespace)
        selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
        self._selectors = {name: text for name, text in selectors.items() if text}
        self._on_change = on_change
        self._transform = transform
        self._page_size = page_size
        self._timing = timing
        self._backoff = _Backoff(*timing.backoff)
        self._store = Store(indexers)
        self._resource_version = ""
        """Up to where the store holds everything; empty when it must be listed."""
        self._watching_since: float | None = None
        self._heard = True
        """Whether the last watch brought anything."""
        self._synced = asyncio.Event()

    # ------------------------------------------------------------------ what it knows

    @property
    def synced(self) -> bool:
        """Whether the first list was complete. True from then on, also while the server cannot be reached."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        await self._synced.wait()

    def __len__(self) -> int:
        return len(self._store)

    def get(self, key: Key) -> Envelope | None:
        return self._store.get(key)

    def list(self) -> Sequence[Envelope]:
        """All objects, as they are now."""
        return self._store.all()

    def by_index(self, name: str, value: str) -> Sequence[Envelope]:
        """The objects for which the indexer of this name gave this value."""
        return self._store.by_index(name, value)

    def each_by_index(self, name: str, values: Sequence[str]) -> Sequence[tuple[Envelope, ...]]:
        """The same for each of several values."""
        return self._store.each_by_index(name, values)

    def has_reached(self, _namespace: str, resource_version: str) -> bool:
        """Whether it knows all that happened up to this version: what was made then and is not here is gone again."""
        ours = self._resource_version
        return ours.isdecimal() and resource_version.isdecimal() and int(ours) >= int(resource_version)

    def listen(self, on_change: OnChange) -> None:
        """Tell this one of changes; it is called in the middle of reading the watch and must be quick."""
        self._on_change = on_change

    # ------------------------------------------------------------------ following the server

    async def run(self) -> None:
        """Follow the server until cancelled."""
        while True:
            pause = await self._attempt()
            await asyncio.sleep(pause)

    async def _attempt(self) -> float:
        """Follow the server until that ends, for whatever reason; returns the seconds to wait before the next time."""
        self._watching_since = None
        error: Exception | None = None
        try:
            await self._follow()
        except (KubeError, msgspec.DecodeError) as failed:
            error = failed
            if _needs_list(failed):
                if self._resource_version:  # the server is well, it has only forgotten: a list need not wait long
                    self._backoff.reset()
                self._resource_version = ""
        return self._pause(error)

    def _pause(self, error: Exception | None) -> float:
        since = self._watching_since
        was_good = since is not None and time.monotonic() - since >= self._timing.healthy
        if was_good:
            self._backoff.reset()
        if error is None and was_good:
            return 0.0
        pause = self._backoff.next()
        if error is not None:
            self.error = error
            self.counts.errors += 1
            if isinstance(error, ApiError) and error.retry_after:
                pause = max(pause, min(error.retry_after, self._timing.backoff[1]))
            level = logging.INFO if was_good else logging.WARNING
            log.log(level, "%s: %s; trying again in %.1f s", self, error, pause)
        return pause

    async def _follow(self) -> None:
        if self._resource_version:
            if not self._heard:
                await self._check_not_ahead()
            await self._watch()
        elif not self.streaming:
            await self._list_in_chunks()
            await self._watch()
        else:
            try:
                await self._watch_from_nothing()
            except _NotStreamed as refusal:
                log.info("%s: no streaming list (%s), so it is listed in chunks", self, refusal)
                self.streaming = not refusal.for_good
                await self._list_in_chunks()
                await self._watch()

    async def _watch(self) -> None:
        """Take changes after the last known resourceVersion, until the server ends it or something breaks."""
        params = self._watch_params() | {"resourceVersion": self._resource_version}
        async with self._client.stream(self._path, params=params, read_timeout=self._timing.silence) as lines:
            self._watch_began()
            self.error = None
            async for line in lines:
                self._take(line)

    async def _check_not_ahead(self) -> None:
        """Notice a server whose history is shorter than ours, as after its etcd was restored from a backup.

        A watch from a resourceVersion of the future is accepted and silent, bookmarks too, until history catches up.
        """
        page = await self._page({"limit": "1"})
        if _older(page.resource_version, self._resource_version):
            raise Gone(
                410,
                "Expired",
                f"the server is at resourceVersion {page.resource_version}, behind {self._resource_version}",
            )

    async def _watch_from_nothing(self) -> None:
        """A streaming list: a watch whose first events are all objects there are, then a bookmark that says so.

        The empty resourceVersion asks for a state as new as any when the request is made.
        """
        params = self._watch_params() | {
            "sendInitialEvents": "true",
            "resourceVersionMatch": "NotOlderThan",
            "resourceVersion": "",
        }
        try:
            async with self._client.stream(self._path, params=params, read_timeout=self._timing.silence) as lines:
                self._watch_began()
                events = aiter(lines)
                self._replace(*await self._initial_objects(events))
                async for line in events:
                    self._take(line)
        except ApiError as error:
            refused = error.status in _REFUSALS
            if self._resource_version or not (refused or error.status == 500):  # past its list it is a watch
                raise
            raise _NotStreamed(str(error), for_good=refused) from error

    async def _initial_objects(self, events: AsyncIterator[bytes]) -> tuple[dict[Key, Envelope], str]:
        """The beginning of a streaming list: the objects, and the resourceVersion that they are complete at."""
        found: dict[Key, Envelope] = {}
        patience = self._timing.list_silence
        try:
            async with asyncio.timeout(patience) as limit:
                async for line in events:
                    limit.reschedule(asyncio.get_running_loop().time() + patience)
                    kind, content = objects.decode_event(line)
                    if isinstance(content, Envelope):
                        if kind == objects.DELETED:
                            found.pop(content.key, None)
                        else:
                            found[content.key] = self._known(content)
                    elif kind == objects.ERROR:
                        raise self._error_of(content)
                    elif _ends_list(content):
                        return found, _version_of(content)
        except TimeoutError:
            raise _NotStreamed(f"it did not end, and {patience:.0f} s nothing came", for_good=True) from None
        raise _NotStreamed("the server closed it before its end", for_good=False)

    async def _list_in_chunks(self) -> None:
        found: dict[Key, Envelope] = {}
        page = await self._page({"limit": str(self._page_size)})
        found.update((item.key, self._known(item)) for item in page.items)
        while page.continue_token:
            try:
                page = await self._page({"limit": str(self._page_size), "continue": page.continue_token})
            except Gone:  # slower than the server's history is long, so chunks would never do
                found.clear()
                page = await self._page({})
            found.update((item.key, self._known(item)) for item in page.items)
        self._replace(found, page.resource_version)

    async def _page(self, params: Mapping[str, str]) -> objects.ListPage:
        chosen = {**self._selectors, **params}
        return objects.decode_list(
            await self._client.request("GET", self._path, params=chosen, timeout=self._timing.page)
        )

    def _watch_params(self) -> dict[str, str]:
        seconds = random.randint(*self._timing.watch)
        return {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds), **self._selectors}

    def _watch_began(self) -> None:
        self._watching_since = time.monotonic()
        self.counts.watches += 1
        self._heard = False

    # ------------------------------------------------------------------ taking what it says

    def _known(self, new: Envelope) -> Envelope:
        """The version that is held already where it is the same one, so that a relist does not hold all twice."""
        old = self._store.get(new.key)
        new = self._kept(new)
        return old if old is not None and old == new else new

    def _kept(self, new: Envelope) -> Envelope:
        return new if self._transform is None else self._transform(new)

    def _replace(self, found: dict[Key, Envelope], resource_version: str) -> None:
        """A list is complete."""
        changes = self._store.replace(found)
        self._resource_version = resource_version
        self._heard = True
        self.counts.lists += 1
        self.error = None
        self._report(changes)
        self._synced.set()

    def _take(self, line: bytes) -> None:
        """One event of a watch that is past its list."""
        self._heard = True
        kind, content = objects.decode_event(line)
        if not isinstance(content, Envelope):
            if kind == objects.ERROR:
                raise self._error_of(content)
            self._resource_version = _version_of(content)
            return
        self._resource_version = content.resource_version
        self._report(
            self._store.remove(content.key) if kind == objects.DELETED else self._store.put(self._kept(content))
        )

    def _report(self, changes: Sequence[Change]) -> None:
        self.counts.changes += len(changes)
        if self._on_change is None:
            return
        for key, old, new in changes:
            try:
                self._on_change(key, old, new)
            except Exception:  # a bug in what listens must not end what everything else listens to
                log.exception("%s: a listener failed on the change of %s", self, key)

    def _error_of(self, status: Object) -> ApiError:
        return api_error(status, f"watch {self._path}")

    def __str__(self) -> str:
        return f"informer of {self._path}"


def _needs_list(error: Exception) -> bool:
    """Whether the server cannot go on from the resourceVersion that we have."""
    return isinstance(error, Gone) or (isinstance(error, ApiError) and error.has_cause("ResourceVersionTooLarge"))


def _ends_list(bookmark: Object) -> bool:
    return _INITIAL_EVENTS_END in (bookmark.get("metadata", {}).get("annotations") or {})


def _version_of(bookmark: Object) -> str:
    version: str = bookmark.get("metadata", {}).get("resourceVersion", "")
    return version


def _older(one: str, other: str) -> bool:
    """Whether a resourceVersion is older, as far as that can be told: those of Kubernetes itself are numbers."""
    return one.isdecimal() and other.isdecimal() and int(one) < int(other)


class _NotStreamed(Exception):
    """There is no streaming list to be had."""

    def __init__(self, why: str, *, for_good: bool) -> None:
        super().__init__(why)
        self.for_good = for_good
        """Whether to ask again the next time is useless."""


class _Backoff:
    """Pauses that grow at random (decorrelated jitter), so that clients that failed together do not return together."""

    def __init__(self, shortest: float, longest: float) -> None:
        self._shortest = shortest
        self._longest = longest
        self._last = shortest

    def next(self) -> float:
        self._last = min(self._longest, random.uniform(self._shortest, self._last * 3))
        return self._last

    def reset(self) -> None:
        self._last = self._shortest
