"""``demo`` and ``demo-down``: the tour, on clusters of ours or of the user's."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from devcluster.cli.clusters import DEFAULT
from devcluster.cli.options import FleetOption
from devcluster.errors import DevclusterError

if TYPE_CHECKING:
    from devcluster.tour import Stage

_CHECKOUT = Path(__file__).resolve().parents[2]
_ANY_PORT = {"FARLET_KUBELET_ADDRESS": "0.0.0.0:0", "FARLET_HEALTH_ADDRESS": "127.0.0.1:0"}
"""This machine may have a kubelet of its own, or another demo."""

LocalOption = Annotated[
    Path | None, typer.Option("--local", metavar="KUBECONFIG", help="Your own local cluster; with --remote.")
]
RemoteOption = Annotated[
    Path | None, typer.Option("--remote", metavar="KUBECONFIG", help="Your own remote cluster; with --local.")
]
ImageOption = Annotated[
    str, typer.Option("--image", envvar="DEMO_IMAGE", help="Image of the tour's pods on your own clusters.")
]


def demo(
    local: LocalOption = None,
    remote: RemoteOption = None,
    image: ImageOption = "busybox:stable",
    fleet: FleetOption = DEFAULT,
) -> None:
    """Give the tour on two real clusters, which stay up afterwards.

    With --local and --remote on two clusters of yours, which takes no root and builds nothing.
    """
    from devcluster import tour

    with tempfile.TemporaryDirectory() as cache, contextlib.ExitStack() as at_end:
        stage = _own(local, remote, image, Path(cache))
        if stage is None:
            from devcluster.fleet import Fleet

            Fleet(fleet).up()
            stage = replace(_ours(fleet, Path(cache)), run_farlet=lambda arguments: _beside(fleet, arguments))
        else:
            stage = replace(stage, run_farlet=lambda arguments: _child(at_end, Path(cache), arguments))
        tour.tour(stage)
        if local:
            tour.leave(stage)
    typer.echo("\nThe clusters stay up. To go on by hand:")
    for side in stage.sides():
        typer.echo(f"  export KUBECONFIG={side.kubeconfig}   # {side.name}")
    how = f" LOCAL={stage.local.kubeconfig} REMOTE={stage.remote.kubeconfig}" if local else ""
    typer.echo(f"When you are done: make demo-down{how}")


def demo_down(local: LocalOption = None, remote: RemoteOption = None, fleet: FleetOption = DEFAULT) -> None:
    """Remove what the tour made.

    That is the clusters; on clusters of your own (--local, --remote), the tour's namespace.
    """
    from devcluster import tour

    with tempfile.TemporaryDirectory() as cache:
        stage = _own(local, remote, "", Path(cache))
        if stage is not None:
            tour.clean(stage)
            return
    from devcluster.cli.clusters import down

    down(fleet=fleet)


def _beside(fleet: str, arguments: Sequence[str]) -> None:
    """Run Farlet beside our clusters; it goes on after the tour and ends with them."""
    from devcluster.fleet import Fleet
    from devcluster.process import Command

    command = Command([sys.executable, "-m", "app", *arguments], env={"PYTHONPATH": str(_CHECKOUT), **_ANY_PORT})
    name = "farlet" if arguments[0] == "run" else f"farlet-{arguments[0]}"
    Fleet(fleet).cluster("local").companion(name).start(command)


def _child(at_end: contextlib.ExitStack, folder: Path, arguments: Sequence[str]) -> None:
    """Run Farlet for the user's clusters; it ends with the tour."""
    environment = {**os.environ, "PYTHONPATH": str(_CHECKOUT), **_ANY_PORT}
    with (folder / "farlet.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "app", *arguments],
            env=environment,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
    at_end.callback(process.wait)
    at_end.callback(process.terminate)


def _own(local: Path | None, remote: Path | None, image: str, cache: Path) -> Stage | None:
    """The stage on the user's clusters, if they gave any."""
    from devcluster.tour import Side, Stage

    if local is None and remote is None:
        return None
    if local is None or remote is None:
        raise DevclusterError("give both clusters: make demo LOCAL=kubeconfig REMOTE=kubeconfig")
    for path in (local, remote):
        if not path.is_file():
            raise DevclusterError(f"kubeconfig {path} does not exist")
    sides = Side("local", local.absolute()), Side("remote", remote.absolute())
    return Stage(*sides, _kubectl_for_others(), image, cache)


def _ours(fleet: str, cache: Path) -> Stage:
    from devcluster.addons import BUSYBOX_IMAGE
    from devcluster.binaries import ensure
    from devcluster.fleet import Fleet
    from devcluster.tour import Side, Stage

    clusters = Fleet(fleet)
    sides = [Side(name, clusters.cluster(name).kubeconfig) for name in ("local", "remote")]
    address = str(clusters.cluster("local").layout.gateway)
    return Stage(sides[0], sides[1], ensure(["kubectl"])["kubectl"], BUSYBOX_IMAGE, cache, address=address)


def _kubectl_for_others() -> Path:
    """Ours if it is built already, else the user's; nothing is built for clusters that are not ours."""
    from devcluster.binaries import locate
    from devcluster.gomodules.recipes import RECIPES

    recipe = next(recipe for recipe in RECIPES if "kubectl" in recipe.programs)
    found = locate("kubectl", recipe) or shutil.which("kubectl")
    if not found:
        raise DevclusterError("no kubectl is on the PATH: install one, it is all that the tour needs")
    return Path(found)
