"""Connections of our own to the remote API server, for what the client of ``app.kube`` cannot do: upgrades and raw
bytes.

Address, TLS, proxy and credentials are that client's, and nobody else's: nothing of who called us is sent. One
connection carries one call and is closed with it, as the API server's own connections to a kubelet are.
"""

from __future__ import annotations

import asyncio
import binascii
import logging
import os
import socket
import ssl
import time
import weakref
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

from app import __version__
from app.kube.client import Client
from app.kube.credentials import Access
from app.kube.errors import ConfigError
from kubelet_api import http1, limits
from kubelet_api.call import CallError
from kubelet_api.channel import Channel, Scratch
from kubelet_api.http1 import Body, Head, NotHttp
from kubelet_api.query import Query

log = logging.getLogger(__name__)

CONNECT_TIME = 5.0
"""Seconds until a connection with its TLS must be there."""

HEAD_TIME = 30.0
"""Seconds until the answer must begin: the remote API server has to reach its kubelet, which has to reach a runtime."""

_SESSION_TIME = 600.0
"""Seconds for which a TLS session is kept that the server does not resume, as that of one among several servers."""
_REFUSAL_TIME = 5.0
_REFUSAL_SIZE = 64 << 10
_USER_AGENT = f"farlet/{__version__} (kubelet API)".encode()


class Unanswered(CallError):
    """The remote took the request and closed the connection without an answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The head of an answer and the connection that the rest comes from."""

    head: Head
    rest: bytes
    """What came together with the head."""
    channel: Channel

    async def content(self) -> AsyncIterator[bytes]:
        """The body, as it comes; CallError if it breaks off."""
        try:
            body = Body(self.head)
            if content := body.feed(self.rest):
                yield content
            while not body.ended:
                data = await self.channel.read()
                if not data:
                    if self.channel.failure is not None:
                        raise CallError(502, f"the connection to the remote API server broke: {self.channel.failure}")
                    body.end()
                    return
                if content := body.feed(data):
                    yield content
        except NotHttp as error:
            raise CallError(502, f"the remote API server cannot be understood: {error}") from None

    async def refusal(self) -> bytes:
        """The body of a refusal, as far as it comes soon and is not too long; the connection is closed then."""
        pieces: list[bytes] = []
        try:
            async with asyncio.timeout(_REFUSAL_TIME):
                async for piece in self.content():
                    pieces.append(piece)
                    if sum(map(len, pieces)) >= _REFUSAL_SIZE:
                        break
        except (TimeoutError, CallError):
            pass  # its status says enough
        finally:
            self.channel.abort()
        return b"".join(pieces)[:_REFUSAL_SIZE]


class Upstream:
    """The way to the remote API server. Belongs to one event loop."""

    def __init__(self, client: Client, stall: float = limits.DEFAULT.stall) -> None:
        """*stall*: after how many seconds of silence somebody wants to know that the remote is gone."""
        self._client = client
        self._stall = stall
        self._scratch = Scratch()
        self._sessions: weakref.WeakKeyDictionary[ssl.SSLContext, tuple[ssl.SSLSession, float]]
        self._sessions = weakref.WeakKeyDictionary()

    async def ask(
        self,
        method: str,
        path: str,
        query: Query,
        headers: Sequence[tuple[bytes, bytes]],
        *,
        head_time: float = HEAD_TIME,
    ) -> Answer:
        """Send a request without a body and wait for the head of its answer; CallError if there is none.

        Credentials that are refused are renewed once. The caller owns the connection.
        """
        renewed = False
        while True:
            access = await self._access()
            channel = await self._connect(access)
            try:
                answer = await self._exchange(channel, access, method, path, query, headers, head_time)
            except BaseException:
                channel.abort()
                raise
            self._keep_session(access.tls, channel)
            if answer.head.status != 401 or renewed:
                return answer
            channel.abort()
            await self._renew(access)
            renewed = True

    def _keep_session(self, tls: ssl.SSLContext | None, channel: Channel) -> None:
        """Keep a TLS session for the next connection, unless one is kept that is of use; see ``Channel.session``."""
        if tls is None or channel.resumed:
            return
        now = time.monotonic()
        _, taken = self._sessions.get(tls, (None, float("-inf")))
        if now - taken >= _SESSION_TIME and (session := channel.session) is not None:
            self._sessions[tls] = session, now

    async def _access(self) -> Access:
        try:
            return await self._client.access()
        except ConfigError as error:
            raise _no_credentials(error) from None

    async def _renew(self, access: Access) -> None:
        """Have other credentials for the next try; CallError if there are none."""
        try:
            others = await self._client.refused(access)
        except ConfigError as error:  # such as a plugin that fails
            raise _no_credentials(error) from None
        if not others:
            log.warning("calls cannot be carried out: %s", self._client.why_refused(access))
            raise CallError(502, "the remote API server refuses Farlet's credentials")

    async def _exchange(
        self,
        channel: Channel,
        access: Access,
        method: str,
        path: str,
        query: Query,
        headers: Sequence[tuple[bytes, bytes]],
        head_time: float,
    ) -> Answer:
        address = urlsplit(access.server)
        given = [
            (b"Host", address.netloc.rpartition("@")[2].encode("ascii")),
            (b"User-Agent", _USER_AGENT),
            (b"Accept-Encoding", b"identity"),
            *((name.encode("ascii"), value.encode("utf-8")) for name, value in access.headers),
            *headers,
        ]
        if method != "GET":
            given.append((b"Content-Length", b"0"))
        try:
            async with asyncio.timeout(head_time):
                await channel.write(http1.request(method, target(address.path, path, query), given))
                head, rest = await read_head(channel)
        except TimeoutError:
            raise CallError(502, f"the remote API server gave no answer within {head_time:g} s") from None
        except NotHttp as error:
            raise CallError(502, f"the remote API server cannot be understood: {error}") from None
        except (EOFError, ConnectionError):
            failure = channel.failure
            known = failure is not None and not isinstance(failure, ssl.SSLEOFError)  # which says the same
            why = f": {_in_words(failure)}" if failure is not None and known else ""
            raise Unanswered(502, f"the remote API server closed the connection without an answer{why}") from None
        return Answer(head, rest, channel)

    # ------------------------------------------------------------------ connecting

    async def _connect(self, access: Access) -> Channel:
        address = urlsplit(access.server)
        host, port = address.hostname or "", address.port or (443 if address.scheme == "https" else 80)
        proxy = urlsplit(access.proxy) if access.proxy else None
        if proxy is not None and proxy.scheme != "http":
            raise CallError(
                502,
                f"the way to the remote API server is a proxy of the kind {proxy.scheme}://, "
                "which cannot carry this; use an http:// proxy",
            )
        channel: Channel | None = None
        reached = "the remote API server"
        try:
            async with asyncio.timeout(CONNECT_TIME):
                if proxy is None:
                    channel = await self._dial(host, port)
                else:
                    reached = "the proxy to the remote API server"
                    channel = await self._dial(proxy.hostname or "", proxy.port or 80)
                    await _through_proxy(channel, host, port, proxy.username, proxy.password)
                    reached = "the remote API server"
                if access.tls is not None:
                    session, _ = self._sessions.get(access.tls, (None, 0.0))
                    await channel.start_tls(access.tls, access.server_hostname or host, session)
        except BaseException as error:
            if channel is not None:
                channel.abort()
            if isinstance(error, TimeoutError | OSError | EOFError | NotHttp):
                raise CallError(502, f"{reached} is not reachable: {_in_words(error)}") from None
            raise
        return channel

    async def _dial(self, host: str, port: int) -> Channel:
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_connection(
            lambda: Channel(self._scratch, self._stall), host, port, happy_eyeballs_delay=0.25
        )
        return channel


def target(prefix: str, path: str, query: Query) -> str:
    """Path and query of a request, below the path that the server's URL has."""
    pairs = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query)
    return f"{prefix.rstrip('/')}{path}" + (f"?{pairs}" if pairs else "")


async def read_head(channel: Channel) -> tuple[Head, bytes]:
    """The head of an answer, past those that only announce it, and what came with it; EOFError if there is none."""
    received = b""
    while True:
        while (found := http1.split_head(received)) is not None:
            head, received = found
            if head.status >= 200 or head.status == 101:
                return head, received
        data = await channel.read()
        if not data:
            raise EOFError
        received += data


def _no_credentials(error: ConfigError) -> CallError:
    log.warning("calls cannot be carried out: %s", error)
    return CallError(502, "Farlet has no usable credentials for the remote API server")


async def _through_proxy(channel: Channel, host: str, port: int, user: str | None, password: str | None) -> None:
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    headers = [(b"Host", where.encode("ascii"))]
    if user is not None:
        pair = f"{unquote(user)}:{unquote(password or '')}".encode()
        headers.append((b"Proxy-Authorization", b"Basic " + binascii.b2a_base64(pair, newline=False)))
    await channel.write(http1.request("CONNECT", where, headers))
    head, rest = await read_head(channel)
    if not 200 <= head.status < 300:
        raise ConnectionError(f"it refuses: {head.status} {head.phrase}")
    if rest:
        raise ConnectionError("it spoke before TLS began")


def _in_words(error: BaseException) -> str:
    match error:
        case TimeoutError():
            return f"no connection within {CONNECT_TIME:g} s"
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted: {error.verify_message}"
        case ssl.SSLError():
            return f"TLS failed: {error.reason or error}"
        case socket.gaierror():
            return "its name cannot be resolved"
        case EOFError():
            return "it closed the connection"
        case OSError(errno=int(number)):
            return os.strerror(number)
    return str(error)
