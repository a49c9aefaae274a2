"""ConfigMaps: carried whole. One that is immutable is deleted and made anew when its local one is another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app import names
from app.kube.objects import Envelope
from app.kube.resources import CONFIG_MAPS
from app.reflection.kind import Around, Kind, field_of, without_content
from app.reflection.rules import Policy


class ConfigMaps(Kind):
    """Every namespace of every cluster has a ``kube-root-ca.crt`` of its own, so the local one gets another name."""

    resource = CONFIG_MAPS
    remembered = ("immutable",)

    def remote_name(self, name: str) -> str:
        return names.root_ca_copy(self.owner.origin) if name == names.ROOT_CA else name

    def wanted(self, local: Envelope, around: Around) -> bool:
        return self._wanted(local)

    def _wanted(self, local: Envelope) -> bool:
        if local.key.name == names.ROOT_CA:
            # whatever its annotations say: remote pods that use it look for the copy, and would wait for ever
            return self.rules.policy(self.resource.plural) is not Policy.OFF
        return self.rules.wanted(self.resource.plural, local.metadata.annotations or {})

    def slim_local(self, local: Envelope) -> Envelope:
        return local if self._wanted(local) else without_content(local)

    def must_replace(self, content: Mapping[str, Any], remote: Envelope) -> bool:
        return is_immutable(remote) and not (content.get("immutable") and self.same(content, remote))


def is_immutable(remote: Envelope) -> bool:
    return bool(field_of(remote, "immutable"))
