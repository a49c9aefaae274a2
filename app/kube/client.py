"""Requests to one API server: raw JSON over pooled connections, paced by the server's own brake.

There is no fixed rate: API Priority and Fairness tells us with 429 when we are too many, and the number of requests
under way follows that (:mod:`app.kube.limiter`). What the server has certainly not done is tried again here, a few
times and within the caller's timeout; everything else is the caller's to judge, who knows whether doing it twice
matters.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

from app import __version__
from app.kube.config import Connection
from app.kube.connections import CONNECT_TIMEOUT, Sessions, abort, in_words
from app.kube.credentials import Access, Credentials
from app.kube.errors import ApiError, KubeError, NotFound, TooManyRequests, Unauthorized, Unreachable
from app.kube.errors import error_of_answer as _error_of_answer
from app.kube.figures import NO_ANSWER, WATCH, Requests
from app.kube.limiter import Limiter
from app.kube.objects import Object

TIMEOUT = 30.0
"""Seconds for a whole call, with its waiting and its retries."""

ATTEMPTS = 6
"""How often one call is sent at most."""

MAX_ANSWER = 256 << 20
"""Bytes of an answer."""

MAX_LINE = 64 << 20
"""Bytes of one line of a stream."""

_NOT_CONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
"""No connection was made, so that nothing was sent."""

METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""A list of which only the metadata is sent."""


class PatchKind(StrEnum):
    """How a patch is meant, as its media type."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


class Client:
    """One API server, as one user. An async context manager; everything is closed at its end."""

    def __init__(self, connection: Connection, *, name: str = "local", user_agent: str | None = None) -> None:
        self.name = name
        """Which cluster this is, for people."""
        self.limiter = Limiter()
        self.requests = Requests()
        """Every request that was sent, retries too; other threads may read it."""
        self._user_agent = user_agent or f"farlet/{__version__} ({name})"
        self._credentials = Credentials(connection)
        self._sessions = Sessions()
        self._check: Callable[[], None] | None = None

    async def __aenter__(self) -> Self:
        self._sessions.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._sessions.close()

    def fenced(self, check: Callable[[], None]) -> Client:
        """The same client, but *check* is called before each write is sent, retries too, and may raise.

        It is the last thing before a connection is taken, or made within ``CONNECT_TIMEOUT``.

        It shares everything else with this one, and lives as long.
        """
        fenced = copy.copy(self)
        fenced._check = check
        return fenced

    @property
    def source(self) -> str:
        """Where address and credentials were read, for people."""
        return self._credentials.source

    def expiries(self) -> dict[str, float]:
        """When its certificate and its token end, in seconds of the epoch, as far as that is known."""
        return self._credentials.expiries()

    async def access(self) -> Access:
        """Address, headers and TLS for whoever talks to the server without this client, such as an upgrade."""
        return await self._credentials.current()

    async def refused(self, access: Access) -> bool:
        """Say that the server answered 401 to what :meth:`access` gave; whether there is something else to try now."""
        return await self._credentials.refused(access)

    def why_refused(self, access: Access) -> str:
        """What a person should know when the server goes on refusing."""
        return self._credentials.why_refused(access)

    # ------------------------------------------------------------------ objects

    async def get(self, path: str, **options: Any) -> Object:
        return _decoded(await self.request("GET", path, **options), f"GET {path}")

    async def create(self, path: str, obj: Object, params: Mapping[str, str] | None = None, **options: Any) -> Object:
        body = msgspec.json.encode(obj)
        return _decoded(await self.request("POST", path, params=params, body=body, **options), f"POST {path}")

    async def replace(self, path: str, obj: Object, params: Mapping[str, str] | None = None, **options: Any) -> Object:
        body = msgspec.json.encode(obj)
        return _decoded(await self.request("PUT", path, params=params, body=body, **options), f"PUT {path}")

    async def patch(
        self,
        path: str,
        body: Object | Sequence[Object],
        kind: PatchKind,
        params: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Object:
        """Patch an object; ``params`` of an apply must hold ``fieldManager``."""
        content = msgspec.json.encode(body)
        answer = await self.request("PATCH", path, params=params, body=content, content_type=kind.value, **options)
        return _decoded(answer, f"PATCH {path}")

    async def delete(
        self,
        path: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace: int | None = None,
        propagation: str | None = None,
        missing_ok: bool = False,
        **options: Any,
    ) -> None:
        """Delete an object, if it is still the one with that UID (and version); :class:`Conflict` if it is not."""
        wishes: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        if given := {key: value for key, value in preconditions.items() if value is not None}:
            wishes["preconditions"] = given
        if grace is not None:
            wishes["gracePeriodSeconds"] = grace
        if propagation is not None:
            wishes["propagationPolicy"] = propagation
        try:
            await self.request("DELETE", path, body=msgspec.json.encode(wishes), **options)
        except NotFound:
            if not missing_ok:
                raise

    async def server_version(self) -> Object:
        return await self.get("/version")

    # ------------------------------------------------------------------ requests

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        timeout: float = TIMEOUT,
        retry: bool = True,
        urgent: bool = False,
    ) -> bytes:
        """Ask and return the body of the answer.

        *accept* is the media type of the answer, such as ``METADATA_LIST``. *timeout* is for the whole call. Without
        *retry* it is sent once, apart from renewing credentials. What is *urgent*, as a heartbeat, does not wait for
        its turn.
        """
        call = _Call(self, method, path, params, body, content_type, accept, urgent)
        try:
            async with asyncio.timeout(timeout):
                return await call.run(attempts=ATTEMPTS if retry else 1, until=time.monotonic() + timeout)
        except TimeoutError:
            if call.failure is not None and not call.sent:
                raise call.failure from call.failure.__cause__
            late = f"{call.what}: the {self.name} API server gave no answer within {timeout:g} s"
            before = f" (before: {call.failure})" if call.failure is not None else ""
            raise Unreachable(late + before, sent=call.sent) from None

    @contextlib.asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        read_timeout: float,
        accept: str = "application/json",
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """GET something that comes in lines and has no end, such as a watch; gives the lines, without their ends.

        Silence for *read_timeout* seconds and a broken connection raise :class:`Unreachable`; the iteration ends when
        the server ends the stream. The connection is closed on leaving.
        """
        what = f"GET {path}"
        timeout = aiohttp.ClientTimeout(connect=TIMEOUT, sock_connect=CONNECT_TIMEOUT, sock_read=read_timeout)
        response = await self._open_stream(what, path, params, timeout, accept)
        lines = self._lines(response, what, read_timeout)
        try:
            yield lines
        finally:
            await lines.aclose()
            abort(response)

    async def _open_stream(
        self, what: str, path: str, params: Mapping[str, str] | None, timeout: aiohttp.ClientTimeout, accept: str
    ) -> aiohttp.ClientResponse:
        renewed = False
        while True:
            access = await self._credentials.current()
            failure: KubeError
            sent, status = time.monotonic(), NO_ANSWER
            try:
                options = self._connection_options(access, {"Accept": accept})
                response = await self._sessions.streams.request(
                    "GET", _url(access, path, params), timeout=timeout, **options
                )
                status = response.status
                if response.status < 300:
                    return response
                try:
                    failure = await _refusal(response, what)
                finally:
                    abort(response)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                failure = self._unreachable(what, error)
            finally:
                self.requests.count(WATCH, status, time.monotonic() - sent)
            if isinstance(failure, Unauthorized):
                if not renewed and await self._credentials.refused(access):
                    renewed = True
                    continue
                failure = self._unauthorized(failure, access)
            raise failure

    async def _lines(
        self, response: aiohttp.ClientResponse, what: str, read_timeout: float
    ) -> AsyncGenerator[bytes, None]:
        pieces: list[bytes] = []  # of the line that is not complete yet
        size = 0
        while True:
            try:
                chunk = await response.content.readany()
            except TimeoutError:
                raise Unreachable(f"{what}: the {self.name} API server was silent for {read_timeout:g} s") from None
            except (aiohttp.ClientError, OSError) as error:
                broken = self._unreachable(what, error)
                raise broken from broken.__cause__
            if not chunk:
                break
            *complete, rest = chunk.split(b"\n")
            for line in complete:
                if pieces:
                    line = b"".join((*pieces, line))
                    pieces, size = [], 0
                if line:
                    yield line
            if rest:
                pieces.append(rest)
                size += len(rest)
                if size > MAX_LINE:
                    raise Unreachable(f"{what}: the {self.name} API server sent a line of more than {MAX_LINE} bytes")
        if pieces:
            yield b"".join(pieces)

    # ------------------------------------------------------------------ what calls and streams share

    def _connection_options(self, access: Access, headers: Mapping[str, str]) -> dict[str, Any]:
        every = CIMultiDict(access.headers)
        every["Accept"] = "application/json"
        every.update(headers)
        every["User-Agent"] = self._user_agent
        # Compressing costs both ends more than it saves: only whole lists would be, and a list is streamed.
        every["Accept-Encoding"] = "identity"
        return {
            "headers": every,
            "ssl": access.tls if access.tls is not None else True,
            "server_hostname": access.server_hostname,
            "proxy": access.proxy,
            "allow_redirects": False,
        }

    def _unreachable(self, what: str, error: BaseException) -> Unreachable:
        text = f"{what}: the {self.name} API server is not reachable: {in_words(error)}"
        failure = Unreachable(text, sent=not isinstance(error, _NOT_CONNECTED))
        # aiohttp's own errors hold the request's headers or the proxy's password; the system's hold neither
        cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        if not isinstance(cause, aiohttp.ClientResponseError):
            failure.__cause__ = cause
        return failure

    def _unauthorized(self, failure: Unauthorized, access: Access) -> Unauthorized:
        message = f"{failure.message}: {self._credentials.why_refused(access)}"
        return Unauthorized(failure.status, failure.reason, message, request=failure.request)


class _Call:
    """One call with its retries."""

    def __init__(
        self,
        client: Client,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        body: bytes | None,
        content_type: str,
        accept: str,
        urgent: bool,
    ) -> None:
        self.what = f"{method} {path}"
        self.failure: KubeError | None = None
        """Why the last attempt did not get through."""
        self.sent = False
        """Whether an attempt is under way, or its answer never came."""
        self._client = client
        self._method = method
        self._path = path
        self._params = params
        self._body = body
        self._headers = {"Accept": accept} | ({"Content-Type": content_type} if body is not None else {})
        self._urgent = urgent
        self._until = 0.0

    async def run(self, *, attempts: int, until: float) -> bytes:
        self._until = until
        renewed = False
        attempt = 1
        while True:
            access = await self._client._credentials.current()
            try:
                return await self._in_turn(access)
            except Unauthorized as error:
                if renewed or not await self._client._credentials.refused(access):
                    raise self._client._unauthorized(error, access) from None
                renewed = True
                continue
            except _NotDone as error:
                self.failure = failure = error.failure
            pause = _pause(failure, attempt)
            if attempt >= attempts or time.monotonic() + pause >= until:
                raise failure
            attempt += 1
            await asyncio.sleep(pause)

    async def _in_turn(self, access: Access) -> bytes:
        if self._urgent:
            return await self._send(access)
        limiter = self._client.limiter
        await limiter.acquire()
        sent = time.monotonic()
        try:
            answer = await self._send(access)
        except _NotDone as error:
            if isinstance(error.failure, TooManyRequests):
                limiter.throttled(sent)
            raise
        except ApiError:
            limiter.accepted()
            raise
        else:
            limiter.accepted()
            return answer
        finally:
            limiter.release()

    async def _send(self, access: Access) -> bytes:
        client = self._client
        if client._check is not None and self._method != "GET":
            client._check()
        options = client._connection_options(access, self._headers)
        failure: KubeError
        sent, status = time.monotonic(), NO_ANSWER
        self.sent = True
        try:
            async with client._sessions.requests.request(
                self._method,
                _url(access, self._path, self._params),
                data=self._body,
                timeout=_connect_timeout(self._until - sent),
                **options,
            ) as response:
                status = response.status
                try:
                    if response.status < 300:
                        return await _read(response, self.what)
                    failure = await _refusal(response, self.what)
                except BaseException:  # a cancellation too: what was not read to its end cannot be used again
                    abort(response)
                    raise
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            failure = client._unreachable(self.what, error)
            if _repeatable(error, self._method):
                failure = _NotDone(failure)
        finally:
            client.requests.count(self._method, status, time.monotonic() - sent)
        self.sent = False
        if isinstance(failure, ApiError) and failure.is_not_processed():
            failure = _NotDone(failure)
        raise failure


class _NotDone(KubeError):
    """A failure that allows sending the same again."""

    def __init__(self, failure: KubeError) -> None:
        super().__init__()
        self.failure = failure


def _connect_timeout(left: float) -> aiohttp.ClientTimeout:
    """Shorter than what is left of the call: a connection that was not made is to be told from a silent server."""
    seconds = min(CONNECT_TIMEOUT, max(0.9 * left, 0.01))
    return aiohttp.ClientTimeout(sock_connect=seconds, ceil_threshold=CONNECT_TIMEOUT)


def _repeatable(error: BaseException, method: str) -> bool:
    """Whether a request that failed so may be sent again: it only reads, or the connection for it was never made."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return False  # no better the next time
    return method == "GET" or isinstance(error, _NOT_CONNECTED)


def _pause(failure: KubeError, attempt: int) -> float:
    """Seconds until the next attempt: longer each time, as the server asks at least; never all at the same moment."""
    asked = failure.retry_after if isinstance(failure, ApiError) else None
    return max(asked or 0.0, min(0.1 * 2.0 ** (attempt - 1), 5.0)) * random.uniform(1.0, 1.5)


def _url(access: Access, path: str, params: Mapping[str, str] | None) -> URL:
    url = URL(access.server + path, encoded=True)  # the path is quoted already
    return url.with_query(params) if params else url


def _decoded(answer: bytes, what: str) -> Object:
    try:
        obj = msgspec.json.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        obj = None
    if not isinstance(obj, dict):
        raise Unreachable(f"{what}: the answer is not a JSON object; is this really a Kubernetes API server?")
    return obj


async def _read(response: aiohttp.ClientResponse, what: str) -> bytes:
    pieces = []
    size = 0
    while chunk := await response.content.readany():
        size += len(chunk)
        if size > MAX_ANSWER:
            raise Unreachable(f"{what}: the answer has more than {MAX_ANSWER} bytes")
        pieces.append(chunk)
    return b"".join(pieces)


async def _refusal(response: aiohttp.ClientResponse, what: str) -> ApiError:
    body = await _read(response, what)
    phrase = response.reason or ""
    return _error_of_answer(what, response.status, phrase, body, response.headers.get("Retry-After"))
