"""Where the size of the virtual node comes from: one class for each source, and all are used in the same way.

What is measured (the remote nodes, a quota) follows what others do over there, and is damped; what is stated (by a
flag, a command, a URL) is somebody's word, and is taken to the letter. A source that fails later keeps its last good
answer: a node whose size nobody knows any more is still the node that it was.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from app.kube.client import Client
from app.kube.informer import DEFAULT_TIMING, Informer, Timing
from app.kube.objects import Envelope, Key, Object
from app.kube.resources import NODES, PODS, RESOURCE_QUOTAS
from app.names import LABEL_NODE, LABEL_ORIGIN
from app.node import programs, stated
from app.node.capacity import (
    Capacity,
    CapacityError,
    from_quota,
    least,
    most,
    quota_use,
    shared_of_claims,
    with_pods,
)
from app.node.claims import Amounts, Claim, add, claim
from app.node.placement import Placement, takes_pods
from app.settings import Rounding, RunSettings

log = logging.getLogger(__name__)

T = TypeVar("T")

SHARE, QUOTA_SHARE = 90, 100
"""Percent that are offered if nobody says: others use the remote nodes too, but a quota is ours."""

_LAG = 1.0
"""Seconds by which a quota's count and the pods it counts may disagree."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a source says now."""

    capacity: Capacity
    nodes: Sequence[Object] = ()
    """The remote nodes that stand behind it, where they can be read."""


class Source(ABC):
    """Says how large the node is."""

    damped = False
    """Whether small and short changes are none."""

    def __init__(self, what: str) -> None:
        self.what = what
        """For people: where the size comes from."""
        self._on_change: Callable[[], None] = _nobody
        self._problem = ""

    def informers(self) -> Sequence[Informer]:
        """What must be complete before the source is started."""
        return ()

    def listen(self, on_change: Callable[[], None]) -> None:
        """Tell this one when there is something new to measure."""
        self._on_change = on_change

    async def start(self) -> None:  # noqa: B027 - most have nothing to do
        """Look for the first time; a :class:`CapacityError` says why there is no size, and the way out."""

    async def run(self) -> None:  # noqa: B027
        """Do what it has to do by itself, until cancelled."""

    @abstractmethod
    def measure(self) -> Measurement:
        """The size as it is known now. Quick, and never an error."""

    def _complain(self, problem: str) -> None:
        """Say what is wrong once, not each time that it is found; empty: all is well."""
        if problem and problem != self._problem:
            log.warning("the node keeps its size: %s", problem)
        elif self._problem and not problem:
            log.info("the node is sized again by %s", self.what)
        self._problem = problem


class Fixed(Source):
    """Stated by a flag."""

    def __init__(self, text: str) -> None:
        super().__init__("--capacity")
        self._capacity = with_pods(stated.parse_flag(text))

    def measure(self) -> Measurement:
        return Measurement(self._capacity)


class RemoteNodes(Source):
    """A share of what the remote nodes have left after the pods of others."""

    damped = True

    def __init__(
        self,
        remote: Client,
        own: Mapping[str, str],
        *,
        share: int,
        rounding: Rounding,
        placement: Placement,
        timing: Timing = DEFAULT_TIMING,
    ) -> None:
        super().__init__(f"{share} % of what is free on the remote nodes")
        self._own, self._share, self._rounding, self._placement = own, share, rounding, placement
        self._claims: dict[str, Claim] = {}
        """What pods of others take, kept instead of the pods."""
        self._nodes = Informer(remote, NODES, on_change=self._on_node, timing=timing)
        # everything but our own pods, which are many and known already
        self._others = [
            Informer(
                remote,
                PODS,
                label_selector=selector,
                field_selector="status.phase!=Succeeded,status.phase!=Failed",
                on_change=self._on_pod,
                timing=timing,
            )
            for selector in (
                f"{LABEL_ORIGIN}!={own[LABEL_ORIGIN]}",
                f"{LABEL_ORIGIN}={own[LABEL_ORIGIN]},{LABEL_NODE}!={own[LABEL_NODE]}",
            )
        ]

    def informers(self) -> Sequence[Informer]:
        return (self._nodes, *self._others)

    def measure(self) -> Measurement:
        nodes = [envelope.object() for envelope in self._nodes.list()]
        capacity = shared_of_claims(
            nodes,
            self._claims.values(),
            share_percent=self._share,
            rounding=self._rounding,
            placement=self._placement,
        )
        return Measurement(capacity, [node for node in nodes if takes_pods(node, self._placement)])

    def _on_node(self, _key: Key, _old: Envelope | None, _new: Envelope | None) -> None:
        self._on_change()

    def _on_pod(self, _key: Key, old: Envelope | None, new: Envelope | None) -> None:
        if _kept(self._claims, old, new, lambda pod: claim(pod, self._own)):
            self._on_change()


class Quota(Source):
    """What the ResourceQuotas of a remote namespace, or one of them, leave to us.

    A quota counts a pod of ours a moment before we see the pod, and for a moment after it ended; in between, the pod
    looks like somebody else's. So less is believed only when it is found twice in a row.
    """

    damped = True

    def __init__(
        self,
        remote: Client,
        own: Mapping[str, str],
        where: str,
        *,
        share: int,
        rounding: Rounding,
        timing: Timing = DEFAULT_TIMING,
    ) -> None:
        self._namespace, _, self._name = where.partition("/")
        one_or_all = f"the ResourceQuota {where}" if self._name else f"the ResourceQuotas of {where}"
        super().__init__(one_or_all if share == 100 else f"{share} % of {one_or_all}")
        self._share, self._rounding = share, rounding
        self._use: dict[str, Amounts] = {}
        """What each pod of ours uses of the quotas."""
        self._changed = asyncio.Event()
        self._last: Capacity = {}
        self._capacity: Capacity = {}
        self._quotas = Informer(
            remote,
            RESOURCE_QUOTAS,
            namespace=self._namespace,
            field_selector=f"metadata.name={self._name}" if self._name else None,
            on_change=self._on_quota,
            timing=timing,
        )
        self._pods = Informer(
            remote,
            PODS,
            namespace=self._namespace,
            label_selector=",".join(f"{key}={value}" for key, value in own.items()),
            on_change=self._on_pod,
            timing=timing,
        )

    def informers(self) -> Sequence[Informer]:
        return (self._quotas, self._pods)

    async def start(self) -> None:
        found = self._left()
        if not found:
            raise CapacityError(f"{self._nothing()}; name another with --capacity-quota, or state the size: --capacity")
        self._last = self._capacity = found

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(_LAG)
            self._changed.clear()
            self._look()

    def measure(self) -> Measurement:
        return Measurement(with_pods(self._capacity))

    def _look(self) -> None:
        found = self._left()
        if not found:
            self._complain(self._nothing())
            return
        self._complain("")
        believed = most(found, self._last)
        if found != self._last:
            self._changed.set()
        self._last = found
        if believed != self._capacity:
            self._capacity = believed
            self._on_change()

    def _left(self) -> Capacity:
        """What is left now; empty if no quota says anything of a node."""
        ours: Counter[str] = Counter()
        for use in self._use.values():
            add(ours, use)
        quotas = [envelope.object() for envelope in self._quotas.list()]
        return least(*(from_quota(q, ours, share_percent=self._share, rounding=self._rounding) for q in quotas))

    def _nothing(self) -> str:
        """Why there is no size."""
        names = sorted(envelope.key.name for envelope in self._quotas.list())
        if not names:
            which = f"ResourceQuota {self._name}" if self._name else "ResourceQuota"
            return f"the remote namespace {self._namespace} has no {which}"
        return (
            f"ResourceQuota {', '.join(names[:5])} of the remote namespace {self._namespace} says nothing of a node: "
            "it has scopes, or bounds neither cpu, memory, pods nor the like"
        )

    def _on_quota(self, _key: Key, _old: Envelope | None, _new: Envelope | None) -> None:
        self._changed.set()

    def _on_pod(self, _key: Key, old: Envelope | None, new: Envelope | None) -> None:
        if _kept(self._use, old, new, quota_use):
            self._changed.set()


class Polled(Source):
    """What a program of the user's says, asked again and again."""

    def __init__(self, what: str, ask: Callable[[], Awaitable[str]], interval: float) -> None:
        super().__init__(what)
        self._ask = ask
        self._interval = interval
        self._capacity: Capacity = {}

    async def start(self) -> None:
        try:
            self._capacity = await self._answer()
        except CapacityError as error:
            raise CapacityError(f"{error}; it must say JSON or lines such as cpu=100, or use --capacity") from error

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            await self._poll()

    def measure(self) -> Measurement:
        return Measurement(self._capacity)

    async def _poll(self) -> None:
        try:
            capacity = await self._answer()
        except CapacityError as error:
            self._complain(str(error))
            return
        self._complain("")
        if capacity != self._capacity:
            self._capacity = capacity
            self._on_change()

    async def _answer(self) -> Capacity:
        try:
            return with_pods(stated.parse_output(await self._ask()))
        except CapacityError as error:
            raise CapacityError(f"{self.what}: {error}") from error


def source(
    settings: RunSettings, remote: Client, own: Mapping[str, str], placement: Placement, timing: Timing = DEFAULT_TIMING
) -> Source:
    """The one that the settings name; *own* are the labels of what is ours in the remote cluster."""
    if settings.capacity is not None:
        return Fixed(settings.capacity)
    if settings.capacity_quota is not None:
        share = QUOTA_SHARE if settings.share is None else settings.share
        return Quota(remote, own, settings.capacity_quota, share=share, rounding=settings.rounding, timing=timing)
    interval = settings.capacity_interval
    if (command := settings.capacity_command) is not None:
        return Polled(f"--capacity-command {command.split()[0]}", lambda: programs.run_command(command), interval)
    if (url := settings.capacity_url) is not None:
        return Polled(f"--capacity-url {programs.without_secrets(url)}", lambda: programs.fetch(url), interval)
    share = SHARE if settings.share is None else settings.share
    return RemoteNodes(remote, own, share=share, rounding=settings.rounding, placement=placement, timing=timing)


def _kept(known: dict[str, T], old: Envelope | None, new: Envelope | None, worth: Callable[[Object], T | None]) -> bool:
    """Keep what one pod is worth, by its UID, instead of the pod; whether that changed anything."""
    envelope = new or old
    if envelope is None:
        return False
    uid = envelope.metadata.uid
    value = worth(new.object()) if new is not None else None
    if value == known.get(uid):
        return False
    if value is None:
        del known[uid]
    else:
        known[uid] = value
    return True


def _nobody() -> None:
    """Told of what nobody listens to."""
