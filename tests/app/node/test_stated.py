"""What people and their programs state is taken as they mean it, or refused with the place of the mistake."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.node.capacity import Capacity, CapacityError
from app.node.stated import parse_flag, parse_output

GOOD = [
    ("cpu=100,memory=256Gi", {"cpu": "100", "memory": "256Gi"}),
    (" cpu = 1.5 , pods=5,", {"cpu": "1500m", "pods": "5"}),
    ("memory=0.1Gi", {"memory": "107374182"}),
    ("cpu=0.0001", {"cpu": "0"}),
    ("nvidia.com/gpu=8,hugepages-2Mi=5Mi", {"hugepages-2Mi": "4Mi", "nvidia.com/gpu": "8"}),
    ("ephemeral-storage=1e9", {"ephemeral-storage": "1G"}),
]

BAD = [
    ("", "states no capacity"),
    (" , ", "states no capacity"),
    ("cpu", "'cpu' is not name=quantity"),
    ("cpu=", "'cpu=' is not name=quantity"),
    ("=5", "'=5' is not name=quantity"),
    ("cpu=many", "cpu: 'many' is not a quantity"),
    ("memory=256GB", "memory: '256GB': unknown suffix 'GB'"),
    ("cpu=-1", "cpu=-1 is negative"),
    ("cpu=1,cpu=2", "cpu is stated twice"),
    ("gpu=1", "unknown resource 'gpu'.*such as nvidia.com/gpu"),
    ("requests.cpu=1", "unknown resource 'requests.cpu'"),
    ("hugepages-x=1", "unknown resource 'hugepages-x'"),
    ("hugepages-=1", "unknown resource 'hugepages-'"),
    ("nvidia.com/gpu=0.5", "500m of nvidia.com/gpu: it comes in whole units only"),
    ("cpu=1e30", "more than Kubernetes can count"),
]


@pytest.mark.parametrize(("text", "capacity"), GOOD)
def test_flags(text: str, capacity: Capacity) -> None:
    assert parse_flag(text) == capacity


@pytest.mark.parametrize(("text", "why"), BAD)
def test_flags_that_are_wrong(text: str, why: str) -> None:
    with pytest.raises(CapacityError, match=why):
        parse_flag(text)


@pytest.mark.parametrize(
    "text",
    [
        "cpu=100\nmemory=256Gi\n",
        "# what is free tonight\n\n  cpu = 100   # cores\r\nmemory=256Gi",
        '{"cpu": 100, "memory": "256Gi"}',
        '\n {"memory": "262144Mi",\n "cpu": 1e2}\n',
        '{"cpu": "100", "memory": 274877906944}',
    ],
)
def test_output_in_all_its_forms(text: str) -> None:
    assert parse_output(text) == {"cpu": "100", "memory": "256Gi"}


def test_numbers_in_json_stay_exact() -> None:
    assert parse_output('{"cpu": 0.1, "memory": 9007199254740993}') == {"cpu": "100m", "memory": "9007199254740993"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the output states no capacity"),
        ("\n# nothing\n", "the output states no capacity"),
        ("{}", "the output states no capacity"),
        ("cpu=1\n\nmemory:5", "line 3: 'memory:5' is not name=quantity"),
        ("cpu=1\ncpu=2", "line 2: cpu is stated twice"),
        ("cpu=1\ngpu=2", "line 2: unknown resource 'gpu'"),
        ("cpu=1\nmemory=x", "line 2: memory: 'x' is not a quantity"),
        ('{"cpu": 1,\n "memory"}', "not valid JSON: line 2"),
        ('{"cpu": {"total": 1}}', "'cpu' is no quantity"),
        ('{"cpu": null}', "'cpu' is no quantity"),
        ('{"cpu": true}', "'cpu' is no quantity"),
        ('{"cpu": NaN}', "'cpu' is no quantity"),
        ('{"cpu": 1, "cpu": 2}', "cpu is stated twice"),
        ('{"cpu": "-1"}', "cpu=-1 is negative"),
        ("<html>Bad gateway</html>", "line 1: '<html>Bad gateway</html>' is not name=quantity"),
    ],
)
def test_output_that_is_wrong(text: str, why: str) -> None:
    with pytest.raises(CapacityError, match=why):
        parse_output(text)


def test_json_that_is_too_deep_is_refused() -> None:
    with pytest.raises(CapacityError, match="not valid JSON"):
        parse_output('{"cpu": ' + "[" * 100_000)


@given(st.text() | st.text(alphabet='{}":,=[]cpu0123456789Gim#\n '))
def test_any_output_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(CapacityError):
        assert parse_output(text)
