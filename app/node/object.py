"""The Node object as it should be: forged from options and from what the remote nodes have in common.

It is the whole object, ready to be created. How one that exists is brought up to date is :mod:`app.node.patch`.
"""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from app import __version__
from app.kube.objects import Object
from app.names import (
    ANNOTATION_APPLIED,
    GROUP,
    LABEL_NO_LOAD_BALANCER,
    LABEL_REMOTE_CLUSTER,
    LABEL_REMOTE_PROVIDER,
    LABEL_TYPE,
    LABEL_VIRTUAL_NODE,
    TAINT_KEY,
    TAINT_UNREACHABLE,
    TYPE_VIRTUAL_KUBELET,
)
from app.node.capacity import Capacity
from app.settings import TaintEffect

LABEL_HOSTNAME: Final = "kubernetes.io/hostname"
LABEL_OS: Final = "kubernetes.io/os"
LABEL_ARCH: Final = "kubernetes.io/arch"
TOPOLOGY_PREFIX: Final = "topology.kubernetes.io/"

ENFORCED_LABELS: Final = frozenset(
    {LABEL_HOSTNAME, LABEL_TYPE, LABEL_VIRTUAL_NODE, LABEL_REMOTE_CLUSTER, LABEL_NO_LOAD_BALANCER}
)
"""Labels that are never someone else's: without them the node is found by nobody, or not known as ours."""

_SUPPORTED_SKEW: Final = 3
"""How many minors a kubelet may be older than its API server."""

_UNKNOWN: Final = "unknown"
_DNS_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VERSION: Final = re.compile(r"v?(\d{1,6})\.(\d{1,6})\.(\d{1,6})(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")
_PROVIDER: Final = re.compile(r"([a-z0-9][-a-z0-9]{0,61}[a-z0-9])://.*")


class NodeError(ValueError):
    """A node that cannot be: a name, label or taint that Kubernetes refuses, or that is Farlet's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """What is decided of a virtual node before anything is known of the remote cluster's nodes."""

    name: str
    remote_cluster_id: str
    local_version: str
    """The local API server's ``gitVersion``."""
    remote_version: str | None = None
    """The remote one's; counts where the remote nodes cannot be read."""
    addresses: Sequence[str] = ()
    """Where the kubelet API is reached: one per IP family."""
    kubelet_port: int = 10250
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    common_labels: Sequence[str] = ()
    """Keys of labels to take over from the remote nodes where all agree, beside the topology."""
    taint_key: str = TAINT_KEY
    taint_effect: TaintEffect | None = "NoSchedule"
    """None: no taint."""

    def __post_init__(self) -> None:
        check_node_name(self.name)
        check_label(LABEL_REMOTE_CLUSTER, self.remote_cluster_id)
        check_label(self.taint_key, self.remote_cluster_id)
        for key, value in self.labels.items():
            check_label(key, value)
            if key in ENFORCED_LABELS:
                raise NodeError(f"label {key} is set by Farlet and cannot be given")
        for key in self.annotations:
            check_label(key, "")
        if ANNOTATION_APPLIED in self.annotations:
            raise NodeError(f"annotation {ANNOTATION_APPLIED} is set by Farlet and cannot be given")
        if not 0 < self.kubelet_port < 65536:
            raise NodeError(f"{self.kubelet_port} is no port")
        kubelet_version(self)


def check_node_name(name: str) -> None:
    """A node's name is a label value too (``kubernetes.io/hostname``, and on every twin), hence 63 characters."""
    if len(name) > 63:
        raise NodeError(f"node name {name!r} has {len(name)} characters; at most 63 fit into the labels that carry it")
    if not _DNS_SUBDOMAIN.fullmatch(name):
        raise NodeError(f"node name {name!r} is not a DNS name: lower-case letters, digits, '-' and '.'")


def check_label(key: str, value: str) -> None:
    """Refuse what the API server would refuse, with the key in the message."""
    prefix, slash, name = key.rpartition("/")
    prefix_ok = not slash or (len(prefix) <= 253 and _DNS_SUBDOMAIN.fullmatch(prefix))
    if not prefix_ok or not _QUALIFIED_NAME.fullmatch(name):
        raise NodeError(f"{key!r} is not a label key, such as example.com/name")
    if value and not _QUALIFIED_NAME.fullmatch(value):
        raise NodeError(
            f"{key}: {value!r} is not a label value: at most 63 letters, digits, '-', '_' and '.', "
            "beginning and ending with a letter or digit"
        )


def forge_node(
    options: NodeOptions,
    remote_nodes: Iterable[Object],
    capacity: Capacity,
    conditions: Sequence[Object],
    *,
    keep_away: bool = False,
) -> Object:
    """The whole Node, ready to be created.

    ``remote_nodes`` are those that stand behind it; ``keep_away`` adds the taint for a remote cluster that does not
    answer.
    """
    nodes = list(remote_nodes)
    labels = _labels(options, nodes)
    taints = _taints(options, keep_away=keep_away)
    annotations = {**options.annotations, ANNOTATION_APPLIED: applied_record(labels, options.annotations, taints)}
    metadata = {"name": options.name, "labels": labels, "annotations": annotations}
    status: Object = {
        "capacity": dict(capacity),
        "allocatable": dict(capacity),
        "conditions": list(conditions),
        "addresses": _addresses(options),
        "daemonEndpoints": {"kubeletEndpoint": {"Port": options.kubelet_port}},
        "nodeInfo": _node_info(options, nodes, os=labels[LABEL_OS], arch=labels[LABEL_ARCH]),
    }
    features = _declared_features(nodes)
    if features:
        status["declaredFeatures"] = features
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": taints}, "status": status}


def kubelet_version(options: NodeOptions, remote_nodes: Iterable[Object] = ()) -> str:
    """The version that the node shows: the local API server's, or that of older remote kubelets.

    A kubelet may not be newer than its API server, and at most three minors older. Within that the oldest remote
    kubelet is the honest answer to the one question that versions of nodes are asked for: what they can do.
    """
    local = _version(options.local_version)
    remote = [v for v in (_info(node).get("kubeletVersion") for node in remote_nodes) if v and _VERSION.fullmatch(v)]
    if not remote and options.remote_version and _VERSION.fullmatch(options.remote_version):
        remote = [options.remote_version]
    oldest = min(remote, key=_version, default=options.local_version)
    if _version(oldest) >= local:
        return _without_build(options.local_version)
    if _version(oldest) < (local[0], local[1] - _SUPPORTED_SKEW, 0):
        return f"v{local[0]}.{max(local[1] - _SUPPORTED_SKEW, 0)}.0"
    return _without_build(oldest)


def _version(text: str) -> tuple[int, int, int]:
    match = _VERSION.fullmatch(text)
    if match is None:
        raise NodeError(f"{text!r} is not a version of Kubernetes, such as v1.36.3")
    return int(match[1]), int(match[2]), int(match[3])


def _without_build(text: str) -> str:
    """``v1.36.3+k3s1`` is ``v1.36.3``; what follows a ``-`` counts in comparisons, and stays."""
    return "v" + text.removeprefix("v").partition("+")[0]


def _labels(options: NodeOptions, nodes: Sequence[Object]) -> dict[str, str]:
    all_labels = [node["metadata"].get("labels") or {} for node in nodes]
    return {
        **_in_common(all_labels, options.common_labels),
        **_provider(nodes),
        LABEL_OS: _most_frequent(_of(all_labels, LABEL_OS), "linux"),
        LABEL_ARCH: _most_frequent(_of(all_labels, LABEL_ARCH), "amd64"),
        **options.labels,
        LABEL_HOSTNAME: options.name,
        LABEL_TYPE: TYPE_VIRTUAL_KUBELET,
        LABEL_VIRTUAL_NODE: "true",
        LABEL_REMOTE_CLUSTER: options.remote_cluster_id,
        LABEL_NO_LOAD_BALANCER: "true",
    }


def _in_common(all_labels: Sequence[Mapping[str, str]], more: Sequence[str]) -> dict[str, str]:
    """Topology labels (and those asked for) on which all nodes agree.

    An instance type is not among them, nor labels of node groups and autoscalers: they would have a local autoscaler
    or cost tool take the whole cluster for one machine of its own.
    """
    if not all_labels:
        return {}
    common = set(all_labels[0].items()).intersection(*(labels.items() for labels in all_labels[1:]))
    wanted = {key: value for key, value in common if key.startswith(TOPOLOGY_PREFIX) or key in more}
    return {key: wanted[key] for key in sorted(wanted) if key not in ENFORCED_LABELS}


def _provider(nodes: Sequence[Object]) -> dict[str, str]:
    ids = [(node.get("spec") or {}).get("providerID") or "" for node in nodes]
    providers = {match[1] if (match := _PROVIDER.fullmatch(text)) else None for text in ids}
    provider = providers.pop() if len(providers) == 1 else None
    return {LABEL_REMOTE_PROVIDER: provider} if provider else {}


def _of(maps: Iterable[Mapping[str, str]], key: str) -> list[str]:
    return [value for source in maps if (value := source.get(key))]


def _most_frequent(values: Iterable[str], otherwise: str) -> str:
    """Of equally frequent ones the first in the alphabet, so that the answer does not wander."""
    counts = Counter(values)
    return min(counts, key=lambda value: (-counts[value], value), default=otherwise)


def _taints(options: NodeOptions, *, keep_away: bool) -> list[Object]:
    taints: list[Object] = []
    if options.taint_effect:
        taints.append({"key": options.taint_key, "value": options.remote_cluster_id, "effect": options.taint_effect})
    if keep_away:
        taints.append({"key": TAINT_UNREACHABLE, "effect": "NoSchedule"})
    return taints


def _addresses(options: NodeOptions) -> list[Object]:
    internal = [{"type": "InternalIP", "address": address} for address in options.addresses]
    return [*internal, {"type": "Hostname", "address": options.name}]


def _node_info(options: NodeOptions, nodes: Sequence[Object], *, os: str, arch: str) -> Object:
    """Every field is a required string. There is no machine, so its ids are made of the names, and never change."""
    version = kubelet_version(options, nodes)
    identity = uuid.uuid5(uuid.NAMESPACE_DNS, f"{options.name}.{options.remote_cluster_id}.{GROUP}")
    return {
        "architecture": arch,
        "bootID": str(identity),
        "containerRuntimeVersion": f"farlet://{__version__}",
        "kernelVersion": _most_frequent(_of(map(_info, nodes), "kernelVersion"), _UNKNOWN),
        "kubeProxyVersion": version,
        "kubeletVersion": version,
        "machineID": identity.hex,
        "operatingSystem": os,
        "osImage": f"Farlet, remote cluster {options.remote_cluster_id}",
        "systemUUID": str(identity),
    }


def _info(node: Object) -> Mapping[str, str]:
    return (node.get("status") or {}).get("nodeInfo") or {}


def _declared_features(nodes: Sequence[Object]) -> list[str]:
    """What every remote kubelet says it can do; schedulers of 1.35 and later ask for it."""
    declared = [set((node.get("status") or {}).get("declaredFeatures") or []) for node in nodes]
    return sorted(set.intersection(*declared)) if declared else []


def applied_record(labels: Mapping[str, str], annotations: Mapping[str, str], taints: Iterable[Object]) -> str:
    """What is ours on a node, as :data:`ANNOTATION_APPLIED` keeps it."""
    document = {
        "labels": dict(labels),
        "annotations": dict(annotations),
        "taints": sorted([taint["key"], taint["effect"]] for taint in taints),
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def is_ours(node: Object, remote_cluster_id: str) -> bool:
    """Whether Farlet made a Node, for this remote cluster."""
    return why_not_ours(node, remote_cluster_id) is None


def why_not_ours(node: Object, remote_cluster_id: str) -> str | None:
    """Why a Node that exists must not be taken over, and what to do about it; None if it is ours."""
    name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
    if LABEL_VIRTUAL_NODE not in labels:
        return f"node {name} exists and was not made by Farlet; choose another name with --node-name"
    owner = labels.get(LABEL_REMOTE_CLUSTER)
    if owner != remote_cluster_id:
        return (
            f"node {name} stands for the remote cluster {owner!r}, and the remote kubeconfig leads to "
            f"{remote_cluster_id!r}; use the kubeconfig of the former, or another name with --node-name"
        )
    return None
