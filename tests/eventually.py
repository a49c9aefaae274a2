"""Waiting in tests: for a condition, with a message that needs no debugger."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(probe: Callable[[], T], what: str, *, timeout: float = 120.0, until: Callable[[T], bool] = bool) -> T:
    """Call *probe* until its result satisfies *until*; the last result, or error, is in the failure's message."""
    deadline = time.monotonic() + timeout
    while True:
        seen: object
        try:
            result = probe()
            if until(result):
                return result
            seen = result
        except Exception as error:  # noqa: BLE001 - whatever goes wrong may be gone the next time
            seen = error
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout:g} s; seen last: {seen!r}")
        time.sleep(0.2)
