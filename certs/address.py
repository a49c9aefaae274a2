"""The address at which the local API server finds the kubelet API of the virtual node.

One that nobody gave is looked for again while Farlet runs: a machine gets another from DHCP, moves to another network,
or has a tunnel to the cluster that comes and goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from app.kube.client import Client
from app.kube.errors import KubeError
from certs.errors import CertificateError

POD_IP: Final = "POD_IP"
"""The environment variable that our Deployment fills with the pod's own address."""

LOOK: Final = 5.0
"""Seconds between two looks for another address. Nothing is sent for it, except to a name server."""

_FAR_AWAY: Final = ("192.0.2.1", "2001:db8::1")
"""Addresses that nobody has: the way to them is the default route."""


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """An address, where it comes from, and what is wrong with it."""

    address: str
    source: str
    """For people."""
    warning: str | None = None


async def node_address(
    given: str | None, environment: Mapping[str, str], client: Client, current: str | None = None
) -> NodeAddress:
    """``--node-address``, else the pod's own, else the one that this machine has towards the local API server.

    Of several that would do, the *current* one stays: name servers give addresses in changing order.

    A kubeconfig that leads to this machine itself, as kind's and minikube's do, tells nothing: an API server in a
    container or virtual machine reaches us by the address of our default route, if at all.
    """
    if given:
        return _judged(given, "--node-address")
    if pod := environment.get(POD_IP):
        return _judged(pod, f"${POD_IP}")
    server = (await client.access()).server
    try:
        found = _chosen(await _sources_towards(server), current)
        if refused(found) and (routes := _default_routes()):
            other = _chosen(routes, current)
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


async def follow_address(
    given: str | None, environment: Mapping[str, str], client: Client, current: str, tell: Callable[[str], None]
) -> None:
    """Tell of every other address that :func:`node_address` finds from now on; ends at once if it can find no other.

    What somebody gave is not ours to change, and a pod has the same address all its life.
    """
    if given or environment.get(POD_IP):
        return
    await follow(lambda known: node_address(None, {}, client, known), current, tell)


async def follow(
    look: Callable[[str], Awaitable[NodeAddress]], current: str, tell: Callable[[str], None], *, pause: float = LOOK
) -> None:
    """Look again and again, and tell of an address that is found twice in a row; never returns.

    Once is not enough: where a network changes, addresses and routes come and go one after the other. And an address
    that no API server would use is no better than one that this machine had.
    """
    before = current
    while True:
        await asyncio.sleep(pause)
        try:
            found = (await look(current)).address
        except (CertificateError, KubeError):
            continue  # no network, or no name server: nothing is known
        if found == before != current and not refused(found):
            current = found
            tell(found)
        before = found


async def _sources_towards(server: str) -> list[str]:
    """:func:`source_addresses`, without the loop waiting for a name server, nor this process when it ends.

    asyncio waits for its own threads at its end, and a name server that is silent takes its time.
    """
    try:
        ipaddress.ip_address(urlsplit(server).hostname or "")
    except ValueError:
        pass
    else:
        return source_addresses(server)
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[str]] = loop.create_future()

    def tell(answer: list[str], failure: Exception | None) -> None:
        if found.done():
            return
        if failure is not None:
            found.set_exception(failure)
        else:
            found.set_result(answer)

    def look_up() -> None:
        answer: list[str] = []
        failure: Exception | None = None
        try:
            answer = source_addresses(server)
        except (OSError, ValueError) as error:  # the latter of names that cannot be one
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, answer, failure)

    threading.Thread(target=look_up, name="look-up", daemon=True).start()
    return await found


def source_addresses(server: str) -> list[str]:
    """The addresses that this machine has towards a server's URL, at least one; nothing is sent."""
    url = urlsplit(server)
    failure: OSError = OSError("no address")
    sources = []
    for family, _, _, _, target in socket.getaddrinfo(url.hostname, url.port or 443, type=socket.SOCK_DGRAM):
        try:
            sources.append(_source_towards(family, target))
        except OSError as error:
            failure = error
    if not sources:
        raise failure
    return sources


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


def _chosen(addresses: Sequence[str], current: str | None) -> str:
    return current if current is not None and current in addresses else addresses[0]


def _default_routes() -> list[str]:
    """The addresses that this machine has towards the rest of the world, in either family."""
    sources = []
    for family, target in ((socket.AF_INET, _FAR_AWAY[0]), (socket.AF_INET6, _FAR_AWAY[1])):
        try:
            sources.append(_source_towards(family, (target, 443)))
        except OSError:
            continue
    return [source for source in sources if not refused(source)]


def _source_towards(family: int, target: tuple[object, ...]) -> str:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])
