"""What is asked for of local namespaces, as the caches have it or, before anything is taken away, as it is at the API
server itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from app.kube.client import Client
from app.kube.config import SERVICE_ACCOUNT
from app.kube.errors import Forbidden, NotFound
from app.kube.informers import Cache
from app.kube.objects import Key, Object
from app.kube.resources import NAMESPACE_OFFLOADINGS, NAMESPACES, NODES
from app.names import ANNOTATION_NAMESPACES, LABEL_REMOTE_CLUSTER, LABEL_VIRTUAL_NODE, OFFLOADING
from app.namespaces.mapping import Asked, NamespaceMap, Target, parse
from app.namespaces.offloading import Offloading


def own_namespace() -> str | None:
    """The namespace that we run in as a pod; None if we do not."""
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text().strip() or None
    except OSError:
        return None


class Unknown(Exception):
    """It cannot be told now; nothing may be taken away."""


class Wishes:
    """Local namespaces, their NamespaceOffloadings, and the labels of the virtual node."""

    def __init__(
        self, namespace_map: NamespaceMap, *, local: Client, namespaces: Cache, offloadings: Cache, own_node: Cache
    ) -> None:
        self.map = namespace_map
        self._local = local
        self._namespaces = namespaces
        self._offloadings = offloadings
        self._own_node = own_node

    def asked(self, namespace: str) -> Asked:
        """By the caches."""
        found = self._namespaces.get(Key("", namespace))
        metadata = found.metadata if found is not None else None
        offloading = self._offloadings.get(Key(namespace, OFFLOADING))
        node = self._own_node.get(Key("", self.map.node))
        return Asked(
            namespace,
            (metadata.labels or {}) if metadata else {},
            (metadata.annotations or {}) if metadata else {},
            Offloading.of(offloading.object()) if offloading is not None else None,
            (node.metadata.labels or {}) if node is not None else {},
            going=bool(metadata and metadata.deletionTimestamp),
        )

    def target(self, namespace: str) -> Target | None:
        return self.map.decide(self.asked(namespace))

    async def really_asked(self, namespace: str) -> Asked | None:
        """By the API server; None: there is no such namespace. :class:`Unknown` where it does not say."""
        try:
            found = await self._local.get(NAMESPACES.path(name=namespace))
        except NotFound:
            return None
        except Forbidden as error:
            raise Unknown(error.message) from error
        metadata = found["metadata"]
        return Asked(
            namespace,
            metadata.get("labels") or {},
            metadata.get("annotations") or {},
            await self._offloading(namespace),
            await self._node_labels(),
            going=bool(metadata.get("deletionTimestamp")),
        )

    async def _node_labels(self) -> Mapping[str, str]:
        try:
            node = await self._local.get(NODES.path(name=self.map.node))
        except NotFound as error:
            raise Unknown(f"node {self.map.node} is not there") from error
        except Forbidden as error:
            raise Unknown(error.message) from error
        labels: Mapping[str, str] = node["metadata"].get("labels") or {}
        return labels

    async def _offloading(self, namespace: str) -> Offloading | None:
        try:
            return Offloading.of(await self._local.get(NAMESPACE_OFFLOADINGS.path(namespace, OFFLOADING)))
        except NotFound:
            return None
        except Forbidden as error:
            raise Unknown(error.message) from error

    async def others(self, asked: Asked, remote_namespace: str) -> list[str]:
        """Other virtual nodes of the same remote cluster that map a local namespace to this remote one."""
        nodes = await self._local.get(NODES.path(), params={"labelSelector": LABEL_VIRTUAL_NODE})
        cluster = asked.node_labels.get(LABEL_REMOTE_CLUSTER)
        return sorted(
            node["metadata"]["name"]
            for node in nodes["items"]
            if node["metadata"]["name"] != self.map.node
            and (node["metadata"].get("labels") or {}).get(LABEL_REMOTE_CLUSTER) == cluster
            and self._maps(node, asked, remote_namespace)
        )

    def _maps(self, node: Object, asked: Asked, remote_namespace: str) -> bool:
        metadata = node["metadata"]
        given = (metadata.get("annotations") or {}).get(ANNOTATION_NAMESPACES)
        try:
            named = parse(given.split(",")) if given else {}
        except ValueError:
            return True  # whatever it means, it may be this one
        theirs = replace(self.map, named=named, node=metadata["name"])
        target = theirs.decide(replace(asked, node_labels=metadata.get("labels") or {}))
        return target is not None and target.name == remote_namespace
