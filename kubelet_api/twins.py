"""Where the pods of the virtual node really run: all that the kubelet API has to know of offloading."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from app.kube.objects import Object


@dataclass(frozen=True, slots=True)
class Twin:
    """The pod of the remote cluster that runs a local one."""

    namespace: str
    pod: str
    uid: str


class Twins(Protocol):
    """Looks up pods; never blocks, and may be asked from any thread."""

    def synced(self) -> bool:
        """Whether everything is known; before that, a pod that is not found may still be there."""

    def local_pod(self, namespace: str, name: str) -> Object | None:
        """A local pod that is bound to the virtual node."""

    def local_pods(self) -> Iterable[Object]:
        """All of them."""

    def twin(self, pod: Object) -> Twin | None:
        """What runs a local pod now; None while there is nothing, or it is being replaced."""

    def is_running(self, pod: Object) -> bool:
        """Whether a local pod runs, as a container runtime would know it."""
