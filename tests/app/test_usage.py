"""Which source of usage is read: never one that takes more rights than there are."""

from __future__ import annotations

import pytest

from app.settings import MetricsSource
from app.usage import Found, Way, decide

NOTHING = Found()
METRICS = Found(metrics_served=True, metrics_allowed=True)
EVERYTHING = Found(True, True, True, True, True)


@pytest.mark.parametrize(
    ("wanted", "found", "way", "note"),
    [
        ("none", EVERYTHING, Way.NONE, ""),
        ("metrics-api", EVERYTHING, Way.METRICS_API, ""),
        ("metrics-api", NOTHING, Way.METRICS_API, "no metrics API"),
        ("metrics-api", Found(metrics_served=True), Way.METRICS_API, "no right"),
        ("kubelets", EVERYTHING, Way.PROXY, ""),
        ("kubelets", Found(nodes_metrics=True, nodes_stats=True), Way.STRAIGHT, ""),
        ("kubelets", Found(nodes_metrics=True), Way.STRAIGHT, "nodes/stats"),
        ("kubelets", METRICS, Way.STRAIGHT, "rights are missing"),
        ("auto", EVERYTHING, Way.METRICS_API, ""),
        ("auto", Found(metrics_allowed=True, nodes_metrics=True, nodes_stats=True), Way.STRAIGHT, ""),
        ("auto", Found(metrics_served=True, nodes_proxy=True), Way.PROXY, ""),
        ("auto", NOTHING, Way.NONE, "no right to ask the remote kubelets"),
    ],
)
def test_the_source_that_is_read(wanted: str, found: Found, way: Way, note: str) -> None:
    chosen = decide(MetricsSource(wanted), found)
    assert chosen.way is way
    assert note in chosen.note
    assert bool(note) == bool(chosen.note)
    assert str(way) in chosen.line()
