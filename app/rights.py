"""The rights that Farlet needs in the two clusters, in one table. Pure.

``manifests/`` grants them, a test compares it with this table, and at start each right is asked for, so that a missing
one is a line that a person understands instead of a refusal somewhere later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from app.names import GROUP, LOCK_NAMESPACE
from app.reflection import rules
from app.reflection.rules import Policy
from app.settings import EventMode, MetricsSource, Role, RunSettings, ServingCertificate

LOCAL_MANIFEST: Final = "manifests/local-rbac.yaml"
REMOTE_MANIFEST: Final = "manifests/remote-rbac.yaml"
CONFINED_MANIFEST: Final = "manifests/remote-rbac-confined.yaml"
KUBELETS_MANIFEST: Final = "manifests/remote-rbac-kubelets.yaml"


@dataclass(frozen=True, slots=True)
class Right:
    """One verb on one kind of object."""

    verb: str
    resource: str
    group: str = ""
    subresource: str = ""
    namespace: str | None = None
    """None: in all namespaces, or of a kind that is in none."""
    loss: str = ""
    """What does not work without it; empty: nothing does."""
    instead: str = ""
    """How to do without it."""

    def object(self) -> str:
        """As RBAC writes it: ``pods/status``."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


def _rights(
    verbs: str,
    resource: str,
    *,
    group: str = "",
    namespace: str | None = None,
    loss: str = "",
    instead: str = "",
) -> tuple[Right, ...]:
    """One for each verb; ``pods/status`` is a subresource."""
    plural, _, subresource = resource.partition("/")
    return tuple(Right(verb, plural, group, subresource, namespace, loss, instead) for verb in verbs.split())


_LEASES: Final = "coordination.k8s.io"

_NO_CALLERS: Final = "kubectl logs, exec, attach, port-forward and cp are refused"
_NO_WAY_IN: Final = "kubectl logs, exec, attach, port-forward and cp do not reach into remote pods"

LOCAL: Final = (
    *_rights("get list watch create patch", "nodes"),
    *_rights("patch", "nodes/status"),
    *_rights("get list watch delete", "pods"),
    *_rights("patch", "pods/status"),
    *_rights("list watch", "namespaces"),
    *_rights("get", "namespaces", loss="two kubeconfigs of one cluster go unnoticed"),
    *_rights("get create patch", "events", loss="pods have no events of ours"),
    *_rights("get watch create update", "leases", group=_LEASES, namespace=LOCK_NAMESPACE),
)
LOCAL_OFFLOADING: Final = (
    *_rights("get list watch", "namespaceoffloadings", group=GROUP, loss="NamespaceOffloading objects are not heeded"),
    *_rights(
        "patch",
        "namespaceoffloadings/status",
        group=GROUP,
        loss="the status of NamespaceOffloading objects does not tell of this node",
    ),
    *_rights("create", "pods/eviction", loss="pods of a namespace that is not offloaded any more are not asked to go"),
)
"""For namespaces that are mapped by objects."""
LOCAL_API: Final = (
    *_rights("create", "tokenreviews", group="authentication.k8s.io", loss=_NO_CALLERS),
    *_rights("create", "subjectaccessreviews", group="authorization.k8s.io", loss=_NO_CALLERS),
)
"""What the kubelet API needs."""
LOCAL_CSR: Final = _rights(
    "create get",
    "certificatesigningrequests",
    group="certificates.k8s.io",
    loss="the kubelet API gets no certificate: give it one with --serving-certificate files",
)
_SLICES: Final = "discovery.k8s.io"


def _reflection(verbs: str, loss: str) -> dict[str, tuple[Right, ...]]:
    """Of each kind that is reflected."""
    return {
        kind: _rights(verbs, kind, group=_SLICES if kind == "endpointslices" else "", loss=loss.format(kind))
        for kind in rules.KINDS
    }


LOCAL_REFLECTION: Final = _reflection(
    "get list watch", "{} are reflected only from namespaces where a RoleBinding grants it"
)
REMOTE_REFLECTION: Final = _reflection("get list watch create update delete", "{} are not reflected")
LOCAL_OPTIONAL: Final = (
    *_rights("get", "nodes/proxy"),
    *_rights("update", "certificatesigningrequests/approval", group="certificates.k8s.io"),
    *_rights("approve", "signers", group="certificates.k8s.io"),
)
"""Convenience, asked for when it is used."""
LOCAL_REMOVE: Final = (
    *_rights("delete", "nodes"),
    *_rights("delete", "leases", group=_LEASES, namespace=LOCK_NAMESPACE),
)
"""What only ``farlet remove`` needs."""

REMOTE_EVENTS: Final = _rights("list watch", "events", loss="warnings of the remote cluster are not told on local pods")
_NAMESPACES_STAY: Final = "remote namespaces stay when they are over"
REMOTE: Final = (
    *_rights("get", "namespaces"),
    *_rights("create", "namespaces", loss="no remote namespace is made"),
    *_rights("list delete", "namespaces", loss=_NAMESPACES_STAY),
    *_rights(
        "watch", "namespaces", loss="a remote namespace that somebody deletes is made again only when it is needed"
    ),
    *_rights("list", "persistentvolumeclaims", loss=_NAMESPACES_STAY),
    *_rights("list", "deployments", group="apps", loss=_NAMESPACES_STAY),
    *_rights("list", "statefulsets", group="apps", loss=_NAMESPACES_STAY),
    *_rights("list", "daemonsets", group="apps", loss=_NAMESPACES_STAY),
    *_rights("list", "cronjobs", group="batch", loss=_NAMESPACES_STAY),
    *_rights("get list watch create patch delete", "replicasets", group="apps"),
    *_rights("get list watch create patch delete", "jobs", group="batch"),
    *_rights("list watch delete", "pods"),
    *_rights("patch", "pods", loss="changes of running pods are not carried"),
    *_rights("patch", "pods/ephemeralcontainers", loss="kubectl debug does not reach the remote pod"),
    *_rights("patch", "pods/resize", loss="pods are not resized in place"),
)
REMOTE_API: Final = (
    *_rights("get", "pods/log", loss=_NO_WAY_IN),
    *_rights("get create", "pods/exec", loss=_NO_WAY_IN),
    *_rights("get create", "pods/attach", loss=_NO_WAY_IN),
    *_rights("get create", "pods/portforward", loss=_NO_WAY_IN),
)
"""What the kubelet API carries over."""
REMOTE_METRICS: Final = _rights(
    "list", "pods", group="metrics.k8s.io", loss="kubectl top and autoscalers do not see what pods use"
)
"""To read what pods use, with ``--metrics-source metrics-api``."""
REMOTE_KUBELETS: Final = (*_rights("get", "nodes/metrics"), *_rights("get", "nodes/stats"), *_rights("list", "nodes"))
"""The same with ``kubelets``; asked for when the source is chosen, as ``nodes/proxy`` can take their place."""
CONFINED_NAMESPACE: Final = _rights("get", "namespaces", loss="the cluster cannot be known by this namespace")
"""Of a namespace that is given."""
REMOTE_NODES: Final = _rights(
    "list watch", "nodes", instead="size the node by --capacity, --capacity-quota, --capacity-command or --capacity-url"
)
"""To size the node by the remote nodes."""
REMOTE_QUOTA: Final = _rights("list watch", "resourcequotas", instead="size the node by --capacity")
"""To size it by a quota."""
REMOTE_REMOVE: Final = _rights("list", "namespaces")


def local(settings: RunSettings) -> Sequence[Right]:
    """What ``farlet run`` needs in the local cluster, with these settings."""
    needed = [*LOCAL, *LOCAL_OFFLOADING, *_reflected(LOCAL_REFLECTION, settings)]
    if settings.role is not Role.WORKER:
        needed += LOCAL_API
        if settings.serving_certificate is ServingCertificate.CSR:
            needed += LOCAL_CSR
    return needed


def remote(settings: RunSettings, spaces: Sequence[str] | None = None) -> Sequence[Right]:
    """What ``farlet run`` needs in the remote cluster, with these settings: everywhere, or in these namespaces."""
    needed = [*REMOTE, *_reflected(REMOTE_REFLECTION, settings)]
    if settings.role is not Role.WORKER:
        needed += REMOTE_API
        if settings.metrics_source is MetricsSource.METRICS_API:
            needed += REMOTE_METRICS
    if settings.events is not EventMode.NONE:
        needed += REMOTE_EVENTS
    if spaces is not None:
        needed = [replace(right, namespace=space) for space in spaces for right in confined(needed)]
    if settings.capacity_quota is not None:
        namespace = settings.capacity_quota.partition("/")[0]
        needed += [replace(right, namespace=namespace) for right in REMOTE_QUOTA]
    elif settings.capacity is settings.capacity_command is settings.capacity_url is None:
        needed += REMOTE_NODES
    return needed


def _reflected(table: Mapping[str, Sequence[Right]], settings: RunSettings) -> list[Right]:
    policies = rules.parse(settings.reflect)
    return [right for kind in table for right in table[kind] if policies.get(kind) is not Policy.OFF]


def not_reflected(missing: Iterable[Right]) -> frozenset[str]:
    """The kinds that are not reflected everywhere, with these rights missing."""
    return frozenset(right.resource for right in missing if right.resource in rules.KINDS)


def confined(wide: Iterable[Right]) -> list[Right]:
    """The same in a namespace that is given: it is there already, and need not be read."""
    kept = [right for right in wide if right.resource != "namespaces" and right.loss != _NAMESPACES_STAY]
    return [*CONFINED_NAMESPACE, *kept]


def refusal(cluster: str, missing: Iterable[Right], manifest: str) -> str | None:
    """Why it cannot work with these rights missing, in one line with the way out; None if it can."""
    essential = [right for right in missing if not right.loss]
    if not essential:
        return None
    ways = [f"apply {manifest}", *dict.fromkeys(right.instead for right in essential if right.instead)]
    return f"in the {cluster} cluster these rights are missing: {_listed(essential)}; {', or '.join(ways)}"


def losses(cluster: str, missing: Iterable[Right]) -> list[str]:
    """What will not work with these rights missing, a line for each thing."""
    by_loss: dict[str, list[Right]] = {}
    for right in missing:
        if right.loss:
            by_loss.setdefault(right.loss, []).append(right)
    return [f"missing in the {cluster} cluster: {_listed(rights)}: {loss}" for loss, rights in by_loss.items()]


def _listed(rights: Iterable[Right]) -> str:
    """``get, list pods; patch pods/status``: verbs of one object together."""
    verbs: dict[tuple[str, str | None], list[str]] = {}
    for right in rights:
        verbs.setdefault((right.object(), right.namespace), []).append(right.verb)
    parts = [
        f"{', '.join(words)} {what}" + (f" in namespace {namespace}" if namespace else "")
        for (what, namespace), words in verbs.items()
    ]
    return "; ".join(parts)
