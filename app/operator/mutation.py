"""What a new pod of an extended namespace is given, so that the scheduler may, or must, send it to virtual nodes. Pure.

A strategy becomes a toleration and required node affinity. The pod's own wishes are kept: its terms are ORed and what
is in a term is ANDed, so both together are every term of the one with every term of the other. Doing it twice changes
nothing the second time: the API server may ask again after other webhooks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from app import names
from app.kube.objects import Object
from app.namespaces.offloading import Offloading, PodStrategy
from app.pods.policy import host_access

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_MIRROR: Final = "kubernetes.io/config.mirror"
_HOSTNAME: Final = "kubernetes.io/hostname"
MAX_TERMS: Final = 512

_VIRTUAL: Final[Object] = {"key": names.LABEL_VIRTUAL_NODE, "operator": "In", "values": ["true"]}
_REAL: Final[Object] = {"key": names.LABEL_VIRTUAL_NODE, "operator": "NotIn", "values": ["true"]}


class TooManyTerms(Exception):
    """A pod's affinity together with the selector would have too many terms."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """What becomes of a pod."""

    patch: list[Object] = field(default_factory=list)
    """JSON patch."""
    warnings: list[str] = field(default_factory=list)
    """Told to whoever creates it."""


def mutate(
    pod: Object, offloading: Offloading | None, *, allow_host: bool = False, taint_key: str = names.TAINT_KEY
) -> Mutation:
    """The change of a new pod; *offloading* is None where nothing extends the namespace."""
    spec = pod.get("spec") or {}
    if offloading is None or offloading.deleting or offloading.pods is PodStrategy.LOCAL or _is_left_alone(pod, spec):
        return Mutation()
    obstacles = [] if allow_host else list(dict.fromkeys(host_access(spec)))
    if spec.get("resourceClaims"):
        obstacles.append("resource claims")
    if obstacles and offloading.pods is PodStrategy.LOCAL_AND_REMOTE:
        text = f"it needs {', '.join(obstacles)}, which cannot be offloaded: it stays on local nodes"
        return Mutation(_affinity_patch(spec, [{"matchExpressions": [_REAL]}]), [text])
    warnings = []
    if obstacles:
        warnings = [
            f"it needs {', '.join(obstacles)}, which cannot be offloaded, and podOffloadingStrategy is Remote: "
            "it will not run"
        ]
    patch = _toleration_patch(spec, taint_key)
    if not _is_pinned(spec):
        patch += _affinity_patch(spec, wanted_terms(offloading))
    return Mutation(patch, warnings)


def wanted_terms(offloading: Offloading) -> list[Object]:
    """The node selector terms of a strategy; none: any node will do."""
    chosen = offloading.terms
    match offloading.pods:
        case PodStrategy.LOCAL:
            return []
        case PodStrategy.LOCAL_AND_REMOTE:
            return [] if chosen is None else [*chosen, {"matchExpressions": [_REAL]}]
        case PodStrategy.REMOTE:
            virtual: Object = {"matchExpressions": [_VIRTUAL]}
            if chosen is None:
                return [virtual]
            return [_both(term, virtual) for term in chosen if _says_anything(term)] or [{}]


def merged(own: Sequence[Object] | None, wanted: Sequence[Object]) -> list[Object]:
    """Terms that select what both select; None: the pod has no terms of its own, and any node will do.

    An empty term selects nothing, so it must not become the other's term. Where a pod's own term says already all that
    one of the wanted terms says, it is kept as it is.
    """
    wanted = [term for term in wanted if _says_anything(term)]
    terms: list[Object] = list(wanted) if own is None else []
    for mine in own or ():
        if not _says_anything(mine):
            continue
        if any(_contains(mine, theirs) for theirs in wanted):
            terms.append(mine)
        else:
            terms += [_both(mine, theirs) for theirs in wanted]
        if len(terms) > MAX_TERMS:
            raise TooManyTerms(f"its node affinity and the clusterSelector together have more than {MAX_TERMS} terms")
    return terms or [{}]


def _is_left_alone(pod: Object, spec: Object) -> bool:
    """Whether it is somebody's who knows better: a DaemonSet's, a kubelet's, or one that is bound or led already."""
    metadata = pod.get("metadata") or {}
    owners = {owner.get("kind") for owner in metadata.get("ownerReferences") or [] if owner.get("controller")}
    return (
        bool(owners & {"DaemonSet", "Node"})
        or _MIRROR in (metadata.get("annotations") or {})
        or bool(spec.get("nodeName"))
        or spec.get("runtimeClassName") == names.RUNTIME_CLASS
    )


def _is_pinned(spec: Object) -> bool:
    """Whether a person named the nodes themselves; that is stronger than a strategy."""
    if _HOSTNAME in (spec.get("nodeSelector") or {}):
        return True
    terms = _own_terms(spec)
    return bool(terms) and all(_names_nodes(term) for term in terms or ())


def _names_nodes(term: Object) -> bool:
    fields = any(f.get("operator") == "In" for f in term.get("matchFields") or [])
    hosts = (e for e in term.get("matchExpressions") or [] if e.get("key") == _HOSTNAME)
    return fields or any(e.get("operator") == "In" for e in hosts)


def _own_terms(spec: Object) -> list[Object] | None:
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED)
    return None if required is None else list(required.get("nodeSelectorTerms") or [])


def _toleration_patch(spec: Object, taint_key: str) -> list[Object]:
    have: list[Object] = spec.get("tolerations") or []
    if any(
        t.get("operator") == "Exists" and t.get("key") in (None, "", taint_key) and not t.get("effect") for t in have
    ):
        return []
    wanted = {"key": taint_key, "operator": "Exists"}
    return [{"op": "add", "path": "/spec/tolerations", "value": [*have, wanted]}]


def _affinity_patch(spec: Object, wanted: Sequence[Object]) -> list[Object]:
    if not wanted:
        return []
    own = _own_terms(spec)
    terms = merged(own, wanted)
    if terms == own:
        return []
    affinity: Object = dict(spec.get("affinity") or {})
    node_affinity = dict(affinity.get("nodeAffinity") or {})
    node_affinity[_REQUIRED] = {**(node_affinity.get(_REQUIRED) or {}), "nodeSelectorTerms": terms}
    affinity["nodeAffinity"] = node_affinity
    return [{"op": "add", "path": "/spec/affinity", "value": affinity}]


def _says_anything(term: Object) -> bool:
    return bool(term.get("matchExpressions") or term.get("matchFields"))


def _contains(term: Object, part: Object) -> bool:
    return _says_anything(part) and all(
        all(wanted in (term.get(kind) or []) for wanted in part.get(kind) or [])
        for kind in ("matchExpressions", "matchFields")
    )


def _both(one: Object, other: Object) -> Object:
    result: Object = {}
    for kind in ("matchExpressions", "matchFields"):
        found = _once([*(one.get(kind) or []), *(other.get(kind) or [])])
        if found:
            result[kind] = found
    return result


def _once(items: Iterable[Object]) -> list[Object]:
    found: list[Object] = []
    for item in items:
        if item not in found:
            found.append(item)
    return found
