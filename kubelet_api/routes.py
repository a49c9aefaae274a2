"""The table of routes: every path that is served, with the permission it needs and what answers it.

It is the kubelet's (1.36). Those that make no sense for a virtual node answer as a kubelet that has them disabled.
Paths are cut into segments before they are decoded, once, so that no encoded slash makes one path look like another;
a path that is in no row needs the permission of the rows with the same first segment, else ``proxy``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from kubelet_api import handlers
from kubelet_api.call import Kind
from kubelet_api.request import Handler, Route

_GET: Final = ("GET",)
_GET_POST: Final = ("GET", "POST")
_POST: Final = ("POST",)
_ANY: Final = ()

_PROXY: Final = ("proxy",)
_PODS: Final = ("pods", "proxy")
_HEALTHZ: Final = ("healthz", "proxy")
_METRICS: Final = ("metrics",)


def _stream(template: str, kind: Kind) -> Route:
    return Route(template, _GET_POST, _PROXY, handlers.not_upgraded, kind, creates=True, upgrade=True)


def _plain(template: str, methods: tuple[str, ...], subresources: tuple[str, ...], handler: Handler) -> Route:
    return Route(template, methods, subresources, handler)


TABLE: Final[tuple[Route, ...]] = (
    Route("/containerLogs/{namespace}/{pod}/{container}", _GET, _PROXY, handlers.container_logs, Kind.LOGS),
    _stream("/exec/{namespace}/{pod}/{container}", Kind.EXEC),
    _stream("/exec/{namespace}/{pod}/{uid}/{container}", Kind.EXEC),
    _stream("/attach/{namespace}/{pod}/{container}", Kind.ATTACH),
    _stream("/attach/{namespace}/{pod}/{uid}/{container}", Kind.ATTACH),
    _stream("/portForward/{namespace}/{pod}", Kind.PORT_FORWARD),
    _stream("/portForward/{namespace}/{pod}/{uid}", Kind.PORT_FORWARD),
    Route("/run/{namespace}/{pod}/{container}", _POST, _PROXY, handlers.run, Kind.RUN, creates=True),
    Route("/run/{namespace}/{pod}/{uid}/{container}", _POST, _PROXY, handlers.run, Kind.RUN, creates=True),
    _plain("/pods", _GET, _PODS, handlers.pods),
    _plain("/runningpods", _GET, _PODS, handlers.running_pods),
    _plain("/stats/summary", _GET_POST, ("stats",), handlers.stats_summary),
    _plain("/metrics", _ANY, _METRICS, handlers.metrics),
    _plain("/metrics/cadvisor", _ANY, _METRICS, handlers.metrics_cadvisor),
    _plain("/metrics/probes", _ANY, _METRICS, handlers.metrics_probes),
    _plain("/metrics/resource", _ANY, _METRICS, handlers.metrics_resource),
    _plain("/metrics/slis", _ANY, _METRICS, handlers.metrics_slis),
    _plain("/healthz", _ANY, _HEALTHZ, handlers.healthz),
    _plain("/healthz/{check}", _ANY, _HEALTHZ, handlers.healthz_check),
    _plain("/configz", _ANY, ("configz", "proxy"), handlers.configz),
    # What a virtual node has nothing to say to.
    _plain("/logs/{rest:path}", _ANY, ("log",), handlers.logs_disabled),
    _plain("/debug/pprof/{rest:path}", _ANY, _PROXY, handlers.profiling_disabled),
    _plain("/debug/flags/v", _ANY, _PROXY, handlers.flags_disabled),
    _plain("/checkpoint/{rest:path}", _ANY, ("checkpoint",), handlers.not_found),
    _plain("/flagz", _ANY, ("configz",), handlers.not_found),
    _plain("/statusz", _ANY, ("statusz",), handlers.not_found),
)


class Found(NamedTuple):
    """What the table says of a path."""

    route: Route | None
    names: Mapping[str, str]
    subresources: tuple[str, ...]
    creates: bool
    path: str
    """The same path with one way of writing it, so that whoever compares it with the templates finds the same row."""


_BY_ROOT: Final[Mapping[str, Route]] = {route.root: route for route in reversed(TABLE)}


def find(path: str) -> Found:
    """The row of a path that was not decoded yet."""
    segments = path.split("/")[1:]
    if len(segments) > 1 and segments[-1] == "":
        segments.pop()  # a slash at the end makes no difference
    decoded = [unquote(segment) for segment in segments]
    canonical = "/" + "/".join(quote(segment, safe="") for segment in decoded)
    for route in TABLE:
        names = _match(route.segments, decoded)
        if names is not None:
            return Found(route, names, route.subresources, route.creates, canonical)
    kin = _BY_ROOT.get(decoded[0]) if decoded else None
    if kin is None:
        return Found(None, {}, _PROXY, False, canonical)
    return Found(None, {}, kin.subresources, kin.creates, canonical)


def _match(template: tuple[str, ...], segments: list[str]) -> dict[str, str] | None:
    rest = template[-1] == "{rest:path}"
    fixed = template[:-1] if rest else template
    if len(segments) < len(fixed) or (len(segments) > len(fixed) and not rest):
        return None
    names = {}
    for expected, segment in zip(fixed, segments, strict=False):
        if expected.startswith("{"):
            if not segment:
                return None
            names[expected.strip("{}")] = segment
        elif expected != segment:
            return None
    return names
