"""``farlet operator`` as a process: caches, the webhook, and for the leader the controller and the registration."""

from __future__ import annotations

import asyncio
import datetime
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from app import logs, names
from app.caches import all_synced, waiting_for
from app.facts import StartError
from app.health import HealthServer
from app.kube import config
from app.kube.client import Client
from app.kube.election import LeaderLock
from app.kube.informer import Informer
from app.kube.informers import Cache
from app.kube.resources import NAMESPACE_OFFLOADINGS, NAMESPACES, NODES, SECRETS
from app.operator.controller import OffloadingController
from app.operator.registration import Registration
from app.operator.webhook import Webhook
from app.process import one_error, run_until_signalled
from app.settings import LogFormat
from certs.tls import ServerTls

LOCK: Final = "farlet-operator"
SECRET: Final = "farlet-webhook-tls"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorOptions:
    """What was asked for."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str = "farlet"
    """Where its Secret and its lock are."""
    service: str = "farlet-webhook"
    webhook_address: str = "0.0.0.0:9443"
    webhook_url: str | None = None
    webhook_name: str = "farlet"
    certificate_life: float = 90 * 24.0
    """Hours."""
    taint_key: str = names.TAINT_KEY
    allow_host: bool = False
    health_address: str = "127.0.0.1:10246"
    log_format: LogFormat = LogFormat.TEXT


def main(options: OperatorOptions) -> None:
    """Run until SIGTERM or SIGINT."""
    logs.set_up(options.log_format)
    run_until_signalled(run(options))


async def run(options: OperatorOptions) -> None:
    """Connect, and work."""
    with one_error():
        async with Client(config.load(options.kubeconfig, options.context), name="local") as local:
            await _run(options, local)


async def _run(options: OperatorOptions, local: Client) -> None:
    space = options.namespace
    lock = LeaderLock(local, space, LOCK, f"{socket.gethostname()}-{os.getpid()}")
    leading = local.fenced(lock.check)
    offloadings = Informer(local, NAMESPACE_OFFLOADINGS)
    namespaces = Informer(local, NAMESPACES)
    nodes = Informer(local, NODES, label_selector=names.LABEL_VIRTUAL_NODE)
    secret_name = SECRET if options.webhook_name == "farlet" else f"{SECRET}-{options.webhook_name}"
    secrets = Informer(local, SECRETS, namespace=space, field_selector=f"metadata.name={secret_name}")
    informers: list[Cache] = [offloadings, namespaces, nodes, secrets]

    registration = Registration(
        local,
        secrets=secrets,
        namespace=space,
        secret=secret_name,
        name=options.webhook_name,
        service=options.service,
        url=options.webhook_url,
        addresses=_addresses(options),
        life=datetime.timedelta(hours=options.certificate_life),
    )
    controller = OffloadingController(leading, namespaces=namespaces, offloadings=offloadings, nodes=nodes)
    tls = ServerTls()
    webhook = Webhook(
        address=options.webhook_address,
        tls=tls,
        local=local,
        namespaces=namespaces,
        offloadings=offloadings,
        own_namespace=space,
        allow_host=options.allow_host,
        taint_key=options.taint_key,
    )
    offloadings.listen(controller.on_offloading)
    namespaces.listen(controller.on_namespace)
    nodes.listen(controller.on_node)
    secrets.listen(registration.on_secret)

    def synced() -> str | None:
        waiting = waiting_for(informers)
        return f"waiting for {', '.join(waiting)}" if waiting else None

    async def lead() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(controller.run())
            group.create_task(registration.keep(leading))

    health = HealthServer(live={}, ready={"caches": synced, "certificate": registration.check})
    try:
        await health.start(options.health_address)
        await webhook.start()
    except OSError as error:
        raise StartError(
            f"cannot listen: {error.strerror or error}; give others with --webhook-address and --health-address"
        ) from error
    print(f"farlet operator: webhook on port {webhook.port}", flush=True)  # noqa: T201 - for who started it
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(informer.run()) for informer in informers]
            await all_synced(informers)
            tasks.append(group.create_task(registration.follow(tls)))
            try:
                await lock.run(lead)
            finally:  # by caches that still follow
                await webhook.drain()
            for task in tasks:
                task.cancel()
    finally:
        await webhook.stop()
        await health.stop()


def _addresses(options: OperatorOptions) -> list[str]:
    """What the certificate is for."""
    if options.webhook_url is not None:
        host = urlsplit(options.webhook_url).hostname
        if not host:
            raise StartError(f"--webhook-url {options.webhook_url}: https://HOST:PORT is needed")
        return [host]
    name = f"{options.service}.{options.namespace}"
    return [f"{name}.svc", f"{name}.svc.cluster.local", name]
