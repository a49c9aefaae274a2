"""``python -m bench``: run the benchmarks and print their tables."""

from __future__ import annotations

import argparse
import sys

from bench import floor
from devcluster.errors import DevclusterError


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description="Farlet's benchmarks on clusters of their own.")
    parser.add_argument(
        "--pods", default="100,1000,10000", metavar="N,...", help="how many pods (default: %(default)s)"
    )
    parser.add_argument("--nodes", type=int, default=100, metavar="N", help="fake nodes (default: %(default)s)")
    given = parser.parse_args()
    try:
        counts = [int(count) for count in given.pods.split(",")]
    except ValueError:
        parser.error(f"--pods {given.pods}: numbers separated by commas")
    try:
        floor.run(counts, nodes=given.nodes)
    except DevclusterError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
