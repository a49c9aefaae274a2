"""From local namespaces to remote ones: what is asked for, computed and never looked up.

Pure. A namespace is mapped because it was named (``--namespace LOCAL[=REMOTE]``), or because it carries the label
that switches offloading on. Where no remote name was given it is made of the local name and the local cluster's id, so
that two local clusters never meet in one remote namespace.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.names import LABEL_ENABLED

_MAX_NAME = 63
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Target:
    """The remote namespace of a local one."""

    name: str
    given: bool
    """Named by the user: it may be an existing one, which is then never labelled and never deleted."""


@dataclass(frozen=True, slots=True)
class NamespaceMap:
    """What was asked for."""

    origin: str
    """The local cluster's id."""
    named: Mapping[str, str | None]
    """Local name -> remote name, None where it is to be computed. Empty: go by the label."""

    def target(self, namespace: str, labels: Mapping[str, str]) -> Target | None:
        """The remote namespace of a local one, None if it is not mapped."""
        if self.named:
            if namespace not in self.named:
                return None
            name = self.named[namespace]
            return Target(name, True) if name else Target(remote_name(namespace, self.origin), False)
        if labels.get(LABEL_ENABLED) == "true":
            return Target(remote_name(namespace, self.origin), False)
        return None

    def why_not(self, namespace: str) -> str:
        """What a user can do about a namespace that is not mapped."""
        if self.named:
            return f"namespace {namespace} is not offloaded: start farlet with --namespace {namespace}"
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
