"""A request on its way in: its head as it came, and what is known of it once it was let in."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from starlette.types import ASGIApp

from kubelet_api.authn import Headers
from kubelet_api.call import CallError, Kind, User

if TYPE_CHECKING:
    from kubelet_api.service import Service


@dataclass(frozen=True, slots=True)
class Head:
    """What a client sent, before anything of it is believed."""

    method: str
    path: str
    """As it came: not decoded."""
    query: str
    headers: Headers
    """Names in lower case."""
    tls: ssl.SSLObject | None = None
    """The connection's, which knows the client's certificate."""
    error: CallError | None = None
    """Why it is refused whoever sent it."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request whose sender is known and may send it."""

    route: Route
    names: Mapping[str, str]
    """The parts of the path that the route has names for, decoded."""
    user: User
    method: str
    query: tuple[tuple[str, str], ...]
    headers: Headers


Handler: TypeAlias = "Callable[[Service, Request], Awaitable[ASGIApp]]"
"""Answers a request; raises :class:`CallError` to answer as the kubelet does when it cannot."""


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the table of routes."""

    template: str
    """As FastAPI's."""
    methods: tuple[str, ...]
    """Empty: any."""
    subresources: tuple[str, ...]
    """Of the node, any of which is enough, asked in this order."""
    handler: Handler
    kind: Kind | None = None
    """What is asked of a pod, if it is about one."""
    creates: bool = False
    """Whether it needs the verb ``create``, whatever the method."""
    upgrade: bool = False
    """Whether the connection may become something else than HTTP."""

    @property
    def segments(self) -> tuple[str, ...]:
        return tuple(self.template.strip("/").split("/"))

    @property
    def root(self) -> str:
        return self.segments[0]


def is_upgrade(headers: Headers) -> bool:
    """Whether the client wants the connection to become something else."""
    wants = any(
        b"upgrade" in (token.strip() for token in value.lower().split(b","))
        for name, value in headers
        if name == b"connection"
    )
    return wants and any(name == b"upgrade" for name, _ in headers)
