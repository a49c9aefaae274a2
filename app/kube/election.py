"""Leader election with a Lease: of several workers for one virtual node, one works and the others wait.

Why two are never at work at once:

- The holder counts from the moment *before* it sent the last renewal that was confirmed, and stops believing in its
  lease at a deadline that is well before the lease's end. ``held()`` compares that deadline with a clock that goes on
  while the process is stopped or the machine sleeps, so a process that wakes up after an hour knows at once.
- A follower counts from the moment *after* it saw the record change, by its own clock. The times in the record are
  for people: the clocks of two machines may differ by hours.
- Every write carries the resourceVersion of what it replaces, so of two that try, one is refused.

A holder's last request may still be on its way when the deadline passes; what is left of the lease is for that, and
the preconditions of the writes themselves do the rest (DESIGN §5).
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import math
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final

from app.kube.client import Client
from app.kube.errors import AlreadyExists, Conflict, KubeError, NotFound, Unreachable
from app.kube.objects import DELETED, Envelope, Object, decode_event
from app.kube.resources import LEASES

_log = logging.getLogger(__name__)

LEASE_DURATION: Final = 15
RENEW: Final = 5.0
_RETRY: Final = 2.0
"""Seconds between attempts, of a follower to see the lease and of a holder to renew it when that failed."""
_BELIEVED: Final = 2 / 3
"""Share of the lease's duration for which its holder believes in it."""
_NEVER: Final = -math.inf
_OPTIONS: Final[dict[str, Any]] = {"urgent": True, "retry": False}
"""A renewal does not queue behind the work that it protects, and when to try again is decided here."""


_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def steady() -> float:
    """Seconds on a clock that nobody sets and that goes on while the process is stopped.

    CLOCK_MONOTONIC does too, but on Linux it stands still while the machine sleeps; CLOCK_BOOTTIME does not.
    """
    return time.clock_gettime(_CLOCK)


class NotLeading(KubeError):
    """A write was not sent because the lease is not, or no longer, ours."""


class LeaderLock:
    """One contender for a Lease.

    :param identity: who this is, for people; what is unique about it is added, because two contenders that give
        the same identity must not take each other's lease for their own.
    :param lease_duration: seconds after which others take a lease that is not renewed.
    :param renew: seconds between renewals.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        identity: str,
        lease_duration: int = LEASE_DURATION,
        renew: float = RENEW,
        *,
        retry: float | None = None,
        clock: Callable[[], float] = steady,
    ) -> None:
        self.identity = f"{identity}_{uuid.uuid4()}"
        self._client = client
        self._namespace = namespace
        self._name = name
        self._lease_duration = lease_duration
        self._believed = lease_duration * _BELIEVED
        self._renew = renew
        self._retry = retry if retry is not None else min(_RETRY, lease_duration / 6)
        self._clock = clock
        if not 0 < renew < self._believed:
            raise ValueError(f"a lease of {lease_duration} s cannot be renewed every {renew} s")
        self._deadline = _NEVER
        self._lease: Object | None = None
        """The Lease as it was last read or written."""
        self._seen: Object | None = None
        self._seen_at = _NEVER
        """The record of whoever holds it, and when it was first seen so."""
        self._trouble = ""

    @property
    def holder(self) -> str:
        """Who held the lease when it was last seen; empty if nobody did."""
        return str((self._seen or {}).get("holderIdentity") or "")

    def held(self) -> bool:
        """Whether this contender may act, now. Ask before each write, not once before many."""
        return self._clock() < self._deadline

    def check(self) -> None:
        """Raise :class:`NotLeading` unless ``held()``: what ``Client.fenced`` calls before it sends."""
        if not self.held():
            raise NotLeading(f"{self.identity} does not hold the lease {self._namespace}/{self._name}")

    async def acquire(self) -> None:
        """Wait until the lease is ours. It must then be renewed: see ``run``."""
        while not self.held():
            failed = False
            try:
                async with _patience(self._believed):
                    await self._try_acquire()
                self._trouble = ""
            except KubeError as error:
                failed = True
                self._complain("cannot be asked for", error)
            if not self.held():
                await self._wait_for_change(watch=not failed)
        _log.info("%s is the leader (%s/%s)", self.identity, self._namespace, self._name)

    async def hold(self) -> None:
        """Renew the lease for as long as that succeeds; returns when it is lost, at its deadline at the latest."""
        pause = self._renew
        while True:
            await asyncio.sleep(min(pause, max(0.0, self._deadline - self._clock())))
            if not self.held():
                break
            try:
                # A renewal that has no answer after a while is repeated rather than waited for: the connection may be
                # dead where a new one is not.
                async with _patience(min(self._renew, self._deadline - self._clock())):
                    await self._try_renew()
                pause, self._trouble = self._renew, ""
            except KubeError as error:
                pause = self._retry
                self._complain("cannot be renewed", error)
            if not self.held():
                break
        self._deadline = _NEVER
        _log.warning("%s is no longer the leader (%s/%s)", self.identity, self._namespace, self._name)

    async def run(
        self, on_started: Callable[[], Coroutine[Any, Any, None]], on_lost: Callable[[], None] | None = None
    ) -> None:
        """Each time the lease is ours, do *on_started*, until the lease is lost; then wait for it again.

        Returns (with the lease released) when *on_started* does; raises what it raises. When the lease is lost,
        *on_started* is cancelled, *on_lost* is called when it has ended, and the waiting begins anew.
        """
        while True:
            await self.acquire()
            work = asyncio.create_task(on_started(), name=f"leader-{self._name}")
            holding = asyncio.create_task(self.hold(), name=f"lease-{self._name}")
            try:
                await asyncio.wait((work, holding), return_when=asyncio.FIRST_COMPLETED)
                finished = work.done()
            finally:
                # The lease is renewed for as long as the work takes to end, lest another begins meanwhile.
                try:
                    await _end(work)
                finally:
                    await _end(holding)
                    await self.release()
            if finished:
                return work.result()
            holding.result()
            if on_lost is not None:
                on_lost()

    async def release(self, timeout: float = 3.0) -> None:
        """Give the lease up, so that another contender need not wait for its end. Does nothing if it is not held."""
        held, self._deadline = self.held(), _NEVER
        if not held:
            return
        try:
            async with _patience(timeout):
                try:
                    await self._give_up(self._lease)
                except Conflict:  # as when a renewal was cut short whose answer would have told
                    await self._give_up(await self._read())
        except KubeError as error:
            self._complain("cannot be given up, so that others must wait for its end", error)

    async def _give_up(self, lease: Object | None) -> None:
        spec = dict((lease or {}).get("spec") or {})
        if lease is None or spec.pop("holderIdentity", None) != self.identity:
            return
        spec |= {"leaseDurationSeconds": 1, "renewTime": _timestamp()}
        await self._client.replace(self._path(), {**lease, "spec": spec}, **_OPTIONS)

    async def _read(self) -> Object | None:
        try:
            return await self._client.get(self._path(), **_OPTIONS)
        except NotFound:
            return None

    async def _try_acquire(self) -> None:
        lease = await self._read()
        self._observe(lease)
        if self._is_taken():
            return
        with contextlib.suppress(Conflict, AlreadyExists):  # another contender was quicker
            await self._write(lease)

    async def _try_renew(self) -> None:
        with contextlib.suppress(Conflict, AlreadyExists, NotFound):
            await self._write(self._lease)
            return
        # Somebody changed the record: by hand, or by taking it, or it was us and the answer was lost.
        lease = await self._read()
        self._observe(lease)
        if lease is not None and self.holder != self.identity:
            self._deadline = _NEVER
            return
        await self._write(lease)

    async def _write(self, lease: Object | None) -> None:
        """Make the lease ours for another while, on condition that it is still as given."""
        sent = self._clock()
        record = self._record(lease)
        if lease is None:
            metadata = {"name": self._name, "namespace": self._namespace}
            wanted: Object = {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.kind,
                "metadata": metadata,
                "spec": record,
            }
            answer = await self._client.create(LEASES.path(self._namespace), wanted, **_OPTIONS)
        else:
            wanted = {**lease, "spec": record}
            answer = await self._client.replace(self._path(), wanted, **_OPTIONS)
        self._observe(answer)
        self._deadline = sent + self._believed

    def _record(self, lease: Object | None) -> Object:
        before: Object = (lease or {}).get("spec") or {}
        now = _timestamp()
        record = {**before, "leaseDurationSeconds": self._lease_duration, "renewTime": now}
        if before.get("holderIdentity") != self.identity:
            record |= {"holderIdentity": self.identity, "acquireTime": now}
            # A lease that was never there has seen no transition; one given up and taken again has.
            record["leaseTransitions"] = int(before.get("leaseTransitions") or 0) + (lease is not None)
        return record

    def _observe(self, lease: Object | None) -> None:
        """Remember the record, and when it was first seen to be so.

        A Lease that somebody deleted is remembered as it was: its holder still believes in it.
        """
        self._lease = lease
        if lease is not None and (lease.get("spec") or {}) != self._seen:
            self._seen = lease.get("spec") or {}
            self._seen_at = self._clock()

    def _is_taken(self) -> bool:
        if self.holder in ("", self.identity):
            return False
        return self._clock() < self._expiry()

    def _expiry(self) -> float:
        duration = (self._seen or {}).get("leaseDurationSeconds") or self._lease_duration
        return self._seen_at + float(duration)

    async def _wait_for_change(self, *, watch: bool) -> None:
        """Wait until the lease looks free, or until it is time to look again.

        A watch makes that prompt and cheap. Nothing depends on it: where it is refused, breaks or is silent, the
        lease is read now and then, and in any case before it is taken.
        """
        if watch and self._is_taken():
            with contextlib.suppress(KubeError, TimeoutError):
                async with asyncio.timeout(self._expiry() - self._clock()) as limit:
                    return await self._watch_while_taken(limit)
        if not self._is_taken() and watch:
            return  # it ended while we looked
        await asyncio.sleep(self._retry * random.uniform(1.0, 1.2))

    async def _watch_while_taken(self, limit: asyncio.Timeout) -> None:
        """Follow the record; return when it is free. *limit* follows the end of the lease."""
        loop = asyncio.get_running_loop()
        metadata = (self._lease or {}).get("metadata") or {}
        params = {
            "watch": "true",
            "fieldSelector": f"metadata.name={self._name}",
            "resourceVersion": metadata.get("resourceVersion", ""),
        }
        path = LEASES.path(self._namespace)
        async with self._client.stream(path, params=params, read_timeout=2.0 * self._lease_duration) as lines:
            async for line in lines:
                kind, envelope = decode_event(line)
                if not isinstance(envelope, Envelope):
                    break
                self._observe(None if kind == DELETED else envelope.object())
                if not self._is_taken():
                    return
                limit.reschedule(loop.time() + self._expiry() - self._clock())
        raise Unreachable(f"the watch of the lease {self._namespace}/{self._name} ended")

    def _path(self) -> str:
        return LEASES.path(self._namespace, self._name)

    def _complain(self, what: str, error: Exception) -> None:
        """Say it once, not at each attempt."""
        text = str(error) or type(error).__name__
        level = logging.DEBUG if text == self._trouble else logging.WARNING
        self._trouble = text
        _log.log(level, "the lease %s/%s %s: %s", self._namespace, self._name, what, text)


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel a task and see it end; what it raises instead is only said."""
    if task.done():
        return
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("%s was to end and failed", task.get_name(), exc_info=error)


@contextlib.asynccontextmanager
async def _patience(seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise Unreachable(f"no answer within {seconds:.3g} s") from None


def _timestamp() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
