"""Every name that Farlet writes into a cluster, one constant each: labels, annotations, taints, event reasons.

They are an interface: people select, tolerate and watch for them. ``docs/names.md`` lists them in one table.
"""

from typing import Final

GROUP: Final = "farlet.dev"

LABEL_ENABLED: Final = "farlet.dev/enabled"
"""On a local namespace: its pods may be offloaded."""
ANNOTATION_ENABLED_BY: Final = "farlet.dev/enabled-by"
"""On a local namespace: the label is there for its NamespaceOffloading, and means nothing without that."""
ENABLED_BY_OFFLOADING: Final = "offloading"

OFFLOADING: Final = "offloading"
"""The name of every NamespaceOffloading."""
FINALIZER_OFFLOADING: Final = "farlet.dev/offloading"
ANNOTATION_ABANDON: Final = "farlet.dev/abandon"
"""On a NamespaceOffloading that is deleted: ``true`` lets it go although not all clusters have finished."""

LABEL_VIRTUAL_NODE: Final = "farlet.dev/virtual-node"
LABEL_REMOTE_CLUSTER: Final = "farlet.dev/remote-cluster"
LABEL_TYPE: Final = "type"
TYPE_VIRTUAL_KUBELET: Final = "virtual-kubelet"
LABEL_NO_LOAD_BALANCER: Final = "node.kubernetes.io/exclude-from-external-load-balancers"
"""On the virtual node."""

LABEL_REMOTE_PROVIDER: Final = "farlet.dev/remote-provider"
"""On the virtual node: whose machines the remote nodes are (``aws``, ``gce``, …), when it is the same for all."""
ANNOTATION_APPLIED: Final = "farlet.dev/applied"
"""On the virtual node: what we put there, labels, annotations and taints."""
TAINT_UNREACHABLE: Final = "farlet.dev/remote-unreachable"
"""Keeps new pods away while the remote cluster does not answer and the node is kept Ready."""
ANNOTATION_NAMESPACES: Final = "farlet.dev/namespaces"
"""On the virtual node: the mapping that was given, ``LOCAL[=REMOTE],...``."""

TAINT_KEY: Final = "farlet.dev/virtual-node"
RUNTIME_CLASS: Final = "farlet"
"""A pod with this RuntimeClass tolerates the taint and selects virtual nodes."""

LABEL_ORIGIN: Final = "farlet.dev/origin"
LABEL_NODE: Final = "farlet.dev/node"
LABEL_POD_UID: Final = "farlet.dev/pod-uid"
ANNOTATION_LOCAL_NAME: Final = "farlet.dev/local-name"
ANNOTATION_LOCAL_NAMESPACE: Final = "farlet.dev/local-namespace"
"""On everything of ours in the remote cluster."""
ANNOTATION_MAPPED_BY: Final = "farlet.dev/mapped-by"
"""On a remote namespace of ours: ``label`` or ``offloading``, if that is what it was made for; then it goes with it."""

MARK_METADATA: Final = "farlet.dev/carried-metadata"
MARK_SPEC: Final = "farlet.dev/carried-spec"
MARK_RESOURCES: Final = "farlet.dev/carried-resources"
MARKS: Final = (MARK_METADATA, MARK_SPEC, MARK_RESOURCES)
"""Annotations of a remote pod: hashes of what can change later, as it was last carried there."""
ANNOTATION_EPHEMERAL: Final = "farlet.dev/ephemeral-containers"
"""On a twin: the debug containers that were added to its pod, which are never added to a replacement."""
CARRIER_PREFIX: Final = "farlet.dev/downward-"
"""What the annotations that carry a value of the downward API into a volume begin with."""

ANNOTATION_REMOTE_POD: Final = "farlet.dev/remote-pod"
ANNOTATION_REMOTE_UID: Final = "farlet.dev/remote-pod-uid"
ANNOTATION_RESTARTS_BEFORE: Final = "farlet.dev/restarts-before"
"""On a local pod: which remote pod its status tells of, and the restarts that replacing earlier ones hid."""

ANNOTATION_STARTED: Final = "farlet.dev/started"
"""On a local pod that runs once: its twin was about to be made. Written before, so that it is never made twice."""

ANNOTATION_REFLECT: Final = "farlet.dev/reflect"
"""On a local object: ``"false"`` keeps it from being reflected, ``"true"`` has it reflected where nothing else is."""
ANNOTATION_KEEP_NODE_PORTS: Final = "farlet.dev/keep-node-ports"
"""On a local Service: ``"true"`` asks for the same node ports in the remote cluster."""
ANNOTATION_REFLECTED: Final = "farlet.dev/reflected"
"""On a remote copy: which labels and annotations were carried, so that they can be taken away again."""
SLICES_MANAGED_BY: Final = "reflection.farlet.dev"
"""Of our EndpointSlices, so that the remote cluster's own controllers leave them alone."""
ROOT_CA: Final = "kube-root-ca.crt"
"""The ConfigMap that every cluster makes in every namespace; the local one has another name in the remote cluster."""

FIELD_MANAGER_NODE: Final = "farlet-node"
FIELD_MANAGER_PODS: Final = "farlet-pods"
FIELD_MANAGER_REFLECTION: Final = "farlet-reflection"
FIELD_MANAGER_OPERATOR: Final = "farlet-operator"

OFFLOADED: Final = "Offloaded"
OFFLOAD_FAILED: Final = "OffloadFailed"
NOT_OFFLOADED: Final = "NotOffloaded"
REMOTE_REPLACED: Final = "RemoteReplaced"
REMOTE_TWIN_LOST: Final = "RemoteTwinLost"
REMOTE_UNREACHABLE: Final = "RemoteUnreachable"
REFLECTION_CONFLICT: Final = "ReflectionConflict"
REFLECTION_FAILED: Final = "ReflectionFailed"
NAMESPACE_STAYS: Final = "RemoteNamespaceStays"
DEADLINE_EXCEEDED: Final = "DeadlineExceeded"
"""Reasons of events and conditions; the last one is the kubelet's."""

LOCK_PREFIX: Final = "farlet-lock-"
LOCK_NAMESPACE: Final = "kube-node-lease"
"""Beside the node's own Lease, so that one Role in one namespace covers both."""


def lock_name(node: str) -> str:
    """The Lease that the one Farlet of a node holds. It lies beside the nodes' own, so no node may be called so."""
    return f"{LOCK_PREFIX}{node}"


def root_ca_copy(origin: str) -> str:
    """What the local cluster's root CA is called in the remote one, which has its own under the usual name."""
    return f"{ROOT_CA}-{origin}"


def offloading_manager(node: str) -> str:
    """The field manager of one node's entry in the status of a NamespaceOffloading."""
    return f"farlet-offloading-{node}"
