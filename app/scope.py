"""How far the rights in the remote cluster reach: everywhere, or only into the namespaces that were given.

Where they are confined, each given namespace is followed by itself, and what is outside of them cannot be seen. So
the namespaces that a node's pods were sent to must stay among them: a twin out of sight would be taken for one that
was deleted, and what runs would be run a second time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from app import names
from app.kube.access import may
from app.kube.client import Client
from app.kube.errors import Forbidden, NotFound
from app.kube.objects import Object
from app.kube.resources import JOBS, NODES, PODS, REPLICA_SETS
from app.namespaces.mapping import NamespaceMap, parse
from app.removal import leaving, listed

MAX_NAMESPACES: Final = 50
WATCHES: Final = 4
"""In each namespace: pods, ReplicaSets, Jobs and events."""
GRANT_LAG: Final = 2.0
"""Seconds after which a right that was just granted is known to the API server."""
_FOLLOWED: Final = (PODS, REPLICA_SETS, JOBS)


class ScopeError(Exception):
    """What is asked for cannot be done with these rights; the message says what to do."""


async def followed(remote: Client, given: Sequence[str | None]) -> tuple[str, ...] | None:
    """The remote namespaces to follow one by one; None: the rights reach everywhere.

    *given* are the remote names of the mapped namespaces, None where one is to be computed.
    """
    if await _reach_everywhere(remote):
        return None
    await asyncio.sleep(GRANT_LAG)
    return None if await _reach_everywhere(remote) else confined_to(given)


def confined_to(given: Sequence[str | None]) -> tuple[str, ...]:
    """The namespaces that confined rights are used in; raises ScopeError if that cannot be."""
    spaces = tuple(dict.fromkeys(space for space in given if space is not None))
    if not spaces or None in given:
        raise ScopeError(
            "the rights in the remote cluster do not reach into all namespaces: give every namespace with its remote "
            "one, --namespace LOCAL=REMOTE, or the rights of manifests/remote-rbac.yaml"
        )
    if len(spaces) > MAX_NAMESPACES:
        raise ScopeError(
            f"{len(spaces)} remote namespaces would have to be followed one by one, and {MAX_NAMESPACES} is the most: "
            "give rights that reach into all (manifests/remote-rbac.yaml), or run one farlet for each part of them"
        )
    return spaces


async def _reach_everywhere(remote: Client) -> bool:
    """Whether we may list what we follow in all namespaces at once; so it seems if the API server does not say."""
    try:
        allowed = await asyncio.gather(*(may(remote, "list", kind.plural, group=kind.group) for kind in _FOLLOWED))
    except (Forbidden, NotFound):
        return True
    return all(allowed)


def check_sizing(*, sized: bool, confined: bool) -> None:
    """If nothing else was said, a node is sized by the remote nodes and the pods of others on them."""
    if confined and not sized:
        raise ScopeError(
            "the rights in the remote cluster do not let the node be sized by the remote nodes: give it a size with "
            "--capacity cpu=4,memory=8Gi,pods=20, or one of --capacity-quota, --capacity-command, --capacity-url"
        )


# ---------------------------------------------------------------------- what is out of sight


def recorded(node: Object | None) -> dict[str, str | None] | None:
    """The mapping that a node's pods were offloaded by, as it is written on the node; None if it is not."""
    text = ((node or {}).get("metadata", {}).get("annotations") or {}).get(names.ANNOTATION_NAMESPACES)
    if not text:
        return None
    try:
        return parse(text.split(","))
    except ValueError as error:
        raise ScopeError(f"annotation {names.ANNOTATION_NAMESPACES} of the node: {error}") from error


async def check_in_sight(local: Client, name: str, origin: str, now: Mapping[str, str | None]) -> None:
    """Refuse a mapping by which pods of the node would lose sight of their twins."""
    try:
        node = await local.get(NODES.path(name=name))
    except NotFound:
        return
    before = NamespaceMap(origin, recorded(node) or {})
    if before.named and all(now.get(space) == remote for space, remote in before.named.items()):
        return
    pods = await local.get(PODS.path(), params={"fieldSelector": f"spec.nodeName={name}"})
    if lost := out_of_sight(pods["items"], before, now):
        raise ScopeError(
            f"pods on node {name} were offloaded by the mapping {listed(lost)}, and these rights would not show what "
            "runs for them: give it again with --namespace until they are gone"
        )


def out_of_sight(pods: Iterable[Object], before: NamespaceMap, now: Mapping[str, str | None]) -> list[str]:
    """The LOCAL=REMOTE of namespaces with pods whose twins may be where nobody would look for them now."""
    lost = set()
    for space in {pod["metadata"]["namespace"] for pod in leaving(pods)}:
        # whether it carried the label then is not known
        target = before.target(space, {names.LABEL_ENABLED: "true"})
        if target is not None and now.get(space) != target.name:
            lost.add(f"{space}={target.name}")
    return sorted(lost)
