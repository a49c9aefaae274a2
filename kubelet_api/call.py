"""One call, after it was authenticated, authorized and checked, and the two ends that it lies between."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from kubelet_api.stall import Wire
from kubelet_api.twins import Twin


class Kind(StrEnum):
    """What is asked of a pod."""

    LOGS = "logs"
    EXEC = "exec"
    ATTACH = "attach"
    PORT_FORWARD = "portForward"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class User:
    """Who asks."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What is asked, of whom and by whom. Names are valid, the pod is ours and its container is in its spec."""

    kind: Kind
    user: User
    method: str
    namespace: str
    pod: str
    uid: str
    """The local pod's."""
    container: str | None
    """None only for port-forward."""
    twin: Twin
    query: tuple[tuple[str, str], ...] = ()
    """As the client sent it, decoded."""
    headers: tuple[tuple[bytes, bytes], ...] = field(default=(), repr=False)
    """As the client sent them, names in lower case."""


class CallError(Exception):
    """A call that cannot be carried out: what the client is told, as a kubelet would."""

    def __init__(self, status: int, message: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


class Downstream(Protocol):
    """The client's connection, once it is no longer HTTP: bytes in both directions, bounded on our side.

    TLS cannot be half-closed from our side; when one direction of a stream ends, its protocol says so within it.
    """

    async def read(self) -> bytes:
        """What has come, some 128 KiB at most; empty at the end. While nobody reads, the client is not read from."""

    async def write(self, data: bytes) -> None:
        """Send, and wait while too much is on its way."""

    async def close(self) -> None:
        """Send what is on its way (within a few seconds), then close."""

    def abort(self) -> None:
        """Close at once."""


class Meter(Protocol):
    """Told of the bytes of a session as they pass, and of what they pass over; also knows when the last one did."""

    def from_client(self, count: int) -> None: ...

    def to_client(self, count: int) -> None: ...

    def over(self, wire: Wire | None) -> None:
        """Another connection that the session goes over, if it is known."""
