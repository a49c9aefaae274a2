"""One connection: uvicorn's HTTP/1.1, with what it lacks for a kubelet.

uvicorn knows no client certificates, takes a connection over only for its own WebSockets, and lets a client take all
the time it wants. All three are added in a subclass, through methods and attributes of ``H11Protocol`` that are not
its public interface; ``tests/kubelet_api/test_protocol.py`` names each, and fails when one moves.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
import time
from collections.abc import Callable, Coroutine
from email.utils import formatdate
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from kubelet_api import connection, routes
from kubelet_api.call import CallError
from kubelet_api.connection import Connection
from kubelet_api.limits import Limits
from kubelet_api.request import Head, is_upgrade

log = logging.getLogger(__name__)
_quiet = logging.getLogger(f"{__name__}.uvicorn")
_quiet.setLevel(logging.ERROR)  # anybody can send something that is not HTTP, so it is not worth a line each

OnUpgrade = Callable[[Head, routes.Found, Connection], Coroutine[Any, Any, None]]
OnRefusal = Callable[[str], None]
"""Told why a connection was ended, or a request refused, before there was anything to let in."""


class State(ServerState):
    """What connections share; uvicorn's server would write the date into it once a second."""

    def __init__(self) -> None:
        super().__init__()
        self._date: tuple[int, list[tuple[bytes, bytes]]] = (0, [])

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        now = int(time.time())
        if self._date[0] != now:
            self._date = (now, [(b"date", formatdate(now, usegmt=True).encode())])
        return self._date[1]

    @default_headers.setter
    def default_headers(self, value: list[tuple[bytes, bytes]]) -> None:
        pass  # ServerState's own first value


class KubeletProtocol(H11Protocol):
    """A connection from its TLS handshake to its end, or to the upgrade that takes it over."""

    def __init__(
        self,
        config: Config,
        state: State,
        *,
        limits: Limits,
        on_upgrade: OnUpgrade,
        closed: asyncio.Future[None],
        on_refusal: OnRefusal = lambda reason: None,
    ) -> None:
        super().__init__(config, state, {}, asyncio.get_running_loop())
        self.logger = _quiet
        self._limits = limits
        self._on_upgrade = on_upgrade
        self._on_refusal = on_refusal
        self._closed = closed
        self._tls: ssl.SSLObject | None = None
        self._head: Head | None = None
        self._found: routes.Found | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        if isinstance(tls, ssl.SSLObject):
            self._tls = tls
        self._time_head()

    def data_received(self, data: bytes) -> None:
        if self._head_timer is None and self._between_requests():
            self._time_head()
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        self._is_read()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        if not self._closed.done():
            self._closed.set_result(None)

    def abort(self) -> None:
        """End it now, in the middle of an answer, so that the client does not take what it has for all."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        self.transport.abort()

    def shutdown(self) -> None:
        """The server stops: close it now, or after the answer that is on its way."""
        if self._between_requests():
            self.transport.close()
        else:
            super().shutdown()

    # ------------------------------------------------------------------ slow clients

    def _between_requests(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _time_head(self) -> None:
        self._head_timer = self.loop.call_later(self._limits.head_time, self._head_is_late)

    def _head_came(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        self._on_refusal("late-head")
        self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._is_read()
        self._unread_timer = self.loop.call_later(self._limits.unread, self._is_unread)

    def resume_writing(self) -> None:
        self._is_read()
        super().resume_writing()

    def _is_read(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _is_unread(self) -> None:
        """Too much waits for the client. Logs and what commands say are streams, of which nobody has to read on."""
        self._unread_timer = None
        route = self._found.route if self._found is not None else None
        if route is None or route.kind is None:
            self._on_refusal("unread")
            self.abort()

    # ------------------------------------------------------------------ uvicorn's hooks

    def _should_upgrade(self) -> bool:
        """Called for each request, when its head is complete and ``scope`` and ``headers`` are set."""
        self._head_came()
        headers = tuple(self.headers)
        raw_path: bytes = self.scope["raw_path"]
        path = raw_path.decode("latin-1")
        found = self._found = routes.find(path)
        upgrade = (
            found.route is not None
            and found.route.upgrade
            and is_upgrade(headers)
            and self.scope["http_version"] == "1.1"
        )
        query: bytes = self.scope["query_string"]
        self._head = Head(
            self.scope["method"],
            path,
            query.decode("latin-1"),
            headers,
            self._tls,
            self._objection(len(raw_path) + len(query), headers, upgrade=upgrade),
        )
        state: dict[str, Any] = self.scope["state"]
        state.update(head=self._head, found=found, abort=self.abort, wire=self.transport.get_extra_info("socket"))
        return upgrade

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection over; whatever came after the head goes with it."""
        assert self._head is not None
        assert self._found is not None
        self.connections.discard(self)
        self._is_read()
        rest, ended = self.conn.trailing_data
        taken = Connection(self.transport, rest, self._closed, farewell=self._limits.farewell, ended=ended)
        # nothing that lasts as long as the stream holds this object, its buffers and its parser
        task = self.loop.create_task(self._on_upgrade(self._head, self._found, taken))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def send_400_response(self, msg: str) -> None:
        """Called while h11's error is handled, which knows the better status."""
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        message = "431 Request Header Fields Too Large" if status == 431 else "400 Bad Request"
        self._on_refusal("bad-request")
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and self._between_requests():
            self.transport.write(connection.answer(CallError(status, message)))
            self.transport.close()
        else:  # in the middle of an answer
            self.abort()

    def on_response_complete(self) -> None:
        if self.conn.their_state is h11.SEND_BODY:
            # no route reads a body, and this one would have to be read to its end before the next request
            self.server_state.total_requests += 1
            self.transport.close()
            return
        super().on_response_complete()
        ours = not self.transport.is_closing() and self.transport.get_protocol() is self
        if ours and self._between_requests() and self._head_timer is None and self.conn.trailing_data[0]:
            self._time_head()  # the next request has begun already

    def _objection(self, url: int, headers: tuple[tuple[bytes, bytes], ...], *, upgrade: bool) -> CallError | None:
        if url > self._limits.url:
            return CallError(414, f"the URL has more than {self._limits.url} bytes")
        if len(headers) > self._limits.headers:
            return CallError(431, f"the request has more than {self._limits.headers} headers")
        if self.scope["method"] == "CONNECT":  # HTTP/1.1 has no answer 200 to it that could have a content
            return CallError(405, "405: Method Not Allowed")
        if upgrade and _has_body(headers):
            return CallError(400, "a request to upgrade the connection cannot have a body")
        return None


def _has_body(headers: tuple[tuple[bytes, bytes], ...]) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0 ") != b"")
        for name, value in headers
    )
