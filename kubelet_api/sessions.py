"""Streams that are open: how many, for whom, since when, and how each one ends.

A stream ends with its client, with its pod, by being idle too long, when one of its ends is silently gone, or with
this server. Every exec, attach,
port-forward and run leaves one line on the logger ``farlet.audit``: who, what, how long, how many bytes and how it
ended, and nothing of what was said.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Final, NoReturn

from kubelet_api.call import Call, CallError, Kind
from kubelet_api.limits import Limits
from kubelet_api.metrics import Metrics
from kubelet_api.stall import Stall, Wire, owed

log = logging.getLogger(__name__)
audit = logging.getLogger("farlet.audit")

_AUDITED: Final = frozenset({Kind.EXEC, Kind.ATTACH, Kind.PORT_FORWARD, Kind.RUN})

ENDED, IDLE, STALLED, SHUTDOWN, CLIENT_GONE, FAILED = "ended", "idle", "stalled", "shutdown", "client-gone", "failed"
"""How a stream ends; one that the remote refuses ends as ``refused``."""


class SessionEnded(Exception):
    """A stream was ended by us: it was idle too long, an end of it is gone, or the server stops."""


class Session:
    """One open stream; also the meter of its bytes."""

    def __init__(self, call: Call, metrics: Metrics, stall: float) -> None:
        self.call = call
        self._stall = stall
        self.received = 0
        self.sent = 0
        self.started = self.last = time.monotonic()
        self.result = ENDED
        self._task = asyncio.current_task()
        self._wires: list[tuple[Wire, Stall, Callable[[], bool]]] = []
        self._passed = 0
        self._from_client = metrics.session_bytes.labels(call.kind.value, "from-client")
        self._to_client = metrics.session_bytes.labels(call.kind.value, "to-client")

    def from_client(self, count: int) -> None:
        self.received += count
        self.last = time.monotonic()
        self._from_client.inc(count)

    def to_client(self, count: int) -> None:
        self.sent += count
        self.last = time.monotonic()
        self._to_client.inc(count)

    def over(self, wire: Wire | None, is_left: Callable[[], bool] = lambda: False) -> None:
        """*is_left*: whether whoever is at the other end is known to have gone."""
        if wire is not None:
            self._wires.append((wire, Stall(self._stall), is_left))

    def is_stalled(self, now: float) -> bool:
        """Whether one of its ends is silent, or has gone and nobody takes what it sent; to be asked now and then.

        Who serves a stream waits for the end that does not read, and so never hears that the other has gone.
        """
        stuck, self._passed = self._passed == self.received + self.sent, self.received + self.sent
        return any(stall.look(owed(wire), now, left=stuck and is_left()) for wire, stall, is_left in self._wires)

    def end(self, result: str) -> None:
        """Have the task that serves it end it, with :class:`SessionEnded`."""
        if self.result == ENDED and self._task is not None:
            self.result = result
            self._task.cancel()

    def was_ended(self) -> bool:
        return self.result in (IDLE, STALLED, SHUTDOWN)


class Sessions:
    """All of one server."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self._limits = limits
        self._metrics = metrics
        self._open: set[Session] = set()
        self._by_user: Counter[str] = Counter()
        self._stopping = False
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._open)

    @contextlib.asynccontextmanager
    async def session(self, call: Call) -> AsyncIterator[Session]:
        """A stream that is open while the block runs; refused with 429 or 503 if it is one too many."""
        self._check(call)
        session = Session(call, self._metrics, self._limits.stall)
        kind = call.kind.value
        self._open.add(session)
        self._by_user[call.user.name] += 1
        self._empty.clear()
        self._metrics.sessions.labels(kind).inc()
        try:
            yield session
        except asyncio.CancelledError:
            if not session.was_ended():
                session.result = CLIENT_GONE
                raise
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            raise SessionEnded(session.result) from None
        except CallError as error:
            session.result = f"refused {error.status}"
            raise
        except ConnectionError:
            session.result = CLIENT_GONE
            raise
        except Exception:
            session.result = FAILED
            raise
        finally:
            self._close(session)

    async def watch(self) -> None:
        """End streams through which nothing passes, and those with an end that is gone; runs until cancelled."""
        while True:
            await asyncio.sleep(min(self._limits.idle / 4, self._limits.stall / 4, 60.0))
            now = time.monotonic()
            for session in list(self._open):
                if session.last < now - self._limits.idle:
                    session.end(IDLE)
                elif session.is_stalled(now):
                    session.end(STALLED)

    def stop_accepting(self) -> None:
        """No new streams from now on."""
        self._stopping = True

    async def stop(self, grace: float) -> None:
        """No new streams; those that are open get *grace* seconds and are then ended."""
        self._stopping = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._empty.wait()
        for session in list(self._open):
            session.end(SHUTDOWN)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.last_words):
                await self._empty.wait()

    def _check(self, call: Call) -> None:
        limits = self._limits
        if self._stopping:
            self._refuse("stopping", CallError(503, "this node's API is stopping; try again in a few seconds"))
        if len(self._open) >= limits.streams:
            self._refuse("streams", CallError(429, f"too many streams: {limits.streams} are open on this node"))
        if self._by_user[call.user.name] >= limits.streams_per_user:
            text = f"too many streams: {limits.streams_per_user} of user {call.user.name} are open on this node"
            self._refuse("streams-per-user", CallError(429, text))

    def _refuse(self, reason: str, error: CallError) -> NoReturn:
        self._metrics.refusals.labels(reason).inc()
        error.headers = (*error.headers, ("Retry-After", "5"))
        raise error

    def _close(self, session: Session) -> None:
        call, kind = session.call, session.call.kind.value
        self._open.discard(session)
        self._by_user[call.user.name] -= 1
        if self._by_user[call.user.name] <= 0:
            del self._by_user[call.user.name]
        if not self._open:
            self._empty.set()
        seconds = time.monotonic() - session.started
        self._metrics.sessions.labels(kind).dec()
        self._metrics.sessions_ended.labels(kind, session.result.partition(" ")[0]).inc()
        self._metrics.session_seconds.labels(kind).observe(seconds)
        if call.kind in _AUDITED:
            audit.info("%s", audit_line(session, seconds))


def audit_line(session: Session, seconds: float) -> str:
    """Who did what; values that somebody chose are quoted, so that none can look like another field or line."""
    call = session.call
    fields: list[tuple[str, str]] = [
        ("kind", call.kind.value),
        ("user", json.dumps(call.user.name)),
        ("groups", json.dumps(",".join(call.user.groups))),
        ("pod", f"{call.namespace}/{call.pod}"),
        ("uid", call.uid),
        ("container", call.container or "-"),
        ("remote", f"{call.twin.namespace}/{call.twin.pod}"),
        ("seconds", f"{seconds:.3f}"),
        ("received", str(session.received)),
        ("sent", str(session.sent)),
        ("result", json.dumps(session.result)),
    ]
    return " ".join(f"{name}={value}" for name, value in fields)
