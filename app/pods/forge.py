"""From a local pod to its twin: the ReplicaSet or Job in the remote cluster that runs it.

Forging starts from the whole spec and removes, rewrites and adds: a field that nobody here has heard of travels as it
is. ``docs/forging.md`` has every rule in one table. Nothing here does I/O, changes its input, or depends on anything
but its arguments: the same pod gives the same twin before and after a restart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from app import names
from app.kube.objects import Object
from app.names import MARK_METADATA, MARK_RESOURCES, MARK_SPEC, MARKS
from app.pods.downward import View, rewrite_env, rewrite_volumes
from app.pods.naming import HOSTNAME_OVERRIDE_SINCE, hostname_fields, short_hash, twin_name

WRITTEN_BACK: Final = frozenset(
    {
        names.ANNOTATION_REMOTE_POD,
        names.ANNOTATION_REMOTE_UID,
        names.ANNOTATION_RESTARTS_BEFORE,
        names.ANNOTATION_STARTED,
    }
)
"""Annotations that Farlet itself puts on local pods: not the user's, and no change that has to be carried."""

NOT_CARRIED_ANNOTATIONS: Final = WRITTEN_BACK | {"kubectl.kubernetes.io/last-applied-configuration"}

NOT_CARRIED: Final = (
    # where it runs locally, and who decided that
    "nodeName",
    "nodeSelector",
    "schedulerName",
    "schedulingGates",
    "schedulingGroup",
    "workloadRef",
    # the local cluster's PriorityClasses and RuntimeClasses are not the remote's
    "priority",
    "priorityClassName",
    "preemptionPolicy",
    "overhead",
    # judged on the local pod; a remote pod with gates would never be Ready
    "readinessGates",
    # the local cluster's identities
    "serviceAccountName",
    "serviceAccount",
    # not allowed in a template: added to the live pod, see ``changes``
    "ephemeralContainers",
    # refused, see ``policy``
    "resourceClaims",
)
"""Fields of a local spec that its remote pod never has."""

CONTAINER_LISTS: Final = ("initContainers", "containers")

_TOKEN_VOLUME_PREFIX: Final = "kube-api-access-"
_IDENTITY_PROJECTIONS: Final = ("serviceAccountToken", "podCertificate")
_ENDLESS: Final = 2**31 - 1

_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder()
_SORTED: Final = json.JSONEncoder(sort_keys=True)

TwinKind = Literal["ReplicaSet", "Job"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgeOptions:
    """What is the same for all pods of a virtual node."""

    origin: str
    """The local cluster's id."""
    node: str
    """The virtual node's name."""
    remote_minor: int
    """The remote API server's version: 36 for 1.36."""

    taint_key: str = names.TAINT_KEY
    own_runtime_class: str = names.RUNTIME_CLASS
    """The RuntimeClass that only leads pods to virtual nodes."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    affinity: Mapping[str, Any] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    runtime_class: str | None = None
    priority_class: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    """What every remote pod gets."""

    root_ca: str | None = None
    """The ConfigMap with the local cluster's root CA; None: the remote's own is used."""
    allow_host: bool = False
    """Whether pods may use the remote nodes' network, processes, files and devices."""
    allow_daemon_sets: bool = False


def twin_resource(pod: Object) -> TwinKind:
    """The kind of a pod's twin: what runs for ever is kept alive by a ReplicaSet, what ends is a Job."""
    return "ReplicaSet" if pod["spec"].get("restartPolicy", "Always") == "Always" else "Job"


def forge_twin(pod: Object, remote_namespace: str, options: ForgeOptions) -> Object:
    """The twin of a local pod, ready to be created."""
    template = forge_template(pod, remote_namespace, options)
    selector = {"matchLabels": {names.LABEL_POD_UID: pod["metadata"]["uid"]}}
    metadata = {
        "name": twin_name(pod),
        "namespace": remote_namespace,
        "labels": {**options.labels, **_identity_labels(pod, options)},
        "annotations": _identity_annotations(pod),
    }
    if twin_resource(pod) == "ReplicaSet":
        spec: Object = {"replicas": 1, "selector": selector, "template": template}
        return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": spec}
    spec = {**_job_rules(pod), "manualSelector": True, "selector": selector, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def forge_template(pod: Object, remote_namespace: str, options: ForgeOptions) -> Object:
    """The pod template of a local pod's twin."""
    metadata = _forge_metadata(pod, options)
    spec = clone(pod["spec"])
    for name in NOT_CARRIED:
        spec.pop(name, None)
    spec["automountServiceAccountToken"] = False
    if pod["spec"].get("restartPolicy", "Always") != "Never":
        spec.pop("activeDeadlineSeconds", None)  # the worker keeps a ReplicaSet's, the Job has its own
    if options.remote_minor < HOSTNAME_OVERRIDE_SINCE:
        spec.pop("hostnameOverride", None)
    spec.update(hostname_fields(pod, options.remote_minor))
    _place(spec, pod["metadata"]["namespace"], remote_namespace, options)

    token_volumes = _drop_identity(spec)
    view = view_of(pod, options, metadata)
    for container in containers_of(spec):
        forge_container(container, view, token_volumes)
        _rename_root_ca(container, options)
    _rename_root_ca(spec, options)
    metadata["annotations"].update(rewrite_volumes(spec, view))
    template = {"metadata": metadata, "spec": spec}
    metadata["annotations"].update(marks(template))
    return template


def forge_ephemeral_container(container: Object, pod: Object, options: ForgeOptions) -> Object:
    """A debug container of a local pod, as it is added to its remote pod."""
    forged: Object = clone(container)
    token_volumes = {volume["name"] for volume in pod["spec"].get("volumes") or [] if _is_token_volume(volume)}
    forge_container(forged, view_of(pod, options, _forge_metadata(pod, options)), token_volumes)
    _rename_root_ca(forged, options)
    return forged


def forge_container(container: Object, view: View, token_volumes: set[str]) -> None:
    """Take the local token away from a container of a spec in the making, and let it read local values."""
    mounts = container.get("volumeMounts")
    if mounts and token_volumes:
        container["volumeMounts"] = [mount for mount in mounts if mount["name"] not in token_volumes]
    rewrite_env(container, view)


def view_of(pod: Object, options: ForgeOptions, remote_metadata: Object) -> View:
    """What the containers of a local pod would read of it."""
    annotations = pod["metadata"].get("annotations") or {}
    shown = {key: value for key, value in annotations.items() if key not in WRITTEN_BACK}
    return View.of(pod, options.node, annotations=shown, remote=remote_metadata)


def marks(template: Object) -> dict[str, str]:
    """Hashes of the parts of a template that can change while its pod runs."""
    metadata, spec = template["metadata"], template["spec"]
    annotations = {key: value for key, value in metadata["annotations"].items() if key not in MARKS}
    mutable = {
        "images": {name: [[c["name"], c.get("image")] for c in spec.get(name) or []] for name in CONTAINER_LISTS},
        "tolerations": spec.get("tolerations") or [],
        "activeDeadlineSeconds": spec.get("activeDeadlineSeconds"),
    }
    resources = [[c["name"], c.get("resources") or {}] for c in containers_of(spec)]
    return {
        MARK_METADATA: _fingerprint([metadata["labels"], annotations]),
        MARK_SPEC: _fingerprint(mutable),
        MARK_RESOURCES: _fingerprint([spec.get("resources") or {}, resources]),
    }


def lost_identities(pod: Object) -> list[str]:
    """The volumes of a pod that ask for a token or certificate of its own, which its remote pod does not get."""
    volumes = pod["spec"].get("volumes") or []
    return [volume["name"] for volume in volumes if not _is_token_volume(volume) and _identity_sources(volume)]


def containers_of(spec: Object) -> Iterator[Object]:
    """The init containers and containers of a pod spec."""
    for name in CONTAINER_LISTS:
        yield from spec.get(name) or []


def clone(value: Any) -> Any:
    """A deep copy of JSON, through its text: much faster than to walk through it."""
    return _DECODER.decode(_ENCODER.encode(value))


# ---------------------------------------------------------------------- metadata


def _identity_labels(pod: Object, options: ForgeOptions) -> dict[str, str]:
    return {
        names.LABEL_ORIGIN: options.origin,
        names.LABEL_NODE: options.node,
        names.LABEL_POD_UID: pod["metadata"]["uid"],
    }


def _identity_annotations(pod: Object) -> dict[str, str]:
    metadata = pod["metadata"]
    return {
        names.ANNOTATION_LOCAL_NAME: metadata["name"],
        names.ANNOTATION_LOCAL_NAMESPACE: metadata["namespace"],
    }


def _forge_metadata(pod: Object, options: ForgeOptions) -> Object:
    """Labels and annotations of the remote pod: all of the local ones, so that selectors find it, and ours."""
    labels = pod["metadata"].get("labels") or {}
    annotations = pod["metadata"].get("annotations") or {}
    carried = {
        key: value for key, value in annotations.items() if key not in NOT_CARRIED_ANNOTATIONS and key not in MARKS
    }
    return {
        "labels": {**labels, **options.labels, **_identity_labels(pod, options)},
        "annotations": {**carried, **_identity_annotations(pod)},
    }


# ---------------------------------------------------------------------- the Job around a template


def _job_rules(pod: Object) -> Object:
    """How often a Job may run its pod: once, unless the remote cluster itself took the pod away."""
    rules: Object = {"completions": 1, "parallelism": 1, "podReplacementPolicy": "Failed"}
    if pod["spec"]["restartPolicy"] == "Never":
        disrupted = {"type": "DisruptionTarget", "status": "True"}
        rules["backoffLimit"] = 0
        rules["podFailurePolicy"] = {"rules": [{"action": "Ignore", "onPodConditions": [disrupted]}]}
        return rules
    rules["backoffLimit"] = _ENDLESS  # restarts in place count against it
    if (deadline := pod["spec"].get("activeDeadlineSeconds")) is not None:
        rules["activeDeadlineSeconds"] = deadline
    return rules


# ---------------------------------------------------------------------- placement


def _place(spec: Object, local_namespace: str, remote_namespace: str, options: ForgeOptions) -> None:
    """Replace what made the local scheduler choose the virtual node by what the options say for the remote one."""
    tolerations = [t for t in spec.pop("tolerations", None) or [] if t.get("key") != options.taint_key]
    tolerations += [clone(dict(t)) for t in options.tolerations if t not in tolerations]
    if tolerations:
        spec["tolerations"] = tolerations
    if options.node_selector:
        spec["nodeSelector"] = dict(options.node_selector)
    if options.priority_class:
        spec["priorityClassName"] = options.priority_class
    if spec.get("runtimeClassName") == options.own_runtime_class:
        del spec["runtimeClassName"]
    if options.runtime_class and not spec.get("runtimeClassName"):
        spec["runtimeClassName"] = options.runtime_class

    own = spec.pop("affinity", None) or {}
    for term in _pod_affinity_terms(own):
        _drop_merged_keys(term)
        if local_namespace in (term.get("namespaces") or []):
            term["namespaces"] = [remote_namespace if n == local_namespace else n for n in term["namespaces"]]
    if affinity := _join_affinity(own, options.affinity):
        spec["affinity"] = affinity
    for constraint in spec.get("topologySpreadConstraints") or []:
        _drop_merged_keys(constraint)


def _join_affinity(own: Object, added: Mapping[str, Any]) -> Object:
    """A pod's affinity to other pods, and whatever the options add; its affinity to local nodes is dropped."""
    joined = {kind: rules for kind, rules in own.items() if kind != "nodeAffinity"}
    for kind, rules in added.items():
        section = joined.setdefault(kind, {})
        for name, value in rules.items():
            copied = clone(value)
            section[name] = [*section[name], *copied] if isinstance(section.get(name), list) else copied
    return joined


def _pod_affinity_terms(affinity: Object) -> Iterator[Object]:
    for kind in ("podAffinity", "podAntiAffinity"):
        rules = affinity.get(kind) or {}
        yield from rules.get("requiredDuringSchedulingIgnoredDuringExecution") or []
        for weighted in rules.get("preferredDuringSchedulingIgnoredDuringExecution") or []:
            yield weighted["podAffinityTerm"]


def _drop_merged_keys(rule: Object) -> None:
    """Drop the label keys that the local API server has merged into the selector.

    The remote one merges them once more when the pod is created, and then refuses it: "exists in both".
    """
    selector = rule.get("labelSelector") or {}
    merged = {expression["key"] for expression in selector.get("matchExpressions") or []}
    for name in ("matchLabelKeys", "mismatchLabelKeys"):
        if rule.get(name):
            rule[name] = [key for key in rule[name] if key not in merged]
            if not rule[name]:
                del rule[name]


# ---------------------------------------------------------------------- identities


def _drop_identity(spec: Object) -> set[str]:
    """Remove what would hand the remote cluster's own tokens to the pod; returns the names of dropped volumes."""
    volumes = spec.get("volumes")
    if not volumes:
        return set()
    dropped = {volume["name"] for volume in volumes if _is_token_volume(volume)}
    spec["volumes"] = [volume for volume in volumes if volume["name"] not in dropped]
    for volume in spec["volumes"]:
        unwanted = _identity_sources(volume)
        if unwanted:
            sources = volume["projected"]["sources"]
            volume["projected"]["sources"] = [source for source in sources if source not in unwanted]
    if not spec["volumes"]:
        del spec["volumes"]
    return dropped


def _is_token_volume(volume: Object) -> bool:
    """Whether a volume is the one that the ServiceAccount admission of the local cluster injects."""
    return "projected" in volume and str(volume["name"]).startswith(_TOKEN_VOLUME_PREFIX)


def _identity_sources(volume: Object) -> list[Object]:
    sources = (volume.get("projected") or {}).get("sources") or []
    return [source for source in sources if any(kind in source for kind in _IDENTITY_PROJECTIONS)]


# ---------------------------------------------------------------------- the root CA


def _rename_root_ca(holder: Object, options: ForgeOptions) -> None:
    """Let a container, or the volumes of a spec, use the local cluster's root CA where they use one."""
    if options.root_ca is None:
        return
    for reference in (*_environment_config_maps(holder), *_volume_config_maps(holder)):
        if reference.get("name") == names.ROOT_CA:
            reference["name"] = options.root_ca


def _environment_config_maps(container: Object) -> Iterator[Object]:
    yield from (source["configMapRef"] for source in container.get("envFrom") or [] if source.get("configMapRef"))
    for variable in container.get("env") or []:
        if reference := (variable.get("valueFrom") or {}).get("configMapKeyRef"):
            yield reference


def _volume_config_maps(spec: Object) -> Iterator[Object]:
    for volume in spec.get("volumes") or []:
        for source in (volume, *((volume.get("projected") or {}).get("sources") or [])):
            if source.get("configMap"):
                yield source["configMap"]


def _fingerprint(value: Any) -> str:
    return short_hash(_SORTED.encode(value))
