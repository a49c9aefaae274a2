"""Counters rise, begin anew only where they must, and give the rates back that they were made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_api.usage.counters import Counters
from kubelet_api.usage.snapshot import FLOOR, PodUsage, Sample
from tests.kubelet_api.usage.pods import START, placed, rate, total

LATER = START + 10_000


def tell(counters: Counters, sample: Sample, **options: float) -> PodUsage:
    usage = counters.pod(placed(**options), {"main": sample})  # type: ignore[arg-type]
    assert usage is not None
    return usage


def cpu(usage: PodUsage) -> float:
    return usage.containers[0].cpu


def test_a_young_container_is_measured_from_its_start() -> None:
    assert cpu(tell(Counters(), rate(12, 0.5))) == pytest.approx(6)


def test_what_is_old_when_it_is_first_seen_begins_near_zero() -> None:
    """Whenever Farlet was started. A guess would look like a burst of work to whoever has the counter of the Farlet
    that was asked before; less than that is a reset."""
    leader, standby = Counters(), Counters()
    told = [cpu(tell(leader, rate(at, 0.1))) for at in range(15, 36_000, 15)]
    taken_over = cpu(tell(standby, rate(36_000, 1.0)))
    assert taken_over == FLOOR < told[-1]
    assert cpu(tell(standby, rate(36_015, 1.0))) == pytest.approx(15, abs=1e-3)


def test_a_container_that_was_replaced_while_nobody_asked_begins_near_zero_too() -> None:
    counters = Counters()
    before = tell(counters, rate(20, 1.0))
    after = tell(counters, rate(10_000, 1.0), started=START + 100)
    assert cpu(after) == FLOOR
    assert after.cpu == pytest.approx(before.cpu, abs=1e-3)


@pytest.mark.parametrize("missing", [{}, {"side": rate(45, 2.0, memory=0)}], ids=["none", "no memory"])
def test_a_sample_that_is_missing_is_made_up_for_by_the_next(missing: dict[str, Sample]) -> None:
    """Of one container of several: its sum goes on from where it was."""
    counters, pod = Counters(), placed(containers=("main", "side"))

    def told(**samples: Sample) -> dict[str, float]:
        usage = counters.pod(pod, samples)
        assert usage is not None
        return {container.name: container.cpu for container in usage.containers}

    first = told(main=rate(30, 1.0), side=rate(30, 0.1))
    assert set(told(main=rate(45, 1.0), **missing)) == {"main"}
    third = told(main=rate(60, 1.0), side=rate(60, 2.0))
    assert third["side"] - first["side"] == pytest.approx(2.0 * 30)
    assert third["main"] - first["main"] == pytest.approx(1.0 * 30)


def test_rates_come_out_as_they_went_in() -> None:
    counters = Counters()
    usages = [tell(counters, rate(at, cores)) for at, cores in ((15, 0.1), (30, 0.7), (61, 0.0), (76, 1.5))]
    for before, after, expected in zip(usages, usages[1:], (0.7, 0.0, 1.5), strict=False):
        one, other = before.containers[0], after.containers[0]
        assert (other.cpu - one.cpu) / (other.time - one.time) == pytest.approx(expected)
        assert (after.cpu - before.cpu) / (after.time - before.time) == pytest.approx(expected)


def test_the_same_sample_again_changes_nothing() -> None:
    counters = Counters()
    first = tell(counters, rate(15, 0.5))
    again = tell(counters, rate(15, 0.9))
    older = tell(counters, rate(14, 0.9))
    assert again.containers == older.containers == first.containers
    assert again.cpu == older.cpu == first.cpu


@pytest.mark.parametrize("sample", [rate(15, 0.5, memory=0), rate(-5, 0.5), total(15, 0.0), total(15, 1.0, memory=0)])
def test_what_is_not_known_is_not_told(sample: Sample) -> None:
    """No memory, a time before the container's start, no CPU counted: metrics-server would hide the whole pod."""
    counters = Counters()
    assert counters.pod(placed(), {"main": sample}) is None
    assert len(counters) == 0


def test_an_idle_container_is_told_of() -> None:
    usage = tell(Counters(), rate(20, 0.0))
    assert cpu(usage) == FLOOR
    assert usage.rate == 0


def test_only_what_runs_is_told_of() -> None:
    usage = Counters().pod(placed(containers=("main",)), {"main": rate(5, 1), "ended": rate(5, 1)})
    assert usage is not None
    assert [container.name for container in usage.containers] == ["main"]


def test_a_container_without_a_sample_does_not_hide_the_others() -> None:
    usage = Counters().pod(placed(containers=("main", "new")), {"main": rate(5, 1)})
    assert usage is not None
    assert [container.name for container in usage.containers] == ["main"]


def test_a_restart_begins_anew_and_the_pod_goes_on() -> None:
    counters = Counters()
    before = tell(counters, rate(20, 1.0))
    after = tell(counters, rate(40, 1.0), started=START + 30)
    assert cpu(after) == pytest.approx(10)
    assert after.containers[0].started == START + 30
    assert after.cpu == pytest.approx(before.cpu + 10)


def test_a_late_word_of_the_container_before_is_not_taken_for_the_new_one() -> None:
    counters = Counters()
    tell(counters, rate(20, 1.0))
    assert counters.pod(placed(started=START + 30), {"main": rate(25, 1.0)}) is None


def test_a_replaced_remote_pod_keeps_the_pods_sum() -> None:
    """Also where the source counts whole pods: the new remote pod's sum begins at zero."""
    counters = Counters()
    first = counters.pod(placed(), {"main": total(20, 7.0)}, total(20, 8.0))
    sample = total(40, 2.0, started=START + 30)
    second = counters.pod(placed(twin="another", started=START + 30), {"main": sample}, total(40, 2.5))
    third = counters.pod(
        placed(twin="another", started=START + 30), {"main": total(50, 3.0, started=START + 30)}, total(50, 3.5)
    )
    assert first is not None
    assert second is not None
    assert third is not None
    assert (first.cpu, second.cpu, third.cpu) == (8.0, 10.5, 11.5)
    assert (cpu(first), cpu(second), cpu(third)) == (7.0, 2.0, 3.0)
    assert third.containers[0].rate == pytest.approx(0.1)


def test_the_node_is_all_pods_and_never_falls() -> None:
    counters = Counters()
    pods = [
        counters.pod(placed("a", uid="a"), {"main": rate(20, 0.5)}),
        counters.pod(placed("b", uid="b"), {"main": rate(20, 1.5, memory=5)}),
    ]
    told = [pod for pod in pods if pod is not None]
    first = counters.node(told, LATER)
    second = counters.node(told, LATER + 10)
    third = counters.node(told[:1], LATER + 20)
    back = counters.node(told[:1], LATER + 5)
    assert first.cpu == FLOOR
    assert second.cpu == pytest.approx(20)
    assert third.cpu == pytest.approx(25)
    assert (back.cpu, back.time) == (third.cpu, third.time), "a clock that is put back"
    assert (second.memory, third.memory) == ((1 << 20) + 5, 1 << 20)


def test_a_node_without_pods_is_not_zero() -> None:
    node = Counters().node([], LATER)
    assert node.cpu > 0
    assert node.memory > 0
    assert node.rate == 0


def test_pods_that_are_gone_are_forgotten() -> None:
    counters = Counters()
    for uid in ("a", "b", "c"):
        counters.pod(placed(uid=uid), {"main": rate(20, 0.5)})
    counters.forget({"b"})
    assert len(counters) == 1


steps = st.lists(
    st.tuples(
        st.floats(0, 100, allow_nan=False),  # seconds since the last sample
        st.floats(0, 64, allow_nan=False),  # cores
        st.booleans(),  # started anew in between
    ),
    min_size=1,
    max_size=30,
)


@given(steps)
def test_whatever_happens_nothing_is_zero_and_nothing_falls(story: list[tuple[float, float, bool]]) -> None:
    counters = Counters()
    at, started = 1.0, START
    seen: PodUsage | None = None
    for pause, cores, anew in story:
        if anew:
            started = START + at + pause / 2
        at += pause
        usage = counters.pod(placed(started=started), {"main": rate(at, cores)})
        if usage is None:
            continue
        container = usage.containers[0]
        assert container.cpu > 0
        assert container.time >= container.started
        if seen is not None:
            before = seen.containers[0]
            assert usage.cpu >= seen.cpu
            assert usage.time >= seen.time
            assert container.time >= before.time
            if before.started == container.started:
                assert container.cpu >= before.cpu
        seen = usage
