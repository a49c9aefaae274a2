"""What reflection needs to know of namespaces: which are extended to the remote cluster, and under which name.

Whoever decides that (a label, a flag, a NamespaceOffloading) stands behind this one small interface. Its promise is
what keeps copies safe: a namespace is only left out when that was decided, never because something could not be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol


class Extension(NamedTuple):
    """A local namespace and the remote one that its copies are, or were, in."""

    namespace: str
    remote_namespace: str

    def __str__(self) -> str:
        return f"{self.namespace} -> {self.remote_namespace}"


class Extensions(Protocol):
    """The namespaces that are extended now."""

    def current(self) -> Mapping[str, str]:
        """Local namespace -> its remote one, for those whose remote one is there.

        What cannot be found out at the moment is as it was last known.
        """

    def listen(self, on_change: Callable[[], None]) -> None:
        """Have *on_change* called after each change of ``current``; it must be quick."""

    async def has_ended(self, namespace: str, remote_namespace: str) -> bool:
        """Whether a local namespace is certainly not extended to this remote one any more.

        Asked before its copies are removed, so it is answered by the local API server and not by a cache; False, or
        an error, where that does not say.
        """

    def runs_in(self, namespace: str, remote_namespace: str) -> bool:
        """Whether pods of a local namespace are in this remote one, be it extended to it or not."""

    def lost(self, namespace: str) -> None:
        """Take note that the remote namespace of a local one was not there when something was written to it."""
