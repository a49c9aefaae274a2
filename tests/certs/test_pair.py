"""Keys, signing requests and certificates as the signer wants them."""

from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from certs.errors import CertificateError
from certs.pair import Pair, canonical, new_key, pem_of, self_signed, signing_request
from devcluster import pki

ADDRESSES = ["10.0.0.7", "fd00::7", "far.example"]


def test_signing_request_is_what_the_signer_takes() -> None:
    request = x509.load_pem_x509_csr(signing_request(new_key(), "far", ADDRESSES))
    assert request.is_signature_valid
    assert request.subject.rfc4514_string() == "CN=system:node:far,O=system:nodes"
    (extension,) = request.extensions
    names = extension.value
    assert isinstance(names, x509.SubjectAlternativeName)
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7", "fd00::7"]
    assert names.get_values_for_type(x509.DNSName) == ["far.example"]
    key = request.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert isinstance(key.curve, ec.SECP256R1)


def test_a_long_node_name_fits() -> None:
    assert b"CERTIFICATE REQUEST" in signing_request(new_key(), "n" * 63, ADDRESSES)


def test_self_signed() -> None:
    pair = self_signed("far", ADDRESSES, datetime.timedelta(days=1))
    assert pair.names == set(ADDRESSES)
    assert pair.missing(["10.0.0.7", "FD00:0::7", "FAR.example", "10.0.0.8"]) == ["10.0.0.8"]
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]
    assert pair.not_after - pair.not_before == 24 * 3600 + 300


def test_the_key_is_in_no_repr() -> None:
    pair = self_signed("far", ADDRESSES, datetime.timedelta(days=1))
    assert "PRIVATE" not in repr(pair)


def test_what_is_no_pair() -> None:
    authority = pki.authority("ca")
    one, two = (pki.server(authority, name, ["x"]) for name in "ab")
    encrypted = new_key().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    )
    for certificate, key, why in (
        (one.certificate, two.key, "not that of the certificate"),
        (one.certificate, encrypted, "encrypted"),
        (b"", one.key, "not a certificate"),
        (one.certificate, b"", "not a certificate"),
        (one.certificate[:200], one.key, "not a certificate"),
    ):
        with pytest.raises(CertificateError, match=why):
            Pair.of(certificate, key)


def test_a_chain_is_read_by_its_first_certificate() -> None:
    authority = pki.authority("ca")
    leaf = pki.server(authority, "a", ["10.0.0.1"])
    pair = Pair.of(leaf.certificate + authority.certificate, leaf.key)
    assert pair.names == {"10.0.0.1"}
    assert pair.certificate.count(b"BEGIN") == 2


def test_keys_are_written_in_a_form_that_is_read() -> None:
    key = new_key()
    read = serialization.load_pem_private_key(pem_of(key), password=None)
    assert read.public_key() == key.public_key()


@pytest.mark.parametrize(("given", "one"), [("FD00:0:0::1", "fd00::1"), ("Far.Example", "far.example")])
def test_one_spelling(given: str, one: str) -> None:
    assert canonical(given) == one
