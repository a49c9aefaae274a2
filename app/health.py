"""``/livez`` and ``/readyz`` on a port of their own: named checks, each with its reason.

The only thing that listens without TLS, and it says nothing but whether each check passes, and how Farlet fares where
``--health-metrics`` asks for it; by default only this machine can ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from urllib.parse import parse_qs, urlsplit

Check = Callable[[], str | None]
"""Why it fails; None if it passes."""

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The version is Prometheus' and means nothing to others."""
_HEAD_LIMIT = 8192
_TIMEOUT = 5.0


class HealthServer:
    """Answers health probes."""

    def __init__(
        self, live: Mapping[str, Check], ready: Mapping[str, Check], metrics: Callable[[], bytes] | None = None
    ) -> None:
        """*metrics* is the page on ``/metrics``, in Prometheus' text format; None: there is none."""
        self._metrics = metrics
        self._checks = {"/livez": live, "/readyz": ready, "/healthz": live}
        self._server: asyncio.Server | None = None

    async def start(self, address: str) -> int:
        """Listen on HOST:PORT; returns the port."""
        host, _, port = address.rpartition(":")
        self._server = await asyncio.start_server(self._serve, host.strip("[]"), int(port), limit=_HEAD_LIMIT)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    def answer(self, target: str) -> tuple[int, str]:
        """Status and text for a request's path and query."""
        url = urlsplit(target)
        if url.path == "/metrics" and self._metrics is not None:
            return 200, self._metrics().decode()
        checks = self._checks.get(url.path)
        if checks is None:
            return 404, "404 page not found\n"
        results = {name: check() for name, check in checks.items()}
        failed = [name for name, problem in results.items() if problem]
        if failed or "verbose" in parse_qs(url.query, keep_blank_values=True):
            lines = [f"[-]{n} failed: {problem}" if problem else f"[+]{n} ok" for n, problem in results.items()]
            lines.append(f"{url.path[1:]} check {'failed' if failed else 'passed'}")
            return (503 if failed else 200), "\n".join(lines) + "\n"
        return 200, "ok"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT):
                head = await reader.readuntil(b"\r\n\r\n")
                method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
                status, text = self.answer(target) if method in ("GET", "HEAD") else (405, "method not allowed\n")
                body = text.encode()
                reply = (
                    f"HTTP/1.1 {status} {'OK' if status == 200 else 'Error'}\r\n"
                    f"Content-Type: {_CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n"
                    "Connection: close\r\n\r\n"
                )
                writer.write(reply.encode() + (b"" if method == "HEAD" else body))
                await writer.drain()
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asked went away, or does not speak HTTP
        finally:
            writer.close()
