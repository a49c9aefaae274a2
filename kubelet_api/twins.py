"""Where the pods of the virtual node really run: all that the kubelet API has to know of offloading."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from msgspec import Struct

from app.kube.objects import Object

# gc=False: nothing of these can form a cycle, and the garbage collector need not walk ten thousand of them.


class Twin(Struct, frozen=True, gc=False):
    """The pod of the remote cluster that runs a local one."""

    namespace: str
    pod: str
    uid: str


class Running(Struct, frozen=True, gc=False):
    """A container that runs, as the remote cluster knows it."""

    name: str
    started: float
    """Since the epoch, by the remote cluster's clock."""
    image: str = ""
    container_id: str = ""


class Placed(Struct, frozen=True, gc=False):
    """A local pod, where it runs, and what of it does."""

    namespace: str
    name: str
    uid: str
    twin: Twin
    node: str
    """Of the remote cluster."""
    started: str
    """When the remote node took it up, as the API writes it; empty if it has not yet."""
    containers: tuple[Running, ...]


class Twins(Protocol):
    """Looks up pods; never blocks, and may be asked from any thread."""

    def synced(self) -> bool:
        """Whether everything is known; before that, a pod that is not found may still be there."""

    def local_pod(self, namespace: str, name: str) -> Object | None:
        """A local pod that is bound to the virtual node."""

    def local_pods(self) -> Iterable[Object]:
        """All of them."""

    def placed(self) -> Iterator[Placed]:
        """Those that something runs for; a little work for each, so that an event loop takes them in portions."""

    def twin(self, pod: Object) -> Twin | None:
        """What runs a local pod now; None while there is nothing, or it is being replaced."""

    def is_running(self, pod: Object) -> bool:
        """Whether a local pod runs, as a container runtime would know it."""
