"""Kinds of objects and their URL paths.

A path is built in one place, from parts that are checked there: a name that comes from another cluster, or from
somebody's URL, must not become a different path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBRESOURCE = re.compile(r"[a-z]+")


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object, as the API serves it."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        """The API group; empty for the core group."""
        group, slash, _ = self.api_version.partition("/")
        return group if slash else ""

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The path of one object, of a namespace's objects, or of all; ``ValueError`` if the parts make none."""
        parts = ["/apis" if self.group else "/api", self.api_version]
        if namespace is not None:
            if not self.namespaced:
                raise ValueError(f"{self.kind} is not namespaced, but namespace {namespace!r} was given")
            if not _NAMESPACE.fullmatch(namespace):
                raise ValueError(f"not a name of a namespace: {namespace!r}")
            parts += ["namespaces", namespace]
        elif self.namespaced and name is not None:
            raise ValueError(f"{self.kind} {name!r} needs a namespace")
        parts.append(self.plural)
        if name is not None:
            parts.append(_segment(name))
        if subresource is not None:
            if name is None or not _SUBRESOURCE.fullmatch(subresource):
                raise ValueError(f"not a subresource of one {self.kind}: {subresource!r}")
            parts.append(subresource)
        return "/".join(parts)


def _segment(name: str) -> str:
    """A name as one segment of a path, by the rule that every kind shares (``IsValidPathSegmentName``)."""
    if not name or name in (".", "..") or "/" in name or "%" in name or len(name) > 253 or not name.isprintable():
        raise ValueError(f"not a name of an object: {name!r}")
    return quote(name, safe=":")


CONFIG_MAPS: Final = Resource("v1", "ConfigMap", "configmaps")
EVENTS: Final = Resource("v1", "Event", "events")
NAMESPACES: Final = Resource("v1", "Namespace", "namespaces", namespaced=False)
NODES: Final = Resource("v1", "Node", "nodes", namespaced=False)
PERSISTENT_VOLUME_CLAIMS: Final = Resource("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
PODS: Final = Resource("v1", "Pod", "pods")
RESOURCE_QUOTAS: Final = Resource("v1", "ResourceQuota", "resourcequotas")
SECRETS: Final = Resource("v1", "Secret", "secrets")
SERVICES: Final = Resource("v1", "Service", "services")
SERVICE_ACCOUNTS: Final = Resource("v1", "ServiceAccount", "serviceaccounts")
DAEMON_SETS: Final = Resource("apps/v1", "DaemonSet", "daemonsets")
DEPLOYMENTS: Final = Resource("apps/v1", "Deployment", "deployments")
REPLICA_SETS: Final = Resource("apps/v1", "ReplicaSet", "replicasets")
STATEFUL_SETS: Final = Resource("apps/v1", "StatefulSet", "statefulsets")
CRON_JOBS: Final = Resource("batch/v1", "CronJob", "cronjobs")
JOBS: Final = Resource("batch/v1", "Job", "jobs")
CERTIFICATE_SIGNING_REQUESTS: Final = Resource(
    "certificates.k8s.io/v1", "CertificateSigningRequest", "certificatesigningrequests", namespaced=False
)
ENDPOINT_SLICES: Final = Resource("discovery.k8s.io/v1", "EndpointSlice", "endpointslices")
LEASES: Final = Resource("coordination.k8s.io/v1", "Lease", "leases")
RUNTIME_CLASSES: Final = Resource("node.k8s.io/v1", "RuntimeClass", "runtimeclasses", namespaced=False)
SELF_SUBJECT_ACCESS_REVIEWS: Final = Resource(
    "authorization.k8s.io/v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", namespaced=False
)
SELF_SUBJECT_RULES_REVIEWS: Final = Resource(
    "authorization.k8s.io/v1", "SelfSubjectRulesReview", "selfsubjectrulesreviews", namespaced=False
)
NAMESPACE_OFFLOADINGS: Final = Resource("farlet.dev/v1alpha1", "NamespaceOffloading", "namespaceoffloadings")
MUTATING_WEBHOOK_CONFIGURATIONS: Final = Resource(
    "admissionregistration.k8s.io/v1",
    "MutatingWebhookConfiguration",
    "mutatingwebhookconfigurations",
    namespaced=False,
)
VALIDATING_WEBHOOK_CONFIGURATIONS: Final = Resource(
    "admissionregistration.k8s.io/v1",
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    namespaced=False,
)
