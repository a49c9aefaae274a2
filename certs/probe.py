"""Whether `kubectl logs` and `exec` will work, tried as the API server does it, and told in one line.

The API server is asked to fetch ``/healthz`` of the node through its node proxy: the same address, certificate and
identity as for logs and exec. That takes the right to ``get nodes/proxy``, which for nodes in general is a dangerous
one (it reaches every container of every node), so it is only used where somebody has given it. Without it we can only
look at ourselves from outside: connect to the node's address and see whether the cluster's CA vouches for us.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from dataclasses import dataclass
from typing import Final

from app.kube.access import may
from app.kube.client import Client
from app.kube.errors import ApiError, KubeError, Unreachable
from app.kube.resources import NODES

TIMEOUT: Final = 40.0
"""Seconds for one attempt: the API server gives up on a silent address after 30."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a probe found."""

    works: bool | None
    """None: it could not be told."""
    line: str
    """For people: what was found, and what to do."""


async def probe(
    client: Client,
    node: str,
    address: str,
    port: int,
    *,
    attempts: int = 5,
    pause: float = 2.0,
    timeout: float = TIMEOUT,
) -> Result:
    """Try it; *client* is the local cluster's, and the server is up, has its certificate and its node exists.

    It is tried again a few times: the API server may hear of the node's address only a moment later.
    """
    try:
        through_api_server = await may(client, "get", "nodes", subresource="proxy", name=node)
    except KubeError as error:
        return Result(None, f"not known whether kubectl logs and exec work: {error}")
    while True:
        result = await (
            _through_api_server(client, node, address, port, timeout)
            if through_api_server
            else _from_outside(client, node, address, port, timeout)
        )
        attempts -= 1
        if result.works is not False or attempts <= 0:
            return result
        await asyncio.sleep(pause)


async def _through_api_server(client: Client, node: str, address: str, port: int, timeout: float) -> Result:
    path = f"{NODES.path(name=node, subresource='proxy')}/healthz"
    where = f"node {node} at {_joined(address, port)}"
    try:
        await client.request("GET", path, retry=False, timeout=timeout)
    except Unreachable as error:
        return Result(None, f"not known whether kubectl logs and exec work: {error}")
    except ApiError as error:
        said = "Unauthorized" if error.status == 401 else error.message
        return Result(
            False, f"kubectl logs and exec do not work: the API server says of {where}: {said} ({advice(error)})"
        )
    except KubeError as error:
        return Result(None, f"not known whether kubectl logs and exec work: {error}")
    return Result(True, f"kubectl logs and exec work: the API server reaches {where}")


async def _from_outside(client: Client, node: str, address: str, port: int, timeout: float) -> Result:
    where = _joined(address, port)
    context = (await client.access()).tls
    try:
        async with asyncio.timeout(min(timeout, 10.0)):
            _, writer = await asyncio.open_connection(
                address, port, ssl=context, server_hostname=address if context else None
            )
    except ssl.SSLCertVerificationError as error:
        return Result(
            None,
            f"kubectl logs and exec work only if the API server does not verify kubelets: the certificate at {where} "
            f"is not one of the cluster's CA for it: {error.verify_message} ({advice_on(error.verify_message)})",
        )
    except OSError as error:  # a TimeoutError is one
        # asyncio's own words for a refused connection hold the address and not the reason
        text = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or "timeout"
        return Result(False, f"kubectl logs and exec do not work: {where}: {text} ({advice_on(text)})")
    writer.transport.abort()
    return Result(
        None,
        f"the kubelet API answers at {where} with a certificate of the cluster's CA; whether the API server reaches it "
        f"is not known (to try it, Farlet needs the right to get nodes/proxy of {node}: docs/certificates.md)",
    )


def advice(error: ApiError) -> str:
    """What to do about the API server's answer to the probe."""
    if error.status == 401:
        # Our own credentials were good a moment ago: it is the kubelet API's answer that is relayed.
        return (
            "the kubelet API does not know the API server: does the API server have --kubelet-client-certificate, "
            "signed by the client CA? If by another, give that with --client-ca-file"
        )
    return advice_on(error.message)


_REACHABLE: Final = (
    "is it an address of this machine that the API server's machines reach, and do firewalls and network policies let "
    "them? Give another with --node-address"
)

_ADVICE: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), text)
    for pattern, text in (
        (
            r"cannot get resource \"nodes/proxy\"",
            "Farlet may not ask: give it the right to get nodes/proxy of this node (docs/certificates.md)",
        ),
        (
            r"^Forbidden \(user=(?P<user>[^,]*),",
            "the API server's identity towards kubelets has not the right to nodes/proxy: bind it to the ClusterRole "
            "system:kubelet-api-admin",
        ),
        (
            r"address not allowed",
            "API servers do not proxy to loopback and link-local addresses: give another with --node-address",
        ),
        (
            r"no preferred addresses found",
            "the node has no address of a type that the API server uses (--kubelet-preferred-address-types)",
        ),
        (r"nodes \"[^\"]*\" not found", "the node is not there yet, or was deleted"),
        (
            r"\blookup \S+|no such host",
            "the API server's machines cannot resolve the node's address: give an IP with --node-address",
        ),
        (
            r"connection refused",
            "nothing listens there: is --kubelet-address open on that address? Or give another with --node-address",
        ),
        (
            r"no route to host|network is unreachable|host is unreachable",
            f"the address cannot be reached: {_REACHABLE}",
        ),
        (r"i/o timeout|deadline exceeded|timed out|^timeout$", f"no answer from the address: {_REACHABLE}"),
        (
            r"TLS handshake timeout|HTTP response to HTTPS client|first record does not look like a TLS",
            "something else than the kubelet API listens there: see --node-address and --kubelet-address",
        ),
        (
            r"signed by unknown authority|self.signed certificate|unable to get (local )?issuer",
            "an API server with --kubelet-certificate-authority wants a certificate of that CA: use "
            "--serving-certificate csr, or files signed by it",
        ),
        (
            r"certificate is valid for|doesn't contain any IP SANs|not valid for any names|not valid for '|mismatch",
            "the certificate is not for the node's address: with --serving-certificate files it must name that address",
        ),
        (
            r"certificate has expired|not yet valid",
            "the certificate's time is over or has not come: renew it, and compare the clocks",
        ),
        (
            r"\bEOF$|connection reset|remote error: tls",
            "the kubelet API broke the connection off: it has no certificate yet, or the API server's client "
            "certificate is not of the client CA (--client-ca-file); its log says which",
        ),
        (
            r"healthz check failed|\[-\]",
            "the kubelet API is up and says itself that it is not healthy; its log says why",
        ),
    )
)


def advice_on(text: str) -> str:
    """What to do about an error of a connection, as the API server or this machine words it."""
    for pattern, words in _ADVICE:
        if pattern.search(text):
            return words
    return "see the logs of the API server and of Farlet"


def _joined(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
