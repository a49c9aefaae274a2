"""Which pods on the virtual node are offloaded, and the words for those that are not.

A refusal is read by whoever looks at a Pending pod, so it says what is in the way and what can be done about it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.kube.objects import Object
from app.pods.forge import ForgeOptions, forge_template, lost_identities

MAX_ANNOTATIONS: Final = 256 * 1024
"""Bytes that all annotations of one object may have together."""

# Shown in a volume, annotations count again, each byte as at most four; labels, names and ours are a few kilobytes.
_SURELY_SMALL: Final = 32 * 1024

_MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"
_HOST_FIELDS: Final = ("hostNetwork", "hostPID", "hostIPC")


def refusal(pod: Object, options: ForgeOptions) -> str | None:
    """Why a pod must not be offloaded; None if it may be."""
    metadata, spec = pod["metadata"], pod["spec"]
    owner = _controller(pod)
    if _MIRROR_ANNOTATION in (metadata.get("annotations") or {}) or owner.get("kind") == "Node":
        return "it is the mirror of a static pod, which runs on the machine whose kubelet made it"
    if owner.get("kind") == "DaemonSet" and not options.allow_daemon_sets:
        return (
            f"it belongs to DaemonSet {owner.get('name')}, and those are for real nodes; keep it off virtual nodes "
            "with a required node affinity: key type, operator NotIn, values [virtual-kubelet]"
        )
    if spec.get("resourceClaims"):
        claims = ", ".join(claim["name"] for claim in spec["resourceClaims"])
        return f"it has resource claims ({claims}), and devices are allocated by the cluster that has them"
    if not options.allow_host and (needs := list(host_access(spec))):
        return f"it needs the host ({', '.join(needs)}), which is not allowed on this virtual node"
    if (size := _remote_annotations_size(pod, options)) > MAX_ANNOTATIONS:
        return (
            f"its remote pod would have {size} bytes of annotations and {MAX_ANNOTATIONS} are allowed; annotations "
            "count twice when a downward API volume shows all of them"
        )
    return None


def daemon_set(pod: Object) -> Object | None:
    """The DaemonSet that a pod belongs to, as much of it as the pod knows; None if it does not."""
    owner = _controller(pod)
    if owner.get("kind") != "DaemonSet":
        return None
    metadata = {"namespace": pod["metadata"]["namespace"], "name": owner["name"], "uid": owner["uid"]}
    return {"apiVersion": owner["apiVersion"], "kind": "DaemonSet", "metadata": metadata}


def losses(pod: Object) -> list[str]:
    """What a pod does without in the remote cluster, said once when it is offloaded."""
    return [
        f"volume {name}: tokens and certificates of a ServiceAccount are not offloaded, so these files are missing"
        for name in lost_identities(pod)
    ]


def host_access(spec: Object) -> Iterator[str]:
    """What a pod spec wants of the machine that it runs on."""
    yield from (name for name in _HOST_FIELDS if spec.get(name))
    yield from (f"hostPath volume {volume['name']}" for volume in spec.get("volumes") or [] if "hostPath" in volume)
    if _is_host_process(spec):
        yield "hostProcess"
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(kind) or []:
            yield from container_host_access(container)


def container_host_access(container: Object) -> Iterator[str]:
    """What one container wants of the machine that it runs on."""
    if (container.get("securityContext") or {}).get("privileged"):
        yield f"privileged container {container['name']}"
    if _is_host_process(container):
        yield f"hostProcess container {container['name']}"
    for port in container.get("ports") or []:
        if port.get("hostPort"):
            yield f"hostPort {port['hostPort']}"


def annotations_size(annotations: dict[str, str]) -> int:
    """The bytes of annotations, counted as the API server does."""
    return sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())


def _remote_annotations_size(pod: Object, options: ForgeOptions) -> int:
    local = annotations_size(pod["metadata"].get("annotations") or {})
    if local < _SURELY_SMALL:
        return local
    return annotations_size(forge_template(pod, "any", options)["metadata"]["annotations"])


def _is_host_process(holder: Object) -> bool:
    windows = (holder.get("securityContext") or {}).get("windowsOptions") or {}
    return bool(windows.get("hostProcess"))


def _controller(pod: Object) -> Object:
    references: list[Object] = pod["metadata"].get("ownerReferences") or []
    return next((reference for reference in references if reference.get("controller")), {})
