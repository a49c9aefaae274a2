"""The downward API of a remote pod: its containers read of themselves what they would read locally.

A reference that would tell the truth about the remote pod (its IPs, its resources, a label that it shares with the
local pod) stays a reference, so that later changes are seen. Any other becomes the local value: a literal in the
environment, and in a volume, where there are no literals, a reference to an annotation that carries the value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from app.kube.objects import Object
from app.names import CARRIER_PREFIX
from app.pods.naming import short_hash

_LABELS, _ANNOTATIONS = "metadata.labels", "metadata.annotations"

_GO_ESCAPES: Final = {
    "\a": r"\a",
    "\b": r"\b",
    "\f": r"\f",
    "\n": r"\n",
    "\r": r"\r",
    "\t": r"\t",
    "\v": r"\v",
    "\\": r"\\",
    '"': r"\"",
}


@dataclass(frozen=True, slots=True)
class View:
    """What a container may ask about its pod: the local answers, and the metadata that the remote pod will have."""

    fixed: Mapping[str, str]
    """Answers that are never the remote pod's, by field path."""
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    remote_labels: Mapping[str, str]
    remote_annotations: Mapping[str, str]

    @classmethod
    def of(cls, pod: Object, node: str, *, annotations: Mapping[str, str], remote: Object) -> View:
        """The view of a local pod on *node*, whose remote pod has the metadata *remote*."""
        metadata, spec = pod["metadata"], pod["spec"]
        fixed = {
            "metadata.name": metadata["name"],
            "metadata.namespace": metadata["namespace"],
            "metadata.uid": metadata["uid"],
            "spec.nodeName": node,
            "spec.host": node,  # an old name of it that the API server still takes
            "spec.serviceAccountName": spec.get("serviceAccountName") or spec.get("serviceAccount") or "default",
        }
        labels = metadata.get("labels") or {}
        return cls(fixed, labels, annotations, remote["labels"], remote["annotations"])

    def local_value(self, path: str) -> str | None:
        """The value that a field path has locally; None if a reference to the remote pod's own is as good."""
        if path in self.fixed:
            return self.fixed[path]
        if path == _LABELS:
            return format_map(self.labels)
        if path == _ANNOTATIONS:
            return format_map(self.annotations)
        field, _, rest = path.partition("['")
        if field == _LABELS:
            return _unless_same(rest.removesuffix("']"), self.labels, self.remote_labels)
        if field == _ANNOTATIONS:
            return _unless_same(rest.removesuffix("']"), self.annotations, self.remote_annotations)
        return None


def rewrite_env(container: Object, view: View) -> None:
    """Put local values into a container's environment, each where its reference was: later ones may use it."""
    for variable in container.get("env") or []:
        reference = (variable.get("valueFrom") or {}).get("fieldRef")
        if not reference:
            continue
        value = view.local_value(reference["fieldPath"])
        if value is not None:
            del variable["valueFrom"]
            # a value is searched for $(NAME), what a reference yields is not
            variable["value"] = value.replace("$", "$$")


def rewrite_volumes(spec: Object, view: View) -> dict[str, str]:
    """Point the files of downward API volumes at annotations that carry local values; returns those annotations."""
    carriers: dict[str, str] = {}
    for item in _volume_files(spec):
        reference = item.get("fieldRef")
        value = view.local_value(reference["fieldPath"]) if reference else None
        if reference and value is not None:
            key = carrier_key(reference["fieldPath"], view.fixed["metadata.uid"])
            carriers[key] = value
            reference["fieldPath"] = f"{_ANNOTATIONS}['{key}']"
    return carriers


def carrier_key(path: str, uid: str) -> str:
    """The annotation that carries a field of one local pod.

    The UID is in it because the remote pod of one virtual node may be the local pod of the next: each has its own.
    """
    word = path.partition("[")[0].rpartition(".")[2].lower()
    return f"{CARRIER_PREFIX}{word}-{short_hash(f'{uid}/{path}')}"


def format_map(values: Mapping[str, str]) -> str:
    """Labels or annotations as the kubelet writes them into a file (``fieldpath.FormatMap``)."""
    return "\n".join(f'{key}="{"".join(map(_go_escape, values[key]))}"' for key in sorted(values))


def _go_escape(character: str) -> str:
    if character in _GO_ESCAPES:
        return _GO_ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _unless_same(key: str, local: Mapping[str, str], remote: Mapping[str, str]) -> str | None:
    return None if local.get(key, "") == remote.get(key, "") else local.get(key, "")


def _volume_files(spec: Object) -> Iterator[Object]:
    for volume in spec.get("volumes") or []:
        sources = [volume, *((volume.get("projected") or {}).get("sources") or [])]
        for source in sources:
            yield from (source.get("downwardAPI") or {}).get("items") or []
