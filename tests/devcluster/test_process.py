"""A process is stopped by exactly who it is, and there is no moment in which nobody knows of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devcluster import process
from devcluster.errors import DevclusterError
from devcluster.process import Command, Component, Identity, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SLEEP = Command(["sleep", "1000"])
Make = Callable[..., Component]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes components, and ends whatever they started."""
    made: list[Component] = []
    before = set(process._CHILDREN)  # a worker that runs cluster tests too has clusters among its children

    def component(name: str = "program", **options: list[Path]) -> Component:
        made.append(Component(name, tmp_path / "run", tmp_path / "logs", **options))
        return made[-1]

    yield component
    for each in made:
        each.kill()
    for pid in set(process._CHILDREN) - before:
        child = process._CHILDREN.pop(pid)
        child.kill()
        child.wait()


def running(component: Component) -> Identity:
    identity = component.identity()
    assert identity is not None, f"{component.name} has no record"
    assert identity.alive(), f"{component.name} does not run; its log: {component.tail()}"
    return identity


def program_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_starts_and_stops(make: Make, tmp_path: Path) -> None:
    component = make()
    assert (component.state(), component.command()) == ("not started", None)
    component.start(SLEEP)
    pid = running(component).pid
    assert wait_for(lambda: program_of(pid) == "sleep", 60)
    assert component.state() == "running"
    component.stop()
    assert not Path(f"/proc/{pid}").exists()
    assert (component.state(), component.alive()) == ("not started", False)
    assert component.command() == SLEEP, "how to start it again is forgotten"


def test_record_is_there_before_the_program(make: Make, tmp_path: Path) -> None:
    component = make()
    component.start(Command(["cat", str(tmp_path / "run" / "program.pid")]))
    identity = component.identity()
    assert identity is not None
    assert wait_for(lambda: not identity.alive(), 60)
    boot, stat = component.log.read_text().splitlines()
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert stat.split()[0] == str(identity.pid)


def test_no_record_no_program(tmp_path: Path) -> None:
    """A full disk, say: rather nothing than a program that nobody knows of."""
    proof = tmp_path / "ran"
    script = ["sh", "-c", process._RECORD_THEN_EXEC, "program", str(tmp_path / "missing" / "program.pid"), ""]
    result = subprocess.run([*script, "touch", str(proof)], capture_output=True, check=False)
    assert result.returncode != 0
    assert not proof.exists()


def test_nothing_that_is_not_recorded_is_there_when_it_has_started(make: Make, tmp_path: Path) -> None:
    """Whoever ends what nobody knows of in a cluster's cgroup would end the start with it."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("mv", "cat", "printf"):
        (tools / name).write_text('#!/bin/sh\n/bin/"$(basename "$0")" "$@"\nexec sleep 5\n')
        (tools / name).chmod(0o755)
    component = make()
    component.start(Command(["sleep", "1000"], env={"PATH": f"{tools}:{os.environ['PATH']}"}))
    pid = running(component).pid
    assert Path(f"/proc/{pid}/task/{pid}/children").read_text() == ""


def test_starting_twice_is_once(make: Make) -> None:
    component = make()
    component.start(SLEEP)
    first = running(component)
    component.start(Command(["sleep", "2000"]))
    assert running(component) == first
    assert component.command() == SLEEP


def test_found_again_by_another(make: Make) -> None:
    make().start(SLEEP)
    other = make()
    assert other.state() == "running"
    other.stop()
    assert make().state() == "not started"


def test_starts_again_after_it_ended(make: Make) -> None:
    component = make()
    component.start(SLEEP)
    first = running(component)
    component.kill()
    assert component.state() == "dead"
    component.start(SLEEP)
    assert running(component) != first


def test_environment_and_log(make: Make) -> None:
    component = make()
    for greeting in ("hello", "again"):
        component.start(Command(["sh", "-c", 'echo "$GREETING"; echo "to stderr" >&2'], env={"GREETING": greeting}))
        assert wait_for(lambda: not component.alive(), 60)
    assert component.tail() == "hello\nto stderr\nagain\nto stderr"
    assert component.tail(1) == "to stderr"


def test_a_zombie_is_not_alive(make: Make) -> None:
    component = make()
    component.start(SLEEP)
    pid = running(component).pid
    os.kill(pid, signal.SIGKILL)
    assert wait_for(lambda: state_of(pid) == "Z", 60)
    assert (component.alive(), component.state()) == (False, "dead")
    assert component.signal(signal.SIGTERM) is False


def test_a_reused_pid_is_somebody_else(make: Make, tmp_path: Path) -> None:
    component = make()
    component.start(SLEEP)
    record = tmp_path / "run" / "program.pid"
    original = record.read_text()
    identity = running(component)
    record.write_text(original.replace(f" {identity.start_time} ", f" {identity.start_time + 1} "))
    assert (component.alive(), component.state()) == (False, "dead")
    component.kill()
    assert component.signal(signal.SIGKILL) is False
    record.write_text(original)
    assert running(component) == identity, "a process of another start time was signalled"


def test_a_record_of_another_boot_is_void(make: Make, tmp_path: Path) -> None:
    component = make()
    component.start(SLEEP)
    record = tmp_path / "run" / "program.pid"
    original = record.read_text()
    record.write_text("00000000-0000-0000-0000-000000000000\n" + original.split("\n", 1)[1])
    assert (component.identity(), component.state()) == (None, "not started")
    component.kill()
    record.write_text(original)
    running(component)


@pytest.mark.parametrize("content", ["", "\n", "nonsense", "\0" * 100])
def test_a_damaged_record_is_no_record(make: Make, tmp_path: Path, content: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "program.pid").write_text(content)
    assert (make().identity(), make().state()) == (None, "not started")


def test_stop_ends_a_paused_process_orderly(make: Make) -> None:
    component = make()
    component.start(Command(["sh", "-c", "trap 'echo orderly; exit' TERM; echo ready; while :; do sleep 0.01; done"]))
    assert wait_for(lambda: component.tail() == "ready", 60)
    pid = running(component).pid
    assert component.signal(signal.SIGSTOP)
    assert wait_for(lambda: component.state() == "paused", 60)
    component.stop()
    assert not Path(f"/proc/{pid}").exists()
    assert component.tail(1) == "orderly"


def test_stop_ends_what_ignores_sigterm(make: Make) -> None:
    component = make()
    component.start(Command(["sh", "-c", "trap '' TERM; exec sleep 1000"]))
    pid = running(component).pid
    assert wait_for(lambda: program_of(pid) == "sleep", 60)
    component.stop(timeout=0.1)
    assert not Path(f"/proc/{pid}").exists()


def test_stop_of_what_ends_in_that_moment(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    component = make()
    component.start(SLEEP)
    real_kill = os.kill

    def kill_and_reap(pid: int, number: int) -> None:
        real_kill(pid, number)
        if number == signal.SIGTERM:
            process._CHILDREN[pid].wait()

    monkeypatch.setattr(os, "kill", kill_and_reap)
    component.stop()
    assert component.state() == "not started"


def test_kill_returns_when_it_is_gone(make: Make) -> None:
    component = make()
    component.start(SLEEP)
    pid = running(component).pid
    component.kill()
    assert not Path(f"/proc/{pid}").exists()
    component.kill()  # nothing left: nothing happens
    assert component.state() == "dead"


def test_stop_and_kill_of_what_never_ran(make: Make) -> None:
    component = make()
    component.stop()
    component.kill()
    assert component.signal(signal.SIGTERM) is False


def test_a_program_that_is_not_there_is_named(make: Make, tmp_path: Path) -> None:
    not_executable = tmp_path / "not-executable"
    not_executable.touch()
    for missing in ("/nowhere/kube-apiserver", "no-such-program", str(not_executable)):
        with pytest.raises(DevclusterError, match=f"^program could not be started: .*{missing}$"):
            make().start(Command([missing]))
        assert make().state() == "not started"


def test_a_cgroup_that_cannot_be_joined_stops_the_start(make: Make, tmp_path: Path) -> None:
    component = make(cgroups=[tmp_path / "no-such-cgroup"])
    with pytest.raises(DevclusterError, match=r"^program could not be started: .*no-such-cgroup") as caught:
        component.start(SLEEP)
    assert str(component.log) in str(caught.value)
    assert component.state() == "not started"


def test_joins_its_cgroups_first(make: Make, tmp_path: Path) -> None:
    group = tmp_path / "cgroup"
    group.mkdir()
    component = make(cgroups=[group])
    component.start(SLEEP)
    assert (group / "cgroup.procs").read_text() == f"{running(component).pid}\n"


def test_needs_the_host_process_for_its_mounts(make: Make) -> None:
    gone = Identity(2**22, 1)
    for holder in (None, gone):
        with pytest.raises(DevclusterError, match=r"^kubelet needs the cluster's host process"):
            make("kubelet").start(Command(["sleep", "1000"], mount_holder=True), mount_namespace=holder)


@pytest.mark.parametrize("moment", ["after start", "before the record is awaited"])
def test_kill_9_of_the_starter_loses_nothing(make: Make, tmp_path: Path, moment: str) -> None:
    program = f"""
import os, signal, sys
from pathlib import Path
from devcluster import process

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if {moment!r} != "after start":
    process.wait_for = die
process.Component("program", Path({str(tmp_path / "run")!r}), Path({str(tmp_path / "logs")!r})).start(
    process.Command(["sleep", "1000"])
)
die()
"""
    root = Path(__file__).parents[2]
    starter = subprocess.run([sys.executable, "-c", program], cwd=root, check=False)
    assert starter.returncode == -signal.SIGKILL
    component = make()
    assert wait_for(lambda: component.state() == "running", 60), "nobody knows what was started"
    pid = running(component).pid
    assert wait_for(lambda: program_of(pid) == "sleep", 60)
    component.stop()
    assert component.state() == "not started"


def test_kill_all(make: Make) -> None:
    components = [make("one"), make("two")]
    for component in components:
        component.start(SLEEP)
    pids = [running(component).pid for component in components]
    process.kill_all([*pids, 2**22])  # the last is nobody's
    assert wait_for(lambda: not any(component.alive() for component in components), 60)


def test_memory_of_a_process() -> None:
    assert process.proportional_memory(os.getpid()) > 1024 * 1024
    assert process.proportional_memory(2**22) == 0


def test_tail(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert process.tail(path, 3) == ""
    path.write_bytes(b"\n".join(b"line %d \xff" % number for number in range(10_000)))
    assert process.tail(path, 2) == "line 9998 �\nline 9999 �"


def test_wait_for() -> None:
    seen = iter([False, False, True])
    assert wait_for(lambda: next(seen), 60, 0.001)
    assert not wait_for(lambda: False, 0.01, 0.001)


def test_write_changed_leaves_alone_what_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "settings"
    process.write_changed(path, "one")
    first = path.stat()
    process.write_changed(path, "one")
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    process.write_changed(path, "two")
    assert path.read_text() == "two"
    assert list(tmp_path.iterdir()) == [path]
