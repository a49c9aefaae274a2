"""Who a certificate, a header and a TokenReview stand for."""

from __future__ import annotations

import base64
import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier
from hypothesis import given
from hypothesis import strategies as st

from kubelet_api.authn import (
    Headers,
    NotAuthenticated,
    bearer_token,
    reviewed_user,
    user_of,
    websocket_token,
    without_credentials,
)
from kubelet_api.call import User

PREFIX = b"base64url.bearer.authorization.k8s.io."
SOCKET: Headers = ((b"connection", b"keep-alive, Upgrade"), (b"upgrade", b"WebSocket"))


def _certificate(names: list[tuple[ObjectIdentifier, str]], usages: list[ObjectIdentifier] | None) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(kind, value) for kind, value in names])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(hours=1))
    )
    if usages is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


CN, O = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME  # noqa: E741 - what they are called


@pytest.mark.parametrize(
    "usages",
    [None, [ExtendedKeyUsageOID.CLIENT_AUTH], [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]],
)
def test_a_certificate(usages: list[ObjectIdentifier] | None) -> None:
    user = user_of(_certificate([(O, "one"), (O, "two"), (CN, "jane")], usages))
    assert (user.name, user.groups) == ("jane", ("one", "two", "system:authenticated"))
    assert user.extra[0][0] == "authentication.kubernetes.io/credential-id"
    assert user.extra[0][1][0].startswith("X509SHA256=")


@pytest.mark.parametrize(
    ("names", "usages"),
    [
        ([(O, "system:masters")], [ExtendedKeyUsageOID.CLIENT_AUTH]),
        ([(CN, "jane")], [ExtendedKeyUsageOID.SERVER_AUTH]),
    ],
)
def test_a_certificate_of_no_use(names: list[tuple[ObjectIdentifier, str]], usages: list[ObjectIdentifier]) -> None:
    with pytest.raises(NotAuthenticated):
        user_of(_certificate(names, usages))


@given(st.binary())
def test_no_certificate_at_all(der: bytes) -> None:
    with pytest.raises(NotAuthenticated):
        user_of(der)


@pytest.mark.parametrize(
    ("value", "token"),
    [
        (b"Bearer abc", "abc"),
        (b"  bEARER abc  ", "abc"),
        (b"Bearer abc def", "abc"),
        (b"Bearer", None),
        (b"Bearer ", None),
        (b"Bearer  abc", None),  # as the kubelet: cut at each space
        (b"Basic abc", None),
        (b"", None),
    ],
)
def test_bearer(value: bytes, token: str | None) -> None:
    assert bearer_token(((b"authorization", value), (b"authorization", b"Bearer second"))) == token


def _offer(*values: bytes) -> Headers:
    return (*SOCKET, *((b"sec-websocket-protocol", value) for value in values))


def _encoded(text: str) -> bytes:
    return PREFIX + base64.urlsafe_b64encode(text.encode()).rstrip(b"=")


def test_a_token_among_protocols() -> None:
    token, rest = websocket_token(_offer(b"v5.channel.k8s.io, " + _encoded("tökén?>"), b"v4.channel.k8s.io"))
    assert token == "tökén?>"
    assert rest == _offer(b"v5.channel.k8s.io", b"v4.channel.k8s.io")


@pytest.mark.parametrize(
    "values",
    [
        (_encoded("a"),),
        (_encoded("a"), _encoded("b"), b"v4.channel.k8s.io"),
        (PREFIX + b"a=", b"v4.channel.k8s.io"),
        (PREFIX + b"!!", b"v4.channel.k8s.io"),
        (PREFIX + b"_w", b"v4.channel.k8s.io"),  # not UTF-8
    ],
)
def test_a_token_among_protocols_that_is_refused(values: tuple[bytes, ...]) -> None:
    with pytest.raises(NotAuthenticated):
        websocket_token(_offer(*values))


def test_a_token_in_a_plain_request_is_none() -> None:
    headers = ((b"sec-websocket-protocol", _encoded("a") + b", other"),)
    assert websocket_token(headers)[0] is None


@given(st.lists(st.one_of(st.just(_encoded("a")), st.binary(max_size=20)), max_size=4))
def test_no_token_passes_on(values: list[bytes]) -> None:
    protocols = tuple((b"sec-websocket-protocol", value) for value in values)
    kept = without_credentials(((b"authorization", b"Bearer a"), (b"cookie", b"a=b"), *protocols))
    assert {name for name, _ in kept} <= {b"sec-websocket-protocol"}
    assert not any(part.strip().startswith(PREFIX) for _, value in kept for part in value.split(b","))


@pytest.mark.parametrize(
    ("status", "user"),
    [
        ({"authenticated": True, "user": {"username": "a"}}, User("a", groups=("system:authenticated",))),
        (
            {
                "authenticated": True,
                "user": {"username": "a", "uid": "u", "groups": ["g"], "extra": {"k": ["v", "w"]}},
            },
            User("a", "u", ("g", "system:authenticated"), (("k", ("v", "w")),)),
        ),
        ({"authenticated": False, "user": {"username": "a"}}, None),
        ({"authenticated": "true", "user": {"username": "a"}}, None),
        ({"authenticated": True, "user": {"username": ""}}, None),
        ({"authenticated": True}, None),
        ({}, None),
    ],
)
def test_a_review(status: dict[str, object], user: User | None) -> None:
    assert reviewed_user(status) == user
