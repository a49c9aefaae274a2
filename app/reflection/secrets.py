"""Secrets: carried whole, of every type but one.

A ServiceAccount's token is an identity in the local cluster: it is never carried, whatever its annotations say, and
not even read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.kube.objects import Envelope
from app.kube.resources import SECRETS
from app.reflection.configmaps import is_immutable
from app.reflection.kind import Around, Kind, field_of, without_content

TOKEN: Final = "kubernetes.io/service-account-token"
_OPAQUE: Final = "Opaque"


class Secrets(Kind):
    """Neither the type of a Secret nor what an immutable one holds can be changed: such a copy is made anew."""

    resource = SECRETS
    field_selector = f"type!={TOKEN}"
    remembered = ("immutable", "type")

    def wanted(self, local: Envelope, around: Around) -> bool:
        return self._wanted(local)

    def _wanted(self, local: Envelope) -> bool:
        if field_of(local, "type") == TOKEN:
            return False
        return self.rules.wanted(self.resource.plural, local.metadata.annotations or {})

    def slim_local(self, local: Envelope) -> Envelope:
        return local if self._wanted(local) else without_content(local, "type")

    def must_replace(self, content: Mapping[str, Any], remote: Envelope) -> bool:
        if content.get("type", _OPAQUE) != (field_of(remote, "type") or _OPAQUE):
            return True
        return is_immutable(remote) and not (content.get("immutable") and self.same(content, remote))
