"""The text of /metrics/resource, byte for byte, and what readers make of it."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from kubelet_api.usage import exposition
from kubelet_api.usage.counters import Counters
from kubelet_api.usage.snapshot import PodUsage, Snapshot
from tests.kubelet_api.usage.pods import START, placed, rate, total

RESOURCE = """\
# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the container in core-seconds
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="main",namespace="shop",pod="web"} 5 1700000020000
container_cpu_usage_seconds_total{container="side",namespace="shop",pod="web"} 1e-06 1700000020000
# HELP container_memory_working_set_bytes [STABLE] Current working set of the container in bytes
# TYPE container_memory_working_set_bytes gauge
container_memory_working_set_bytes{container="main",namespace="shop",pod="web"} 1.048576e+06 1700000020000
container_memory_working_set_bytes{container="side",namespace="shop",pod="web"} 4096 1700000020000
# HELP container_start_time_seconds [STABLE] Start time of the container since unix epoch in seconds
# TYPE container_start_time_seconds gauge
container_start_time_seconds{container="main",namespace="shop",pod="web"} 1.7e+09
container_start_time_seconds{container="side",namespace="shop",pod="web"} 1.7e+09
# HELP node_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the node in core-seconds
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total 1e-06 1700000021000
# HELP node_memory_working_set_bytes [STABLE] Current working set of the node in bytes
# TYPE node_memory_working_set_bytes gauge
node_memory_working_set_bytes 1.052672e+06 1700000021000
# HELP pod_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the pod in core-seconds
# TYPE pod_cpu_usage_seconds_total counter
pod_cpu_usage_seconds_total{namespace="shop",pod="web"} 5.000001 1700000020000
# HELP pod_memory_working_set_bytes [STABLE] Current working set of the pod in bytes
# TYPE pod_memory_working_set_bytes gauge
pod_memory_working_set_bytes{namespace="shop",pod="web"} 1.052672e+06 1700000020000
# HELP resource_scrape_error [STABLE] 1 if there was an error while getting container metrics, 0 otherwise
# TYPE resource_scrape_error gauge
resource_scrape_error 0
"""


def snapshot(pods: int = 1) -> Snapshot:
    counters = Counters()
    told: list[PodUsage] = []
    for number in range(pods):
        item = placed("web" if not number else f"web-{number}", uid=f"uid-{number}", containers=("main", "side"))
        usage = counters.pod(item, {"main": rate(20, 0.25), "side": rate(20, 0.0, memory=4096)})
        assert usage is not None
        told.append(usage)
    return Snapshot(told, counters.node(told, START + 21), complete=True)


def text(found: Snapshot) -> str:
    return b"".join(exposition.resource(found)).decode()


def test_resource_as_a_kubelet_writes_it() -> None:
    assert text(snapshot()) == RESOURCE


def test_nothing_known_is_said_and_nothing_else() -> None:
    assert text(Snapshot()).splitlines()[2:] == ["resource_scrape_error 1"]
    assert text(Snapshot(complete=True)).splitlines()[2:] == ["resource_scrape_error 0"]


def test_swap_where_it_is_known() -> None:
    counters = Counters()
    sample = total(20, 3.0)
    item = counters.pod(placed(), {"main": type(sample)(sample.time, 10, total=3.0, swap=5, swap_limit=9)})
    assert item is not None
    found = text(Snapshot([item], counters.node([item], START), complete=True))
    for line in (
        'container_swap_usage_bytes{container="main",namespace="shop",pod="web"} 5 1700000020000',
        'container_swap_limit_bytes{container="main",namespace="shop",pod="web"} 9 1700000020000',
        'pod_swap_usage_bytes{namespace="shop",pod="web"} 5 1700000020000',
        "node_swap_usage_bytes 5 1700000000000",
    ):
        assert line in found.splitlines()


def test_a_thousand_pods_come_in_pieces_and_families_stay_together() -> None:
    pieces = list(exposition.gathered(exposition.resource(snapshot(1000))))
    assert max(map(len, pieces)) < 3 * exposition.PIECE
    whole = b"".join(pieces)
    assert gzip.decompress(b"".join(exposition.zipped(pieces))) == whole
    families = list(text_string_to_metric_families(whole.decode()))
    assert len(families) == len({family.name for family in families}) == 8
    for family in families:
        for sample in family.samples:
            if family.name != "resource_scrape_error":
                assert sample.value > 0
            assert set(sample.labels) <= {"container", "namespace", "pod"}


def test_cadvisor_from_what_any_source_knows() -> None:
    families = list(text_string_to_metric_families(b"".join(exposition.cadvisor(snapshot())).decode()))
    by_name = {family.name: family for family in families}
    assert set(by_name["container_cpu_usage_seconds"].samples[0].labels) == {
        "container", "id", "image", "name", "namespace", "pod",
    }  # fmt: skip
    assert by_name["container_scrape_error"].samples[0].value == 0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, "0"),
        (1.0, "1"),
        (0.5, "0.5"),
        (1e-6, "1e-06"),
        (999999.5, "999999.5"),
        (1e6, "1e+06"),
        (1234567.0, "1.234567e+06"),
        (1234567.25, "1.23456725e+06"),
        (1.7e9, "1.7e+09"),
        (1e21, "1e+21"),
    ],
)
def test_numbers_are_as_go_writes_them(value: float, expected: str) -> None:
    assert exposition.number(value) == expected


@given(st.floats(0, 1e18))
def test_numbers_are_what_they_say(value: float) -> None:
    assert float(exposition.number(value)) == value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1e-6, "1e-06"),
        (0.00012, "0.00012"),
        (0.1 + 0.2, "0.3"),
        (5.0, "5"),
        (100.0, "100"),
        (12.345678901, "12.345678901"),
        (1e6, "1e+06"),
        (1234567.25, "1.23456725e+06"),
        (1234567.123456789, "1.234567123456789e+06"),
        (31536000.5, "3.15360005e+07"),
    ],
)
def test_seconds_of_cpu_have_no_more_digits_than_a_kubelet_counts(value: float, expected: str) -> None:
    assert exposition.seconds(value) == expected


@given(st.floats(1e-6, 1e12), st.floats(0, 1e6))
def test_seconds_of_cpu_are_what_they_say_and_never_fall(value: float, more: float) -> None:
    told, later = float(exposition.seconds(value)), float(exposition.seconds(value + more))
    assert told == pytest.approx(value, rel=1e-15, abs=0.6e-9)
    assert told <= later


@given(st.integers(0, 10**18))
def test_what_a_kubelet_counted_is_told_as_it_told_it(nanoseconds: int) -> None:
    value = nanoseconds / 1e9
    assert exposition.seconds(value) == exposition.number(value)


@given(st.integers(0, 2**53))
def test_whole_numbers_are_what_they_say(value: int) -> None:
    assert float(exposition.integer(value)) == value
    assert exposition.integer(value) == exposition.number(float(value))
