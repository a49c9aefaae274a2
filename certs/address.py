"""The address at which the local API server finds the kubelet API of the virtual node."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from app.kube.client import Client
from certs.errors import CertificateError

POD_IP: Final = "POD_IP"
"""The environment variable that our Deployment fills with the pod's own address."""

_FAR_AWAY: Final = ("192.0.2.1", "2001:db8::1")
"""Addresses that nobody has: the way to them is the default route."""


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """An address, where it comes from, and what is wrong with it."""

    address: str
    source: str
    """For people."""
    warning: str | None = None


async def node_address(given: str | None, environment: Mapping[str, str], client: Client) -> NodeAddress:
    """``--node-address``, else the pod's own, else the one that this machine has towards the local API server.

    A kubeconfig that leads to this machine itself, as kind's and minikube's do, tells nothing: an API server in a
    container or virtual machine reaches us by the address of our default route, if at all.
    """
    if given:
        return _judged(given, "--node-address")
    if pod := environment.get(POD_IP):
        return _judged(pod, f"${POD_IP}")
    server = (await client.access()).server
    try:
        found = await asyncio.to_thread(source_address, server)
        if refused(found) and (other := await asyncio.to_thread(_default_route)):
            return NodeAddress(
                other,
                "this machine's default route",
                f"the API server is on this machine ({found}), which says not how it reaches us: {other} is a guess; "
                "if it is wrong give --node-address",
            )
    except OSError as error:
        raise CertificateError(
            f"the node's address cannot be told from the way to {server}: {error.strerror or error}; "
            "give it with --node-address"
        ) from error
    return _judged(found, "this machine's towards the local API server")


def source_address(server: str) -> str:
    """The address that this machine has towards a server's URL; nothing is sent."""
    url = urlsplit(server)
    failure: OSError = OSError("no address")
    for family, _, _, _, target in socket.getaddrinfo(url.hostname, url.port or 443, type=socket.SOCK_DGRAM):
        try:
            return _source_towards(family, target)
        except OSError as error:
            failure = error
    raise failure


def refused(address: str) -> bool:
    """Whether API servers refuse to proxy to such an address of a node: only global unicast ones are taken."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False  # a name; what it resolves to is not for us to say
    return ip.is_loopback or ip.is_link_local or ip.is_multicast or ip.is_unspecified


def _judged(address: str, source: str) -> NodeAddress:
    warning = None
    if refused(address):
        warning = (
            f'{address} is not an address that an API server uses for a node\'s proxy ("address not allowed"): '
            "metrics and /healthz will not work through it; give another with --node-address"
        )
    return NodeAddress(address, source, warning)


def _default_route() -> str | None:
    for family, target in ((socket.AF_INET, _FAR_AWAY[0]), (socket.AF_INET6, _FAR_AWAY[1])):
        try:
            found = _source_towards(family, (target, 443))
        except OSError:
            continue
        if not refused(found):
            return found
    return None


def _source_towards(family: int, target: tuple[object, ...]) -> str:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])
