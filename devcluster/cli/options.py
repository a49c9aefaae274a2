"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer


def help_when_alone(context: typer.Context) -> None:
    """A group that is called without a command says what it has, as with ``--help``."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


FleetOption = Annotated[
    str, typer.Option("--fleet", envvar="FARLET_DEVCLUSTER_FLEET", help="Which set of clusters of this checkout.")
]
ClusterArgument = Annotated[str, typer.Argument(metavar="CLUSTER", help="The cluster's name, such as 'remote'.")]
ComponentArgument = Annotated[
    str, typer.Argument(metavar="COMPONENT", help="Such as kube-apiserver or kubelet; 'status' lists them.")
]
