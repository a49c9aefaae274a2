"""Kubernetes objects as they are kept in memory: an envelope that knows its name, around JSON that nobody has read.

A virtual kubelet carries fields that it has never heard of, and holds thousands of objects of which it needs one at
a time. So an object that arrives is cut into its top-level parts and these are kept as the server's own bytes; what
a reconciler needs is decoded when it needs it. The bytes are copies: a slice of the answer to a list would keep the
whole answer alive. ``managedFields``, often the largest part and never used here, is dropped on arrival; nothing
else is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from msgspec import Raw, Struct

Object: TypeAlias = dict[str, Any]
"""A Kubernetes object (or a part of one) as plain JSON."""

ADDED: Final = "ADDED"
MODIFIED: Final = "MODIFIED"
DELETED: Final = "DELETED"
BOOKMARK: Final = "BOOKMARK"
ERROR: Final = "ERROR"


class Key(NamedTuple):
    """What names an object among those of its kind; the namespace of a cluster-wide one is empty."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class OwnerReference(Struct, frozen=True, gc=False):
    """Who an object belongs to. Field names are the API's."""

    apiVersion: str
    kind: str
    name: str
    uid: str
    controller: bool = False


class Metadata(Struct, frozen=True):
    """The part of an object's metadata that decisions are made of. Field names are the API's."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""
    generation: int = 0
    creationTimestamp: str | None = None
    deletionTimestamp: str | None = None
    deletionGracePeriodSeconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    ownerReferences: list[OwnerReference] = []
    finalizers: list[str] = []


class Envelope(Struct, frozen=True, gc=False):
    """One object: what names it, and its parts as the server's bytes (empty where the object has no such part).

    Made by the ``decode_`` functions and :meth:`of`.
    """

    # gc=False: nothing here can form a cycle, and so the garbage collector need not walk the caches.
    key: Key
    resource_version: str
    api_version: str
    kind: str
    raw_metadata: bytes
    """All of ``metadata`` but ``managedFields``."""
    spec: bytes
    status: bytes
    extra: bytes
    """A JSON object with every other top-level field, such as a ConfigMap's ``data``."""

    @classmethod
    def of(cls, content: Object) -> Envelope:
        """The envelope of an object that is decoded already, such as the answer to a write."""
        return decode_object(msgspec.json.encode(content))

    @property
    def metadata(self) -> Metadata:
        """Decoded anew (1 µs or two) each time, which is what lets ten thousand objects be held cheaply."""
        return _METADATA.decode(self.raw_metadata)

    def whole_metadata(self) -> Object:
        """All of ``metadata``, as the caller's own."""
        return _OBJECT.decode(self.raw_metadata)

    def object(self) -> Object:
        """The whole object, as the caller's own: everything that the server sent but ``managedFields``."""
        return dict(self._parts())

    def __repr__(self) -> str:
        """What it is, never what is in it: it may be a Secret, and this may end in a log."""
        return f"<{self.kind or 'object'} {self.key}>"

    def _parts(self) -> Iterator[tuple[str, Any]]:
        if self.api_version:
            yield "apiVersion", self.api_version
        if self.kind:
            yield "kind", self.kind
        yield "metadata", _ANY.decode(self.raw_metadata)
        if self.spec:
            yield "spec", _ANY.decode(self.spec)
        if self.status:
            yield "status", _ANY.decode(self.status)
        if self.extra:
            yield from _ANY.decode(self.extra).items()


class ListPage(NamedTuple):
    """A list, or one chunk of it."""

    items: list[Envelope]
    resource_version: str
    continue_token: str
    """Where the next chunk begins; empty in the last one."""


def decode_object(content: bytes) -> Envelope:
    """The envelope of one object as the API sends it."""
    return _envelope(_FIELDS.decode(content))


def decode_list(content: bytes) -> ListPage:
    """The objects of an answer to a list. Where they do not say what they are, the list's own kind tells."""
    page = _LIST.decode(content)
    # Built-in kinds leave apiVersion and kind out of a list's items but not out of watch events. "PodList" holds
    # Pods; a bare "List" can hold anything.
    kind = sys.intern(page.kind.removesuffix("List"))
    api_version = sys.intern(page.apiVersion) if kind else ""
    items = [_envelope(fields, api_version, kind) for fields in page.items or ()]
    return ListPage(items, page.metadata.resourceVersion, page.metadata.continue_)


def decode_event(line: bytes) -> tuple[str, Envelope | Object]:
    """One line of a watch: its type, and the object it is about.

    A bookmark is no object and an error is a ``Status``: these two come as plain JSON.
    """
    event = _EVENT.decode(line)
    if event.type in (BOOKMARK, ERROR):
        content: Object = _OBJECT.decode(event.object)
        return event.type, content
    return event.type, _envelope(_FIELDS.decode(event.object))


class _ListMeta(Struct):
    resourceVersion: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _List(Struct):
    metadata: _ListMeta
    apiVersion: str = ""
    kind: str = ""
    items: list[dict[str, Raw]] | None = None


class _Event(Struct):
    type: str
    object: Raw


class _Names(Struct):
    """What an envelope itself must know of the metadata."""

    name: str = ""
    namespace: str = ""
    resourceVersion: str = ""


_ANY: Final = msgspec.json.Decoder()
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])
_FIELDS: Final = msgspec.json.Decoder(dict[str, Raw])
_TEXT: Final = msgspec.json.Decoder(str)
_METADATA: Final = msgspec.json.Decoder(Metadata)
_NAMES: Final = msgspec.json.Decoder(_Names)
_LIST: Final = msgspec.json.Decoder(_List)
_EVENT: Final = msgspec.json.Decoder(_Event)
_ENCODER: Final = msgspec.json.Encoder()


def _envelope(fields: dict[str, Raw], api_version: str = "", kind: str = "") -> Envelope:
    if "metadata" not in fields:
        raise msgspec.ValidationError("an object without metadata")
    raw_metadata = _without_managed_fields(fields.pop("metadata"))
    names = _NAMES.decode(raw_metadata)
    return Envelope(
        key=Key(sys.intern(names.namespace), names.name),
        resource_version=names.resourceVersion,
        api_version=_word(fields.pop("apiVersion", None)) or api_version,
        kind=_word(fields.pop("kind", None)) or kind,
        raw_metadata=raw_metadata,
        spec=bytes(fields.pop("spec", b"")),
        status=bytes(fields.pop("status", b"")),
        extra=_ENCODER.encode(fields) if fields else b"",
    )


def _without_managed_fields(metadata: Raw) -> bytes:
    parts = _FIELDS.decode(metadata)
    if parts.pop("managedFields", None) is None:
        return bytes(metadata)
    return _ENCODER.encode(parts)


def _word(text: Raw | None) -> str:
    """A text that many objects have in common, so kept once."""
    return "" if text is None else sys.intern(_TEXT.decode(text))
