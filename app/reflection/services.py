"""Services: what they offer is carried, what a cluster allots (addresses, node ports, load balancers) is its own.

The selector is carried too: remote pods have the labels of their local ones, so the remote cluster finds by itself
the endpoints that run there. Those that run elsewhere are reflected as EndpointSlices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from app import names
from app.kube.objects import Envelope, Object
from app.kube.resources import SERVICES
from app.reflection import copies
from app.reflection.kind import Around, Kind

_ALLOTTED: Final = (
    "clusterIP",
    "clusterIPs",
    "ipFamilies",
    "healthCheckNodePort",
    "loadBalancerIP",
    "loadBalancerClass",
    "externalIPs",
)
"""Fields of a spec that each cluster decides for itself."""
_WITH_NODE_PORTS: Final = ("NodePort", "LoadBalancer")
_FAMILIES: Final = "ipFamilies"
"""A wish when a copy is made: a remote cluster may lack a family, and the first one can never be changed."""
_EXTERNAL_POLICY: Final = "externalTrafficPolicy"
"""A ClusterIP Service has one, by default, if it has ``externalIPs``: without those it is refused."""
_HEADLESS: Final = "None"
_EXTERNAL_NAME: Final = "ExternalName"
_API_SERVER: Final = ("default", "kubernetes")


class Services(Kind):
    """The Service of the API server is never reflected: each cluster has its own."""

    resource = SERVICES

    def wanted(self, local: Envelope, around: Around) -> bool:
        return tuple(local.key) != _API_SERVER and super().wanted(local, around)

    def content(self, local: Envelope, around: Around) -> Object | None:
        spec: Object = msgspec.json.decode(local.spec) if local.spec else {}
        forged = {name: value for name, value in spec.items() if name not in _ALLOTTED}
        if spec.get("clusterIP") == _HEADLESS:
            forged["clusterIP"] = _HEADLESS
        if spec.get(_FAMILIES):
            forged[_FAMILIES] = spec[_FAMILIES]
        if spec.get("type") not in _WITH_NODE_PORTS:
            forged.pop(_EXTERNAL_POLICY, None)
        keep_ports = (local.metadata.annotations or {}).get(names.ANNOTATION_KEEP_NODE_PORTS) == "true"
        if "ports" in forged and not keep_ports:
            forged["ports"] = [{key: port[key] for key in port if key != "nodePort"} for port in spec["ports"] or []]
        return {"spec": forged}

    def fingerprint(self, content: Mapping[str, Any]) -> str:
        """A field that the local Service has lost looks, in the copy, like a default of the remote cluster."""
        return copies.digest(content)[:16]

    def slim(self, remote: Envelope) -> Envelope:
        return msgspec.structs.replace(remote, status=b"")

    def relaxed(self, content: Mapping[str, Any], refusal: str) -> Mapping[str, Any] | None:
        if _FAMILIES not in content["spec"] or _FAMILIES not in refusal:
            return None
        return {"spec": _without_families(content["spec"])}

    def same(self, content: Mapping[str, Any], remote: Envelope) -> bool:
        wanted, found = _without_families(content["spec"]), _spec(remote)
        # of a selector nothing is the remote cluster's own, also where none is wanted: it would find other endpoints
        return (wanted.get("selector") or {}) == (found.get("selector") or {}) and _holds(wanted, found)

    def must_replace(self, content: Mapping[str, Any], remote: Envelope) -> bool:
        """A Service cannot become headless, or cease to be."""
        wanted, found = content["spec"], _spec(remote)
        if _EXTERNAL_NAME in (wanted.get("type"), found.get("type")):
            return False
        return bool((wanted.get("clusterIP") == _HEADLESS) != (found.get("clusterIP") == _HEADLESS))

    def merged(self, content: Mapping[str, Any], remote: Envelope) -> Mapping[str, Any]:
        wanted, found = _without_families(content["spec"]), _spec(remote)
        spec = dict(wanted)
        if wanted.get("type") != _EXTERNAL_NAME:
            spec = {name: found[name] for name in _ALLOTTED if name in found and _still_due(name, wanted)} | spec
        if wanted.get("type") in _WITH_NODE_PORTS:
            spec["ports"] = _with_node_ports(wanted.get("ports") or [], found.get("ports") or [])
        return {"spec": spec}


def _spec(remote: Envelope) -> Object:
    spec: Object = msgspec.json.decode(remote.spec) if remote.spec else {}
    return spec


def _without_families(spec: Object) -> Object:
    return {name: value for name, value in spec.items() if name != _FAMILIES}


def _still_due(name: str, wanted: Object) -> bool:
    balanced = wanted.get("type") == "LoadBalancer"
    if name == "healthCheckNodePort":
        return balanced and wanted.get(_EXTERNAL_POLICY) == "Local"
    return balanced or name not in ("loadBalancerIP", "loadBalancerClass")


def _with_node_ports(wanted: list[Object], found: list[Object]) -> list[Object]:
    """The ports, each with the node port that the remote cluster gave it, so that it keeps that."""
    allotted = {(port.get("name"), port.get("protocol")): port["nodePort"] for port in found if port.get("nodePort")}
    ports = []
    for port in wanted:
        mine = allotted.get((port.get("name"), port.get("protocol")))
        ports.append({"nodePort": mine, **port} if mine else dict(port))
    return ports


def _holds(wanted: Any, found: Any) -> bool:
    """Whether everything that is wanted is there; what the remote cluster adds is its own."""
    if isinstance(wanted, dict):
        if not isinstance(found, dict):
            return len(wanted) == 0
        return all(_holds(value, found.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list):
        if not isinstance(found, list):
            return not wanted and found is None
        return len(wanted) == len(found) and all(map(_holds, wanted, found))
    return bool(wanted == found) or (wanted is False and found is None)
