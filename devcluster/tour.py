"""The tour of the product that ``make demo`` gives: named steps, each with its commands and their real output.

It only needs two kubeconfigs and a kubectl, so it runs on devcluster's clusters and on those that a user already
has. What is shown is what is run: every line after a ``$`` can be pasted.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from devcluster.errors import DevclusterError

NAMESPACE = "farlet-demo"
_COMMAND_TIMEOUT = 180


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two clusters of the tour."""

    name: str
    kubeconfig: Path

    @property
    def variable(self) -> str:
        """What stands for its kubeconfig in the commands that are printed."""
        name = f"${self.name.upper()}"
        return name if shlex.quote(str(self.kubeconfig)) == str(self.kubeconfig) else f'"{name}"'


@dataclass(frozen=True, slots=True)
class Stage:
    """What the steps work with."""

    local: Side
    remote: Side
    kubectl: Path
    image: str
    cache: Path
    """Where kubectl keeps what it discovers; by itself it would do so in the user's home."""

    def sides(self) -> tuple[Side, Side]:
        return self.local, self.remote


@dataclass(frozen=True, slots=True)
class Step:
    """A named part of the tour."""

    title: str
    run: Callable[[Stage], None]


def tour(stage: Stage) -> None:
    """Run every step; stops with the command's own message at the first that fails."""
    for side in stage.sides():
        print(f"{side.name.upper()}={shlex.quote(str(side.kubeconfig))}", flush=True)
    for number, step in enumerate(STEPS, 1):
        print(f"\n{_bold(f'{number}. {step.title}')}", flush=True)
        step.run(stage)


def clean(stage: Stage) -> None:
    """Remove what the tour made."""
    for side in stage.sides():
        _kubectl(stage, side, "delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=false")


def _nodes(stage: Stage) -> None:
    for side in stage.sides():
        _kubectl(stage, side, "get", "nodes", "-o", "wide")


def _namespace(stage: Stage) -> None:
    for side in stage.sides():
        # a demo before this one may be on its way out
        _quiet(stage, side, "delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=120s")
        _kubectl(stage, side, "create", "namespace", NAMESPACE)


def _pods(stage: Stage) -> None:
    for side in stage.sides():
        script = f"echo hello from the {side.name} cluster; exec sleep 1000000"
        pod = ["run", "hello", f"--image={stage.image}", "--restart=Always", "--grace-period=1"]
        _kubectl(stage, side, "-n", NAMESPACE, *pod, "--", "sh", "-c", script)
    for side in stage.sides():
        _kubectl(stage, side, "-n", NAMESPACE, "wait", "--for=condition=Ready", "pod/hello", "--timeout=120s")
        _kubectl(stage, side, "-n", NAMESPACE, "get", "pods", "-o", "wide")


def _inside(stage: Stage) -> None:
    for side in stage.sides():
        _kubectl(stage, side, "-n", NAMESPACE, "logs", "hello")
        _kubectl(stage, side, "-n", NAMESPACE, "exec", "hello", "--", "hostname")


STEPS = (
    Step("Two clusters and their nodes", _nodes),
    Step("A namespace for the tour in each", _namespace),
    Step("A pod with a real container in each", _pods),
    Step("Its log, and a command in it", _inside),
)


def _kubectl(stage: Stage, side: Side, *arguments: str) -> None:
    """Show a kubectl command and run it with its output on the screen."""
    print(f"{_bold('$')} kubectl --kubeconfig {side.variable} {shlex.join(arguments)}", flush=True)
    if _run(stage, side, arguments, quiet=False) != 0:
        raise DevclusterError(f"the tour ends here: kubectl {shlex.join(arguments)} failed on the {side.name} cluster")


def _quiet(stage: Stage, side: Side, *arguments: str) -> None:
    _run(stage, side, arguments, quiet=True)


def _run(stage: Stage, side: Side, arguments: tuple[str, ...], *, quiet: bool) -> int:
    command = [str(stage.kubectl), f"--kubeconfig={side.kubeconfig}", *arguments]
    sink = subprocess.DEVNULL if quiet else None
    try:
        return subprocess.run(
            command,
            env={**os.environ, "KUBECACHEDIR": str(stage.cache)},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            timeout=_COMMAND_TIMEOUT,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        raise DevclusterError(
            f"kubectl {shlex.join(arguments)} did not end within {_COMMAND_TIMEOUT} s on the {side.name} cluster"
        ) from None


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() else text
