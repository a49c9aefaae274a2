"""Which pod and container a URL means, decided before anything of it can reach another URL.

Names come from whoever asks. One that Kubernetes would not accept belongs to no pod, so it is answered as the kubelet
answers for pods that it does not have; the same goes for pods of other nodes and for containers that are not in the
pod's spec.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.kube.objects import Object
from kubelet_api.call import CallError, Kind
from kubelet_api.twins import Twin, Twins

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SUBDOMAIN_LENGTH: Final = 253

_CONTAINER_LISTS: Final = ("containers", "initContainers", "ephemeralContainers")
_STATUS_LISTS: Final = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")


@dataclass(frozen=True, slots=True)
class Target:
    """A container (or, for port-forward, a pod) of ours, and what runs it."""

    namespace: str
    pod: str
    uid: str
    container: str | None
    twin: Twin


def is_label(name: str) -> bool:
    """Whether it can be the name of a namespace or of a container (DNS-1123 label)."""
    return _LABEL.fullmatch(name) is not None


def is_subdomain(name: str) -> bool:
    """Whether it can be the name of a pod (DNS-1123 subdomain)."""
    return len(name) <= _SUBDOMAIN_LENGTH and _SUBDOMAIN.fullmatch(name) is not None


def resolve(twins: Twins, kind: Kind, names: Mapping[str, str]) -> Target:
    """What the names in a URL mean: ``namespace``, ``pod`` and, if the route has them, ``container`` and ``uid``."""
    if not twins.synced():
        raise CallError(503, "the pods of this node are not all known yet; try again in a few seconds")
    namespace, name = names["namespace"], names["pod"]
    pod = twins.local_pod(namespace, name) if is_label(namespace) and is_subdomain(name) else None
    if pod is None:
        raise _no_pod(kind, name)
    uid = str(pod["metadata"].get("uid", ""))
    container = names.get("container")
    if container is not None and not (is_label(container) and has_container(pod, container)):
        raise _no_container(kind, name, container)
    if names.get("uid") not in (None, uid):
        raise CallError(404, "pod not found") if container is None else _no_container(kind, name, container)
    twin = twins.twin(pod)
    if twin is None:
        raise _nothing_runs(kind, pod, container)
    return Target(namespace, name, uid, container, twin)


def has_container(pod: Object, name: str) -> bool:
    """Whether a container is in a pod's spec, init and ephemeral ones too."""
    return any(item.get("name") == name for item in _items(pod, "spec", _CONTAINER_LISTS))


def quoted(text: str) -> str:
    """As Go's %q, near enough; never longer than a name can be."""
    return json.dumps(text[:_SUBDOMAIN_LENGTH])


def _no_pod(kind: Kind, name: str) -> CallError:
    return CallError(404, f"pod {quoted(name)} does not exist" if kind is Kind.LOGS else "pod does not exist")


def _no_container(kind: Kind, pod: str, container: str) -> CallError:
    if kind is Kind.LOGS:
        return CallError(404, f"container {quoted(container)} not found in pod {quoted(pod)}")
    return CallError(500, f"container not found ({quoted(container)})")


def _nothing_runs(kind: Kind, pod: Object, container: str | None) -> CallError:
    """There is no remote pod (yet): what a kubelet says of a pod that its container runtime does not have."""
    name, namespace = pod["metadata"]["name"], pod["metadata"].get("namespace", "")
    if container is None:
        return CallError(500, f"pod not found ({quoted(f'{name}_{namespace}')})")
    if kind is not Kind.LOGS:
        return _no_container(kind, name, container)
    where = f"container {quoted(container)} in pod {quoted(name)}"
    for status in _items(pod, "status", _STATUS_LISTS):
        if status.get("name") == container:
            state = status.get("state") or {}
            if state.get("terminated"):
                return CallError(400, f"{where} is terminated")
            reason = (state.get("waiting") or {}).get("reason") or "ContainerCreating"
            return CallError(400, f"{where} is waiting to start: {reason}")
    return CallError(400, f"{where} is not available")


def _items(pod: Object, part: str, lists: Sequence[str]) -> list[dict[str, Any]]:
    content = pod.get(part) or {}
    return [item for name in lists for item in content.get(name) or ()]
