"""The command line as a whole: help that reads well, and one clear line for whatever a person can mend."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer.core
import typer.main

from devcluster.cli import cli, main
from devcluster.fleet import Fleet

# What makes a start slow, and is imported where it is used.
HEAVY = ("asyncio", "cryptography", "devcluster.fleet", "devcluster.tour", "rich", "yaml")

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Result:
    code: object
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another place for fleets, with none in it; and nothing is ever started from here."""

    def never(*_: object, **__: object) -> None:
        pytest.fail("a cluster would have been started")

    monkeypatch.setenv("FARLET_DEVCLUSTER_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("FARLET_DEVCLUSTER_FLEET", raising=False)
    for what in ("binaries.ensure", "debian.ensure", "network.ensure"):
        monkeypatch.setattr(f"devcluster.{what}", never)
    return tmp_path / "state"


@pytest.fixture
def run(state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the program in this process, which is quick."""

    def devcluster(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["devcluster", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return Result(ended.value.code or 0, *capsys.readouterr())

    return devcluster


@pytest.fixture
def fleet(state: Path) -> Path:
    """A fleet ``dev`` of ``local`` and ``remote`` that was started once and does not run."""
    folder = state / "dev"
    folder.mkdir(parents=True)
    clusters = [{"name": "local", "index": 1}, {"name": "remote", "index": 2, "kwok": True}]
    record = {"slot": 0, "base": "10.254.0.0/16", "isolated": False, "clusters": clusters}
    (folder / "fleet.json").write_text(json.dumps(record))
    return folder


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def commands(
    command: typer.core.TyperCommand | typer.core.TyperGroup, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, typer.core.TyperGroup):
        for name, below in command.commands.items():
            assert isinstance(below, (typer.core.TyperCommand, typer.core.TyperGroup))
            yield from commands(below, (*path, name))


root = typer.main.get_command(cli)
assert isinstance(root, typer.core.TyperGroup)
COMMANDS = list(commands(root))
GROUPS = [(), ("image",), ("fault",)]


def named(path: tuple[str, ...]) -> str:
    return " ".join(("devcluster", *path))


def one_line(result: Result) -> str:
    assert result.out == ""
    assert "Traceback" not in result.err
    assert result.err.count("\n") == 1, result.err
    return result.err.rstrip("\n")


def test_all_commands_are_there() -> None:
    expected = {
        *("up", "down", "status", "nodes", "kubectl", "kubeconfig", "logs", "demo", "demo-down"),
        *("image", "image load", "image build", "fault"),
        *(f"fault {name}" for name in ("cut", "restore", "kill", "pause", "resume", "stop", "start", "restart")),
        *(f"fault {name}" for name in ("slow", "fast", "expire", "renew", "revoke", "list", "clear")),
    }
    assert expected <= {" ".join(path) for path in COMMANDS}


@pytest.mark.parametrize("option", ["--help", "-h"])
@pytest.mark.parametrize("path", COMMANDS, ids=named)
def test_help(run: Run, path: tuple[str, ...], option: str) -> None:
    result = run(*path, option)
    assert (result.code, result.err) == (0, "")
    usage, blank, summary = result.out.splitlines()[:3]
    assert usage.startswith(f"Usage: {named(path)} ")
    assert blank == ""
    assert summary.startswith("  ")
    assert summary[2].isupper() or summary.strip().startswith("kill -9"), "a sentence"


@pytest.mark.parametrize("path", GROUPS, ids=named)
def test_each_command_has_a_summary_of_one_line(run: Run, path: tuple[str, ...]) -> None:
    listed = run(*path, "--help").out.partition("\nCommands:\n")[2].partition("\n\n")[0].splitlines()
    own = [command[-1] for command in COMMANDS if command and command[:-1] == path]
    rows = [line.split(maxsplit=1) for line in listed]
    assert sorted(name for name, _ in rows) == sorted(own)
    assert [line for line in listed if line.endswith("...")] == [], "the first sentence of its docstring is too long"
    assert all(summary.endswith(".") for _, summary in rows)


@pytest.mark.parametrize("path", GROUPS, ids=named)
def test_a_group_alone_shows_its_help(run: Run, path: tuple[str, ...]) -> None:
    assert run(*path) == run(*path, "--help")


WRONG = [
    ("nonsense", "devcluster"),
    ("--nonsense", "devcluster"),
    ("up extra", "devcluster up"),
    ("up --nonsense", "devcluster up"),
    ("up --nodes pods", "devcluster up"),
    ("up --nodes real,none", "devcluster up"),
    ("up --kwok-nodes 0", "devcluster up"),
    ("up --kwok-nodes many", "devcluster up"),
    ("status --output yaml", "devcluster status"),
    ("nodes", "devcluster nodes"),
    ("nodes local", "devcluster nodes"),
    ("nodes local --kwok -1", "devcluster nodes"),
    ("kubectl", "devcluster kubectl"),
    ("kubeconfig", "devcluster kubeconfig"),
    ("kubeconfig local --service-account nonsense", "devcluster kubeconfig"),
    ("kubeconfig local --service-account /name", "devcluster kubeconfig"),
    ("kubeconfig local --cluster-role view", "devcluster kubeconfig"),
    ("logs local", "devcluster logs"),
    ("logs local etcd --tail -1", "devcluster logs"),
    ("image nonsense", "devcluster image"),
    ("image load", "devcluster image load"),
    ("fault nonsense", "devcluster fault"),
    ("fault cut local", "devcluster fault cut"),
    ("fault cut local remote --mode gently", "devcluster fault cut"),
    ("fault kill local", "devcluster fault kill"),
    ("fault slow local --delay -1", "devcluster fault slow"),
    ("fault slow local --loss 101", "devcluster fault slow"),
    ("fault slow local --method magic", "devcluster fault slow"),
    ("fault expire local", "devcluster fault expire"),
    ("fault revoke local nonsense", "devcluster fault revoke"),
    ("demo --nonsense", "devcluster demo"),
]


@pytest.mark.parametrize(("arguments", "command"), WRONG)
def test_wrong_arguments_give_one_line(run: Run, fleet: Path, arguments: str, command: str) -> None:
    result = run(*arguments.split())
    line = one_line(result)
    assert result.code == 2
    assert line.startswith(f"{command}: ")
    assert line.endswith(f". See 'python -m {command} --help'.")


NEEDS_A_CLUSTER = [
    "nodes local --kwok 3",
    "kubectl local get nodes",
    "kubectl local --help",
    "kubeconfig local",
    "logs local etcd",
    "fault cut local remote",
    "fault restore local remote",
    "fault kill local etcd",
    "fault pause local etcd",
    "fault resume local etcd",
    "fault stop local etcd",
    "fault start local etcd",
    "fault restart local etcd",
    "fault slow local",
    "fault fast local",
    "fault expire local kubeconfig",
    "fault revoke local default/default",
]


@pytest.mark.parametrize("arguments", NEEDS_A_CLUSTER)
def test_not_up(run: Run, state: Path, arguments: str) -> None:
    result = run(*arguments.split())
    assert result.code == 1
    assert one_line(result) == "devcluster: fleet dev is not up: start it with `python -m devcluster up`"
    assert not state.exists(), "asking leaves something behind"


@pytest.mark.parametrize("arguments", [each for each in NEEDS_A_CLUSTER if "local" in each])
def test_unknown_cluster(run: Run, fleet: Path, arguments: str) -> None:
    result = run(*arguments.replace("local", "nowhere", 1).split())
    assert result.code == 1
    assert one_line(result) == "devcluster: fleet dev has no cluster 'nowhere'; it has: local, remote"


@pytest.mark.parametrize(
    "arguments", ["logs local nothing", "fault kill local nothing", "fault start local nothing", "logs local kwok"]
)
def test_unknown_component(run: Run, fleet: Path, arguments: str) -> None:
    result = run(*arguments.split())
    assert result.code == 1
    found = re.fullmatch(r"devcluster: cluster local has no component '(nothing|kwok)'; it has: (.*)", one_line(result))
    assert found is not None
    assert {"etcd", "kube-apiserver", "kubelet"} <= set(found[2].split(", "))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("fault kill local etcd", "etcd of cluster local is not running"),
        ("fault start local etcd", "was never started"),
        ("fault cut local local", "given twice"),
        ("fault renew nowhere", "nothing to put back"),
        ("image load nowhere.tar --clusters local", "does not exist"),
        ("status --fleet Dev", "fleet name 'Dev' is not valid"),
        ("demo --local kubeconfig", "give both clusters"),
        ("demo --local nowhere --remote nowhere", "kubeconfig nowhere does not exist"),
        ("demo-down --remote kubeconfig", "give both clusters"),
    ],
)
def test_what_cannot_be_done_is_one_line(run: Run, fleet: Path, arguments: str, says: str) -> None:
    result = run(*arguments.split())
    assert result.code == 1
    assert says in one_line(result)


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--clusters Local", "cluster name 'Local' is not valid"),
        ("--clusters a,b,a", "named twice: a,b,a"),
        ("--clusters ,", "no cluster is named"),
        ("--clusters machine", "cluster name 'machine' is taken"),
        ("--fleet no/good", "fleet name 'no/good' is not valid"),
    ],
)
def test_up_refuses_names(run: Run, arguments: str, says: str) -> None:
    result = run("up", *arguments.split())
    assert result.code == 1
    assert says in one_line(result)


@pytest.mark.parametrize("command", ["up", "demo"])
def test_without_root(run: Run, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    result = run(command)
    assert result.code == 1
    assert "needs root" in one_line(result)
    assert "sudo" in result.err


@pytest.mark.usefixtures("as_root")
def test_on_another_system(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    result = run("up")
    assert result.code == 1
    assert "Linux only" in one_line(result)


@pytest.mark.usefixtures("as_root")
def test_full_disk(run: Run, monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100 * 1024**3, 99 * 1024**3, 1024**3))
    result = run("up")
    line = one_line(result)
    assert result.code == 1
    assert f"{state} has 1.0 GiB free" in line
    assert "FARLET_DEVCLUSTER_STATE" in line


def test_down_of_nothing_is_fine(run: Run, state: Path) -> None:
    assert run("down") == Result(0, "fleet dev is not up: nothing to do\n", "")
    assert run("down", "--all") == Result(0, "", "")
    assert not state.exists()


def test_status_of_nothing(run: Run) -> None:
    assert run("status") == Result(1, "fleet dev is not up: start it with `python -m devcluster up`\n", "")
    result = run("status", "-o", "json")
    assert result.code == 1
    assert json.loads(result.out) == {"fleet": "dev", "clusters": [], "faults": [], "healthy": False}


def test_fleet_from_the_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARLET_DEVCLUSTER_FLEET", "other")
    assert "fleet other is not up" in run("down").out


def test_paths(run: Run, fleet: Path) -> None:
    kubeconfig = fleet / "local" / "kubeconfigs" / "admin.kubeconfig"
    assert run("kubeconfig", "local") == Result(0, f"{kubeconfig}\n", "")
    assert run("logs", "local", "etcd", "--path") == Result(0, f"{fleet}/local/logs/etcd.log\n", "")
    assert run("logs", "local", "audit", "--path") == Result(0, f"{fleet}/local/logs/audit.log\n", "")


def test_interrupted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: Fleet) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(Fleet, "exists", interrupt)
    result = run("down")
    assert result.code == 130
    assert "python -m devcluster down" in one_line(result)


def test_starts_without_heavy_modules() -> None:
    program = f"""
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted(set(sys.modules) & {set(HEAVY)!r})), file=sys.stderr))
from devcluster.cli import main
sys.argv = ["devcluster", "--help"]
main()
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    loaded = json.loads(result.stderr.splitlines()[-1])
    assert loaded == [], f"import {loaded} where they are used, not at the top of a module of devcluster.cli"


def test_as_a_program(tmp_path: Path) -> None:
    """The same through ``python -m``, in a process of its own."""
    environment = {**os.environ, "FARLET_DEVCLUSTER_STATE": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-m", "devcluster", "kubeconfig"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment,
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        "devcluster kubeconfig: Missing argument 'CLUSTER'. See 'python -m devcluster kubeconfig --help'.\n"
    )
