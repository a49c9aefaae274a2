"""A certificate authority of our own for one server, kept with that server's certificate in one Secret.

Pure: what is stored is given, what is to be stored comes out. A new authority is trusted before anything is served
with it, and an old one is trusted until it ends, so that no replica is ever refused.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from certs.errors import CertificateError
from certs.pair import Pair, alternative_names, new_key, pem_of

_BACKDATE = datetime.timedelta(minutes=5)
_RENEWED_AFTER = 2 / 3
"""Share of a life after which the next one begins."""
AUTHORITY_LIVES = 8
"""How many lives of a certificate an authority lives."""
_KEPT = 3
"""Authorities that are trusted at once."""


@dataclass(frozen=True, slots=True)
class Holding:
    """All that is stored: the authority, those before it that are still trusted, and the server's certificate."""

    authority: bytes
    authority_key: bytes = field(repr=False)
    before: tuple[bytes, ...]
    certificate: bytes
    key: bytes = field(repr=False)

    @property
    def bundle(self) -> bytes:
        """All authorities, as PEM."""
        return b"".join(pem.rstrip() + b"\n" for pem in (self.authority, *self.before))

    def pair(self) -> Pair:
        return Pair.of(self.certificate, self.key)


def renewed(
    holding: Holding | None,
    addresses: Sequence[str],
    life: datetime.timedelta,
    now: datetime.datetime,
    trusted: bytes = b"",
) -> Holding | None:
    """What is to be stored instead; None if all is well. *trusted*: authorities that are in use somewhere already."""
    if holding is None or _is_due(holding.authority, now) or not is_usable(holding):
        known = [*([holding.authority, *holding.before] if holding else []), *split(trusted)]
        key, authority = _authority(life * AUTHORITY_LIVES, now)
        certificate, own = _issue(authority, key, addresses, life, now)
        readable = [pem for one in known for pem in split(one)]
        before = tuple(dict.fromkeys(pem for pem in readable if not _is_over(pem, now)))[: _KEPT - 1]
        return Holding(authority, pem_of(key), before, certificate, own)
    pair = holding.pair()
    before = tuple(pem for pem in holding.before if not _is_over(pem, now))
    if _is_due(holding.certificate, now) or pair.missing(addresses):
        signer = serialization.load_pem_private_key(holding.authority_key, password=None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        certificate, own = _issue(holding.authority, signer, addresses, life, now)
        return Holding(holding.authority, holding.authority_key, before, certificate, own)
    if before != holding.before:
        return Holding(holding.authority, holding.authority_key, before, holding.certificate, holding.key)
    return None


def split(bundle: bytes) -> list[bytes]:
    """The certificates of a bundle; none of one that is not PEM."""
    try:
        found = x509.load_pem_x509_certificates(bundle) if bundle.strip() else []
    except ValueError:
        return []
    return [one.public_bytes(serialization.Encoding.PEM) for one in found]


def is_usable(holding: Holding) -> bool:
    """Whether all of it can be read and belongs together."""
    try:
        holding.pair()
        authority = x509.load_pem_x509_certificate(holding.authority)
        key = serialization.load_pem_private_key(holding.authority_key, password=None)
        certificate = x509.load_pem_x509_certificate(holding.certificate)
        certificate.verify_directly_issued_by(authority)
    except (CertificateError, ValueError, TypeError):
        return False
    except Exception:  # noqa: BLE001 - cryptography's InvalidSignature is an Exception and nothing more
        return False
    return key.public_key() == authority.public_key()


def _is_due(pem: bytes, now: datetime.datetime) -> bool:
    try:
        one = x509.load_pem_x509_certificate(pem)
    except ValueError:
        return True
    start, end = one.not_valid_before_utc + _BACKDATE, one.not_valid_after_utc
    return now >= start + (end - start) * _RENEWED_AFTER


def _is_over(pem: bytes, now: datetime.datetime) -> bool:
    """Whether it is of no use any more; what cannot be read never was."""
    try:
        return x509.load_pem_x509_certificate(pem).not_valid_after_utc <= now
    except ValueError:
        return True


def _authority(life: datetime.timedelta, now: datetime.datetime) -> tuple[ec.EllipticCurvePrivateKey, bytes]:
    key = new_key()
    # the subject is its own, so that verifiers with several of them find the right one
    serial = x509.random_serial_number()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"farlet-webhook-ca-{serial:x}"[:64])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return key, certificate.public_bytes(serialization.Encoding.PEM)


def _issue(
    authority: bytes,
    signer: ec.EllipticCurvePrivateKey,
    addresses: Iterable[str],
    life: datetime.timedelta,
    now: datetime.datetime,
) -> tuple[bytes, bytes]:
    issuer = x509.load_pem_x509_certificate(authority)
    key = new_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "farlet-webhook")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(min(now + life, issuer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(alternative_names(addresses), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM), pem_of(key)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
