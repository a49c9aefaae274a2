"""The serving certificate of the kubelet API, kept valid: renewed in time, and at once when the addresses change.

Whatever goes wrong with a renewal, the certificate from before stays in use, and the log gets louder as its end comes
nearer. The time of renewal is chosen at random within the last third of its life, as the kubelet's is, so that the
nodes of a cluster do not all ask at once.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

from app.kube.client import Client
from app.kube.errors import KubeError
from app.settings import RunSettings
from app.settings import ServingCertificate as Source
from certs.csr import Denied, SigningRequests
from certs.errors import CertificateError
from certs.files import PairFiles
from certs.pair import Pair, canonical, self_signed

log = logging.getLogger(__name__)

SELF_SIGNED_LIFE: Final = datetime.timedelta(days=365)

Use = Callable[[Pair], None]
"""Told of each new certificate; it is served with from then on."""


class ServingCertificate(Protocol):
    """A serving certificate and whatever keeps it valid."""

    ready: asyncio.Event
    """Set once there is one."""
    pair: Pair | None
    """What is in use."""

    async def run(self, use: Use) -> None:
        """Give *use* a certificate, and another each time it is renewed; never returns."""

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """The node's addresses and host names as they are now. To be called in the loop of :meth:`run`."""

    def check(self) -> str | None:
        """Why there is no valid certificate, for ``/readyz``; None if there is."""


def serving_certificate(settings: RunSettings, client: Client, addresses: Sequence[str]) -> ServingCertificate:
    """The one that the settings ask for; *client* is the local cluster's."""
    node = settings.node_name
    match settings.serving_certificate:
        case Source.FILES:
            if settings.tls_cert_file is None or settings.tls_key_file is None:
                raise CertificateError("--serving-certificate files: give --tls-cert-file and --tls-key-file")
            return PairFiles(settings.tls_cert_file, settings.tls_key_file, addresses)
        case Source.SELF_SIGNED:
            return Renewed(SelfSigned(node), addresses)
        case Source.CSR:
            return Renewed(SigningRequests(client, node), addresses)


class Issuer(Protocol):
    """Where certificates come from."""

    waiting: str | None
    """What somebody has to do before there is one."""

    async def issue(self, addresses: Sequence[str]) -> Pair:
        """A new one; raises CertificateError or KubeError."""


class SelfSigned:
    """Certificates that nobody vouches for, to try things out."""

    waiting: str | None = None

    def __init__(self, node: str, life: datetime.timedelta = SELF_SIGNED_LIFE) -> None:
        self._node = node
        self._life = life

    async def issue(self, addresses: Sequence[str]) -> Pair:
        log.warning(
            "the kubelet API serves with a self-signed certificate: an API server that verifies kubelets "
            "(--kubelet-certificate-authority) refuses it, one that does not can be deceived; it is for trying out"
        )
        return self_signed(self._node, addresses, self._life)


@dataclass(frozen=True, slots=True)
class Timing:
    """When a certificate is renewed; times in seconds."""

    share: tuple[float, float] = (0.7, 0.9)
    """Renewed when this share of its life has passed, at random between these."""
    retry: tuple[float, float] = (2.0, 300.0)
    """The shortest and the longest pause after a failure."""
    denied: float = 300.0
    """The shortest pause after a person, or an approver, said no."""
    soonest: float = 60.0
    """The shortest pause after a renewal, whatever the clock says."""
    look: float = 60.0
    """How often the clock is looked at: it may be set, or stand still with the machine."""


DEFAULT_TIMING: Final = Timing()


class Urgency(IntEnum):
    """How near the end of a certificate is."""

    FINE = 0
    SOON = 1
    NOW = 2
    ENDED = 3


def urgency(not_before: float, not_after: float, now: float) -> Urgency:
    """How loud to be: the last tenth of its life is for people, if nothing else has helped."""
    life = not_after - not_before
    if now >= not_after:
        return Urgency.ENDED
    if now >= not_after - 0.03 * life:
        return Urgency.NOW
    return Urgency.SOON if now >= not_after - 0.1 * life else Urgency.FINE


_LEVELS: Final = {Urgency.SOON: logging.WARNING, Urgency.NOW: logging.ERROR, Urgency.ENDED: logging.CRITICAL}


class Renewed:
    """A certificate that an issuer gives and that is renewed with it."""

    def __init__(
        self,
        issuer: Issuer,
        addresses: Sequence[str],
        *,
        timing: Timing = DEFAULT_TIMING,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.ready = asyncio.Event()
        self.pair: Pair | None = None
        """What is in use."""
        self._issuer = issuer
        self._addresses = _wanted(addresses)
        self._timing = timing
        self._clock = clock
        self._problem: str | None = None
        self._changed = asyncio.Event()

    def set_addresses(self, addresses: Sequence[str]) -> None:
        wanted = _wanted(addresses)
        if wanted != self._addresses:
            self._addresses = wanted
            self._changed.set()

    def check(self) -> str | None:
        if self.pair is None:
            return self._issuer.waiting or self._problem or "there is no certificate yet"
        if self._clock() >= self.pair.not_after:
            return f"the certificate ended {_when(self.pair.not_after)}: {self._reason()}"
        return None

    async def run(self, use: Use) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._renew(use))
            group.create_task(self._warn())

    async def _renew(self, use: Use) -> None:
        pause = self._timing.retry[0]
        while True:
            self._changed.clear()
            try:
                pair = await self._issue()
                if pair is None:
                    continue  # the addresses are others by now
                use(pair)
            except (KubeError, CertificateError) as error:
                pause = self._failed(error, pause)
                await self._wait(pause)
                continue
            pause = self._timing.retry[0]
            self._problem = None
            self.pair = pair
            self.ready.set()
            log.info("serving certificate for %s, valid until %s", ", ".join(self._addresses), _when(pair.not_after))
            await self._until_due(pair)

    async def _issue(self) -> Pair | None:
        """A new certificate; None if the addresses changed meanwhile."""
        if not self._addresses:
            self._problem = "the node has no address yet"
            await self._changed.wait()
            return None
        issuing = asyncio.ensure_future(self._issuer.issue(self._addresses))
        change = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait((issuing, change), return_when=asyncio.FIRST_COMPLETED)
            return issuing.result() if issuing.done() else None
        finally:
            for task in (issuing, change):
                task.cancel()
            await asyncio.gather(issuing, change, return_exceptions=True)

    def _failed(self, error: Exception, pause: float) -> float:
        """Note a failure; the seconds until the next attempt."""
        shortest, longest = self._timing.retry
        pause = min(longest, random.uniform(shortest, pause * 3))
        if isinstance(error, Denied):
            pause = max(pause, self._timing.denied)
        self._problem = str(error)
        kept = "; the one from before stays in use" if self.pair else ""
        log.warning("no new serving certificate: %s%s; asking again in %.0f s", error, kept, pause)
        return pause

    async def _until_due(self, pair: Pair) -> None:
        due = pair.not_before + (pair.not_after - pair.not_before) * random.uniform(*self._timing.share)
        now = self._clock()
        if due <= now + self._timing.soonest:
            log.warning(
                "the serving certificate that was just issued, valid from %s until %s, is to be renewed already by the "
                "clock of this machine, %s: do the clocks of this machine and of the local cluster differ? Asking "
                "again in %.0f s",
                _when(pair.not_before),
                _when(pair.not_after),
                _when(now),
                self._timing.soonest,
            )
            await self._wait(self._timing.soonest)  # not by the clock, which somebody may set right meanwhile
        while self._clock() < due and not self._changed.is_set():
            await self._wait(min(self._timing.look, due - self._clock()))

    async def _wait(self, seconds: float) -> None:
        """Sleep, but no longer than until the addresses change."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _warn(self) -> None:
        """Say how near the end is, once for each degree."""
        said = Urgency.FINE
        while True:
            await asyncio.sleep(self._timing.look)
            if self.pair is None:
                continue
            degree = urgency(self.pair.not_before, self.pair.not_after, self._clock())
            if degree > said:
                ends = "ended" if degree is Urgency.ENDED else "ends"
                log.log(
                    _LEVELS[degree],
                    "the serving certificate %s %s and is not renewed: %s; kubectl logs and exec fail without it",
                    ends,
                    _when(self.pair.not_after),
                    self._reason(),
                )
            said = degree

    def _reason(self) -> str:
        return self._issuer.waiting or self._problem or "a new one is being asked for"


def _wanted(addresses: Sequence[str]) -> tuple[str, ...]:
    """Each once, in their order."""
    return tuple(dict.fromkeys(map(canonical, addresses)))


def _when(moment: float) -> str:
    return f"{datetime.datetime.fromtimestamp(moment, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"
