"""Health probes: named checks with their reasons."""

from __future__ import annotations

import asyncio

import pytest

from app.health import HealthServer


def server(problem: str | None = None) -> HealthServer:
    return HealthServer(live={"loop": lambda: None}, ready={"caches": lambda: problem, "other": lambda: None})


def test_metrics_only_where_somebody_wants_them_there() -> None:
    figures = iter([b"one 1\n", b"one 2\n"])
    health = HealthServer(live={}, ready={}, metrics=lambda: next(figures))
    assert [health.answer("/metrics"), health.answer("/metrics?x=y")] == [(200, "one 1\n"), (200, "one 2\n")]


@pytest.mark.parametrize(
    ("problem", "target", "status", "text"),
    [
        (None, "/livez", 200, "ok"),
        (None, "/readyz", 200, "ok"),
        (None, "/readyz?verbose", 200, "[+]caches ok\n[+]other ok\nreadyz check passed\n"),
        ("waiting", "/readyz", 503, "[-]caches failed: waiting\n[+]other ok\nreadyz check failed\n"),
        ("waiting", "/livez", 200, "ok"),
        (None, "/metrics", 404, "404 page not found\n"),
    ],
)
def test_answer(problem: str | None, target: str, status: int, text: str) -> None:
    assert server(problem).answer(target) == (status, text)


@pytest.mark.parametrize(
    ("request_", "start", "end"),
    [
        (b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 200 ", b"\r\n\r\nok"),
        (b"HEAD /livez HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 ", b"\r\n\r\n"),
        (b"POST /livez HTTP/1.1\r\n\r\n", b"HTTP/1.1 405 ", b"not allowed\n"),
        (b"nonsense\r\n\r\n", b"", b""),
        (b"x" * 20_000, b"", b""),
    ],
)
def test_over_a_socket(request_: bytes, start: bytes, end: bytes) -> None:
    async def ask() -> bytes:
        health = server()
        port = await health.start("127.0.0.1:0")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_)
        try:
            answer = await reader.read()
        except ConnectionResetError:  # it closed with our bytes unread
            answer = b""
        writer.close()
        await health.stop()
        return answer

    answer = asyncio.run(ask())
    assert answer.startswith(start)
    assert answer.endswith(end)
