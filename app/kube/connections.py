"""The connections to one API server, and what goes wrong with them, in words."""

from __future__ import annotations

import ssl

import aiohttp

CONNECT_TIMEOUT = 10.0
"""Seconds for one attempt to connect."""

_MAX_STREAMS = 1024
_IDLE = 60.0
"""Seconds that an unused connection is kept; the API server closes its end after 90."""


def abort(response: aiohttp.ClientResponse) -> None:
    """End a connection now: closing alone would leave it in TLS's farewell, open for as long as the loop lives."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
    response.close()


class Sessions:
    """Connections: a bounded pool for requests, and another for streams, so that streams never starve requests."""

    def __init__(self) -> None:
        self._requests: aiohttp.ClientSession | None = None
        self._streams: aiohttp.ClientSession | None = None

    def open(self) -> None:
        self._requests, self._streams = _session(limit=100), _session(limit=_MAX_STREAMS)

    async def close(self) -> None:
        for session in (self._requests, self._streams):
            if session is not None:
                await session.close()
        self._requests = self._streams = None

    @property
    def requests(self) -> aiohttp.ClientSession:
        if self._requests is None:
            raise RuntimeError("the client is not open: use it in `async with`")
        return self._requests

    @property
    def streams(self) -> aiohttp.ClientSession:
        if self._streams is None:
            raise RuntimeError("the client is not open: use it in `async with`")
        return self._streams


def _session(limit: int) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=limit, keepalive_timeout=_IDLE),
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=1 << 18,
        trust_env=False,
    )


def in_words(error: BaseException) -> str:
    """What went wrong, for people; without what aiohttp would add of the request."""
    match error:
        case aiohttp.ClientHttpProxyError():
            return f"the proxy refuses: {error.status} {error.message}"
        case aiohttp.ClientProxyConnectionError():
            return f"the proxy {error.host}:{error.port} cannot be reached: {error.os_error.strerror or error.os_error}"
        case aiohttp.ClientConnectorCertificateError():
            reason = error.certificate_error
            text = getattr(reason, "verify_message", "") or str(reason)
            return f"its certificate is not trusted: {text} (is the certificate-authority of the kubeconfig right?)"
        case aiohttp.ClientConnectorSSLError() | ssl.SSLError():
            return f"TLS failed: {getattr(error, 'reason', '') or getattr(error, 'os_error', error)}"
        case aiohttp.ClientConnectorDNSError():
            return f"the name {error.host!r} cannot be resolved"
        case aiohttp.ClientConnectorError():
            return f"{error.host}:{error.port}: {error.os_error.strerror or error.os_error}"
        case aiohttp.ConnectionTimeoutError():
            return "no connection was made in time"
        case TimeoutError():
            return "it was silent for too long"
        case aiohttp.ServerDisconnectedError():
            return "it closed the connection before it answered"
        case aiohttp.ClientResponseError():
            return f"it does not speak HTTP as expected: {error.message}"
    return str(error) or type(error).__name__
