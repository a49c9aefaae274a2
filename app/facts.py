"""What is found of the two clusters at start, and told to the person who started it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from dataclasses import dataclass

from app import __version__, names
from app.kube.client import Client
from app.kube.errors import ApiError
from app.kube.resources import NAMESPACES
from app.settings import RunSettings
from certs.address import node_address
from certs.errors import CertificateError

log = logging.getLogger(__name__)


class StartError(Exception):
    """It cannot work like this; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found at start."""

    local_version: str
    remote_version: str
    local_id: str
    remote_id: str
    address: str
    """Where the local API server finds the node."""


async def discover(local: Client, remote: Client, settings: RunSettings) -> Facts:
    """Who the two clusters are; refuses what cannot work."""
    local_version, remote_version = await asyncio.gather(local.server_version(), remote.server_version())
    local_id = settings.cluster_id or await cluster_id(local)
    remote_id = await cluster_id(remote)
    if local_id == remote_id:
        raise StartError("both kubeconfigs lead to the same cluster: a cluster cannot be a node of itself")
    try:
        found = await node_address(settings.node_address, os.environ, local)
    except CertificateError as error:
        raise StartError(str(error)) from error
    if found.warning:
        log.warning("node address %s (%s): %s", found.address, found.source, found.warning)
    return Facts(local_version["gitVersion"], remote_version["gitVersion"], local_id, remote_id, found.address)


async def cluster_id(client: Client) -> str:
    """A short hash of the UID of kube-system, which no two clusters share; of the address where that is hidden."""
    try:
        uid = (await client.get(NAMESPACES.path(name="kube-system")))["metadata"]["uid"]
    except ApiError:
        uid = (await client.access()).server
    return hashlib.sha256(uid.encode()).hexdigest()[:8]


def describe(settings: RunSettings, facts: Facts) -> str:
    """What a person wants to know at start, in a few lines."""
    node = settings.node_name
    where = (
        f"namespaces {', '.join(settings.namespaces)}"
        if settings.namespaces
        else f"every namespace with the label {names.LABEL_ENABLED}=true"
    )
    return "\n".join(
        [
            f"farlet {__version__}: node {node} = remote cluster {facts.remote_id}",
            f"  local {facts.local_version} (id {facts.local_id}), remote {facts.remote_version}",
            f"  offloads from {where}",
            f"  send a pod there: runtimeClassName: {names.RUNTIME_CLASS}, or nodeName: {node}, or tolerate "
            f"{names.TAINT_KEY} and select type={names.TYPE_VIRTUAL_KUBELET}",
        ]
    )
