"""Whether the remote cluster can be reached: its API server's own word, asked for again and again.

One failure says little; several in a row mean that the node must say so, in words that a person understands.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from app.kube.client import Client
from app.kube.errors import Forbidden, KubeError, NotFound

_PATHS = ("/readyz", "/livez")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reach:
    """What is known of the way to the remote cluster."""

    reachable: bool
    since: datetime.datetime
    failures: int = 0
    """How many probes in a row have failed."""
    error: str = ""
    """Why the last one did."""

    def describe(self) -> str:
        """For a person who looks at the node."""
        if self.reachable:
            return "the remote cluster's API server answers"
        return f"the remote cluster cannot be reached since {self.since:%Y-%m-%dT%H:%M:%SZ}: {self.error}"


def judge(before: Reach, error: str | None, now: datetime.datetime, *, threshold: int) -> Reach:
    """What one probe changes: a success at once, a failure when it is the *threshold*-th in a row."""
    if error is None:
        return replace(before, failures=0, error="") if before.reachable else Reach(True, now)
    failures = before.failures + 1
    if before.reachable and failures >= threshold:
        return Reach(False, now, failures, error)
    return replace(before, failures=failures, error=error)


class Prober:
    """Probes the remote API server and tells whoever wants to know when the answer changes."""

    def __init__(
        self, client: Client, *, interval: float, timeout: float, threshold: int, on_change: Callable[[Reach], None]
    ) -> None:
        self._client = client
        self._interval = interval
        self._timeout = timeout
        self._threshold = threshold
        self._on_change = on_change
        self._path = _PATHS[0]
        self.reach = Reach(True, datetime.datetime.now(datetime.UTC))

    async def run(self) -> None:
        """Probe until cancelled."""
        while True:
            await self.probe()
            await asyncio.sleep(self._interval)

    async def probe(self) -> None:
        """Ask once."""
        error = await self._ask()
        before = self.reach
        self.reach = judge(before, error, datetime.datetime.now(datetime.UTC), threshold=self._threshold)
        if self.reach.reachable != before.reachable:
            log.warning("%s", self.reach.describe())
            self._on_change(self.reach)

    async def _ask(self) -> str | None:
        try:
            async with asyncio.timeout(self._timeout):
                await self._client.request("GET", self._path, timeout=self._timeout, retry=False, urgent=True)
        except NotFound:  # a gateway that does not pass this path
            self._path = _PATHS[1]
            return None
        except Forbidden:  # it answers, and knows us
            return None
        except TimeoutError:
            return f"no answer within {self._timeout:g} s"
        except KubeError as error:
            return str(error)
        return None
