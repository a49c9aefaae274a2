"""``farlet remove``: takes a virtual node away, with the pods on it and what stands for them in the remote cluster."""

from pathlib import Path
from typing import Annotated

import typer

FAILED, NOT_IN_TIME, INTERRUPTED = 1, 3, 130


def remove(
    node: Annotated[str, typer.Argument(metavar="NODE", help="The virtual node.")],
    kubeconfig: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The local cluster. [default: in-cluster, or the usual kubeconfig]"),
    ] = None,
    context: Annotated[str | None, typer.Option(help="Its context.")] = None,
    remote_kubeconfig: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The remote cluster, to remove what is left there.")
    ] = None,
    remote_context: Annotated[str | None, typer.Option(help="Its context.")] = None,
    cluster_id: Annotated[
        str | None, typer.Option(metavar="ID", help="The local cluster's id, if 'farlet run' was given one.")
    ] = None,
    namespaces: Annotated[
        list[str] | None,
        typer.Option(
            "--namespace",
            metavar="LOCAL=REMOTE",
            help="As given to 'farlet run'; where rights are confined and the node is gone (repeatable).",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="The remote cluster is gone: delete the pods at once, touch nothing there.")
    ] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="To wait for pods and budgets.")] = 300,
) -> None:
    """Remove a virtual node: cordon, evict its pods, then delete it.

    Disruption budgets are respected. It can be run again after an interruption. Exit codes: 0 removed, 1 refused or
    failed, 2 wrong arguments, 3 not done within --timeout, 130 interrupted.
    """
    from app.kube.errors import KubeError
    from app.namespaces.mapping import parse
    from app.node.object import check_node_name
    from app.remover import NotInTime, RemovalError, RemovalOptions, main

    if force and remote_kubeconfig is not None:
        raise typer.BadParameter("with --force nothing remote is touched: leave --remote-kubeconfig out")
    try:
        check_node_name(node)
        parse(namespaces or ())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    options = RemovalOptions(
        node=node,
        kubeconfig=kubeconfig,
        context=context,
        remote_kubeconfig=remote_kubeconfig,
        remote_context=remote_context,
        cluster_id=cluster_id,
        namespaces=namespaces or (),
        force=force,
        timeout=timeout,
    )
    try:
        main(options, _say)
    except NotInTime as error:
        _fail(str(error), NOT_IN_TIME)
    except (KubeError, RemovalError) as error:
        _fail(str(error), FAILED)
    except KeyboardInterrupt:
        _fail("interrupted; run it again to go on", INTERRUPTED)


def _say(line: str) -> None:
    print(line, flush=True)


def _fail(message: str, code: int) -> None:
    typer.echo(f"farlet remove: {message}", err=True)
    raise typer.Exit(code)
