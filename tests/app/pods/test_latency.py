"""What counts as our latency, and what does not."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.pods.latency import Latency


@dataclass
class _Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class _Case:
    clock: _Clock = field(default_factory=_Clock)

    def __post_init__(self) -> None:
        self.latency = Latency(self.clock)

    def counts(self) -> tuple[int, int, int]:
        return self.latency.offload.count, self.latency.ready.count, self.latency.status.count


def test_the_way_of_a_pod() -> None:
    case = _Case()
    latency, clock = case.latency, case.clock
    latency.seen("a")
    clock.now += 2
    latency.seen("a")
    latency.made("a")
    assert (latency.offload.total, latency.longest_without_twin()) == (2, 0)
    latency.told("a", ready=False)
    assert case.counts() == (1, 0, 0), "a status that no change of the remote pod led to has no lag"
    latency.changed("a")
    clock.now += 3
    latency.looked("a")
    latency.told("a", ready=True)
    assert (latency.ready.total, latency.status.total) == (5, 3)
    latency.told("a", ready=True)
    assert case.counts() == (1, 1, 1), "each is counted once"


def test_pods_that_were_there_before_do_not_count() -> None:
    case = _Case()
    case.latency.seen("with-twin")
    case.latency.stays("with-twin")
    case.latency.made("with-twin")
    case.latency.made("never-seen")
    case.latency.told("never-seen", ready=True)
    assert case.counts() == (0, 0, 0)
    assert case.latency.longest_without_twin() == 0


def test_a_change_during_the_write_is_for_the_next_one() -> None:
    case = _Case()
    latency, clock = case.latency, case.clock
    latency.changed("a")
    latency.looked("a")
    clock.now += 1
    latency.changed("a")  # while the patch is on its way
    latency.told("a", ready=False)
    latency.settled("a")
    assert latency.status.total == 1
    clock.now += 4
    assert latency.longest_untold() == 4
    latency.looked("a")
    latency.told("a", ready=False)
    assert (latency.status.count, latency.status.total) == (2, 5)


def test_a_write_that_fails_counts_from_the_first_change() -> None:
    case = _Case()
    latency, clock = case.latency, case.clock
    latency.changed("a")
    latency.looked("a")
    clock.now += 10
    latency.changed("a")
    latency.looked("a")  # the first run failed
    clock.now += 10
    assert latency.longest_untold() == 20
    latency.told("a", ready=False)
    assert latency.status.total == 20


def test_a_change_that_says_nothing_new_is_settled() -> None:
    case = _Case()
    case.latency.changed("a")
    case.latency.looked("a")
    case.latency.settled("a")
    assert (case.latency.longest_untold(), case.counts()) == (0, (0, 0, 0))


def test_nothing_is_kept_of_a_pod_that_is_gone() -> None:
    case = _Case()
    latency = case.latency
    latency.seen("a")
    latency.changed("a")
    latency.seen("b")
    latency.made("b")
    latency.changed("b")
    latency.looked("b")
    latency.forget("a")
    latency.forget("b")
    case.clock.now += 5
    assert (latency.longest_without_twin(), latency.longest_untold()) == (0, 0)
    latency.told("b", ready=True)
    assert case.counts() == (1, 0, 0)
