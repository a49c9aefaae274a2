"""``farlet run``: the virtual node of one remote cluster, until it is told to stop."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

KubeconfigOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The local cluster. [default: in-cluster, or the usual kubeconfig]"),
]
RemoteKubeconfigOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The remote cluster, which runs the pods.")
]
NamespaceOption = Annotated[
    list[str] | None,
    typer.Option("--namespace", metavar="LOCAL[=REMOTE]", help="Offload this one (repeatable). [default: by label]"),
]


def run(
    kubeconfig: KubeconfigOption = None,
    context: Annotated[str | None, typer.Option(help="Its context.")] = None,
    remote_kubeconfig: RemoteKubeconfigOption = None,
    remote_context: Annotated[str | None, typer.Option(help="Its context.")] = None,
    node_name: Annotated[str | None, typer.Option(metavar="NAME", help="The virtual node. [default: farlet]")] = None,
    node_address: Annotated[str | None, typer.Option(metavar="IP", help="Where the node can be reached.")] = None,
    cluster_id: Annotated[str | None, typer.Option(metavar="ID", help="The local cluster's id.")] = None,
    namespace: NamespaceOption = None,
    share: Annotated[int | None, typer.Option(metavar="PERCENT", help="Share to offer. [default: 90]")] = None,
    capacity: Annotated[
        str | None, typer.Option(metavar="CPU=N,...", help="Fixed resources. [default: from the remote nodes]")
    ] = None,
    node_label: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="On the node (repeatable).")] = None,
    on_unreachable: Annotated[
        str | None, typer.Option(metavar="not-ready|keep", help="While the remote is gone. [default: not-ready]")
    ] = None,
    on_shutdown: Annotated[
        str | None, typer.Option(metavar="keep|not-ready", help="After an orderly end. [default: keep]")
    ] = None,
    allow_host: Annotated[bool | None, typer.Option("--allow-host", help="Offload pods that want the host.")] = None,
    remote_node_selector: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Only such remote nodes (repeatable).")
    ] = None,
    remote_toleration: Annotated[
        list[str] | None, typer.Option(metavar="KEY[=VALUE][:EFFECT]", help="For remote taints (repeatable).")
    ] = None,
    events: Annotated[
        str | None, typer.Option(metavar="warnings|all|none", help="Of the remote, on local pods. [default: warnings]")
    ] = None,
    health_address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="/livez, /readyz. [default: 127.0.0.1:10248]")
    ] = None,
    log_format: Annotated[str | None, typer.Option(metavar="text|json", help="[default: text]")] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="YAML with the same settings.")] = None,
) -> None:
    """Show a remote cluster as a node, and run its pods there.

    Every setting can also be given by the environment (FARLET_NODE_NAME) or a YAML file (node-name); flags win.
    """
    from app import settings
    from app.kube.errors import KubeError
    from app.worker import WorkerError, main

    flags = {
        "kubeconfig": kubeconfig,
        "context": context,
        "remote_kubeconfig": remote_kubeconfig,
        "remote_context": remote_context,
        "node_name": node_name,
        "node_address": node_address,
        "cluster_id": cluster_id,
        "namespaces": tuple(namespace or ()),
        "share": share,
        "capacity": capacity,
        "node_labels": tuple(node_label or ()),
        "on_unreachable": on_unreachable,
        "on_shutdown": on_shutdown,
        "allow_host": allow_host,
        "remote_node_selector": tuple(remote_node_selector or ()),
        "remote_tolerations": tuple(remote_toleration or ()),
        "events": events,
        "health_address": health_address,
        "log_format": log_format,
    }
    try:
        chosen = settings.load(flags, os.environ, config)
    except settings.SettingsError as error:
        typer.echo(f"farlet run: {error}", err=True)
        raise typer.Exit(2) from error
    try:
        main(chosen)
    except (KubeError, WorkerError) as error:
        typer.echo(f"farlet run: {error}", err=True)
        sys.exit(1)
