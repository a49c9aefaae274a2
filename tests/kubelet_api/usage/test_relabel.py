"""Pages of remote kubelets: ours under our names, others' never."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from kubelet_api.usage.exposition import escaped
from kubelet_api.usage.relabel import Page, Places, ResourcePage, merged, parse
from tests.kubelet_api.usage.pods import TWIN_UID, UID, placed

OURS = placed()
SYSTEMD = TWIN_UID.replace("-", "_")
CADVISOR = f"""\
# HELP cadvisor_version_info A metric with a constant '1' value.
# TYPE cadvisor_version_info gauge
cadvisor_version_info{{osVersion="Debian"}} 1
# HELP container_cpu_usage_seconds_total Cumulative cpu time consumed in seconds.
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{{container="",cpu="total",id="/",image="",name="",namespace="",pod=""}} 99 170
container_cpu_usage_seconds_total{{container="main",id="/kubepods.slice/kubepods-pod{SYSTEMD}.slice/x",image="busybox:1",\
name="c0ffee",namespace="shop-far",pod="web-x7-abcde"}} 1.5 1700000000000
container_cpu_usage_seconds_total{{container="main",id="/kubepods/pod1",image="i",name="n",namespace="other",\
pod="web-x7-abcde"}} 7 1700000000000
container_cpu_usage_seconds_total{{container="main",id="/k",image="x\\",namespace=\\"shop-far\\",pod=\\"web-x7-abcde",\
name="n",namespace="other",pod="theirs"}} 8
machine_cpu_cores{{machine_id="secret"}} 64
# HELP prober_probe_duration_seconds [ALPHA] Duration
# TYPE prober_probe_duration_seconds histogram
prober_probe_duration_seconds_bucket{{namespace="shop-far",pod="web-x7-abcde",le="+Inf"}} 3
prober_probe_duration_seconds_count{{namespace="shop-far",pod="web-x7-abcde"}} 3
# HELP prober_probe_total [BETA] Cumulative number of probes
# TYPE prober_probe_total counter
prober_probe_total{{container="main",namespace="shop-far",pod="web-x7-abcde",pod_uid="{TWIN_UID}",result="good"}} 4
"""


def page(text: str, *items: object) -> bytes:
    taken = Page(Places(items or (OURS,)))  # type: ignore[arg-type]
    for line in text.splitlines():
        taken.line(line)
    return b"".join(merged([taken.families]))


def test_only_ours_under_our_names() -> None:
    found = page(CADVISOR).decode()
    assert found.splitlines()[2] == (
        f'container_cpu_usage_seconds_total{{container="main",id="/kubepods.slice/kubepods-pod{UID.replace("-", "_")}'
        '.slice/x",image="busybox:1",name="c0ffee",namespace="shop",pod="web"} 1.5 1700000000000'
    )
    for foreign in ("theirs", "other", "secret", "Debian", "shop-far", "x7-abcde", TWIN_UID, SYSTEMD):
        assert foreign not in found
    assert f'pod_uid="{UID}"' in found


def test_families_of_several_kubelets_are_one() -> None:
    places = Places([OURS])
    pages = []
    for _ in range(2):
        taken = Page(places)
        for line in CADVISOR.splitlines():
            taken.line(line)
        pages.append(taken.families)
    text = b"".join(merged(pages)).decode()
    assert text.count("# TYPE container_cpu_usage_seconds_total") == 1
    assert {family.name: len(family.samples) for family in text_string_to_metric_families(text)} == {
        "container_cpu_usage_seconds": 2,
        "prober_probe_duration_seconds": 4,
        "prober_probe": 2,
    }


def test_names_of_dockers_containers_hold_the_pods_names() -> None:
    text = 'x{name="k8s_main_web-x7-abcde_shop-far_uid_0",namespace="shop-far",pod="web-x7-abcde"} 1'
    assert page(text) == b'x{name="k8s_main_web_shop_uid_0",namespace="shop",pod="web"} 1\n'


def test_samples_of_a_kubelets_resources() -> None:
    labels = 'container="main",namespace="shop-far",pod="web-x7-abcde"'
    pod = 'namespace="shop-far",pod="web-x7-abcde"'
    text = f"""\
container_cpu_usage_seconds_total{{{labels}}} 1.5 1700000000123
container_memory_working_set_bytes{{{labels}}} 2e+06 1700000000123
container_start_time_seconds{{{labels}}} 1.69e+09
container_swap_usage_bytes{{{labels}}} 0 1700000000123
container_cpu_usage_seconds_total{{container="half",{pod}}} 1 1700000000123
container_cpu_usage_seconds_total{{container="main",namespace="other",pod="web-x7-abcde"}} 9 1
pod_cpu_usage_seconds_total{{{pod}}} 2 1700000000200
pod_memory_working_set_bytes{{{pod}}} 3e+06 1700000000200
node_cpu_usage_seconds_total 1000 1700000000000
"""
    taken = ResourcePage(Places([OURS]), 1_800_000_000.0)
    for line in text.splitlines():
        taken.line(line)
    found = {container: sample for _, container, sample in taken.samples()}
    assert set(found) == {"main", ""}
    assert found["main"].total == 1.5
    assert found["main"].memory == 2_000_000
    assert found["main"].time == 1_700_000_000.123
    assert found["main"].started == 1.69e9
    assert found["main"].swap == 0
    assert found[""].total == 2


def test_figures_without_a_time_are_of_when_they_were_asked_for() -> None:
    """As metrics-server takes them: kubelets that others wrote leave it out."""
    taken = ResourcePage(Places([OURS]), 1_800_000_000.5)
    labels = 'container="main",namespace="shop-far",pod="web-x7-abcde"'
    taken.line(f"container_cpu_usage_seconds_total{{{labels}}} 1.5")
    taken.line(f"container_memory_working_set_bytes{{{labels}}} 2e+06")
    ((_, container, sample),) = taken.samples()
    assert (container, sample.time, sample.total) == ("main", 1_800_000_000.5, 1.5)


@pytest.mark.parametrize(
    "line",
    [
        'x{some rubbish,namespace="shop-far",pod="web-x7-abcde"} 1',
        'x{pod="theirs",pod="web-x7-abcde",namespace="shop-far"} 1',
        'x{namespace="shop-far",pod="web-x7-abcde"} much',
        'x{namespace="shop-far",pod="web-x7-abcde"}',
        'x{namespace="shop-far",pod="web-x7-abcde" 1',
        '{namespace="shop-far",pod="web-x7-abcde"} 1',
    ],
)
def test_a_line_that_is_not_quite_one_is_dropped(line: str) -> None:
    """One line that cannot be read would cost a reader the whole page."""
    assert page(line) == b""


words = st.sampled_from(["web-x7-abcde", "shop-far", "pod", "namespace", '"', "\\", "{", "}", ",", "=", " ", "\n", "é"])
values = st.lists(words, max_size=8).map("".join)
labels = st.dictionaries(st.sampled_from(["pod", "namespace", "image", "id", "name", "container"]), values)


@given(st.lists(labels, max_size=8))
def test_whatever_others_call_their_things_nothing_of_theirs_gets_through(series: list[dict[str, str]]) -> None:
    lines = []
    for number, found in enumerate(series):
        block = ",".join(f'{key}="{escaped(value)}"' for key, value in found.items())
        lines.append(f"x{{{block}}} {number}")
    expected = [
        str(number)
        for number, found in enumerate(series)
        if found.get("pod") == "web-x7-abcde" and found.get("namespace") == "shop-far"
    ]
    kept = page("\n".join(lines)).decode().splitlines()
    assert [line.rsplit(" ", 1)[1] for line in kept] == expected
    for line in kept:
        told = parse(line)
        assert told is not None
        assert (told.labels["namespace"], told.labels["pod"]) == ("shop", "web")


@given(labels)
def test_labels_are_read_as_they_were_written(found: dict[str, str]) -> None:
    block = ",".join(f'{key}="{escaped(value)}"' for key, value in found.items())
    series = parse(f"x{{{block}}} 1 5")
    assert series is not None
    assert series.labels == found


@given(st.text(max_size=200))
def test_any_text_can_be_taken(text: str) -> None:
    page(text)
