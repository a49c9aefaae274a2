"""``image load`` and ``image build``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from devcluster.cli.clusters import DEFAULT
from devcluster.cli.options import FleetOption, help_when_alone

cli = typer.Typer(
    help="Images without a registry: build and load them.",
    rich_markup_mode=None,
    invoke_without_command=True,
    callback=help_when_alone,
)

_CHECKOUT = Path(__file__).resolve().parents[2]


@cli.command()
def load(
    archives: Annotated[list[Path], typer.Argument(metavar="ARCHIVE...", help="Docker or OCI archives (.tar).")],
    clusters: Annotated[str, typer.Option(metavar="NAMES", help="Into these only; default: all.")] = "",
    fleet: FleetOption = DEFAULT,
) -> None:
    """Load image archives into the clusters that have a real node."""
    from devcluster.errors import DevclusterError
    from devcluster.fleet import Fleet

    target = Fleet(fleet)
    names = [name for name in clusters.split(",") if name]
    chosen = [target.cluster(name) for name in names] or [c for c in target.clusters() if c.spec.real]
    if not chosen:
        raise DevclusterError(f"fleet {fleet} has no running cluster with a real node: `python -m devcluster up`")
    for cluster in chosen:
        for archive in archives:
            for image in cluster.load_image(archive.resolve()):
                typer.echo(f"{cluster.name}: {image}")


@cli.command()
def build(
    project: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder with a Dockerfile.")] = _CHECKOUT,
    tag: Annotated[str, typer.Option("--tag", "-t", help="The image's name.")] = "docker.io/farlet/farlet:dev",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where the archive goes.")] = None,
    into: Annotated[bool, typer.Option("--load", help="Load it into the running clusters too.")] = False,
    fleet: FleetOption = DEFAULT,
) -> None:
    """Build the project's Dockerfile for real.

    With buildah, on a base made by debootstrap; prints where the archive is.
    """
    from devcluster import imagebuild

    archive = imagebuild.build(project, tag, output=output)
    typer.echo(archive)
    if into:
        load([archive], fleet=fleet)
