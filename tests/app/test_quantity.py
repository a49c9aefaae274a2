"""Quantities are read as Kubernetes reads them, and written as it writes them."""

from __future__ import annotations

import contextlib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.quantity import (
    LARGEST,
    NANO,
    QuantityError,
    format_nano,
    format_quantity,
    is_bytes,
    is_count,
    milli,
    nano,
    parse,
    quantum,
    readable,
    whole,
)
from devcluster.cluster import Cluster

VALUES: list[tuple[str, int | Fraction]] = [
    ("0", 0),
    ("00.50", Fraction(1, 2)),
    ("1.", 1),
    (".5", Fraction(1, 2)),
    ("+2", 2),
    ("-2", -2),
    ("-1.5Ki", -1536),
    ("100n", Fraction(1, 10**7)),
    ("1u", Fraction(1, 10**6)),
    ("1500m", Fraction(3, 2)),
    ("2k", 2000),
    ("1.5M", 1_500_000),
    ("3G", 3 * 10**9),
    ("4T", 4 * 10**12),
    ("5P", 5 * 10**15),
    ("6E", 6 * 10**18),
    ("1Ki", 2**10),
    ("1.5Mi", 3 * 2**19),
    ("2Gi", 2**31),
    ("3Ti", 3 * 2**40),
    ("4Pi", 4 * 2**50),
    ("7Ei", 7 * 2**60),
    ("8Ei", 2**63 - 1),  # Kubernetes caps it
    ("12e6", 12_000_000),
    ("1.5E3", 1500),
    ("1e+3", 1000),
    ("1e-3", Fraction(1, 1000)),
    ("0.1Gi", Fraction(2**30, 10)),
    ("1e-20", Fraction(1, NANO)),  # of a little, some remains
    ("-0.1n", Fraction(-1, NANO)),
]

FORMATTED: list[tuple[int | Fraction, str, str]] = [
    # value, resource, what an API server of 1.36 answers; checked below
    (0, "cpu", "0"),
    (2, "cpu", "2"),
    (Fraction(3, 2), "cpu", "1500m"),
    (Fraction(1, 1000), "cpu", "1m"),
    (1000, "cpu", "1k"),
    (1500, "cpu", "1500"),
    (0, "memory", "0"),
    (512, "memory", "512"),
    (1024, "memory", "1Ki"),
    (1536, "memory", "1536"),
    (2000, "memory", "2k"),
    (1500 * 2**20, "memory", "1500Mi"),
    (2**31, "memory", "2Gi"),
    (2**30 + 1, "memory", "1073741825"),
    (7 * 2**60, "memory", "7Ei"),
    (90 * 10**9, "ephemeral-storage", "87890625Ki"),
    (2**63 - 1, "memory", "9223372036854775807"),
    (2**21, "hugepages-2Mi", "2Mi"),
    (99, "pods", "99"),
    (10_000, "pods", "10k"),
    (1, "nvidia.com/gpu", "1"),
]

NO_QUANTITIES = ["", " ", ".", "+", "1 ", " 1", "1,5", "1K", "1ki", "1kI", "1MI", "1i", "0.1mi", "1.1.M", "1+1.0M"]
NO_QUANTITIES += [
    "aoeu",
    "1e",
    "1e1.5",
    "-3.01e-",
    "--1",
    "1mm",
    "0x10",
    "١",
    "1_000",
    "1e101",
    "NaN",
    "inf",
    "1" * 101,
]


@pytest.mark.parametrize(("text", "value"), VALUES)
def test_it_is_read_exactly(text: str, value: Fraction | int) -> None:
    assert parse(text) == value
    assert nano(text) == value * NANO


@pytest.mark.parametrize("text", NO_QUANTITIES)
def test_what_is_no_quantity_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(QuantityError) as refused:
        parse(text)
    assert repr(text[:100]) in str(refused.value)


def test_an_unknown_suffix_is_told_with_those_that_exist() -> None:
    with pytest.raises(QuantityError, match=r"'256GB': unknown suffix 'GB'.*Gi.*exponent"):
        parse("256GB")


@pytest.mark.parametrize(
    ("text", "thousandths", "units"),
    [("1500m", 1500, 2), ("1u", 1, 1), ("2", 2000, 2), ("-1500u", -2, -1), ("0", 0, 0), ("1Ki", 1024_000, 1024)],
)
def test_coarser_units_round_away_from_zero(text: str, thousandths: int, units: int) -> None:
    assert (milli(text), whole(text)) == (thousandths, units)


@pytest.mark.parametrize(("value", "resource", "text"), FORMATTED)
def test_it_is_written_as_kubernetes_does(value: Fraction | int, resource: str, text: str) -> None:
    assert format_quantity(value, resource) == text
    assert format_quantity(value, f"requests.{resource}") == text


@pytest.mark.parametrize(
    ("value", "resource", "why"),
    [
        (Fraction(1, 2), "pods", "500m of pods: it comes in whole units only"),
        (Fraction(1, 2), "memory", "500m of memory: it comes in whole units only"),
        (Fraction(1, 3), "cpu", "1/3 of cpu is finer than a billionth"),
        (10**21, "cpu", "of cpu is more than Kubernetes can count"),
    ],
)
def test_what_a_resource_cannot_have_is_refused(value: Fraction | int, resource: str, why: str) -> None:
    with pytest.raises(QuantityError, match=why):
        format_quantity(value, resource)


@given(st.integers(-LARGEST, LARGEST), st.sampled_from(["cpu", "limits.cpu"]))
def test_any_cpu_survives_being_written_and_read(value: int, resource: str) -> None:
    assert nano(format_nano(value, resource)) == value


@given(
    st.integers(0, 2**63 - 1) | st.builds(lambda n, p: n << p, st.integers(0, 1023), st.integers(0, 53)),
    st.sampled_from(["memory", "hugepages-1Gi", "pods", "amd.com/gpu"]),
)
def test_any_whole_amount_survives_being_written_and_read(value: int, resource: str) -> None:
    text = format_quantity(value, resource)
    assert parse(text) == value
    assert format_nano(nano(text), resource) == text


@given(
    st.from_regex(
        r"[+-]?[0-9]{1,12}(\.[0-9]{0,12})?(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|e[+-]?[0-9]{1,2})?", fullmatch=True
    )
)
def test_every_text_of_the_grammar_is_read(text: str) -> None:
    assert nano("-" + text.lstrip("+-")) == -nano(text.lstrip("+-"))


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused_and_nothing_else_happens(text: str) -> None:
    with contextlib.suppress(QuantityError):
        assert isinstance(nano(text), int)


def test_kinds_of_resources() -> None:
    assert [
        r for r in ("cpu", "memory", "requests.memory", "hugepages-2Mi", "pods", "nvidia.com/gpu") if is_bytes(r)
    ] == [
        "memory",
        "requests.memory",
        "hugepages-2Mi",
    ]
    assert [r for r in ("cpu", "limits.cpu", "memory", "pods", "nvidia.com/gpu") if is_count(r)] == [
        "pods",
        "nvidia.com/gpu",
    ]


@pytest.mark.parametrize(
    ("resource", "smallest"),
    [("cpu", "1m"), ("memory", "1"), ("pods", "1"), ("hugepages-2Mi", "2Mi"), ("hugepages-1Gi", "1Gi"), ("a.b/c", "1")],
)
def test_the_smallest_useful_amount(resource: str, smallest: str) -> None:
    assert quantum(resource) == nano(smallest)


@pytest.mark.cluster
def test_an_api_server_leaves_what_we_write_as_it_is(local: Cluster) -> None:
    for value, resource, _ in FORMATTED:
        text = format_quantity(value, resource)
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "quantities"},
            "status": {"capacity": {resource: text}},
        }
        answer = local.api.post("/api/v1/nodes?dryRun=All", node)
        assert answer["status"]["capacity"] == {resource: text}


@pytest.mark.cluster
def test_an_api_server_reads_the_same_value(local: Cluster, namespace: str) -> None:
    """Lists of resources are rounded up to thousandths on arrival, so finer ones are left out."""
    texts = [text for text, value in VALUES if value >= 0 and value * 1000 == int(value * 1000)]
    for text in texts:
        quota = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "quantities"},
            "spec": {"hard": {"requests.cpu": text}},
        }
        answer = local.api.post(f"/api/v1/namespaces/{namespace}/resourcequotas?dryRun=All", quota)
        assert parse(answer["spec"]["hard"]["requests.cpu"]) == parse(text), text


@pytest.mark.parametrize(
    ("text", "resource", "shown"),
    [
        ("3600m", "cpu", "3600m"),
        ("99", "pods", "99"),
        ("0", "memory", "0"),
        ("1000", "memory", "1000"),
        ("14509520486", "memory", "13.5Gi"),
        ("14680064Ki", "memory", "14Gi"),
        ("1536Gi", "ephemeral-storage", "1.5Ti"),
        ("1023Mi", "memory", "1023Mi"),
    ],
)
def test_for_people(text: str, resource: str, shown: str) -> None:
    assert readable(text, resource) == shown
