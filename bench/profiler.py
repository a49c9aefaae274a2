"""``python -m bench.profiler FILE MODULE ...``: run a module and write down which functions use its CPU time.

Every thread is profiled by ``cProfile`` with the thread's own CPU clock, so that waiting, for the network or for a busy
machine, counts nothing. A profiler that looks at stacks now and then would be cheaper, but on a busy machine it gets
its turn when the others have finished theirs, and finds them all waiting.
"""

from __future__ import annotations

import atexit
import contextlib
import cProfile
import pstats
import runpy
import sys
import threading
import time
from pathlib import Path

_MOST = 70


def main() -> None:
    target, module = Path(sys.argv[1]), sys.argv[2]
    profiles: list[cProfile.Profile] = []

    def begin(*_: object) -> None:
        profile = cProfile.Profile(time.thread_time)
        with contextlib.suppress(ValueError):  # from Python 3.12 on, one profile sees all threads
            profile.enable()
            profiles.append(profile)

    def report() -> None:
        with target.open("w") as file:
            stats = pstats.Stats(*profiles, stream=file).strip_dirs()
            for order in ("tottime", "cumulative"):
                stats.sort_stats(order).print_stats(_MOST)

    threading.setprofile(begin)
    atexit.register(report)
    sys.argv = [module, *sys.argv[3:]]
    begin()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
