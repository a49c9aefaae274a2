"""The TLS of a server whose certificate and client CA change while it runs, with no connection dropped.

What an SSLContext has loaded cannot be taken back: a CA stays trusted, and tickets that it issued resume sessions
that were authenticated by that CA. So each change makes a new context, and each new connection is wrapped by the
context of that moment. (Switching in the SNI callback is not enough: OpenSSL takes the certificate and the CAs from
the new context, but the wish for a client certificate and the tickets from the old one.)
"""

from __future__ import annotations

import ssl
import time
from typing import Any

from app.kube.tls import UnusableCertificate, load_certificate
from certs.errors import CertificateError


class ServerTls:
    """Owns the contexts of one server. Before the first certificate every handshake fails; before the first client CA
    every client certificate is refused, and clients without one get in."""

    def __init__(self) -> None:
        self._certificate: bytes | None = None
        self._client_ca: str | None = None
        self._current = _make(None, None)
        self.context: ssl.SSLContext = _Latest(ssl.PROTOCOL_TLS_SERVER)
        """For ``asyncio``'s ``ssl=``: the same object for as long as the server runs."""
        assert isinstance(self.context, _Latest)
        self.context.owner = self

    @property
    def current(self) -> ssl.SSLContext:
        """What the next connection is made with."""
        return self._current

    def set_certificate(self, certificate: bytes, key: bytes) -> None:
        """Serve with this from the next connection on; :class:`CertificateError`, and no change, if it is unusable."""
        pem = certificate.rstrip() + b"\n" + key
        self._current = _make(pem, self._client_ca)
        self._certificate = pem

    def set_client_ca(self, pem: bytes) -> None:
        """Believe client certificates that one of these signed, and no others, from now on; for open connections see
        :meth:`peer_certificate`. :class:`CertificateError`, and no change, if there is none in it."""
        text = pem.decode("ascii", errors="ignore")
        self._current = _make(self._certificate, text)
        self._client_ca = text

    def peer_certificate(self, connection: ssl.SSLObject | ssl.SSLSocket) -> bytes | None:
        """The client's certificate (DER) if it is to be believed now; None if it has none.

        To be asked for each request: a connection may outlive the client's certificate and the CA that signed it.
        """
        certificate = connection.getpeercert(binary_form=True)
        if certificate is None or _ended(connection.getpeercert()):
            return None
        made_with = connection.context
        if made_with is self._current:
            return certificate
        trusted = _authorities(self._current)
        if trusted == _authorities(made_with) or trusted.intersection(_verified_chain(connection)):
            return certificate
        return None


class _Latest(ssl.SSLContext):
    """Wraps each connection with what its owner has at that moment."""

    owner: ServerTls

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        return self.owner.current.wrap_bio(*arguments, **options)

    def wrap_socket(self, *arguments: Any, **options: Any) -> ssl.SSLSocket:
        return self.owner.current.wrap_socket(*arguments, **options)


def _make(certificate: bytes | None, client_ca: str | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # A session that is resumed is not verified again: no tickets, neither those of TLS 1.2 nor those of 1.3.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    context.verify_mode = ssl.CERT_OPTIONAL
    # As Go has it: whatever is in the file is trusted, an intermediate authority too, and extensions that Python 3.13
    # began to insist on may be missing.
    context.verify_flags = (context.verify_flags & ~ssl.VERIFY_X509_STRICT) | ssl.VERIFY_X509_PARTIAL_CHAIN
    if certificate is not None:
        try:
            load_certificate(context, certificate)
        except UnusableCertificate as error:
            raise CertificateError(f"the serving certificate cannot be used: {error}") from None
    if client_ca is not None:
        try:
            context.load_verify_locations(cadata=client_ca)
        except (ssl.SSLError, ValueError) as error:
            why = getattr(error, "reason", None) or "not certificates in PEM"
            raise CertificateError(f"the client CA cannot be used: {why}") from None
    return context


def _authorities(context: ssl.SSLContext) -> frozenset[bytes]:
    return frozenset(context.get_ca_certs(binary_form=True))


def _verified_chain(connection: ssl.SSLObject | ssl.SSLSocket) -> list[bytes]:
    """The chain from the client's certificate to the authority that it was verified with; empty where it is not told.

    Public since Python 3.13; before, it is there under another name.
    """
    public = getattr(connection, "get_verified_chain", None)
    if public is not None:
        return list(public())
    chain = getattr(getattr(connection, "_sslobj", None), "get_verified_chain", lambda: ())() or ()
    return [ssl.PEM_cert_to_DER_cert(certificate.public_bytes()) for certificate in chain]


def _ended(certificate: Any) -> bool:
    """Whether a certificate, as ``getpeercert`` tells of it, has ended."""
    end = (certificate or {}).get("notAfter")
    return end is not None and ssl.cert_time_to_seconds(str(end)) <= time.time()
