"""The object ``NamespaceOffloading`` as Farlet reads it, and the entry that each virtual node writes into its status.

Pure. The API server has checked the object by its schema; what an older or newer schema lets through is read with care.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from app.kube.objects import Object
from app.node.selector import any_term_allows


class PodStrategy(StrEnum):
    """Where new pods may run."""

    LOCAL = "Local"
    REMOTE = "Remote"
    LOCAL_AND_REMOTE = "LocalAndRemote"


class MappingStrategy(StrEnum):
    """What the namespace is called in a remote cluster."""

    DEFAULT_NAME = "DefaultName"
    ENFORCE_SAME_NAME = "EnforceSameName"
    SELECTED_NAME = "SelectedName"


@dataclass(frozen=True, slots=True)
class Offloading:
    """What one object asks for. All defaults: the same as the label."""

    namespace: str
    uid: str = ""
    generation: int = 0
    deleting: bool = False
    pods: PodStrategy = PodStrategy.LOCAL_AND_REMOTE
    mapping: MappingStrategy = MappingStrategy.DEFAULT_NAME
    remote_name: str | None = None
    terms: tuple[Object, ...] | None = None
    """Node selector terms; None: every cluster."""

    @classmethod
    def of(cls, content: Object) -> Offloading:
        metadata, spec = content["metadata"], content.get("spec") or {}
        selector = spec.get("clusterSelector")
        return cls(
            namespace=metadata["namespace"],
            uid=metadata.get("uid", ""),
            generation=metadata.get("generation", 0),
            deleting=bool(metadata.get("deletionTimestamp")),
            pods=PodStrategy(spec.get("podOffloadingStrategy") or PodStrategy.LOCAL_AND_REMOTE),
            mapping=MappingStrategy(spec.get("namespaceMappingStrategy") or MappingStrategy.DEFAULT_NAME),
            remote_name=spec.get("remoteNamespaceName"),
            terms=None if selector is None else tuple(selector.get("nodeSelectorTerms") or ()),
        )

    def selects(self, node: str, labels: Mapping[str, str]) -> bool:
        """Whether the cluster behind a virtual node is chosen."""
        return self.terms is None or any_term_allows(self.terms, node, labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What one virtual node says of a namespace."""

    node: str
    cluster: str
    remote_namespace: str = ""
    ready: bool
    reason: str
    message: str = ""
    generation: int = 0

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Entry:
        return cls(
            node=content["node"],
            cluster=content.get("cluster", ""),
            remote_namespace=content.get("remoteNamespace", ""),
            ready=bool(content.get("ready")),
            reason=content.get("reason", ""),
            message=content.get("message", ""),
            generation=content.get("observedGeneration", 0),
        )

    def object(self) -> Object:
        found: Object = {
            "node": self.node,
            "cluster": self.cluster,
            "remoteNamespace": self.remote_namespace,
            "ready": self.ready,
            "reason": self.reason,
            "message": self.message[:4096],
            "observedGeneration": self.generation,
        }
        return {key: value for key, value in found.items() if value != ""}


def entries(content: Object) -> list[Entry]:
    """What all nodes have said so far."""
    return [Entry.of(entry) for entry in (content.get("status") or {}).get("clusters") or []]


NAMESPACE_READY, CONFLICT, TERMINATING = "NamespaceReady", "Conflict", "Terminating"
FORBIDDEN, NOT_GIVEN, FAILED, DRAINING = "Forbidden", "NotGiven", "Failed", "Draining"
"""Reasons of an entry."""
