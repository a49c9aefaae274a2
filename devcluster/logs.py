"""Log rotation for programs that keep their log file open: copy, then truncate.

``python -m devcluster.logs FOLDER`` runs beside a fleet for as long as it is up.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from pathlib import Path

MAX_BYTES = 64 * 1024 * 1024
KEEP = 2
_PERIOD = 20.0


def rotate(log: Path, *, max_bytes: int = MAX_BYTES, keep: int = KEEP) -> bool:
    """Move a log that has grown too large to ``LOG.1``, older ones further; whether it was moved.

    Programs append (O_APPEND), so they go on at the start of the emptied file. The few lines that are written
    between the copy and the truncation are lost, as with logrotate's copytruncate.
    """
    if log.stat().st_size <= max_bytes:
        return False
    for number in range(keep, 1, -1):
        older = log.with_name(f"{log.name}.{number - 1}")
        if older.exists():
            older.replace(log.with_name(f"{log.name}.{number}"))
    shutil.copyfile(log, log.with_name(f"{log.name}.1"))
    with log.open("r+b") as file:
        file.truncate(0)
    return True


def rotate_all(folder: Path) -> None:
    """Rotate the component logs of every cluster of a fleet; the audit log is the API server's own affair."""
    for log in folder.glob("*/logs/*.log"):
        if not log.name.startswith("audit"):
            with contextlib.suppress(OSError):  # a log that has just gone, a full disk: the next round comes
                rotate(log)


def main() -> None:
    folder = Path(sys.argv[1])
    while folder.exists():
        rotate_all(folder)
        time.sleep(_PERIOD)


if __name__ == "__main__":
    main()
