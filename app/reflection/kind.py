"""What the engine asks of a reflected kind; each kind answers in a small module of its own. Pure.

Of a remote copy only a digest of its content is kept in memory, unless a kind needs more: the content itself is held
once, with the local object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import msgspec

from app.kube.objects import Envelope, Object
from app.kube.resources import Resource
from app.reflection import copies
from app.reflection.copies import Copy, Owner
from app.reflection.rules import Rules

_DIGEST: Final = "digest"


@dataclass(frozen=True, slots=True)
class Around:
    """What else of both clusters decides about an object."""

    service: Envelope | None = None
    """The local Service of an EndpointSlice."""
    inside: frozenset[str] = frozenset()
    """The local nodes that stand for the remote cluster."""


class Kind:
    """One kind of object that is reflected."""

    resource: ClassVar[Resource]
    field_selector: ClassVar[str | None] = None
    """Of the local objects that are looked at."""
    remembered: ClassVar[tuple[str, ...]] = ()
    """Top-level fields of a remote copy that are kept besides the digest."""

    def __init__(self, owner: Owner, rules: Rules) -> None:
        self.owner = owner
        self.rules = rules

    # ------------------------------------------------------------------ what is wanted

    def remote_name(self, name: str) -> str:
        """What the copy of the object of this name is called."""
        return name

    def wanted(self, local: Envelope, around: Around) -> bool:
        """Whether an object is to be reflected."""
        return self.rules.wanted(self.resource.plural, local.metadata.annotations or {})

    def content(self, local: Envelope, around: Around) -> Object | None:
        """The fields of the copy besides its metadata; None: there is nothing to copy."""
        return _decoded(local.extra)

    def labels(self, local: Envelope) -> dict[str, str]:
        """Labels that the copy has whatever the local object's are."""
        return {}

    def fingerprint(self, content: Mapping[str, Any]) -> str:
        """What tells that a wish has changed, where that cannot be seen from the copy itself."""
        return ""

    def forge(self, local: Envelope, around: Around) -> Copy | None:
        """The copy of a local object; None if there is to be none."""
        if not self.wanted(local, around):
            return None
        content = self.content(local, around)
        if content is None:
            return None
        metadata = local.metadata
        return copies.make(
            self.owner,
            local,
            self.remote_name(local.key.name),
            labels={**self.rules.labels(metadata.labels or {}), **self.labels(local)},
            annotations=self.rules.annotations(metadata.annotations or {}),
            content=content,
            fingerprint=self.fingerprint(content),
        )

    # ------------------------------------------------------------------ what is there

    def slim_local(self, local: Envelope) -> Envelope:
        """What is kept of a local object: the content only of what may be reflected."""
        return msgspec.structs.replace(local, status=b"")

    def slim(self, remote: Envelope) -> Envelope:
        """What is kept of a remote copy."""
        content = _decoded(remote.extra)
        kept = {name: content[name] for name in self.remembered if name in content}
        extra = msgspec.json.encode({**kept, _DIGEST: copies.digest(content)})
        return msgspec.structs.replace(remote, extra=extra, status=b"")

    def same(self, content: Mapping[str, Any], remote: Envelope) -> bool:
        """Whether a remote copy (a slim one) has this content."""
        return bool(_decoded(remote.extra).get(_DIGEST) == copies.digest(content))

    def must_replace(self, content: Mapping[str, Any], remote: Envelope) -> bool:
        """Whether the remote copy cannot be changed into this one, and has to be made anew."""
        return False

    def merged(self, content: Mapping[str, Any], remote: Envelope) -> Mapping[str, Any]:
        """The content for a remote copy that is there: what the remote cluster itself decided stays."""
        return content

    def relaxed(self, content: Mapping[str, Any], refusal: str) -> Mapping[str, Any] | None:
        """What to ask for instead of a new copy that the remote cluster calls invalid; None: nothing less will do."""
        return None

    def head(self) -> dict[str, str]:
        return {"apiVersion": self.resource.api_version, "kind": self.resource.kind}


def without_content(local: Envelope, *kept: str) -> Envelope:
    """An object of which only the name, the metadata and these fields are held."""
    fields = {name: value for name, value in _decoded(local.extra).items() if name in kept}
    return msgspec.structs.replace(local, spec=b"", status=b"", extra=msgspec.json.encode(fields) if fields else b"")


def field_of(envelope: Envelope, name: str) -> Any:
    """A top-level field that has no place of its own in an envelope."""
    return _decoded(envelope.extra).get(name)


def _decoded(extra: bytes) -> Object:
    fields: Object = msgspec.json.decode(extra) if extra else {}
    return fields
