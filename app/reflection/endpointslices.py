"""EndpointSlices: the endpoints of a Service that the remote cluster cannot find by itself.

Those that run in the remote cluster it finds through the Service's selector, so only the others are carried, with the
addresses that they have as seen from there. A slice follows its Service: where that is not reflected, neither is it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from app import names
from app.kube.objects import Envelope, Object
from app.kube.resources import ENDPOINT_SLICES, SERVICES
from app.pods.addresses import IpMap
from app.reflection.copies import Owner
from app.reflection.kind import Around, Kind, field_of
from app.reflection.rules import Rules

LABEL_SERVICE: Final = "kubernetes.io/service-name"
LABEL_MANAGED_BY: Final = "endpointslice.kubernetes.io/managed-by"
_CONTROLLER: Final = "endpointslice-controller.k8s.io"
_LOCAL_ONLY: Final = ("nodeName", "targetRef", "deprecatedTopology")
"""Fields of an endpoint that name things of the local cluster."""
_MAX_NAME: Final = 253


class EndpointSlices(Kind):
    """They carry a ``managed-by`` of their own: what the remote cluster's controller takes for its own, it deletes."""

    resource = ENDPOINT_SLICES
    remembered = ("addressType",)

    def __init__(self, owner: Owner, rules: Rules, *, seen_remotely: IpMap, seen_locally: IpMap) -> None:
        """*seen_remotely*: what local addresses are in the remote cluster; *seen_locally*: the other way round."""
        super().__init__(owner, rules)
        self._seen_remotely = seen_remotely
        self._back = seen_locally.inverse()

    def remote_name(self, name: str) -> str:
        """The remote cluster makes slices of the Service too, and their names begin alike."""
        suffix = f"-{self.owner.origin}"
        return name[: _MAX_NAME - len(suffix)].rstrip("-.") + suffix

    def wanted(self, local: Envelope, around: Around) -> bool:
        metadata, service = local.metadata, around.service
        if (metadata.labels or {}).get(LABEL_MANAGED_BY) == names.SLICES_MANAGED_BY:
            return False  # a copy itself: two clusters that extend into each other would copy for ever
        if service is None or service.key == ("default", "kubernetes"):
            return False
        followed = self.rules.wanted(SERVICES.plural, service.metadata.annotations or {})
        return followed and super().wanted(local, around)

    def content(self, local: Envelope, around: Around) -> Object | None:
        content: Object = msgspec.json.decode(local.extra) if local.extra else {}
        found_there = self._finds_by_itself(local, around)
        endpoints = []
        for endpoint in content.get("endpoints") or []:
            inside = endpoint.get("nodeName") in around.inside
            if not (inside and found_there):
                endpoints.append(_endpoint(endpoint, self._back if inside else self._seen_remotely))
        return {**content, "endpoints": endpoints} if endpoints else None

    def _finds_by_itself(self, local: Envelope, around: Around) -> bool:
        """Whether the remote cluster makes slices for the pods of this Service that run there."""
        service = around.service
        spec = msgspec.json.decode(service.spec) if service is not None and service.spec else {}
        made_by = (local.metadata.labels or {}).get(LABEL_MANAGED_BY)
        return bool(spec.get("selector")) and made_by == _CONTROLLER

    def labels(self, local: Envelope) -> dict[str, str]:
        return {LABEL_MANAGED_BY: names.SLICES_MANAGED_BY}

    def must_replace(self, content: Mapping[str, Any], remote: Envelope) -> bool:
        return bool(content.get("addressType") != field_of(remote, "addressType"))


def service_of(envelope: Envelope) -> str:
    """The Service that a slice belongs to; also the index of slices."""
    return (envelope.metadata.labels or {}).get(LABEL_SERVICE, "")


def _endpoint(endpoint: Object, ip_map: IpMap) -> Object:
    carried = {key: value for key, value in endpoint.items() if key not in _LOCAL_ONLY}
    carried["addresses"] = [ip_map.translate(address) for address in endpoint.get("addresses") or []]
    if hints := carried.pop("hints", None):
        zones = {key: value for key, value in hints.items() if key != "forNodes"}
        carried |= {"hints": zones} if zones else {}
    return carried
