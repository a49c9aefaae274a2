"""The kubelet API as a server: TLS, connections, start and stop, in an event loop that somebody else runs.

uvicorn's own server is not used: it takes the process's signals, exits the process when it cannot listen, and has no
limit for TLS handshakes. Its protocol is what we need of it. Each connection is one task of ours from the moment it
is accepted to the moment it is gone, so that none is forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterable
from typing import Any, Final

from prometheus_client.registry import Collector
from uvicorn.config import Config

from app.kube.client import Client
from kubelet_api import authz, limits
from kubelet_api.application import application
from kubelet_api.authn import TOKEN_KEPT_FOR, Authenticator, PeerCertificate, unless_ended
from kubelet_api.authz import Authorizer
from kubelet_api.channel import Scratch
from kubelet_api.gate import Gate
from kubelet_api.limits import Limits
from kubelet_api.metrics import Metrics
from kubelet_api.protocol import KubeletProtocol, State
from kubelet_api.service import Check, LogStream, Remote, Service
from kubelet_api.sessions import Sessions
from kubelet_api.stall import tune
from kubelet_api.tls import SharedTls
from kubelet_api.twins import Twins
from kubelet_api.usage.live import Usage

__all__ = ["KubeletServer", "LogStream", "Remote"]

log = logging.getLogger(__name__)

_BACKLOG: Final = 1024
_BUFFER: Final = 128 << 10


class KubeletServer:
    """Serves the kubelet API of one virtual node."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        tls: ssl.SSLContext,
        peer_certificate: PeerCertificate = unless_ended,
        node: str,
        version: str,
        twins: Twins,
        remote: Remote,
        reviews: Client,
        limits: Limits = limits.DEFAULT,
        collectors: Iterable[Collector] = (),
        sync_loop: Check | None = None,
        usage: Usage | None = None,
    ) -> None:
        """
        :param port: 0 for any that is free; then see :attr:`port`.
        :param tls: with a serving certificate, the client authority, and ``CERT_OPTIONAL``.
        :param peer_certificate: which client certificates are believed, asked for each request; the default takes
            TLS's word, until the certificate ends.
        :param reviews: the local cluster's client for TokenReview and SubjectAccessReview; of the same event loop.
        :param collectors: of figures that are to be on ``/metrics`` besides our own.
        :param usage: what pods use; of the same event loop, and closed with the server. Nothing is known without it.
        :param sync_loop: why ``/healthz/syncloop`` fails; the twins' caches decide if it is not given.
        """
        self._host, self._port = host, port
        self._tls = tls
        self._limits = limits
        self._metrics = Metrics(collectors)
        self._sessions = Sessions(limits, self._metrics)
        self._gate = Gate(Authenticator(reviews, peer_certificate), Authorizer(reviews, node), self._metrics)
        self._usage = usage or Usage(twins, node)
        self._service = Service(
            node=node,
            version=version,
            twins=twins,
            usage=self._usage,
            remote=remote,
            gate=self._gate,
            sessions=self._sessions,
            metrics=self._metrics,
            limits=limits,
            checks={
                "ping": lambda: None,
                "log": lambda: None,
                "syncloop": sync_loop or (lambda: None if twins.synced() else "the caches are not complete"),
            },
            config=_configuration(host, port, limits),
        )
        self._config = Config(
            application(self._service),
            interface="asgi3",
            http=KubeletProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=int(limits.keep_alive),
            h11_max_incomplete_event_size=limits.head,
        )
        self._state = State()
        self._scratch = Scratch(_BUFFER)
        self._socket: socket.socket | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._metrics.connections.set_function(lambda: len(self._connections))

    @property
    def port(self) -> int:
        """Where it listens."""
        if self._socket is None:
            raise RuntimeError("the server is not started")
        return int(self._socket.getsockname()[1])

    @property
    def metrics(self) -> Metrics:
        return self._metrics

    async def start(self) -> None:
        """Listen; ``OSError`` if that cannot be."""
        if not self._config.loaded:
            self._config.load()
        self._socket = _listen(self._host, self._port)
        self._tasks = [
            asyncio.create_task(self._accept(self._socket), name="kubelet-api-accept"),
            asyncio.create_task(self._sessions.watch(), name="kubelet-api-sessions"),
        ]

    async def run(self, *, grace: float = 30.0) -> None:
        """Start, unless that was done, and serve until cancelled; then stop."""
        if self._socket is None:
            await self.start()
        try:
            await asyncio.gather(*self._tasks)
        finally:
            await self.stop(grace)

    async def stop(self, grace: float = 0.0) -> None:
        """Take no more connections and streams; let those that are open go on for *grace* seconds, then close them."""
        self._sessions.stop_accepting()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._socket is not None:
            self._socket.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        await self._sessions.stop(grace)
        await self._usage.close()  # whoever waits for an answer of theirs gets none, and must not hold us up
        await self._gate.close()
        await self._end_connections()

    # ------------------------------------------------------------------ connections

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError as error:  # such as no file descriptors left: it may be over soon
                log.error("no connection can be accepted: %s; trying again in 1 s", error)
                await asyncio.sleep(1)
                continue
            if len(self._connections) >= self._limits.connections:
                self._metrics.refusals.labels("connections").inc()
                accepted.close()
                continue
            task = loop.create_task(self._serve(accepted))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _serve(self, accepted: socket.socket) -> None:
        """One connection, from its handshake to its end."""
        loop = asyncio.get_running_loop()
        closed: asyncio.Future[None] = loop.create_future()
        shaken: asyncio.Future[None] = loop.create_future()
        transport: asyncio.Transport | None = None
        try:
            accepted.setblocking(False)
            tune(accepted, self._limits.stall)
            transport, _ = await loop.connect_accepted_socket(lambda: self._protocol(shaken, closed), accepted)
            await shaken
            await closed
        except (OSError, TimeoutError) as error:  # TLS's errors are of the former
            self._metrics.refusals.labels("tls").inc()
            log.debug("a connection came to nothing: %s", error)
        finally:
            if transport is not None:
                transport.abort()
            else:
                accepted.close()
            if not closed.done():
                closed.set_result(None)

    def _protocol(self, shaken: asyncio.Future[None], closed: asyncio.Future[None]) -> asyncio.BaseProtocol:
        """HTTP within TLS, as asyncio puts them together when it is given a context."""
        http = KubeletProtocol(
            self._config,
            self._state,
            limits=self._limits,
            on_upgrade=self._service.upgrade,
            closed=closed,
            on_refusal=lambda reason: self._metrics.refusals.labels(reason).inc(),
        )
        return SharedTls(
            self._scratch,
            http,
            self._tls,
            waiter=shaken,
            ssl_handshake_timeout=self._limits.tls_handshake,
            ssl_shutdown_timeout=self._limits.farewell,
        )

    async def _end_connections(self) -> None:
        """Whatever is left has had its time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.last_words):
                await _all(self._state.tasks)
        for tasks in (set(self._state.tasks), set(self._connections)):
            for task in tasks:
                task.cancel()
            await _all(tasks)


async def _all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*list(tasks), return_exceptions=True)


def _listen(host: str, port: int) -> socket.socket:
    if host in ("", "::") and socket.has_dualstack_ipv6():
        listener = socket.create_server(("::", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
    else:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    listener.setblocking(False)
    return listener


def _configuration(host: str, port: int, limits: Limits) -> dict[str, Any]:
    """What of a kubelet's configuration is true of this server; the rest has no meaning here."""
    return {
        "enableServer": True,
        "address": host or "::",
        "port": port,
        "authentication": {
            "x509": {},
            "webhook": {"enabled": True, "cacheTTL": f"{TOKEN_KEPT_FOR:.0f}s"},
            "anonymous": {"enabled": False},
        },
        "authorization": {
            "mode": "Webhook",
            "webhook": {
                "cacheAuthorizedTTL": f"{authz.ALLOWED_FOR:.0f}s",
                "cacheUnauthorizedTTL": f"{authz.DENIED_FOR:.0f}s",
            },
        },
        "streamingConnectionIdleTimeout": f"{limits.idle:.0f}s",
        "enableDebuggingHandlers": True,
        "enableProfilingHandler": False,
        "enableDebugFlagsHandler": False,
        "enableSystemLogHandler": False,
    }
