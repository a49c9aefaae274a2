"""``up``, ``down``, ``status``, ``nodes``, ``kubectl``, ``kubeconfig``, ``logs``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from devcluster.cli.options import ClusterArgument, ComponentArgument, FleetOption

DEFAULT = "dev"

PASS_THROUGH: dict[str, Any] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
}
"""Context settings of a command whose arguments are another program's."""


def up(
    clusters: Annotated[str, typer.Option(metavar="NAMES", help="Names, separated by commas.")] = "local,remote",
    nodes: Annotated[
        str,
        typer.Option(metavar="KINDS", help="'real' (a kubelet with containers), 'kwok' (fake), 'real,kwok' or 'none'."),
    ] = "real",
    kwok_nodes: Annotated[
        int, typer.Option(min=1, max=5000, metavar="N", help="Fake nodes in each cluster, with --nodes kwok.")
    ] = 10,
    metrics: Annotated[bool, typer.Option(help="Run metrics-server in each cluster.")] = True,
    isolated: Annotated[
        bool, typer.Option("--isolated", help="No routes between the clusters' pods; nodes still reach each other.")
    ] = False,
    dual_stack: Annotated[
        bool, typer.Option("--dual-stack", help="Services of both IP families; without real nodes.")
    ] = False,
    fleet: FleetOption = DEFAULT,
) -> None:
    """Start clusters, or what is missing of them.

    The first start on a machine builds Kubernetes from source, which takes 10 to 15 minutes on two cores; later
    ones take seconds. Starting again does nothing to what runs, and adds what was not there.
    """
    from devcluster.fleet import Fleet

    kinds = _kinds(nodes)
    target = Fleet(fleet)
    target.up(
        [name.strip() for name in clusters.split(",") if name.strip()],
        real="real" in kinds,
        kwok_nodes=kwok_nodes if "kwok" in kinds else 0,
        metrics=metrics,
        isolated=isolated,
        dual_stack=dual_stack,
    )
    for cluster in target.clusters():
        typer.echo(f"{cluster.name}: export KUBECONFIG={cluster.kubeconfig}")


def _kinds(nodes: str) -> set[str]:
    kinds = {kind.strip() for kind in nodes.split(",")}
    if not kinds <= {"real", "kwok", "none"} or ("none" in kinds and len(kinds) > 1):
        raise typer.BadParameter(f"'{nodes}' is not one of real, kwok, real,kwok, none", param_hint="'--nodes'")
    return kinds


def prepare() -> None:
    """Get everything that clusters need, and start nothing.

    Installs Debian packages, builds Kubernetes and the rest, makes the images; later starts then take seconds.
    """
    from devcluster import binaries, fleet
    from devcluster.cluster import ClusterSpec
    from devcluster.gomodules.recipes import PROMETHEUS

    fleet.check_means()
    fleet.prepare([ClusterSpec("any", 1, real=True, kwok=True, metrics=True)])
    binaries.ensure(PROMETHEUS.programs)  # no part of a cluster, but the tests look at Farlet with it


def down(
    keep: Annotated[
        bool, typer.Option("--keep", help="Stop, but keep all data: the next 'up' goes on from there.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="Every fleet of this checkout.")] = False,
    fleet: FleetOption = DEFAULT,
) -> None:
    """Stop clusters and remove every trace of them.

    Also after a crash, a reboot or a kill -9 of whoever started them.
    """
    from devcluster.fleet import Fleet, all_fleets
    from devcluster.progress import step

    for target in all_fleets() if everything else [Fleet(fleet)]:
        if not target.exists():
            typer.echo(f"fleet {target.name} is not up: nothing to do")
            continue
        with step(f"{target.name}: stopping"):
            target.down(keep=keep)


def status(
    output: Annotated[str, typer.Option("--output", "-o", help="text or json.")] = "text",
    fleet: FleetOption = DEFAULT,
) -> None:
    """Show the programs, their memory, the nodes and the faults."""
    from devcluster.fleet import Fleet
    from devcluster.status import as_json, as_text, collect

    if output not in ("text", "json"):
        raise typer.BadParameter(f"'{output}' is not one of text, json", param_hint="'--output'")
    state = collect(Fleet(fleet))
    typer.echo(as_json(state) if output == "json" else as_text(state))
    if not state.healthy:
        raise typer.Exit(1)


def nodes(
    cluster: ClusterArgument,
    kwok: Annotated[int, typer.Option("--kwok", min=0, max=5000, metavar="N", help="Have N fake nodes.")],
    fleet: FleetOption = DEFAULT,
) -> None:
    """Add or remove fake nodes while the cluster runs."""
    from devcluster.fleet import Fleet
    from devcluster.progress import step

    target = Fleet(fleet).cluster(cluster)
    target.check_kwok()
    with step(f"{cluster}: {kwok} fake nodes"):
        target.set_kwok_nodes(kwok)


def kubectl(context: typer.Context, cluster: ClusterArgument, fleet: FleetOption = DEFAULT) -> None:
    """Run kubectl on a cluster.

    Such as: python -m devcluster kubectl local get nodes -o wide
    """
    from devcluster.fleet import Fleet

    command = Fleet(fleet).cluster(cluster).kubectl_command(*context.args)
    os.execv(command[0], command)


def kubeconfig(
    cluster: ClusterArgument,
    service_account: Annotated[
        str, typer.Option(metavar="NAMESPACE/NAME", help="A ServiceAccount's instead of the administrator's.")
    ] = "",
    cluster_role: Annotated[
        str, typer.Option(metavar="ROLE", help="Bind the ServiceAccount to this ClusterRole.")
    ] = "",
    raw: Annotated[bool, typer.Option("--raw", help="Print the content instead of the path.")] = False,
    fleet: FleetOption = DEFAULT,
) -> None:
    """Print the path of a kubeconfig.

    Such as: export KUBECONFIG=$(python -m devcluster kubeconfig local)
    """
    from devcluster.fleet import Fleet

    target = Fleet(fleet).cluster(cluster)
    path = target.kubeconfig
    if service_account:
        namespace, slash, name = service_account.partition("/")
        if not (slash and namespace and name):
            raise typer.BadParameter(f"'{service_account}' is not NAMESPACE/NAME", param_hint="'--service-account'")
        path = target.service_account_kubeconfig(namespace, name, cluster_role=cluster_role or None)
    elif cluster_role:
        raise typer.BadParameter("needs --service-account", param_hint="'--cluster-role'")
    typer.echo(path.read_text() if raw else path)


def logs(
    cluster: ClusterArgument,
    component: ComponentArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines come.")] = False,
    lines: Annotated[int, typer.Option("--tail", "-n", min=0, help="Only this many lines from the end.")] = 200,
    path: Annotated[bool, typer.Option("--path", help="Print only where the log is.")] = False,
    fleet: FleetOption = DEFAULT,
) -> None:
    """Show a component's log; 'audit' is the API server's audit log."""
    from devcluster.fleet import Fleet

    target = Fleet(fleet).cluster(cluster)
    log = target.layout.audit_log if component == "audit" else target.component(component).log
    if path:
        typer.echo(log)
        return
    _show(log, lines=lines, follow=follow)


def _show(log: Path, *, lines: int, follow: bool) -> None:
    sys.stdout.flush()
    arguments = ["tail", "-n", str(lines), *(["-F"] if follow else []), str(log)]
    os.execvp("tail", arguments)
