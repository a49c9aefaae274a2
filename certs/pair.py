"""A certificate with its private key, and the makings of one: key, signing request, self-signed. Nothing here does I/O.

Keys are elliptic-curve P-256, made in memory and kept there.
"""

from __future__ import annotations

import datetime
import ipaddress
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from certs.errors import CertificateError

_BACKDATE = datetime.timedelta(minutes=5)
"""For clocks that are a little behind ours."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate chain and the key of its first certificate, as PEM. Made by :meth:`of`."""

    certificate: bytes
    key: bytes = field(repr=False)
    not_before: float
    """Seconds of the epoch."""
    not_after: float
    names: frozenset[str]
    """The addresses and host names that it is for."""

    @classmethod
    def of(cls, certificate: bytes, key: bytes) -> Pair:
        """Read them; :class:`CertificateError` if they are not a certificate and its key."""
        try:
            leaf = x509.load_pem_x509_certificates(certificate)[0]
            own = serialization.load_pem_private_key(key, password=None)
            belongs = own.public_key() == leaf.public_key()
            names = _names(leaf)
        except TypeError:  # cryptography's way to say that there is a password
            raise CertificateError("the key is encrypted; give one without a password") from None
        except ValueError as error:
            raise CertificateError(f"not a certificate and its key in PEM: {_first_line(error)}") from None
        if not belongs:
            raise CertificateError("the key is not that of the certificate")
        return cls(
            certificate,
            key,
            not_before=leaf.not_valid_before_utc.timestamp(),
            not_after=leaf.not_valid_after_utc.timestamp(),
            names=names,
        )

    def missing(self, addresses: Iterable[str]) -> list[str]:
        """Which of these it is not for."""
        return [address for address in addresses if canonical(address) not in self.names]


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def signing_request(key: ec.EllipticCurvePrivateKey, node: str, addresses: Iterable[str]) -> bytes:
    """What the signer ``kubernetes.io/kubelet-serving`` takes: the subject to the letter, at least one address."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_subject(node))
    builder = builder.add_extension(alternative_names(addresses), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def self_signed(node: str, addresses: Iterable[str], life: datetime.timedelta) -> Pair:
    """A certificate that vouches for itself."""
    key = new_key()
    start = datetime.datetime.now(datetime.UTC) - _BACKDATE
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_subject(node))
        .issuer_name(_subject(node))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + _BACKDATE + life)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(alternative_names(addresses), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Pair.of(certificate.public_bytes(serialization.Encoding.PEM), pem_of(key))


def canonical(address: str) -> str:
    """One spelling for each address and name."""
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return address.lower()


def _subject(node: str) -> x509.Name:
    # Kubernetes and Go know no limit for common names; X.509 has 64, with the prefix, and cryptography holds to it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        common_name = x509.NameAttribute(NameOID.COMMON_NAME, f"system:node:{node}", _validate=False)
    return x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"), common_name])


def alternative_names(addresses: Iterable[str]) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([_general_name(address) for address in addresses])


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address.lower())


def _names(certificate: x509.Certificate) -> frozenset[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    hosts = found.get_values_for_type(x509.DNSName)
    return frozenset([*map(str, found.get_values_for_type(x509.IPAddress)), *map(str.lower, hosts)])


def _first_line(error: ValueError) -> str:
    return (str(error).splitlines() or [""])[0][:200]
