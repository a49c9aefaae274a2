"""What handlers work with, and the whole way of an upgrade."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kubelet_api import validate
from kubelet_api.call import Call, CallError, Downstream, Meter
from kubelet_api.connection import Connection
from kubelet_api.gate import Gate
from kubelet_api.limits import Limits
from kubelet_api.metrics import Metrics
from kubelet_api.request import Head, Request
from kubelet_api.routes import Found
from kubelet_api.sessions import SessionEnded, Sessions
from kubelet_api.stall import Wire
from kubelet_api.twins import Twins
from kubelet_api.usage.live import Usage

log = logging.getLogger(__name__)

Check = Callable[[], str | None]
"""Why it fails; None if it passes."""


class LogStream(Protocol):
    """A log on its way: pieces as they come."""

    @property
    def wire(self) -> Wire | None:
        """The connection that they come over, if it is known."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def aclose(self) -> None: ...


class Remote(Protocol):
    """Carries calls to the remote cluster. Everything may raise :class:`CallError` before it has sent anything."""

    async def logs(self, call: Call) -> LogStream: ...

    async def upgrade(self, call: Call, downstream: Downstream, meter: Meter) -> None:
        """Write the remote's answer, be it 101 or an error, and copy bytes until the end."""

    async def run(self, call: Call, meter: Meter) -> bytes | AsyncIterator[bytes]:
        """Run a command; what it wrote to both of its outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Everything that answers are made of."""

    node: str
    version: str
    twins: Twins
    usage: Usage
    remote: Remote
    gate: Gate
    sessions: Sessions
    metrics: Metrics
    limits: Limits
    checks: Mapping[str, Check]
    config: Mapping[str, Any]
    """What /configz tells."""
    started: float = field(default_factory=time.time)

    def call(self, request: Request) -> Call:
        """What is asked of which pod; raises what the kubelet would answer if it cannot be."""
        kind = request.route.kind
        assert kind is not None
        target = validate.resolve(self.twins, kind, request.names)
        return Call(
            kind=kind,
            user=request.user,
            method=request.method,
            namespace=target.namespace,
            pod=target.pod,
            uid=target.uid,
            container=target.container,
            twin=target.twin,
            query=request.query,
            headers=request.headers,
        )

    async def upgrade(self, head: Head, found: Found, connection: Connection) -> None:
        """Serve a connection that is to become a stream, to its end."""
        code = 101
        try:
            request = await self.gate.admit(head, found)
            call = self.call(request)
            async with self.sessions.session(call) as session:
                session.over(connection.wire, connection.is_left)
                await self.remote.upgrade(call, connection, session)
        except CallError as error:
            code = error.status
            await connection.answer(error)
        except SessionEnded as error:
            log.info("a stream was closed: %s", error)
            await connection.answer(CallError(503, "this node's API is stopping"))
        except ConnectionError:
            pass  # the client went away
        except Exception:
            code = 500
            log.exception("a stream failed")
            await connection.answer(CallError(500, "Internal Server Error"))
        finally:
            self.count(found, head.method, code)
            await connection.close()

    def count(self, found: Found, method: str, code: int) -> None:
        """One more request."""
        path = found.route.root if found.route is not None else "other"
        known = method if method in ("GET", "POST", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS") else "other"
        self.metrics.requests.labels(path, known, str(code)).inc()
