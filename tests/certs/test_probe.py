"""What a person is told about each way in which the API server does not reach the node.

The texts are those of a real kube-apiserver 1.36 (and of this machine's TLS); test_probe_cluster.py sees some of them
being made.
"""

from __future__ import annotations

import pytest

from app.kube.errors import ApiError, Unauthorized
from certs.probe import advice, advice_on

REACH = "error trying to reach service: "
X509 = f"{REACH}tls: failed to verify certificate: x509: "


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{REACH}dial tcp 10.254.49.1:1: connect: connection refused", "nothing listens there"),
        (f"{REACH}dial tcp 10.254.49.250:37363: connect: no route to host", "cannot be reached"),
        (f"{REACH}dial tcp 10.254.49.1:44943: i/o timeout", "no answer from the address"),
        (f"{REACH}EOF", "broke the connection off"),
        (f"{REACH}remote error: tls: unknown certificate authority", "broke the connection off"),
        (f"{REACH}net/http: TLS handshake timeout", "something else than the kubelet API"),
        (f"{X509}certificate signed by unknown authority", "--serving-certificate csr"),
        (f"{X509}certificate is valid for 10.1.1.1, not 10.254.49.1", "not for the node's address"),
        (
            f"{X509}cannot validate certificate for 10.254.49.1 because it doesn't contain any IP SANs",
            "not for the node's address",
        ),
        (
            f"{X509}certificate has expired or is not yet valid: current time 2026-11-16T06:20:27Z is after "
            "2026-11-16T06:19:27Z",
            "compare the clocks",
        ),
        ("address not allowed", "loopback and link-local"),
        (
            "lookup no-such-host.invalid on 10.255.255.53:53: dial udp 10.255.255.53:53: connect: no route to host",
            "cannot resolve",
        ),
        ("no preferred addresses found; known addresses: []", "--kubelet-preferred-address-types"),
        ('nodes "probe-x" not found', "not there yet"),
        (
            'nodes "probe-x" is forbidden: User "system:serviceaccount:default:prober" cannot get resource '
            '"nodes/proxy" in API group "" at the cluster scope',
            "Farlet may not ask",
        ),
        (
            "Forbidden (user=kube-apiserver-kubelet-client, verb=get, resource=nodes, subresource(s)=[healthz proxy])",
            "system:kubelet-api-admin",
        ),
        ("500 Internal Server Error: [-]syncloop failed: reason withheld healthz check failed", "not healthy"),
        ("self-signed certificate", "--serving-certificate csr"),
        ("unable to get local issuer certificate", "--serving-certificate csr"),
        ("IP address mismatch, certificate is not valid for '127.0.0.1'", "not for the node's address"),
        ("certificate has expired", "compare the clocks"),
        ("Connection refused", "nothing listens there"),
        ("something new", "see the logs"),
    ],
)
def test_advice(text: str, words: str) -> None:
    assert words in advice_on(text)
    assert advice(ApiError(503, "ServiceUnavailable", text)) == advice_on(text)


def test_401_is_the_kubelet_apis() -> None:
    assert "--kubelet-client-certificate" in advice(Unauthorized(401, "", "Unauthorized"))
