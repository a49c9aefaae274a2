"""``fault ...``: break something on purpose, and mend it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from devcluster.cli.clusters import DEFAULT
from devcluster.cli.options import ClusterArgument, ComponentArgument, FleetOption, help_when_alone

cli = typer.Typer(
    help="Break something on purpose, and mend it.",
    rich_markup_mode=None,
    invoke_without_command=True,
    callback=help_when_alone,
)

End = Annotated[str, typer.Argument(metavar="END", help="A cluster's name, or 'machine' for this machine.")]
KubeconfigArgument = Annotated[Path, typer.Argument(metavar="KUBECONFIG", help="A kubeconfig that devcluster wrote.")]


@cli.command()
def cut(
    one: End,
    other: End,
    mode: Annotated[str, typer.Option(help="drop (silently) or refuse (with an error at once).")] = "drop",
    fleet: FleetOption = DEFAULT,
) -> None:
    """Cut the link between two clusters, or a cluster and this machine."""
    from devcluster import faults
    from devcluster.fleet import Fleet

    if mode not in list(faults.CutMode):
        raise typer.BadParameter(f"'{mode}' is not one of drop, refuse", param_hint="'--mode'")
    faults.cut(Fleet(fleet), one, other, faults.CutMode(mode))


@cli.command()
def restore(one: End, other: End, fleet: FleetOption = DEFAULT) -> None:
    """Join what 'cut' cut."""
    from devcluster import faults
    from devcluster.fleet import Fleet

    faults.restore(Fleet(fleet), one, other)


@cli.command()
def kill(cluster: ClusterArgument, component: ComponentArgument, fleet: FleetOption = DEFAULT) -> None:
    """kill -9 a component; it stays dead until 'start'."""
    from devcluster import faults
    from devcluster.fleet import Fleet

    faults.kill(Fleet(fleet).cluster(cluster), component)


@cli.command()
def pause(cluster: ClusterArgument, component: ComponentArgument, fleet: FleetOption = DEFAULT) -> None:
    """SIGSTOP a component: its sockets stay open and nothing answers."""
    from devcluster import faults
    from devcluster.fleet import Fleet

    faults.pause(Fleet(fleet).cluster(cluster), component)


@cli.command()
def resume(cluster: ClusterArgument, component: ComponentArgument, fleet: FleetOption = DEFAULT) -> None:
    """SIGCONT a paused component."""
    from devcluster import faults
    from devcluster.fleet import Fleet

    faults.resume(Fleet(fleet).cluster(cluster), component)


@cli.command()
def stop(cluster: ClusterArgument, component: ComponentArgument, fleet: FleetOption = DEFAULT) -> None:
    """Stop a component orderly (SIGTERM), such as the kubelet."""
    from devcluster import faults
    from devcluster.fleet import Fleet

    faults.stop(Fleet(fleet).cluster(cluster), component)


@cli.command()
def start(cluster: ClusterArgument, component: ComponentArgument, fleet: FleetOption = DEFAULT) -> None:
    """Start a component that was killed or stopped, as it was."""
    from devcluster import faults
    from devcluster.fleet import Fleet

    faults.start(Fleet(fleet).cluster(cluster), component)


@cli.command()
def restart(cluster: ClusterArgument, component: ComponentArgument, fleet: FleetOption = DEFAULT) -> None:
    """Stop a component and start it again."""
    from devcluster import faults
    from devcluster.fleet import Fleet

    faults.restart(Fleet(fleet).cluster(cluster), component)


@cli.command()
def slow(
    cluster: ClusterArgument,
    delay: Annotated[float, typer.Option(min=0, max=60_000, metavar="MS", help="Milliseconds each way.")] = 50,
    jitter: Annotated[float, typer.Option(min=0, max=60_000, metavar="MS", help="Milliseconds up and down.")] = 0,
    loss: Annotated[float, typer.Option(min=0, max=100, metavar="PERCENT", help="Packets that are lost.")] = 0,
    hang: Annotated[bool, typer.Option("--hang", help="Accept connections and never pass a byte.")] = False,
    method: Annotated[str, typer.Option(help="netem or relay; default: netem where the kernel has it.")] = "",
    fleet: FleetOption = DEFAULT,
) -> None:
    """Make the way to a cluster's API server slow and lossy.

    Prints the kubeconfig that takes this way.
    """
    from devcluster import faults
    from devcluster.fleet import Fleet
    from devcluster.relay import Weather

    if method and method not in list(faults.Method):
        raise typer.BadParameter(f"'{method}' is not one of netem, relay", param_hint="'--method'")
    weather = Weather(delay / 1000, jitter / 1000, loss / 100, hang)
    chosen = faults.Method(method) if method else None
    typer.echo(faults.slow(Fleet(fleet).cluster(cluster), weather, chosen))


@cli.command()
def fast(cluster: ClusterArgument, fleet: FleetOption = DEFAULT) -> None:
    """Undo 'slow'."""
    from devcluster import faults
    from devcluster.fleet import Fleet

    faults.fast(Fleet(fleet).cluster(cluster))


@cli.command()
def expire(cluster: ClusterArgument, kubeconfig: KubeconfigArgument, fleet: FleetOption = DEFAULT) -> None:
    """Replace a kubeconfig's credential by one that has expired."""
    from devcluster import faults
    from devcluster.fleet import Fleet

    faults.expire(Fleet(fleet).cluster(cluster), kubeconfig)


@cli.command()
def renew(kubeconfig: KubeconfigArgument) -> None:
    """Undo 'expire'."""
    from devcluster import faults

    faults.renew(kubeconfig)


@cli.command()
def revoke(
    cluster: ClusterArgument,
    service_account: Annotated[str, typer.Argument(metavar="NAMESPACE/NAME", help="The ServiceAccount.")],
    fleet: FleetOption = DEFAULT,
) -> None:
    """Make every token of a ServiceAccount void (within ten seconds)."""
    from devcluster import faults
    from devcluster.fleet import Fleet

    namespace, slash, name = service_account.partition("/")
    if not (slash and namespace and name):
        raise typer.BadParameter(f"'{service_account}' is not NAMESPACE/NAME", param_hint="'NAMESPACE/NAME'")
    faults.revoke(Fleet(fleet).cluster(cluster), namespace, name)


@cli.command("list")
def list_(fleet: FleetOption = DEFAULT) -> None:
    """Show the faults in force."""
    from devcluster import faults
    from devcluster.fleet import Fleet

    for fault in faults.active(Fleet(fleet)):
        typer.echo(fault)


@cli.command()
def clear(fleet: FleetOption = DEFAULT) -> None:
    """Undo every fault that can be undone."""
    from devcluster import faults
    from devcluster.fleet import Fleet

    faults.clear(Fleet(fleet))
