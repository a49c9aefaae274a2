"""Histograms and request counts, against what they must add up to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.kube.figures import VERBS, Histogram, Requests

BOUNDS = (0.1, 1.0, 5.0)


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram(BOUNDS)
    for value in (0.1, 0.11, 5.0, 5.1):
        histogram.observe(value)
    assert histogram.buckets() == [("0.1", 1), ("1.0", 2), ("5.0", 3), ("+Inf", 4)]


@given(st.lists(st.floats(min_value=0, max_value=100)))
def test_buckets_hold_what_is_not_above_them(values: list[float]) -> None:
    histogram = Histogram(BOUNDS)
    for value in values:
        histogram.observe(value)
    expected = [(str(bound), sum(value <= bound for value in values)) for bound in BOUNDS]
    assert histogram.buckets() == [*expected, ("+Inf", len(values))]
    assert histogram.count == len(values)
    assert abs(histogram.total - sum(values)) < 1e-6


def test_every_method_has_a_verb() -> None:
    requests = Requests()
    for method in VERBS:
        requests.count(method, 200, 1.0)
    assert requests.counts() == {(method, 200): 1 for method in VERBS}
    assert all(histogram.count == 1 for histogram in requests.seconds.values())
