"""``farlet run`` as a process: its logging, its signals and which parts of Farlet it holds."""

from __future__ import annotations

import asyncio
import contextlib
import signal

from app import logs
from app.settings import RunSettings
from app.worker import Worker


def main(settings: RunSettings) -> None:
    """Run until SIGTERM or SIGINT."""
    logs.set_up(settings.log_format)
    asyncio.run(_run_until_signalled(settings))


async def _run_until_signalled(settings: RunSettings) -> None:
    task = asyncio.create_task(Worker(settings).run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
