"""Who asks: a client certificate, a bearer token, or a token among a WebSocket's protocols; nobody is not enough.

As in the kubelet each way is tried in this order, and one that fails leaves it to the next. TLS verifies certificates
when a connection is made; the kubelet does so for each request, and so do we (:data:`PeerCertificate`): a certificate
may have ended since, or the authority that signed it may have been replaced.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import os
import ssl
import time
from collections.abc import Callable
from typing import Final, TypeAlias

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from app.kube.client import Client
from app.kube.errors import KubeError
from app.kube.objects import Object
from kubelet_api import reviews
from kubelet_api.cache import Answers
from kubelet_api.call import CallError, User

log = logging.getLogger(__name__)

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]

TOKEN_KEPT_FOR: Final = 120.0
UNSURE_KEPT_FOR: Final = 10.0
"""A refusal with an error: the kubelet does not keep those at all, and then asks for each request."""
CACHE_SIZE: Final = 8192

_BEARER_PROTOCOL: Final = "base64url.bearer.authorization.k8s.io."
_AUTHENTICATED: Final = "system:authenticated"
_CLIENT_USAGES: Final = (ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE)


class NotAuthenticated(Exception):
    """Credentials that prove nothing; the text is for our log, never for the client."""


# ---------------------------------------------------------------------- certificates

PeerCertificate: TypeAlias = Callable[[ssl.SSLObject], bytes | None]
"""The certificate (DER) of a connection's client if it is to be believed now, asked for each request."""


def unless_ended(connection: ssl.SSLObject) -> bytes | None:
    """The certificate that TLS verified when the connection was made, until it ends."""
    told = connection.getpeercert()
    if not told or ssl.cert_time_to_seconds(str(told["notAfter"])) <= time.time():
        return None
    return connection.getpeercert(binary_form=True)


def user_of(der: bytes) -> User:
    """The user that a client certificate stands for: CN is its name, each O a group."""
    try:
        certificate = x509.load_der_x509_certificate(der)
        return _user_of(certificate, hashlib.sha256(der).hexdigest())
    except (ValueError, x509.DuplicateExtension) as error:
        raise NotAuthenticated(f"it cannot be read: {error}") from None


def _user_of(certificate: x509.Certificate, fingerprint: str) -> User:
    try:
        usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        usages = None  # good for anything
    if usages is not None and not any(usage in usages for usage in _CLIENT_USAGES):
        raise NotAuthenticated("it is not for clients (extended key usage)")
    names = [_text(name.value) for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if not names or not names[-1]:
        raise NotAuthenticated("it has no common name")
    groups = [_text(name.value) for name in certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    return User(
        names[-1],
        groups=with_authenticated(groups),
        extra=(("authentication.kubernetes.io/credential-id", (f"X509SHA256={fingerprint}",)),),
    )


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")


def with_authenticated(groups: list[str]) -> tuple[str, ...]:
    return tuple(groups) if _AUTHENTICATED in groups else (*groups, _AUTHENTICATED)


# ---------------------------------------------------------------------- tokens in headers


def bearer_token(headers: Headers) -> str | None:
    """The token of the Authorization header."""
    value = next((value for name, value in headers if name == b"authorization"), b"")
    scheme, _, rest = value.decode("latin-1").strip().partition(" ")
    token = rest.partition(" ")[0]
    return token if scheme.lower() == "bearer" and token else None


def websocket_token(headers: Headers) -> tuple[str | None, Headers]:
    """The token among the protocols of a WebSocket, and the headers without it.

    Another protocol must be offered too, as otherwise there would be none to agree on.
    """
    if not _is_websocket(headers):
        return None, headers
    token: str | None = None
    kept: list[tuple[bytes, bytes]] = []
    others = 0
    for name, value in headers:
        if name != b"sec-websocket-protocol":
            kept.append((name, value))
            continue
        rest = []
        for protocol in (part.strip() for part in value.decode("latin-1").split(",")):
            if not protocol.startswith(_BEARER_PROTOCOL):
                rest.append(protocol)
            elif token is not None:
                raise NotAuthenticated("a WebSocket offers two tokens")
            else:
                token = _decoded(protocol.removeprefix(_BEARER_PROTOCOL))
        others += len(rest)
        if rest:
            kept.append((name, ", ".join(rest).encode("latin-1")))
    if token and not others:
        raise NotAuthenticated("a WebSocket offers a token and no other protocol")
    return token or None, tuple(kept)


def without_credentials(headers: Headers) -> Headers:
    """The headers without any token, also among a WebSocket's protocols, whether it was used or not."""
    kept = []
    for name, value in headers:
        if name in (b"authorization", b"proxy-authorization", b"cookie"):
            continue
        if name == b"sec-websocket-protocol":
            parts = [part.strip() for part in value.split(b",")]
            parts = [part for part in parts if not part.startswith(_BEARER_PROTOCOL.encode())]
            if not parts:
                continue
            value = b", ".join(parts)
        kept.append((name, value))
    return tuple(kept)


def _decoded(text: str) -> str:
    try:
        # RawURLEncoding: no padding, and nothing outside the alphabet
        if "=" in text or "+" in text or "/" in text:
            raise ValueError
        raw = text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4)
        return base64.b64decode(raw, validate=True).decode()
    except (ValueError, binascii.Error):
        raise NotAuthenticated("a WebSocket's token is not base64url") from None


def _is_websocket(headers: Headers) -> bool:
    given = dict(headers)
    return given.get(b"upgrade", b"").strip().lower() == b"websocket" and any(
        b"upgrade" in value.lower() for name, value in headers if name == b"connection"
    )


# ---------------------------------------------------------------------- all of it


class Authenticator:
    """Finds out who sent a request."""

    def __init__(
        self,
        client: Client,
        peer_certificate: PeerCertificate = unless_ended,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._peer_certificate = peer_certificate
        self._answers: Answers[bytes, User | None] = Answers(size=CACHE_SIZE, clock=clock)
        self._salt = os.urandom(32)
        """Tokens are kept as keyed hashes only."""

    async def authenticate(self, headers: Headers, peer: ssl.SSLObject | None) -> tuple[User, Headers]:
        """The user, and the headers without what only served to tell; 401 if it is nobody."""
        user = await self._user(headers, peer)
        if user is None:
            raise CallError(401, "Unauthorized")
        return user, without_credentials(headers)

    async def close(self) -> None:
        await self._answers.close()

    async def _user(self, headers: Headers, peer: ssl.SSLObject | None) -> User | None:
        if peer is not None and (der := self._peer_certificate(peer)):
            try:
                return user_of(der)
            except NotAuthenticated as error:
                log.info("a client certificate is of no use: %s", error)
        if (token := bearer_token(headers)) and (user := await self._user_of(token)):
            return user
        try:
            token, _ = websocket_token(headers)
        except NotAuthenticated as error:
            log.info("not authenticated: %s", error)
            return None
        return await self._user_of(token) if token else None

    async def _user_of(self, token: str) -> User | None:
        key = hmac.digest(self._salt, token.encode(), "sha256")

        async def ask() -> tuple[User | None, float]:
            status = await reviews.ask(self._client, reviews.TOKEN_REVIEWS, {"token": token})
            user = reviewed_user(status)
            return user, UNSURE_KEPT_FOR if user is None and status.get("error") else TOKEN_KEPT_FOR

        try:
            return await self._answers.get(key, ask)
        except KubeError as error:
            log.error("a token cannot be reviewed: %s", error)
            return None


def reviewed_user(status: Object) -> User | None:
    """The user in the status of a TokenReview; None if the token is nobody's."""
    found = status.get("user")
    if status.get("authenticated") is not True or not isinstance(found, dict) or not found.get("username"):
        return None
    extra = found.get("extra") or {}
    return User(
        str(found["username"]),
        uid=str(found.get("uid") or ""),
        groups=with_authenticated([str(group) for group in found.get("groups") or ()]),
        extra=tuple((str(key), tuple(str(value) for value in values or ())) for key, values in sorted(extra.items())),
    )
