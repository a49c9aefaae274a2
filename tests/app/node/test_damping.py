"""The node shrinks at once, grows when the growth has lasted, and does not flap."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import quantity
from app.node.capacity import Capacity
from app.node.damping import Damping, Sizing, damped, resize, settles_at, worth_publishing

DAMPING = Damping(threshold_percent=5, settle_seconds=30)


@pytest.mark.parametrize(
    ("old", "new", "threshold", "worth"),
    [
        ({"cpu": "100"}, {"cpu": "100"}, 5, False),
        ({"cpu": "100"}, {"cpu": "100000m"}, 0, False),
        ({"cpu": "100"}, {"cpu": "105"}, 5, False),
        ({"cpu": "100"}, {"cpu": "105001m"}, 5, True),
        ({"cpu": "100"}, {"cpu": "95"}, 5, False),
        ({"cpu": "100"}, {"cpu": "94"}, 5, True),
        ({"cpu": "100"}, {"cpu": "100001m"}, 0, True),
        ({"cpu": "0"}, {"cpu": "1m"}, 100, True),
        ({"cpu": "1m"}, {"cpu": "0"}, 100, True),
        ({"cpu": "1"}, {"cpu": "1", "nvidia.com/gpu": "0"}, 5, True),
        ({"cpu": "1", "nvidia.com/gpu": "1"}, {"cpu": "1"}, 5, True),
        ({"cpu": "100", "memory": "1Gi"}, {"cpu": "100", "memory": "2Gi"}, 5, True),
        ({"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "2"}, 5, True),
        ({}, {}, 5, False),
    ],
)
def test_what_is_worth_a_write(old: Capacity, new: Capacity, threshold: int, worth: bool) -> None:
    assert worth_publishing(old, new, threshold) is worth


CASES: list[tuple[str, Capacity, Capacity, float, Capacity, Capacity]] = [
    # what happens, published, candidate, its age, in use, published next
    ("the first", {}, {"cpu": "90"}, 0, {}, {"cpu": "90"}),
    ("growth, just seen", {"cpu": "90"}, {"cpu": "180"}, 0, {}, {"cpu": "90"}),
    ("growth, lasting", {"cpu": "90"}, {"cpu": "180"}, 29.9, {}, {"cpu": "90"}),
    ("growth, settled", {"cpu": "90"}, {"cpu": "180"}, 30, {}, {"cpu": "180"}),
    ("shrinks", {"cpu": "90"}, {"cpu": "45"}, 0, {}, {"cpu": "45"}),
    ("shrinks a little", {"cpu": "90"}, {"cpu": "89"}, 0, {}, {"cpu": "90"}),
    ("shrinks a little, for long", {"cpu": "90"}, {"cpu": "89"}, 999, {}, {"cpu": "90"}),
    ("shrinks a little, below what is used", {"cpu": "90"}, {"cpu": "89"}, 0, {"cpu": "89500m"}, {"cpu": "89"}),
    ("was below what is used before", {"cpu": "90"}, {"cpu": "89"}, 0, {"cpu": "100"}, {"cpu": "90"}),
    ("used is what the node never had", {"cpu": "90"}, {"cpu": "90"}, 0, {"x.y/z": "1"}, {"cpu": "90"}),
    ("grows a little, for long", {"cpu": "90"}, {"cpu": "91"}, 999, {}, {"cpu": "90"}),
    (
        "one shrinks and one grows: the shrinking one at once",
        {"cpu": "90", "memory": "1Gi"},
        {"cpu": "45", "memory": "2Gi"},
        0,
        {},
        {"cpu": "45", "memory": "1Gi"},
    ),
    (
        "a new resource waits as growth does",
        {"cpu": "90"},
        {"cpu": "90", "nvidia.com/gpu": "1"},
        0,
        {},
        {"cpu": "90"},
    ),
    (
        "a new resource, settled, takes small changes along",
        {"cpu": "90"},
        {"cpu": "91", "nvidia.com/gpu": "1"},
        30,
        {},
        {"cpu": "91", "nvidia.com/gpu": "1"},
    ),
    ("a resource that vanishes", {"cpu": "90", "nvidia.com/gpu": "1"}, {"cpu": "90"}, 0, {}, {"cpu": "90"}),
    ("from nothing", {"cpu": "0"}, {"cpu": "1"}, 0, {}, {"cpu": "0"}),
    ("to nothing", {"cpu": "1"}, {"cpu": "0"}, 0, {}, {"cpu": "0"}),
]


@pytest.mark.parametrize(
    ("published", "candidate", "age", "in_use", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_what_is_published_when(
    published: Capacity, candidate: Capacity, age: float, in_use: Capacity, expected: Capacity
) -> None:
    assert damped(published, candidate, 100.0, 100.0 + age, in_use=in_use, damping=DAMPING) == expected


def follow(measurements: list[tuple[float, str]], damping: Damping = DAMPING) -> list[tuple[float, str]]:
    """When which CPU was published."""
    sizing, seen = Sizing(), []
    for now, cpu in measurements:
        before = sizing.published
        sizing = resize(sizing, {"cpu": cpu}, now, in_use={}, damping=damping)
        if sizing.published != before:
            seen.append((now, sizing.published["cpu"]))
    return seen


def test_seed_003_in_time() -> None:
    every_ten_seconds = [(float(t), "90" if t < 20 else "45" if t < 40 else "180") for t in range(0, 100, 10)]
    assert follow(every_ten_seconds) == [(0, "90"), (20, "45"), (70, "180")]


def test_what_comes_and_goes_is_published_once_as_less() -> None:
    flapping = [(float(t), "90" if t // 10 % 2 == 0 else "45") for t in range(0, 300, 10)]
    assert follow(flapping) == [(0, "90"), (10, "45")]


def test_a_cluster_that_keeps_growing_is_followed() -> None:
    growing = [(float(t), str(100 + t)) for t in range(0, 200, 10)]
    published = follow(growing)
    assert len(published) > 3
    assert all(later - earlier >= 30 for (earlier, _), (later, _) in itertools.pairwise(published))


def test_growth_with_noise_arrives_at_what_was_there_all_the_time() -> None:
    noise = itertools.cycle(["180", "176", "183", "178"])
    assert follow([(0.0, "90"), *((float(t), next(noise)) for t in range(10, 50, 10))]) == [(0, "90"), (40, "176")]


def test_slow_drift_is_noticed_when_it_adds_up() -> None:
    assert [cpu for _, cpu in follow([(float(t), str(100 - t)) for t in range(0, 12)])] == ["100", "94", "89"]


def test_when_to_look_again() -> None:
    start = resize(Sizing(), {"cpu": "90"}, 5.0, in_use={}, damping=DAMPING)
    assert settles_at(start, DAMPING) is None
    waiting = resize(start, {"cpu": "180"}, 10.0, in_use={}, damping=DAMPING)
    assert waiting.published == {"cpu": "90"}
    assert settles_at(waiting, DAMPING) == 40.0
    done = resize(waiting, {"cpu": "180"}, 40.0, in_use={}, damping=DAMPING)
    assert done.published == {"cpu": "180"}
    assert settles_at(done, DAMPING) is None


STEPS = st.lists(st.tuples(st.floats(0.1, 60), st.integers(0, 200)), min_size=1, max_size=40)


@given(STEPS, st.integers(0, 20))
def test_it_never_offers_much_more_than_there_is_and_never_writes_for_a_trifle(
    steps: list[tuple[float, int]], threshold: int
) -> None:
    damping = Damping(threshold_percent=threshold, settle_seconds=30)
    sizing, now = Sizing(), 0.0
    for wait, cpu in steps:
        now += wait
        before = sizing.published
        measured = {"cpu": str(cpu)}
        sizing = resize(sizing, measured, now, in_use={}, damping=damping)
        published = quantity.parse(sizing.published["cpu"])
        assert published * (100 - threshold) <= cpu * 100, "more than the threshold too much"
        assert not before or sizing.published == before or worth_publishing(before, sizing.published, threshold)
    for _ in range(3):
        now += 31
        sizing = resize(sizing, measured, now, in_use={}, damping=damping)
    assert not worth_publishing(sizing.published, measured, threshold), "what lasts is published"
