"""What a person sees while something takes long: what is being done, how far it is, how long it has taken.

At a terminal every step is a line that moves, and one line that stays when it is over. Elsewhere (CI, a log file)
nothing can move, so a step says one line at its end, and one every 15 seconds until then: silence is what makes
people press Ctrl-C. Steps may run at the same time in several threads.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

PERIOD: Final = 15.0
"""Seconds between two lines of one step where nothing can move."""


@dataclass(frozen=True, slots=True)
class State:
    """How far a step is."""

    done: int = 0
    total: int | None = None
    note: str = ""

    def describe(self, unit: str = "") -> str:
        """`812/2100 packages, linking`: the parts that are known."""
        count = f"{self.done}/{self.total} {unit}".rstrip() if self.total else ""
        return ", ".join(part for part in (count, self.note) if part)


class Step:
    """One thing that takes long. Made by `step`; its methods may be called from any thread."""

    def __init__(self, reporter: "Reporter", title: str, unit: str) -> None:
        self.title = title
        self.unit = unit
        self.state = State()
        self._reporter = reporter
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def update(self, done: int | None = None, total: int | None = None, note: str | None = None) -> None:
        """Change what is shown; what is not given stays. A total of 0 takes the bar away."""
        state = self.state
        self.state = State(
            state.done if done is None else done,
            state.total if total is None else total,
            state.note if note is None else note,
        )
        self._reporter.refresh(self)

    def say(self, text: str) -> None:
        """Say at once something that the reader should know now, such as what is being waited for."""
        self._reporter.line(f"{self.title}: {text}")

    def line(self) -> str:
        """The step as one line of a log: `building kubernetes v1.36.3: 812/2100 packages, 2m10s`."""
        parts = (self.state.describe(self.unit), duration(self.seconds))
        return f"{self.title}: " + ", ".join(part for part in parts if part)


class Reporter:
    """Shows the steps of this process in one place."""

    def __init__(self, stream: TextIO | None = None, *, terminal: bool | None = None, period: float = PERIOD) -> None:
        self._stream = stream
        self._terminal = terminal
        self._period = period
        self._lock = threading.Lock()
        self._rows: dict[Step, TaskID] = {}
        self._live: Progress | None = None

    @contextmanager
    def step(self, title: str, *, unit: str = "", announce: bool = False) -> Iterator[Step]:
        """Show a step while the block runs, and how it ended; `announce` also says its start where nothing moves."""
        step = Step(self, title, unit)
        moves = self._open(step)
        if announce and not moves:
            self.line(title)
        ended = threading.Event()
        ticker = None if moves else threading.Thread(target=self._tick, args=(step, ended), daemon=True)
        if ticker:
            ticker.start()
        outcome = "failed after "
        try:
            yield step
            outcome = ""
        except KeyboardInterrupt:
            outcome = "interrupted after "
            raise
        finally:
            ended.set()
            if ticker:
                ticker.join()
            self._close(step, outcome)

    def line(self, text: str) -> None:
        """Print a line that stays."""
        with self._lock:
            if self._live:
                self._live.console.print(Text(text))
            else:
                print(text, file=self._out(), flush=True)

    def refresh(self, step: Step) -> None:
        with self._lock:
            if self._live and step in self._rows:
                self._live.update(self._rows[step], **_row(step))  # type: ignore[arg-type]

    def _out(self) -> TextIO:
        # Looked up late: tests and pipes replace sys.stderr. Not stdout, which may be someone's input.
        return self._stream or sys.stderr

    def _open(self, step: Step) -> bool:
        """Give the step its row; False where nothing can move."""
        console = Console(file=self._out(), force_terminal=self._terminal)
        if not console.is_terminal or console.is_dumb_terminal:
            return False
        with self._lock:
            if not self._live:
                self._live = Progress(
                    SpinnerColumn(),
                    TextColumn("{task.description}", table_column=Column(no_wrap=True), markup=False),
                    BarColumn(bar_width=24),
                    TextColumn("{task.fields[detail]}", table_column=Column(no_wrap=True, ratio=1), markup=False),
                    _ElapsedColumn(),
                    console=console,
                    transient=True,
                )
                self._live.start()
            self._rows[step] = self._live.add_task(step.title, step=step, **_row(step))  # type: ignore[arg-type]
        return True

    def _close(self, step: Step, outcome: str) -> None:
        text = f"{step.title}: {outcome}{duration(step.seconds)}"
        with self._lock:
            row = self._rows.pop(step, None)
            live = self._live
            if live is None or row is None:
                print(text, file=self._out(), flush=True)
                return
            mark, style = ("✗", "red") if outcome else ("✓", "green")
            live.remove_task(row)
            if not self._rows:
                live.stop()
                self._live = None
            live.console.print(Text.assemble((mark, style), " ", text))

    def _tick(self, step: Step, ended: threading.Event) -> None:
        while not ended.wait(self._period):
            self.line(step.line())


class _ElapsedColumn(TextColumn):
    """The seconds of the step, counted by the step: rich's own clock stops at 100 %, before a step is over."""

    def __init__(self) -> None:
        super().__init__("")

    def render(self, task: object) -> Text:
        step: Step = task.fields["step"]  # type: ignore[attr-defined]
        return Text(duration(step.seconds))


def _row(step: Step) -> dict[str, object]:
    state = step.state
    total = state.total or None
    # At 100 % rich stops its spinner, but a step is over only when its block ends.
    completed = min(state.done, 0.999 * total) if total else state.done
    return {"completed": completed, "total": total, "detail": state.describe(step.unit)}


def duration(seconds: float) -> str:
    """`0.8s`, `42s`, `2m10s`, `1h05m`: as precise as a person wants it."""
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m{rest:02}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02}m"


_reporter: Final = Reporter()

step: Final = _reporter.step
say: Final = _reporter.line
