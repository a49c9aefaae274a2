"""Asks a user's own command or URL for the capacity, and trusts neither: time and size of the answer are bounded.

What goes wrong is a :class:`CapacityError` that says so in one line. Nothing of a URL is ever shown that could be a
secret: its user, its password, its query.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from typing import cast
from urllib.parse import urlsplit

import aiohttp

from app.node.capacity import CapacityError

TIMEOUT = 10.0
"""Seconds that a command or a server has."""
MAX_OUTPUT = 64 << 10
"""Bytes that it may print."""
_STDOUT, _STDERR = 1, 2
_MAX_COMPLAINT = 200
_MAX_REDIRECTS = 3


async def run_command(command: str, timeout: float = TIMEOUT) -> str:
    """What a command prints. There is no shell; whatever it started is ended with it when its time is over."""
    loop = asyncio.get_running_loop()
    try:
        transport, protocol = await loop.subprocess_exec(
            _Output, *shlex.split(command), stdin=asyncio.subprocess.DEVNULL, start_new_session=True
        )
    except (OSError, ValueError) as error:
        raise CapacityError(f"cannot be started: {getattr(error, 'strerror', None) or error}") from error
    try:
        async with asyncio.timeout(timeout):
            await protocol.ended.wait()
    except TimeoutError:
        raise CapacityError(f"did not end within {timeout:g} s") from None
    finally:
        if not protocol.ended.is_set():
            _end_group(transport.get_pid())
        transport.close()
        await protocol.ended.wait()
    if protocol.too_much:
        raise CapacityError(f"printed more than {MAX_OUTPUT >> 10} KiB")
    if code := cast(int, transport.get_returncode()):
        raise CapacityError(f"ended with {_meaning(code)}{protocol.complaint()}")
    return _text(bytes(protocol.printed))


class _Output(asyncio.SubprocessProtocol):
    """Takes what a process prints, up to a limit, and knows when it and its pipes have ended."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.printed = bytearray()
        self.too_much = False
        self._complained = b""
        self._transport: asyncio.SubprocessTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == _STDERR:
            self._complained = (self._complained + data)[-_MAX_COMPLAINT:]
        elif len(self.printed) + len(data) > MAX_OUTPUT:
            self._give_up()
        else:
            self.printed += data

    def _give_up(self) -> None:
        if not self.too_much and self._transport is not None:
            self.too_much = True
            _end_group(self._transport.get_pid())
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()

    def complaint(self) -> str:
        """The end of what it said on stderr, in one line."""
        words = " ".join(self._complained.decode(errors="replace").split())
        return f": {words}" if words else ""


def _end_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _meaning(code: int) -> str:
    return f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"


async def fetch(url: str, timeout: float = TIMEOUT) -> str:
    """What is found at a URL of http or https."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout)) as session,
            session.get(url, max_redirects=_MAX_REDIRECTS) as response,
        ):
            if response.status != 200:
                raise CapacityError(f"answered {response.status}")
            content = b""
            async for chunk in response.content.iter_any():
                content += chunk
                if len(content) > MAX_OUTPUT:
                    raise CapacityError(f"sent more than {MAX_OUTPUT >> 10} KiB")
    except TimeoutError:
        raise CapacityError(f"gave no answer within {timeout:g} s") from None
    except aiohttp.ClientConnectorError as error:
        raise CapacityError(f"cannot be reached: {error.os_error.strerror or error.os_error}") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        if isinstance(error, CapacityError):
            raise
        raise CapacityError(f"cannot be read: {type(error).__name__}") from error  # its text may hold the whole URL
    return _text(content)


def without_secrets(url: str) -> str:
    """A URL as it may be shown: scheme, host, port and path."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise CapacityError("what it says is not UTF-8 text") from error
