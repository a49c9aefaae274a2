"""What is found of the two clusters at start, and told to the person who started it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from app import __version__, names, quantity, rights, scope, usage
from app.kube.access import may
from app.kube.client import Client
from app.kube.errors import Forbidden, NotFound
from app.kube.objects import decode_list
from app.kube.resources import NAMESPACES, NODES
from app.namespaces.mapping import parse
from app.node.capacity import Capacity
from app.node.placement import is_virtual
from app.rights import Right
from app.settings import OnUnreachable, Role, RunSettings
from app.usage import Chosen
from certs.address import node_address
from certs.errors import CertificateError

log = logging.getLogger(__name__)

_SYSTEM: Final = "kube-system"
_PAGE = 500
_SHOWN = 8
"""Resources that are shown of the node's size."""


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
    on_unreachable: OnUnreachable = OnUnreachable.NOT_READY
    """What becomes of the node while the remote cluster cannot be reached."""
    provider_node: str | None = None
    """A local node with a cloud's providerID, if that is why."""
    losses: tuple[str, ...] = ()
    """What does not work, since rights are missing."""
    not_reflected: frozenset[str] = frozenset()
    """Kinds that cannot be reflected from, or to, everywhere, since rights are missing."""
    remote_namespaces: tuple[str, ...] | None = None
    """Those that the rights in the remote cluster are confined to; None: they reach everywhere."""
    usage: Chosen | None = None
    """Where it is read what pods use; None: this process is not asked for it."""


async def discover(local: Client, remote: Client, settings: RunSettings) -> Facts:
    """Who the two clusters are and how far the rights reach; refuses what cannot work."""
    local_version, remote_version = await asyncio.gather(local.server_version(), remote.server_version())
    try:
        given = list(parse(settings.namespaces).values())
        spaces = await scope.followed(remote, given)
        scope.check_sizing(sized=settings.sized, confined=spaces is not None)
    except (ValueError, scope.ScopeError) as error:
        raise StartError(str(error)) from error
    missing = await _check_rights(local, rights.local(settings), rights.LOCAL_MANIFEST)
    losses = rights.losses(local.name, missing)
    manifest = rights.REMOTE_MANIFEST if spaces is None else rights.CONFINED_MANIFEST
    missing_there = await _check_rights(remote, rights.remote(settings, spaces), manifest)
    losses += rights.losses(remote.name, missing_there)
    serves = settings.role is not Role.WORKER
    source = await usage.choose(remote, settings.metrics_source, spaces) if serves else None
    local_id = settings.cluster_id or await cluster_id(local)
    identities = await remote_identities(remote, given)
    await _check_different(local, identities)
    ids = [short_id(uid) for uid in identities.values()]
    known = await _cluster_behind(local, settings.node_name)
    address = await _address(local, settings)
    on_unreachable, provider_node = await unreachable_policy(local, settings)
    return Facts(
        local_version["gitVersion"],
        remote_version["gitVersion"],
        local_id,
        known if known is not None and known in ids else ids[0],
        address,
        on_unreachable=on_unreachable,
        provider_node=provider_node,
        losses=tuple(losses),
        not_reflected=rights.not_reflected([*missing, *missing_there]),
        remote_namespaces=spaces,
        usage=source,
    )


async def _check_rights(client: Client, needed: Sequence[Right], manifest: str) -> list[Right]:
    """The rights that are missing; refuses to start where nothing works without them."""
    missing = await missing_rights(client, needed)
    if rights.refusal(client.name, missing, manifest):
        await asyncio.sleep(scope.GRANT_LAG)
        missing = await missing_rights(client, missing)
    if problem := rights.refusal(client.name, missing, manifest):
        raise StartError(problem)
    return missing


async def missing_rights(client: Client, needed: Sequence[Right]) -> list[Right]:
    """Those of the rights that the API server says we do not have; none if it does not answer such questions."""
    try:
        granted = await asyncio.gather(*(_granted(client, right) for right in needed))
    except (Forbidden, NotFound) as error:
        log.info("the %s cluster does not say which rights we have: %s", client.name, error)
        return []
    return [right for right, yes in zip(needed, granted, strict=True) if not yes]


async def _granted(client: Client, right: Right) -> bool:
    return await may(
        client,
        right.verb,
        right.resource,
        group=right.group,
        subresource=right.subresource,
        namespace=right.namespace or "",
    )


async def unreachable_policy(local: Client, settings: RunSettings) -> tuple[OnUnreachable, str | None]:
    """What becomes of the node while the remote cluster is away, and the cloud's node if that is why."""
    if settings.on_unreachable is not None:
        return settings.on_unreachable, None
    provider_node = await _provider_node(local)
    return OnUnreachable.KEEP if provider_node else OnUnreachable.NOT_READY, provider_node


async def _provider_node(client: Client) -> str | None:
    """A node that a cloud knows: there, a controller may delete nodes that it does not know once they are NotReady."""
    params = {"limit": str(_PAGE)}
    while True:
        page = decode_list(await client.request("GET", NODES.path(), params=params))
        for node in (envelope.object() for envelope in page.items):
            labels = node["metadata"].get("labels") or {}
            if (node.get("spec") or {}).get("providerID") and not is_virtual(labels):
                return str(node["metadata"]["name"])
        if not page.continue_token:
            return None
        params["continue"] = page.continue_token


async def _address(local: Client, settings: RunSettings) -> str:
    try:
        found = await node_address(settings.node_address, os.environ, local)
    except CertificateError as error:
        raise StartError(str(error)) from error
    if found.warning:
        log.warning("node address %s (%s): %s", found.address, found.source, found.warning)
    return found.address


# ---------------------------------------------------------------------- who a cluster is
#
# Twins are found by the local cluster's id, and a node is bound to the remote one's. So an id is never guessed: not
# from an address, which another cluster may have tomorrow, and not when an answer is late.


async def cluster_id(local: Client) -> str:
    """A short hash of the UID of kube-system, which no two clusters share."""
    uid = await _uid(local, _SYSTEM)
    if uid is None:
        raise StartError(
            f"who the local cluster is cannot be told: the namespace {_SYSTEM} cannot be read; give the rights of "
            "manifests/local-rbac.yaml, or --cluster-id"
        )
    return short_id(uid)


async def remote_identities(remote: Client, given: Iterable[str | None]) -> dict[str, str]:
    """By which namespaces' UIDs the remote cluster can be known, the best first: kube-system, or one of the given.

    A node keeps the one it was made with, so that rights may be widened, and namespaces added, under a node that is.
    """
    spaces = [_SYSTEM, *(space for space in given if space)]
    uids = await asyncio.gather(*(_uid(remote, space) for space in spaces))
    found = {space: uid for space, uid in zip(spaces, uids, strict=True) if uid is not None}
    if not found:
        raise StartError(
            "who the remote cluster is cannot be told: neither kube-system nor a namespace given as --namespace "
            "LOCAL=REMOTE can be read; the roles in manifests/ have the right"
        )
    return found


def short_id(uid: str) -> str:
    return hashlib.sha256(uid.encode()).hexdigest()[:8]


async def _uid(client: Client, namespace: str) -> str | None:
    """A namespace's UID; None where it is hidden, or not there."""
    try:
        return str((await client.get(NAMESPACES.path(name=namespace)))["metadata"]["uid"])
    except (Forbidden, NotFound):
        return None


async def _check_different(local: Client, remote: Mapping[str, str]) -> None:
    space, uid = next(iter(remote.items()))
    if await _uid(local, space) == uid:
        raise StartError("both kubeconfigs lead to the same cluster: a cluster cannot be a node of itself")


async def _cluster_behind(local: Client, node: str) -> str | None:
    """The remote cluster that a node stands for already."""
    try:
        labels = (await local.get(NODES.path(name=node)))["metadata"].get("labels") or {}
    except NotFound:
        return None
    return labels.get(names.LABEL_REMOTE_CLUSTER)


# ---------------------------------------------------------------------- what is told


def describe(settings: RunSettings, facts: Facts) -> str:
    """Who the two clusters are: what is known at once."""
    lines = [
        f"farlet {__version__}: node {settings.node_name} = remote cluster {facts.remote_id}",
        f"  local {facts.local_version} (id {facts.local_id}), remote {facts.remote_version}",
        *_confined(facts.remote_namespaces),
        *(f"  {loss}" for loss in facts.losses),
        *([f"  {facts.usage.line()}"] if facts.usage is not None else []),
    ]
    return "\n".join(lines)


def describe_node(settings: RunSettings, facts: Facts, capacity: Capacity, source: str) -> str:
    """What the node is, and how to use it: what is known when the remote cluster has been looked at."""
    where = (
        f"namespaces {', '.join(settings.namespaces)}"
        if settings.namespaces
        else f"every namespace with the label {names.LABEL_ENABLED}=true"
    )
    lines = [
        f"  offers {_offer(capacity)} ({source})",
        f"  offloads from {where}",
        f"  if the remote is unreachable: {_unreachable(settings, facts)}",
        f"  send a pod there: {_ways(settings)}",
    ]
    if absent := [resource for resource in ("cpu", "memory") if resource not in capacity]:
        lines.insert(1, f"  offers no {' and no '.join(absent)}: pods that ask for it are not scheduled there")
    return "\n".join(lines)


def _offer(capacity: Capacity) -> str:
    """The size in few words: CPU, memory and pods first."""
    first = ("cpu", "memory", "pods")
    order = [r for r in first if r in capacity] + sorted(r for r in capacity if r not in first)
    shown = [f"{resource} {quantity.readable(capacity[resource], resource)}" for resource in order[:_SHOWN]]
    rest = len(order) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")


def _unreachable(settings: RunSettings, facts: Facts) -> str:
    what = "the node stays Ready" if facts.on_unreachable is OnUnreachable.KEEP else "the node becomes NotReady"
    if settings.on_unreachable is not None:
        return what
    who = f"local node {facts.provider_node}" if facts.provider_node else "no local node"
    return f"{what} ({who} has a providerID; --on-unreachable says otherwise)"


def _ways(settings: RunSettings) -> str:
    node, taint = settings.node_name, settings.taint()
    select = f"select type={names.TYPE_VIRTUAL_KUBELET}"
    if taint is None:
        return f"runtimeClassName: {names.RUNTIME_CLASS}, or nodeName: {node}, or {select} (the node has no taint)"
    tolerate = f"nodeName: {node}, or tolerate {taint.key} and {select}"
    if taint.key == names.TAINT_KEY:
        return f"runtimeClassName: {names.RUNTIME_CLASS}, or {tolerate}"
    return f"{tolerate} (runtimeClassName: {names.RUNTIME_CLASS} too, once its toleration names {taint.key})"


def _confined(spaces: tuple[str, ...] | None) -> list[str]:
    if spaces is None:
        return []
    watches = f"{scope.WATCHES} watches in each, and one for each reflected kind"
    return [f"  rights only in the remote namespaces {', '.join(spaces)}: {watches}"]
