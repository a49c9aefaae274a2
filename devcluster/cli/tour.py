"""``demo`` and ``demo-down``: the tour, on clusters of ours or of the user's."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from devcluster.cli.clusters import DEFAULT
from devcluster.cli.options import FleetOption
from devcluster.errors import DevclusterError

if TYPE_CHECKING:
    from devcluster.tour import Stage

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

    with tempfile.TemporaryDirectory() as cache:
        stage = _own(local, remote, image, Path(cache))
        if stage is None:
            from devcluster.fleet import Fleet

            Fleet(fleet).up()
            stage = _ours(fleet, Path(cache))
        tour.tour(stage)
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
    return Stage(sides[0], sides[1], ensure(["kubectl"])["kubectl"], BUSYBOX_IMAGE, cache)


def _kubectl_for_others() -> Path:
    """Ours if it is built already, else the user's; nothing is built for clusters that are not ours."""
    from devcluster.binaries import locate
    from devcluster.gomodules.recipes import RECIPES

    recipe = next(recipe for recipe in RECIPES if "kubectl" in recipe.programs)
    found = locate("kubectl", recipe) or shutil.which("kubectl")
    if not found:
        raise DevclusterError("no kubectl is on the PATH: install one, it is all that the tour needs")
    return Path(found)
