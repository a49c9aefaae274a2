"""Processes that outlive the command that starts them, and are stopped by exactly who they are.

A process is recorded *by itself*, before it becomes the program it runs: a shell writes its own line of
``/proc/PID/stat`` and the machine's boot id, joins the cluster's cgroup, then ``exec``s. So there is no moment, not
even under kill -9 of the starter, in which a process runs and nobody knows of it; and a pid that now belongs to
somebody else, or to another boot, is never signalled.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from devcluster.errors import DevclusterError

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_PF_EXITING = 0x4
"""In the flags of ``/proc/PID/stat``: the process is on its way out (include/linux/sched.h)."""
_SIGKILL_BIT = 1 << (signal.SIGKILL - 1)

_RECORD_THEN_EXEC = """
record=$1 cgroups=$2; shift 2
for group in $cgroups; do echo $$ >"$group/cgroup.procs" || exit 125; done
read -r stat </proc/$$/stat
read -r boot </proc/sys/kernel/random/boot_id
printf '%s\\n%s\\n' "$boot" "$stat" >"$record" || exit 125
exec "$@"
"""
"""Of the shell's own means only: a process that it started would be one that nobody knows of, and be ended as such."""


@dataclass(frozen=True, slots=True)
class Command:
    """What is needed to start a component, and to start it again."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    netns: str | None = None
    """Path of the network namespace that it runs in; None: the machine's."""
    mount_holder: bool = False
    """Whether it runs in the mount namespace of the cluster's ``host`` process."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which process: pids are reused, but not together with their start time within one boot."""

    pid: int
    start_time: int

    def alive(self) -> bool:
        """Whether it still runs.

        A zombie does not, unless only its first thread is one: the others still hold its sockets and files.
        """
        stat = _stat(self.pid)
        if stat is None or stat.start_time != self.start_time:
            return False
        return stat.state not in "ZX" or _threads(self.pid) > 1

    def doomed(self) -> bool:
        """Whether it was sent a SIGKILL that has not ended it yet."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True
        stat = _stat(self.pid)
        pending = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd:", "ShdPnd:")))
        return stat is None or bool(stat.flags & _PF_EXITING) or any(signals & _SIGKILL_BIT for signals in pending)


@dataclass(frozen=True, slots=True)
class _Stat:
    state: str
    flags: int
    start_time: int


class Component:
    """One supervised program of a cluster: its record, its log, and the verbs start, stop and signal."""

    def __init__(self, name: str, run: Path, logs: Path, cgroups: Sequence[Path] = ()) -> None:
        self.name = name
        self.log = logs / f"{name}.log"
        self._run = run
        self._record = run / f"{name}.pid"
        self._command = run / f"{name}.json"
        self._cgroups = cgroups

    def identity(self) -> Identity | None:
        """Who was started last, if that was in this boot."""
        try:
            boot, stat = self._record.read_text().splitlines()
        except (FileNotFoundError, ValueError):
            return None
        if boot != _BOOT_ID.read_text().strip():
            return None
        return Identity(int(stat.split(" ", 1)[0]), _parse_stat(stat).start_time)

    def alive(self) -> bool:
        """Whether it runs; one that was just killed is waited for, so that nobody counts on it."""
        identity = self.identity()
        if identity is None or not identity.alive():
            return False
        return not (identity.doomed() and wait_for(lambda: not identity.alive(), 20))

    def state(self) -> str:
        """``running``, ``paused`` (stopped by a signal), ``dead`` or ``not started``."""
        identity = self.identity()
        if identity is None:
            return "not started"
        if not identity.alive():
            return "dead"
        stat = _stat(identity.pid)
        return "paused" if stat is not None and stat.state == "T" else "running"

    def command(self) -> Command | None:
        """How it was started last."""
        try:
            return Command(**json.loads(self._command.read_text()))
        except FileNotFoundError:
            return None

    def start(self, command: Command, *, mount_namespace: Identity | None = None) -> None:
        """Start it unless it runs; returns once its record is written."""
        if self.alive():
            return
        if shutil.which(command.argv[0], path=command.env.get("PATH")) is None:
            raise DevclusterError(f"{self.name} could not be started: there is no program {command.argv[0]}")
        self._run.mkdir(parents=True, exist_ok=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._record.unlink(missing_ok=True)
        aside = self._command.with_suffix(".new")
        aside.write_text(json.dumps(asdict(command)))
        aside.replace(self._command)
        enter: list[str] = []
        if command.netns or command.mount_holder:
            enter = ["nsenter"]
            if command.netns:
                enter.append(f"--net={command.netns}")
            if command.mount_holder:
                if mount_namespace is None or not mount_namespace.alive():
                    raise DevclusterError(f"{self.name} needs the cluster's host process, which is not running")
                enter.append(f"--mount=/proc/{mount_namespace.pid}/ns/mnt")
            enter.append("--")
        wrapper = ["sh", "-c", _RECORD_THEN_EXEC, self.name, str(self._record)]
        groups = " ".join(str(group) for group in self._cgroups)
        with self.log.open("ab") as log:
            child = subprocess.Popen(
                [*wrapper, groups, *enter, *command.argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **command.env},
                cwd=self._run,
                start_new_session=True,
            )
        wait_for(lambda: self.identity() is not None or child.poll() is not None, 10)
        if self.identity() is None:
            raise DevclusterError(f"{self.name} could not be started: {self.tail(3)} (log: {self.log})")
        _CHILDREN[child.pid] = child

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal; False if it does not run."""
        identity = self.identity()
        if identity is None or not identity.alive():
            return False
        return _send(identity, number)

    def stop(self, timeout: float = 15.0) -> None:
        """SIGTERM, then SIGKILL after the timeout; returns when it is gone."""
        identity = self.identity()
        if identity is not None and identity.alive():
            _send(identity, signal.SIGTERM)
            _send(identity, signal.SIGCONT)  # a paused process only sees SIGTERM once it continues
            if not wait_for(lambda: not _reap(identity), timeout):
                self.kill()
        self._record.unlink(missing_ok=True)

    def kill(self) -> None:
        """kill -9; returns when it is gone."""
        identity = self.identity()
        if identity is None or not identity.alive():
            return
        _send(identity, signal.SIGKILL)
        if not wait_for(lambda: not _reap(identity), 20):
            raise DevclusterError(f"{self.name} (pid {identity.pid}) does not end after SIGKILL")

    def tail(self, lines: int = 20) -> str:
        """The last lines of its log."""
        return tail(self.log, lines)


_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}
"""Our own children, so that they are reaped and do not stay as zombies for as long as we live."""


def tail(path: Path, lines: int) -> str:
    """The last lines of a file, without reading all of it."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - lines * 400))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""


def write_changed(path: Path, text: str) -> None:
    """Write a file for a program that may watch it: only if it differs, and never half of it."""
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.new")
    aside.write_text(text)
    aside.replace(path)


def kill_all(pids: Sequence[int]) -> None:
    """kill -9 of processes that were found in a cgroup or namespace of ours."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            child = _CHILDREN.get(pid)
            if child is not None:
                child.poll()


def proportional_memory(pid: int) -> int:
    """Bytes of memory with shared pages split among their users (PSS), so that sums are right."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    for line in rollup.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def watches_in_use() -> int:
    """Inotify instances that this user's processes have open; the kernel limits them per user."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if process.stat().st_uid == os.getuid():
                count += sum(1 for descriptor in (process / "fd").iterdir() if _is_watch(descriptor))
    return count


def _is_watch(descriptor: Path) -> bool:
    try:
        return str(descriptor.readlink()) == "anon_inode:inotify"
    except OSError:  # closed meanwhile, as that by which this list was read
        return False


def wait_for(condition: Callable[[], object], timeout: float, interval: float = 0.02) -> bool:
    """Poll until the condition holds; False when it does not in time."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval)
    return True


def _send(identity: Identity, number: signal.Signals) -> bool:
    """Send a signal; False if the process ended since it was last looked at."""
    try:
        os.kill(identity.pid, number)
    except ProcessLookupError:
        return False
    return True


def _reap(identity: Identity) -> bool:
    """Collect it if it is our child; whether it is still alive."""
    alive = identity.alive()
    if not alive and (child := _CHILDREN.pop(identity.pid, None)) is not None:
        child.wait()
    return alive


def _threads(pid: int) -> int:
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())
    except FileNotFoundError:
        return 0


def _stat(pid: int) -> _Stat | None:
    try:
        return _parse_stat(Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None


def _parse_stat(line: str) -> _Stat:
    # the second field is the program's name in parentheses, and may hold blanks and parentheses itself
    fields = line.rsplit(")", 1)[1].split()
    return _Stat(state=fields[0], flags=int(fields[6]), start_time=int(fields[19]))
