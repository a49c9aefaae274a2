"""``python -m bench``: run the benchmarks and print their tables."""

from __future__ import annotations

import argparse
import sys

from bench import floor, offload
from devcluster.errors import DevclusterError

BENCHES = {"floor": floor.run, "offload": offload.run}


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description="Farlet's benchmarks on clusters of their own.")
    parser.add_argument(
        "--pods", default="100,1000,10000", metavar="N,...", help="how many pods (default: %(default)s)"
    )
    parser.add_argument("--nodes", type=int, default=100, metavar="N", help="fake nodes (default: %(default)s)")
    parser.add_argument("--only", default="", metavar="NAME,...", help=f"of {', '.join(BENCHES)} (default: all)")
    given = parser.parse_args()
    try:
        counts = [int(count) for count in given.pods.split(",")]
    except ValueError:
        parser.error(f"--pods {given.pods}: numbers separated by commas")
    try:
        for name in given.only.split(",") if given.only else BENCHES:
            if name not in BENCHES:
                parser.error(f"--only {name}: there are {', '.join(BENCHES)}")
            BENCHES[name](counts, nodes=given.nodes)
    except DevclusterError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
