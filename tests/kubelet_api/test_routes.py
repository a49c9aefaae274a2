"""The table of routes, as data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.routing import Match
from starlette.routing import Route as StarletteRoute
from starlette.types import Receive, Scope, Send

from kubelet_api import routes


def test_whatever_changes_something_in_a_pod_needs_create() -> None:
    for route in routes.TABLE:
        assert route.creates is (route.root in ("exec", "attach", "portForward", "run")), route.template
        assert route.subresources, route.template


def test_rows_with_the_same_first_segment_need_the_same_permission() -> None:
    """What is in no row needs what its kin need, so they must agree."""
    for route in routes.TABLE:
        kin = next(other for other in routes.TABLE if other.root == route.root)
        assert (route.subresources, route.creates) == (kin.subresources, kin.creates), route.template


@pytest.mark.parametrize(
    ("path", "template", "names"),
    [
        ("/pods", "/pods", {}),
        ("/pods/", "/pods", {}),
        ("/pods//", None, {}),
        ("/runningpods/", "/runningpods", {}),
        ("/%70ods", "/pods", {}),
        ("/exec/a/b/c", "/exec/{namespace}/{pod}/{container}", {"namespace": "a", "pod": "b", "container": "c"}),
        ("/exec/a/b%2Fc", None, {}),
        ("/exec/a//c", None, {}),
        ("/exec/a/b/%2525", "/exec/{namespace}/{pod}/{container}", {"namespace": "a", "pod": "b", "container": "%25"}),
        ("/exec/a/b/u/c/d", None, {}),
        ("/portForward/a/b/u", "/portForward/{namespace}/{pod}/{uid}", {"namespace": "a", "pod": "b", "uid": "u"}),
        ("/logs", "/logs/{rest:path}", {}),
        ("/logs/a/b", "/logs/{rest:path}", {}),
        ("/metrics/../exec/a/b/c", None, {}),
        ("//exec/a/b/c", None, {}),
        ("http://node/exec/a/b/c", None, {}),
        ("*", None, {}),
        ("", None, {}),
    ],
)
def test_find(path: str, template: str | None, names: dict[str, str]) -> None:
    found = routes.find(path)
    assert (found.route.template if found.route else None, dict(found.names)) == (template, names)


@pytest.mark.parametrize(
    ("path", "subresources", "creates"),
    [
        ("/else", ("proxy",), False),
        ("/", ("proxy",), False),
        ("*", ("proxy",), False),
        ("/metrics/else", ("metrics",), False),
        ("/metricsandmore", ("proxy",), False),
        ("/exec/a", ("proxy",), True),
        ("/stats", ("stats",), False),
        ("/debug/else", ("proxy",), False),
    ],
)
def test_what_an_unknown_path_needs(path: str, subresources: tuple[str, ...], creates: bool) -> None:
    found = routes.find(path)
    assert (found.route, found.subresources, found.creates) == (None, subresources, creates)


PARTS = st.sampled_from(
    ["pods", "exec", "a", "logs", "%2F", "%25", "..", ".", "", "run", "metrics", "é", "%00", "{pod}"]
)


class _Nothing:
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pass


COMPILED = [
    (route, StarletteRoute(template, _Nothing()))
    for route in routes.TABLE
    for template in sorted({route.template, route.template.removesuffix("/{rest:path}")})
]


@given(st.lists(st.one_of(PARTS, st.text(max_size=5)), max_size=6))
def test_fastapi_finds_the_same_row(parts: list[str]) -> None:
    """The path that it is given has one way of writing it, in which both cut it alike."""
    found = routes.find("/" + "/".join(part.replace("?", "") for part in parts))
    scope = {"type": "http", "method": "GET", "path": found.path, "headers": [], "root_path": ""}
    matched = [route for route, compiled in COMPILED if compiled.matches(scope)[0] is Match.FULL]
    assert matched[:1] == ([found.route] if found.route else [])
