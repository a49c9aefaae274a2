"""Events: what people read with ``kubectl describe`` when something is not as they expect.

Recording one costs the caller nothing but memory that is bounded: the event is written later, by a sender in the
background, and what happens again becomes a count on the event that is there (at most one write in ten seconds).
Events are a courtesy, so nothing here ever fails or delays the work that they tell of; what cannot be written is
dropped and counted.

They are core v1 Events as client-go's classic recorder makes them, because that is what ``kubectl`` and every
dashboard sort and aggregate.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import random
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Literal, Self

from app.kube.client import Client, PatchKind
from app.kube.errors import (
    AlreadyExists,
    ApiError,
    Forbidden,
    KubeError,
    NotFound,
    ServerError,
    TooManyRequests,
    Unreachable,
)
from app.kube.objects import Envelope, Object
from app.kube.resources import EVENTS, Resource

EventType = Literal["Normal", "Warning"]
NORMAL: Final = "Normal"
WARNING: Final = "Warning"

_log = logging.getLogger(__name__)

INTERVAL: Final = 10.0
"""Seconds between two writes of one event."""
REMEMBERED: Final = 4096
"""Events that are remembered for counting, as in client-go."""
WAITING: Final = 1000
"""Events that wait for a sender; more push out the oldest."""
SENDERS: Final = 2
_ATTEMPTS: Final = 8
_PAUSE_FIRST: Final = 0.25
_PAUSE_MOST: Final = 30.0

_MESSAGE: Final = 1024
"""Bytes of a message; what the newer Events API allows."""
_NAME: Final = 253


@dataclass(frozen=True, slots=True)
class Reference:
    """What an event is about."""

    api_version: str
    kind: str
    namespace: str
    """Empty for a cluster-wide object."""
    name: str
    uid: str
    field_path: str = ""
    """The part meant, such as ``spec.containers{web}``."""
    resource_version: str = field(default="", compare=False)

    @classmethod
    def to(cls, about: Object | Envelope, *, resource: Resource | None = None, field_path: str = "") -> Reference:
        """The reference to an object. *resource* says what it is where the object itself does not (items of lists)."""
        if isinstance(about, Envelope):
            api_version, kind, metadata = about.api_version, about.kind, about.object()["metadata"]
        else:
            api_version, kind, metadata = about.get("apiVersion", ""), about.get("kind", ""), about["metadata"]
        if resource is not None:
            api_version, kind = resource.api_version, resource.kind
        return cls(
            api_version=api_version,
            kind=kind,
            namespace=metadata.get("namespace", ""),
            name=metadata["name"],
            uid=metadata.get("uid", ""),
            field_path=field_path,
            resource_version=metadata.get("resourceVersion", ""),
        )

    def object(self) -> Object:
        """As an event carries it."""
        fields = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
            "resourceVersion": self.resource_version,
            "fieldPath": self.field_path,
        }
        return {name: value for name, value in fields.items() if value}


_Key = tuple[Reference, str, str, str]


@dataclass(slots=True)
class _Series:
    """The same thing happening to the same object, once or many times."""

    about: Reference
    type: str
    reason: str
    message: str
    name: str
    first: datetime.datetime
    last: datetime.datetime
    count: int = 0
    written: int = 0
    """The count that the server has; 0: the server has no such event."""
    not_before: float = 0.0
    """When the next write may be, in the event loop's time."""
    waiting: bool = False
    """In the outbox, or being sent."""
    timer: asyncio.TimerHandle | None = None

    @property
    def key(self) -> _Key:
        return (self.about, self.type, self.reason, self.message)

    @property
    def namespace(self) -> str:
        """Events about cluster-wide objects live in ``default``; the API server insists."""
        return self.about.namespace or "default"


@dataclass(frozen=True, slots=True)
class Stats:
    """Since the recorder was made."""

    written: int
    dropped: int
    """Occurrences that no event tells of."""
    waiting: int


class EventRecorder:
    """Writes events in the name of *component*; close it to have the last ones written.

    It belongs to one event loop and starts its senders when there is something to send.
    """

    def __init__(
        self,
        client: Client,
        component: str,
        *,
        instance: str = "",
        interval: float = INTERVAL,
        remembered: int = REMEMBERED,
        waiting: int = WAITING,
        senders: int = SENDERS,
    ) -> None:
        self._client = client
        self._component = component
        self._instance = instance
        self._interval = interval
        self._remembered = remembered
        self._most_waiting = waiting
        self._most_senders = senders
        self._series: OrderedDict[_Key, _Series] = OrderedDict()
        self._outbox: deque[_Series] = deque()
        self._senders: set[asyncio.Task[None]] = set()
        self._closed = False
        self._told_forbidden = False
        self._last_stamp = 0
        self._written = self._dropped = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def record(
        self,
        about: Object | Envelope | Reference,
        type: EventType,
        reason: str,
        message: str,
        *,
        resource: Resource | None = None,
        field_path: str = "",
    ) -> None:
        """Tell people that *reason* happened to *about*; returns at once and never fails."""
        if self._closed:
            self._dropped += 1
            return
        if not isinstance(about, Reference):
            about = Reference.to(about, resource=resource, field_path=field_path)
        now = datetime.datetime.now(datetime.UTC)
        series = self._series_of(about, type, reason, _shortened(message), now)
        series.count += 1
        series.last = now
        self._schedule(series)

    def stats(self) -> Stats:
        return Stats(self._written, self._dropped, len(self._outbox))

    async def close(self, timeout: float = 5.0) -> None:
        """Write what is not yet written, counts too; what is not written in time is dropped."""
        self._closed = True
        for series in self._series.values():
            if series.timer is not None:
                series.timer.cancel()
                self._put(series)
        try:
            if self._senders:
                await asyncio.wait(self._senders, timeout=timeout)
        finally:
            for sender in self._senders:
                sender.cancel()
            await asyncio.gather(*self._senders, return_exceptions=True)
            for series in self._outbox:
                self._drop(series)
            self._outbox.clear()
            if self._dropped:
                _log.info("%s: %d events could not be written", self._component, self._dropped)

    def _series_of(self, about: Reference, type: str, reason: str, message: str, now: datetime.datetime) -> _Series:
        key = (about, type, reason, message)
        series = self._series.get(key)
        if series is not None:
            self._series.move_to_end(key)
            return series
        series = self._series[key] = _Series(*key, self._name(about), first=now, last=now)
        if len(self._series) > self._remembered:
            _, oldest = self._series.popitem(last=False)
            if oldest.timer is not None:
                oldest.timer.cancel()
                self._drop(oldest)
        return series

    def _name(self, about: Reference) -> str:
        """A name that no other event has: that of the object and the time, as client-go names them."""
        self._last_stamp = max(self._last_stamp + 1, time.time_ns())
        stamp = f".{self._last_stamp:x}"
        return about.name[: _NAME - len(stamp)].rstrip(".-") + stamp

    def _schedule(self, series: _Series) -> None:
        if series.waiting or series.timer is not None:
            return
        loop = asyncio.get_running_loop()
        if series.not_before > loop.time() and not self._closed:
            series.timer = loop.call_at(series.not_before, self._put, series)
        else:
            self._put(series)

    def _put(self, series: _Series) -> None:
        series.timer = None
        series.waiting = True
        self._outbox.append(series)
        if len(self._outbox) > self._most_waiting:
            self._drop(self._outbox.popleft())
        if len(self._senders) < self._most_senders:
            sender = asyncio.get_running_loop().create_task(self._send_all(), name=f"events-{self._component}")
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)

    def _drop(self, series: _Series) -> None:
        self._dropped += series.count - series.written
        series.count = series.written
        series.waiting = False

    async def _send_all(self) -> None:
        """Send until nothing is left. A sender lives no longer than there is work, so an idle recorder has no task."""
        while self._outbox:
            series = self._outbox.popleft()
            try:
                await self._send(series)
            except asyncio.CancelledError:
                self._drop(series)
                raise
            except Exception:  # noqa: BLE001 - the next event may be fine
                _log.exception("event %s about %s could not be made", series.reason, series.about.name)
                self._drop(series)

    async def _send(self, series: _Series) -> None:
        for attempt in range(_ATTEMPTS):
            count = series.count
            try:
                await self._write(series)
            except (Unreachable, ServerError, TooManyRequests) as error:
                await asyncio.sleep(_pause(attempt, error))
                continue
            except KubeError as error:
                self._explain(series, error)
                break
            self._written += 1
            series.written = count
            series.waiting = False
            series.not_before = asyncio.get_running_loop().time() + self._interval
            if series.count > count and self._series.get(series.key) is series:
                self._schedule(series)
            else:
                self._drop(series)
            return
        self._drop(series)

    async def _write(self, series: _Series) -> None:
        if series.written:
            update = {"count": series.count, "lastTimestamp": _timestamp(series.last)}
            path = EVENTS.path(series.namespace, series.name)
            try:
                await self._client.patch(path, update, PatchKind.MERGE)
                return
            except NotFound:
                pass  # events live for an hour; it is made again with its count
        with contextlib.suppress(AlreadyExists):  # an attempt whose answer was lost
            await self._client.create(EVENTS.path(series.namespace), self._event(series))

    def _event(self, series: _Series) -> Object:
        source = {"component": self._component}
        if self._instance:
            source["host"] = self._instance
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": series.name, "namespace": series.namespace},
            "involvedObject": series.about.object(),
            "type": series.type,
            "reason": series.reason,
            "message": series.message,
            "source": source,
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
            "count": series.count,
            "firstTimestamp": _timestamp(series.first),
            "lastTimestamp": _timestamp(series.last),
        }

    def _explain(self, series: _Series, error: KubeError) -> None:
        """Say what is worth saying; that a namespace is going away, with all that is in it, is not."""
        level = logging.WARNING
        if isinstance(error, NotFound) or (isinstance(error, Forbidden) and error.has_cause("NamespaceTerminating")):
            level = logging.DEBUG
        elif isinstance(error, Forbidden):
            level = logging.DEBUG if self._told_forbidden else logging.WARNING
            self._told_forbidden = True
        where = f"{series.about.kind} {series.about.namespace}/{series.about.name}".replace(" /", " ")
        _log.log(level, "event %s about %s was not written: %s", series.reason, where, error)


def _pause(attempt: int, error: KubeError) -> float:
    """Seconds before the next attempt."""
    wait: float = min(_PAUSE_MOST, _PAUSE_FIRST * 2**attempt) * random.uniform(0.75, 1.0)
    asked_for = error.retry_after if isinstance(error, ApiError) else None
    return max(wait, asked_for or 0.0)


def _timestamp(moment: datetime.datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _shortened(message: str) -> str:
    encoded = message.encode()
    if len(encoded) <= _MESSAGE:
        return message
    return encoded[: _MESSAGE - 3].decode(errors="ignore") + "…"
