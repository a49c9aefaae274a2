"""Which objects are reflected, and which of their labels and annotations are not carried. Pure.

For each kind one policy: ``all`` reflects everything that does not say no, ``none`` only what says yes, ``off`` does
not even look. What an object itself says, with the annotation ``farlet.dev/reflect``, decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from app import names


class Policy(StrEnum):
    """What becomes of objects that say nothing themselves."""

    ALL = "all"
    NONE = "none"
    OFF = "off"


KINDS: Final = ("configmaps", "secrets", "services", "endpointslices")

_OURS: Final = f"{names.GROUP}/*"
NOT_CARRIED_LABELS: Final = (
    "argocd.argoproj.io/*",
    "kustomize.toolkit.fluxcd.io/*",
    "helm.toolkit.fluxcd.io/*",
)
NOT_CARRIED_ANNOTATIONS: Final = (
    "kubectl.kubernetes.io/last-applied-configuration",
    "endpoints.kubernetes.io/last-change-trigger-time",
    "control-plane.alpha.kubernetes.io/leader",
    "argocd.argoproj.io/*",
    "kustomize.toolkit.fluxcd.io/*",
    "helm.toolkit.fluxcd.io/*",
    "meta.helm.sh/*",
)
"""What tells of the local cluster, or makes a tool of the remote one believe that the copy is its own to remove."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What was asked for."""

    policies: Mapping[str, Policy] = field(default_factory=dict)
    """By kind, in the plural; what is not named is ``all``."""
    not_carried_labels: Sequence[str] = NOT_CARRIED_LABELS
    not_carried_annotations: Sequence[str] = NOT_CARRIED_ANNOTATIONS
    """Keys, in which ``*`` stands for anything."""

    def policy(self, kind: str) -> Policy:
        return self.policies.get(kind, Policy.ALL)

    def wanted(self, kind: str, annotations: Mapping[str, str]) -> bool:
        """Whether an object of a kind with these annotations is to be reflected."""
        policy = self.policy(kind)
        if policy is Policy.OFF:
            return False
        said = annotations.get(names.ANNOTATION_REFLECT, "").lower()
        return said != "false" if policy is Policy.ALL else said == "true"

    def labels(self, labels: Mapping[str, str]) -> dict[str, str]:
        """Those that are carried."""
        return _without(labels, (_OURS, *self.not_carried_labels))

    def annotations(self, annotations: Mapping[str, str]) -> dict[str, str]:
        """Those that are carried."""
        return _without(annotations, (_OURS, *self.not_carried_annotations))


def parse(options: Sequence[str]) -> dict[str, Policy]:
    """``["secrets=none"]`` -> ``{"secrets": Policy.NONE}``; ValueError says what is wrong."""
    policies: dict[str, Policy] = {}
    for option in options:
        kind, equals, policy = option.partition("=")
        if kind not in KINDS or not equals or policy not in list(Policy):
            raise ValueError(f"{option!r}: KIND=POLICY is needed, of {', '.join(KINDS)} and {', '.join(Policy)}")
        if kind in policies:
            raise ValueError(f"{kind} is given twice")
        if kind == "endpointslices" and policy == Policy.NONE:
            raise ValueError(f"{option!r}: EndpointSlices follow their Services; all or off")
        policies[kind] = Policy(policy)
    return policies


def _without(values: Mapping[str, str], patterns: Sequence[str]) -> dict[str, str]:
    return {key: value for key, value in values.items() if not any(fnmatchcase(key, each) for each in patterns)}
