"""``farlet operator``: NamespaceOffloading objects and the admission webhook of the local cluster."""

import sys
from pathlib import Path
from typing import Annotated

import typer

_TAINT = "farlet.dev/virtual-node"


def operator(
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="FARLET_KUBECONFIG",
            help="The local cluster. [default: in-cluster, or the usual kubeconfig]",
        ),
    ] = None,
    context: Annotated[str | None, typer.Option(help="Its context.")] = None,
    namespace: Annotated[
        str, typer.Option(envvar="FARLET_NAMESPACE", help="Where its Secret and its lock are.")
    ] = "farlet",
    service: Annotated[
        str, typer.Option(envvar="FARLET_SERVICE", help="The Service that the API server calls.")
    ] = "farlet-webhook",
    webhook_address: Annotated[
        str, typer.Option(metavar="HOST:PORT", envvar="FARLET_WEBHOOK_ADDRESS", help="Where the webhook listens.")
    ] = "0.0.0.0:9443",
    webhook_url: Annotated[
        str | None,
        typer.Option(
            metavar="https://HOST:PORT",
            envvar="FARLET_WEBHOOK_URL",
            help="Where the API server finds it, instead of the Service; for an operator outside of the cluster.",
        ),
    ] = None,
    webhook_name: Annotated[
        str, typer.Option(metavar="NAME", envvar="FARLET_WEBHOOK_NAME", help="Of both webhook configurations.")
    ] = "farlet",
    certificate_life: Annotated[
        float,
        typer.Option(metavar="HOURS", envvar="FARLET_CERTIFICATE_LIFE", min=0.001, help="Renewed after two thirds."),
    ] = 2160,
    taint_key: Annotated[
        str, typer.Option(envvar="FARLET_TAINT_KEY", help="The taint of virtual nodes that pods tolerate.")
    ] = _TAINT,
    allow_host: Annotated[
        bool,
        typer.Option(
            "--allow-host",
            envvar="FARLET_ALLOW_HOST",
            help="Pods that want the host may be offloaded; as for farlet run.",
        ),
    ] = False,
    health_address: Annotated[
        str, typer.Option(metavar="HOST:PORT", envvar="FARLET_HEALTH_ADDRESS", help="/livez and /readyz.")
    ] = "127.0.0.1:10246",
    log_format: Annotated[
        str, typer.Option(metavar="text|json", envvar="FARLET_LOG_FORMAT", help="How log lines are written.")
    ] = "text",
) -> None:
    """Keep NamespaceOffloading objects true, and steer the pods of their namespaces with a webhook.

    Several may run: all serve the webhook, one of them leads.
    """
    from app.facts import StartError
    from app.kube.errors import KubeError
    from app.operator.process import OperatorOptions, main
    from app.settings import LogFormat

    for value in (webhook_address, health_address):
        host, _, port = value.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise typer.BadParameter(f"{value!r}: HOST:PORT is needed")
    if log_format not in list(LogFormat):
        raise typer.BadParameter(f"{log_format!r}: one of {', '.join(LogFormat)}")
    options = OperatorOptions(
        kubeconfig=kubeconfig,
        context=context,
        namespace=namespace,
        service=service,
        webhook_address=webhook_address,
        webhook_url=webhook_url,
        webhook_name=webhook_name,
        certificate_life=certificate_life,
        taint_key=taint_key,
        allow_host=allow_host,
        health_address=health_address,
        log_format=LogFormat(log_format),
    )
    try:
        main(options)
    except (KubeError, StartError) as error:
        typer.echo(f"farlet operator: {error}", err=True)
        sys.exit(1)
