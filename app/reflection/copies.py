"""The remote copy of a local object: what it should be, and whether one that is there is so. Pure.

A copy carries what makes it ours and names the local object that it stands for, and a list of the labels and
annotations that were carried: those of them that the local object has lost are taken away, and what the remote cluster
itself adds is left alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import msgspec

from app import names
from app.kube.objects import Envelope, Object

MAX_ANNOTATIONS: Final = 256 * 1024
"""Bytes that all annotations of one object may have together."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who makes copies: one virtual node of one local cluster."""

    origin: str
    node: str


@dataclass(frozen=True, slots=True)
class Copy:
    """What a remote copy should be."""

    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    content: Mapping[str, Any] = field(repr=False)  # it may be a Secret's
    """All top-level fields but the metadata."""


class Holder(Enum):
    """Whose a remote object is."""

    OURS = "ours"
    SIBLING = "sibling"
    """Another virtual node of our cluster keeps it, for the same local object."""
    FOREIGN = "foreign"


def make(
    owner: Owner,
    local: Envelope,
    name: str,
    *,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    content: Mapping[str, Any],
    fingerprint: str = "",
) -> Copy:
    """The copy of a local object, with these of its labels and annotations. *fingerprint* goes into its stamp."""
    stamp: Object = {"labels": sorted(labels), "annotations": sorted(annotations)}
    if fingerprint:
        stamp["content"] = fingerprint
    return Copy(
        name=name,
        labels={**labels, names.LABEL_ORIGIN: owner.origin, names.LABEL_NODE: owner.node},
        annotations={
            **annotations,
            names.ANNOTATION_LOCAL_NAME: local.key.name,
            names.ANNOTATION_LOCAL_NAMESPACE: local.key.namespace,
            names.ANNOTATION_REFLECTED: msgspec.json.encode(stamp).decode(),
        },
        content=content,
    )


def too_large(copy: Copy) -> str | None:
    """Why a copy cannot be, for the size of what is added to it; None if it can."""
    size = sum(len(key.encode()) + len(value.encode()) for key, value in copy.annotations.items())
    if size <= MAX_ANNOTATIONS:
        return None
    return f"its remote copy would have {size} bytes of annotations and {MAX_ANNOTATIONS} are allowed"


def holder(remote: Envelope, owner: Owner, local_namespace: str, local_name: str) -> Holder:
    """Whose a remote object is that has the name of our copy."""
    metadata = remote.metadata
    labels, annotations = metadata.labels or {}, metadata.annotations or {}
    if labels.get(names.LABEL_ORIGIN) != owner.origin:
        return Holder.FOREIGN
    if labels.get(names.LABEL_NODE) == owner.node:
        return Holder.OURS
    stands_for = annotations.get(names.ANNOTATION_LOCAL_NAMESPACE), annotations.get(names.ANNOTATION_LOCAL_NAME)
    return Holder.SIBLING if stands_for == (local_namespace, local_name) else Holder.FOREIGN


def same_metadata(copy: Copy, remote: Envelope) -> bool:
    """Whether everything that we set is still so."""
    metadata = remote.metadata
    return _within(copy.labels, metadata.labels or {}) and _within(copy.annotations, metadata.annotations or {})


def new_object(copy: Copy, head: Mapping[str, str], namespace: str) -> Object:
    """As it is created; *head* says what it is."""
    metadata = {
        "name": copy.name,
        "namespace": namespace,
        "labels": dict(copy.labels),
        "annotations": dict(copy.annotations),
    }
    return {**head, "metadata": metadata, **copy.content}


def changed_object(copy: Copy, head: Mapping[str, str], remote: Envelope, content: Mapping[str, Any]) -> Object:
    """As the remote object is replaced: what others put into its metadata stays, and it must not have changed."""
    metadata: Object = msgspec.json.decode(remote.raw_metadata)
    stamp = _stamp(remote)
    for name, wanted in (("labels", copy.labels), ("annotations", copy.annotations)):
        carried = stamp.get(name) or ()
        others = {key: value for key, value in (metadata.get(name) or {}).items() if key not in carried}
        metadata[name] = {**others, **wanted}
    return {**head, "metadata": metadata, **content}


def local_name(remote: Envelope) -> str | None:
    """Which local object a copy says it stands for."""
    return (remote.metadata.annotations or {}).get(names.ANNOTATION_LOCAL_NAME)


def digest(content: Mapping[str, Any]) -> str:
    """What stands for a content in memory. Fields that are there and empty are as those that are not."""
    return hashlib.blake2b(canonical(content), digest_size=16).hexdigest()


def canonical(content: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(_pruned(content), order="sorted")


def _pruned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: pruned for key, item in value.items() if (pruned := _pruned(item)) not in (None, {}, [])}
    if isinstance(value, list):
        return [_pruned(item) for item in value]
    return value


def _stamp(remote: Envelope) -> Object:
    try:
        stamp = msgspec.json.decode((remote.metadata.annotations or {}).get(names.ANNOTATION_REFLECTED) or "{}")
    except msgspec.DecodeError:
        return {}
    return stamp if isinstance(stamp, dict) else {}


def _within(wanted: Mapping[str, str], found: Mapping[str, str]) -> bool:
    return all(found.get(key) == value for key, value in wanted.items())
