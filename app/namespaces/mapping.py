"""From local namespaces to remote ones: what is asked for, computed and never looked up.

Pure. A namespace is mapped because it was named (``--namespace LOCAL[=REMOTE]``), because a NamespaceOffloading in it
selects the virtual node, or because it carries the label that switches offloading on. Flags are stronger than the
object, and the object than the label. Where no remote name was given it is made of the local name and the local
cluster's id, so that two local clusters never meet in one remote namespace. The cluster's own namespaces, with all
their Secrets, extend only if they are named: a label is set too easily.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from app.names import ANNOTATION_ENABLED_BY, LABEL_ENABLED, OFFLOADING
from app.namespaces.offloading import MappingStrategy, Offloading

_MAX_NAME = 63
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
RESERVED: Final = frozenset({"kube-system", "kube-public", "kube-node-lease"})
"""The cluster's own."""


class By(StrEnum):
    """What a namespace is mapped by."""

    FLAG = "flag"
    LABEL = "label"
    OFFLOADING = "offloading"


@dataclass(frozen=True, slots=True)
class Target:
    """The remote namespace of a local one."""

    name: str
    given: bool
    """Named with a flag: it may be an existing one, which is then never labelled and never deleted."""
    by: By = By.FLAG


@dataclass(frozen=True, slots=True)
class Asked:
    """What the local cluster says of one namespace."""

    namespace: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    offloading: Offloading | None = None
    node_labels: Mapping[str, str] = field(default_factory=dict)
    """Of the virtual node."""
    going: bool = False
    """The namespace is being deleted: what it asks for is over."""

    @property
    def labelled(self) -> bool:
        """Whether a person labelled it; the operator's label only stands for the object."""
        return self.labels.get(LABEL_ENABLED) == "true" and ANNOTATION_ENABLED_BY not in self.annotations


@dataclass(frozen=True, slots=True)
class NamespaceMap:
    """What was asked for."""

    origin: str
    """The local cluster's id."""
    named: Mapping[str, str | None]
    """Local name -> remote name, None where it is to be computed. Empty: go by objects and labels."""
    node: str = ""
    """The virtual node."""
    own: str | None = None
    """The namespace that Farlet runs in, if it is known: credentials for clusters are in it."""

    def target(self, namespace: str, labels: Mapping[str, str]) -> Target | None:
        """The remote namespace of a local one in which there is no NamespaceOffloading; None if it is not mapped."""
        return self.decide(Asked(namespace, labels))

    def decide(self, asked: Asked) -> Target | None:
        """The remote namespace of a local one, None if it is not mapped."""
        default = remote_name(asked.namespace, self.origin)
        if self.named:
            if asked.namespace not in self.named:
                return None
            name = self.named[asked.namespace]
            return Target(name, True) if name else Target(default, False)
        if asked.going or self.is_reserved(asked.namespace):
            return None
        offloading = asked.offloading
        if offloading is not None and not offloading.deleting:
            if not offloading.selects(self.node, asked.node_labels):
                return None
            return Target(self._chosen(offloading) or default, False, By.OFFLOADING)
        return Target(default, False, By.LABEL) if asked.labelled else None

    def is_reserved(self, namespace: str) -> bool:
        """Whether neither label nor object extends it."""
        return namespace in RESERVED or namespace == self.own

    @staticmethod
    def _chosen(offloading: Offloading) -> str | None:
        match offloading.mapping:
            case MappingStrategy.ENFORCE_SAME_NAME:
                return offloading.namespace
            case MappingStrategy.SELECTED_NAME:
                return offloading.remote_name
            case MappingStrategy.DEFAULT_NAME:
                return None

    def why_not(self, namespace: str, asked: Asked | None = None) -> str:
        """What a user can do about a namespace that is not mapped."""
        if self.named:
            return f"namespace {namespace} is not offloaded: start farlet with --namespace {namespace}"
        if self.is_reserved(namespace):
            return (
                f"namespace {namespace} is the cluster's own and is not offloaded, whatever label or object says: use "
                f"another one (only farlet run --namespace {namespace} offloads it)"
            )
        if asked is not None and asked.going:
            return f"namespace {namespace} is being deleted"
        if asked is not None and asked.offloading is not None:
            if asked.offloading.deleting:
                return f"namespace {namespace} is not offloaded any more: its NamespaceOffloading is being deleted"
            return (
                f"namespace {namespace} is not offloaded to node {self.node}: the clusterSelector of its "
                f"NamespaceOffloading does not select it (kubectl -n {namespace} edit nso {OFFLOADING})"
            )
        if asked is not None and ANNOTATION_ENABLED_BY in asked.annotations:
            return f"namespace {namespace} is not offloaded: no NamespaceOffloading is seen in it"
        return f"namespace {namespace} is not offloaded: kubectl label namespace {namespace} {LABEL_ENABLED}=true"


def remote_name(namespace: str, origin: str) -> str:
    """``NAMESPACE-ORIGIN``, cut with a hash where that is too long for a name."""
    name = f"{namespace}-{origin}"
    if len(name) <= _MAX_NAME:
        return name
    digest = hashlib.sha256(namespace.encode()).hexdigest()[:8]
    return f"{namespace[: _MAX_NAME - len(origin) - len(digest) - 2].rstrip('-')}-{digest}-{origin}"


def parse(options: Sequence[str]) -> dict[str, str | None]:
    """``["a", "b=c"]`` -> ``{"a": None, "b": "c"}``; ValueError says what is wrong."""
    named: dict[str, str | None] = {}
    for option in options:
        local, equals, remote = option.partition("=")
        for name in (local, remote) if equals else (local,):
            if len(name) > _MAX_NAME or not _NAME.fullmatch(name):
                raise ValueError(f"{option!r}: {name!r} is not the name of a namespace (LOCAL or LOCAL=REMOTE)")
        if local in named:
            raise ValueError(f"namespace {local!r} is given twice")
        named[local] = remote or None
    remotes = [name for name in named.values() if name]
    if len(set(remotes)) != len(remotes):
        raise ValueError("two local namespaces are mapped to one remote namespace: their pods would meet there")
    return named
