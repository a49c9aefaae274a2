"""A user's command or URL that hangs, floods or fails costs one clear line."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from app.node import programs
from app.node.capacity import CapacityError
from tests.eventually import eventually


def python(code: str) -> str:
    return shlex.join([sys.executable, "-c", code])


def test_what_a_command_prints() -> None:
    command = python("import sys; print('cpu=1'); print(sys.stdin.read() + 'pods=2'); print('noise', file=sys.stderr)")
    assert asyncio.run(programs.run_command(command)) == "cpu=1\npods=2\n"


def test_there_is_no_shell() -> None:
    assert asyncio.run(programs.run_command("echo '$HOME;' `x` > y")) == "$HOME; `x` > y\n"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("no-such-command-here", "cannot be started: No such file or directory"),
        ("/", "cannot be started: Permission denied"),
        (python("import sys; sys.exit('not\\ntoday')"), "ended with exit code 1: not today"),
        (python("import os; os.kill(os.getpid(), 15)"), "ended with signal SIGTERM"),
        (python("import sys; sys.stdout.buffer.write(b'\\xff')"), "not UTF-8"),
        (python("while True: print('x' * 10000)"), "printed more than 64 KiB"),
    ],
)
def test_what_goes_wrong_with_a_command(command: str, says: str) -> None:
    with pytest.raises(CapacityError, match=says):
        asyncio.run(programs.run_command(command))


def test_a_command_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = (
        "import os, subprocess, time; child = subprocess.Popen(['sleep', '1000']); "
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}'); time.sleep(1000)"
    )

    async def until_it_has_started() -> None:
        task = asyncio.create_task(programs.run_command(python(code), timeout=60))
        while not pids.exists() or len(pids.read_text().split()) < 2:  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(until_it_has_started())
    for pid in pids.read_text().split():
        eventually(lambda pid=pid: not _runs(pid), f"process {pid} has ended", timeout=60)  # type: ignore[misc]


def _runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_time_of_a_command_is_bounded() -> None:
    with pytest.raises(CapacityError, match=r"did not end within 0\.1 s"):
        asyncio.run(programs.run_command("sleep 1000", timeout=0.1))


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/{tail:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def fetched(handler: Handler, path: str = "/size", timeout: float = 10.0) -> str:
    async def fetch() -> str:
        async with serving(handler) as url:
            return await programs.fetch(url + path, timeout)

    return asyncio.run(fetch())


async def _answers(_request: web.Request) -> web.StreamResponse:
    return web.Response(text="cpu=1\n")


async def _refuses(_request: web.Request) -> web.StreamResponse:
    return web.Response(status=503)


async def _floods(_request: web.Request) -> web.StreamResponse:
    return web.Response(body=b"x" * (programs.MAX_OUTPUT + 1))


async def _hangs(_request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(1000)
    raise AssertionError


async def _redirects_for_ever(request: web.Request) -> web.StreamResponse:
    raise web.HTTPFound(request.path)


async def _redirects_elsewhere(_request: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("file:///etc/passwd")


def test_what_is_found_at_a_url() -> None:
    assert fetched(_answers) == "cpu=1\n"


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        (_refuses, "answered 503"),
        (_floods, "sent more than 64 KiB"),
        (_redirects_for_ever, "cannot be read: TooManyRedirects"),
        (_redirects_elsewhere, "cannot be read: "),
    ],
)
def test_what_goes_wrong_with_a_url(handler: Handler, says: str) -> None:
    with pytest.raises(CapacityError, match=says):
        fetched(handler)


def test_the_time_of_a_url_is_bounded() -> None:
    with pytest.raises(CapacityError, match=r"gave no answer within 0\.1 s"):
        fetched(_hangs, timeout=0.1)


def test_nobody_listens() -> None:
    with pytest.raises(CapacityError, match="cannot be reached") as caught:
        asyncio.run(programs.fetch("http://user:secret@127.0.0.1:1/x?token=secret"))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://a/b", "http://a/b"),
        ("https://user:secret@a:8/b?token=secret#secret", "https://a:8/b"),
        ("http://[::1]:8/", "http://[::1]:8/"),
    ],
)
def test_secrets_of_a_url_are_not_shown(url: str, shown: str) -> None:
    assert programs.without_secrets(url) == shown
