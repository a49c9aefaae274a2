"""``python -m bench.sampler FILE MODULE ...``: run a module and write down where its threads spend their time.

A look at every thread's stack some hundred times a second: it costs little, sees threads that a tracing profiler does
not, and changes no proportions. Each look counts as much as the CPU time that the thread has used since the one before,
so that waiting, for the network or for a busy machine, counts nothing. FILE gets each function's share, its own and
with what it calls.
"""

from __future__ import annotations

import atexit
import runpy
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType

_INTERVAL = 0.004
_MOST = 60


class Sampler:
    """Counts where threads are."""

    def __init__(self) -> None:
        self._own: Counter[str] = Counter()
        self._within: Counter[str] = Counter()
        self._used: dict[int, int] = {}
        """CPU time of each thread at the last look, in nanoseconds, as are all counts."""

    def run(self) -> None:
        this = threading.get_ident()
        while True:
            time.sleep(_INTERVAL)
            for thread, frame in sys._current_frames().items():
                if thread != this:
                    self._take(thread, frame)

    def report(self) -> str:
        everything = max(self._own.total(), 1)

        def lines(counts: Counter[str]) -> list[str]:
            return [f"{count / everything:7.1%}  {name}" for name, count in counts.most_common(_MOST)]

        parts = [f"{everything / 1e9:.2f} s of CPU", "", "own time", *lines(self._own), "", "with what it calls"]
        return "\n".join([*parts, *lines(self._within)]) + "\n"

    def _take(self, thread: int, frame: FrameType | None) -> None:
        try:
            used = time.clock_gettime_ns(time.pthread_getcpuclockid(thread))
        except OSError:  # it has ended
            return
        cost = used - self._used.get(thread, used)
        self._used[thread] = used
        if frame is None or not cost:
            return
        self._own[_name(frame)] += cost
        seen: set[str] = set()
        while frame is not None:
            seen.add(_name(frame))
            frame = frame.f_back
        for name in seen:
            self._within[name] += cost


def _name(frame: FrameType) -> str:
    code = frame.f_code
    return f"{'/'.join(Path(code.co_filename).parts[-2:])} {code.co_qualname}"


def main() -> None:
    target, module = Path(sys.argv[1]), sys.argv[2]
    sampler = Sampler()
    threading.Thread(target=sampler.run, daemon=True).start()
    atexit.register(lambda: target.write_text(sampler.report()))
    sys.argv = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
