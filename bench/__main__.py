"""``python -m bench``: run the benchmarks and print their tables."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from bench import floor, informer, metrics, offload, reflection, streams, webhook
from devcluster.errors import DevclusterError


def _floor(given: argparse.Namespace) -> None:
    floor.run(given.pods, nodes=given.nodes, keep=given.keep)


def _offload(given: argparse.Namespace) -> None:
    offload.run(
        given.pods,
        nodes=given.nodes,
        trickled=given.trickle,
        idle=given.idle,
        keep=given.keep,
        profile=given.profile,
    )


def _informer(given: argparse.Namespace) -> None:
    informer.run(max(given.pods))


def _metrics(given: argparse.Namespace) -> None:
    metrics.run()
    metrics.run_real(keep=given.keep)


def _streams(given: argparse.Namespace) -> None:
    streams.run(
        given.megabytes,
        rounds=given.rounds,
        runs=given.runs,
        sessions=given.sessions,
        keep=given.keep,
        profile=given.profile,
    )


def _reflection(given: argparse.Namespace) -> None:
    reflection.run(given.objects, keep=given.keep, profile=given.profile)


def _webhook(given: argparse.Namespace) -> None:
    webhook.run(100, rounds=6, seconds=5.0, keep=given.keep)


BENCHES: dict[str, Callable[[argparse.Namespace], None]] = {
    "offload": _offload,
    "floor": _floor,
    "informer": _informer,
    "streams": _streams,
    "metrics": _metrics,
    "reflection": _reflection,
    "webhook": _webhook,
}


def main() -> int:
    given = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # Farlet and the clusters are then stopped on the way out
    try:
        for name in given.only:
            BENCHES[name](given)
    except DevclusterError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench", description="Farlet's benchmarks on clusters of their own.")
    option = parser.add_argument
    option("--pods", type=_numbers, default=[100, 1000], metavar="N,...", help="how many pods (default: 100,1000)")
    option("--nodes", type=int, default=20, metavar="N", help="fake nodes, each for 1000 pods (default: %(default)s)")
    option("--only", type=_names, default=list(BENCHES), metavar="NAME,...", help=f"of {', '.join(BENCHES)}")
    option("--trickle", type=int, default=150, metavar="N", help="pods one at a time (default: %(default)s)")
    option("--idle", type=float, default=60, metavar="SECONDS", help="nothing happens for (default: %(default)s)")
    option("--megabytes", type=int, default=100, metavar="N", help="through each stream (default: %(default)s)")
    option("--rounds", type=int, default=5, metavar="N", help="of each throughput (default: %(default)s)")
    option("--runs", type=int, default=30, metavar="N", help="of each time to first byte (default: %(default)s)")
    option("--objects", type=int, default=1000, metavar="N", help="of each kind, reflected (default: %(default)s)")
    option("--sessions", type=int, default=500, metavar="N", help="at once (default: %(default)s)")
    option("--keep", action="store_true", help="leave the clusters running for the next time")
    option("--profile", type=Path, metavar="FILE", help="write where Farlet spends its time")
    return parser


def _numbers(text: str) -> list[int]:
    try:
        return [int(count) for count in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: numbers separated by commas") from None


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in BENCHES]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are {', '.join(BENCHES)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
