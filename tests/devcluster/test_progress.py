"""What a person sees of a long step, at a terminal and in a log."""

import io
import re
import threading
import time

import pytest

from devcluster.progress import Reporter, State, duration


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.04, "0.0s"),
        (9.94, "9.9s"),
        (9.96, "10s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (130, "2m10s"),
        (3599.7, "1h00m"),
        (3900, "1h05m"),
    ],
)
def test_duration(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (State(), ""),
        (State(812, 2100), "812/2100 packages"),
        (State(2100, 2100, "linking"), "2100/2100 packages, linking"),
        (State(5, None, "downloading"), "downloading"),
        (State(0, 0, "linking"), "linking"),
    ],
)
def test_state_in_words(state: State, expected: str) -> None:
    assert state.describe("packages") == expected


def test_log_has_one_line_per_step() -> None:
    out = io.StringIO()
    with Reporter(out).step("Starting remote: etcd") as step:
        step.update(1, 2, "waiting")
    assert out.getvalue().splitlines() == ["Starting remote: etcd: 0.0s"]


def test_log_has_a_line_now_and_then_in_a_long_step() -> None:
    out = io.StringIO()
    with Reporter(out, period=0.01).step("building x v1", unit="packages", announce=True) as step:
        step.update(3, 9)
        deadline = time.monotonic() + 60
        while out.getvalue().count("\n") < 3 and time.monotonic() < deadline:
            time.sleep(0.005)
    first, second, *_, last = out.getvalue().splitlines()
    assert first == "building x v1"
    assert second.startswith("building x v1: 3/9 packages, 0.")
    assert last.startswith("building x v1: 0.")
    assert len(out.getvalue().splitlines()) >= 4


@pytest.mark.parametrize(("error", "word"), [(ValueError, "failed"), (KeyboardInterrupt, "interrupted")])
def test_log_says_how_a_step_ended(error: type[BaseException], word: str) -> None:
    out = io.StringIO()
    with pytest.raises(error), Reporter(out).step("x"):
        raise error
    assert out.getvalue() == f"x: {word} after 0.0s\n"


def test_update_keeps_what_is_not_given() -> None:
    with Reporter(io.StringIO()).step("x") as step:
        step.update(1, 2, "a")
        step.update(done=2)
        assert step.state == State(2, 2, "a")
        step.update(note="b")
        assert step.state == State(2, 2, "b")


def test_terminal_shows_the_step_and_what_stays_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    out = io.StringIO()
    with Reporter(out, terminal=True).step("building [x]", unit="packages") as step:
        step.update(3, 9, "note")
        step.say("said at once")
        time.sleep(0.2)
    shown = out.getvalue()
    assert "3/9 packages, note" in shown
    assert "building [x]: said at once\n" in shown
    assert re.search(r" building \[x\]: \d+\.\ds$", shown.rstrip().splitlines()[-1])
    assert "✓" in shown


def test_steps_of_several_threads_share_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = io.StringIO()
    reporter = Reporter(out, terminal=True)
    together = threading.Barrier(4, timeout=60)

    def work(number: int) -> None:
        with reporter.step(f"step {number}") as step:
            together.wait()
            step.update(note="half")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        assert f" step {number}: 0." in out.getvalue()
    with reporter.step("later"):
        pass
    assert " later: 0.0s" in out.getvalue()
