"""What the server serves with and whom it believes, changed while it runs: real handshakes over loopback."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import Coroutine
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from certs.errors import CertificateError
from certs.tls import ServerTls
from devcluster import pki
from tests.certs.talk import VERSIONS, Talker, ask, serving
from tests.eventually import eventually

REFUSED = (ssl.SSLError, ConnectionError)


@pytest.fixture(scope="module")
def authority() -> pki.Pair:
    return pki.authority("one")


@pytest.fixture(scope="module")
def other_authority() -> pki.Pair:
    return pki.authority("two")


@pytest.fixture
def tls(authority: pki.Pair) -> ServerTls:
    made = ServerTls()
    set_server(made, authority, "first")
    made.set_client_ca(authority.certificate)
    return made


def set_server(tls: ServerTls, authority: pki.Pair, name: str) -> None:
    pair = pki.server(authority, name, ["127.0.0.1"])
    tls.set_certificate(pair.certificate, pair.key)


def name_of(certificate: x509.Certificate) -> object:
    return certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


@pytest.fixture(params=VERSIONS, ids=lambda version: version.name)
def version(request: pytest.FixtureRequest) -> ssl.TLSVersion:
    found: ssl.TLSVersion = request.param
    return found


@pytest.fixture(params=[None, "localhost"], ids=["no-sni", "sni"])
def sni(request: pytest.FixtureRequest) -> str | None:
    name: str | None = request.param
    return name


def test_client_ca_is_rotated(
    tls: ServerTls, authority: pki.Pair, other_authority: pki.Pair, version: ssl.TLSVersion, sni: str | None
) -> None:
    async def test() -> None:
        old = Talker(pki.client(authority, "old"), version, sni)
        new = Talker(pki.client(other_authority, "new"), version, sni)
        nobody = Talker(None, version, sni)
        async with serving(tls) as port:
            before = await old.talk(port)
            assert (before.client, before.protocol) == ("old", "http/1.1")
            with pytest.raises(REFUSED):
                await new.talk(port)
            assert (await nobody.talk(port)).client == ""

            tls.set_client_ca(other_authority.certificate)
            with pytest.raises(REFUSED):
                await old.talk(port)
            with pytest.raises(REFUSED):
                await old.talk(port, before.session)
            assert (await new.talk(port)).client == "new"
            assert (await nobody.talk(port)).client == ""

    run(test())


def test_no_session_is_resumed_with_a_ticket(tls: ServerTls, authority: pki.Pair) -> None:
    async def test() -> None:
        talker = Talker(pki.client(authority, "somebody"))
        async with serving(tls) as port:
            first = await talker.talk(port)
            assert first.session is None or not first.session.has_ticket
            assert not (await talker.talk(port, first.session)).resumed

    run(test())


def test_a_session_does_not_outlive_the_client_ca(
    tls: ServerTls, authority: pki.Pair, other_authority: pki.Pair, version: ssl.TLSVersion
) -> None:
    """With both CAs trusted the client gets in, but by being verified again."""

    async def test() -> None:
        talker = Talker(pki.client(authority, "somebody"), version)
        async with serving(tls) as port:
            first = await talker.talk(port)
            tls.set_client_ca(authority.certificate + other_authority.certificate)
            second = await talker.talk(port, first.session)
            assert (second.client, second.resumed) == ("somebody", False)

    run(test())


def test_an_open_connection_loses_its_identity_with_the_ca(
    tls: ServerTls, authority: pki.Pair, other_authority: pki.Pair, version: ssl.TLSVersion
) -> None:
    async def test() -> None:
        talker = Talker(pki.client(authority, "somebody"), version)
        async with serving(tls) as port:
            with await asyncio.to_thread(talker.connect, port) as connection:
                assert (await asyncio.to_thread(ask, connection))[0] == "somebody"
                tls.set_client_ca(authority.certificate + other_authority.certificate)
                assert (await asyncio.to_thread(ask, connection))[0] == "somebody"
                tls.set_client_ca(other_authority.certificate)
                assert (await asyncio.to_thread(ask, connection))[0] == ""

    run(test())


def test_an_open_connection_loses_its_identity_when_its_certificate_ends(tls: ServerTls, authority: pki.Pair) -> None:
    async def test() -> None:
        end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=2)
        talker = Talker(pki.client(authority, "somebody", not_after=end))
        async with serving(tls) as port:
            with await asyncio.to_thread(talker.connect, port) as connection:
                assert (await asyncio.to_thread(ask, connection))[0] == "somebody"
                await asyncio.to_thread(
                    eventually, lambda: ask(connection)[0], "it is nobody's", until=lambda who: not who, timeout=20
                )
            with pytest.raises(REFUSED):
                await talker.talk(port)

    run(test())


def test_serving_certificate_is_rotated_and_connections_stay(
    tls: ServerTls, authority: pki.Pair, version: ssl.TLSVersion, sni: str | None
) -> None:
    async def test() -> None:
        talker = Talker(pki.client(authority, "somebody"), version, sni)
        async with serving(tls) as port:
            with await asyncio.to_thread(talker.connect, port) as connection:
                assert (await asyncio.to_thread(ask, connection))[0] == "somebody"
                set_server(tls, authority, "second")
                assert name_of((await talker.talk(port)).server) == "second"
                assert (await asyncio.to_thread(ask, connection))[0] == "somebody"

    run(test())


@pytest.mark.parametrize(("usage", "accepted"), [("client", True), ("server", False)])
def test_certificates_of_servers_are_not_for_clients(
    tls: ServerTls, authority: pki.Pair, usage: str, accepted: bool
) -> None:
    pair = pki.client(authority, "x") if usage == "client" else pki.server(authority, "x", ["x"])

    async def test() -> None:
        async with serving(tls) as port:
            if accepted:
                assert (await Talker(pair).talk(port)).client == "x"
            else:
                with pytest.raises(REFUSED):
                    await Talker(pair).talk(port)

    run(test())


def test_an_intermediate_authority_can_be_the_trusted_one(tls: ServerTls, authority: pki.Pair) -> None:
    """As Go's verification has it: what is in the file is trusted, whoever signed it."""
    root = x509.load_pem_x509_certificate(authority.certificate)
    root_key = serialization.load_pem_private_key(authority.key, password=None)
    between = pki.authority("between")
    own = x509.load_pem_x509_certificate(between.certificate)
    assert isinstance(root_key, ec.EllipticCurvePrivateKey)
    builder = x509.CertificateBuilder(
        issuer_name=root.subject,
        subject_name=own.subject,
        public_key=own.public_key(),
        serial_number=1,
        not_valid_before=own.not_valid_before_utc,
        not_valid_after=own.not_valid_after_utc,
    ).add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    signed = builder.sign(root_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    tls.set_client_ca(signed)

    async def test() -> None:
        async with serving(tls) as port:
            assert (await Talker(pki.client(between, "below")).talk(port)).client == "below"
            with pytest.raises(REFUSED):
                await Talker(pki.client(authority, "beside")).talk(port)

    run(test())


def test_before_anything_is_set_nobody_gets_in(authority: pki.Pair) -> None:
    tls = ServerTls()

    async def test() -> None:
        async with serving(tls) as port:
            with pytest.raises(REFUSED):
                await Talker().talk(port)
            set_server(tls, authority, "server")
            assert (await Talker().talk(port)).client == ""
            with pytest.raises(REFUSED):
                await Talker(pki.client(authority, "somebody")).talk(port)

    run(test())


def test_old_tls_is_refused(tls: ServerTls) -> None:
    assert tls.current.minimum_version is ssl.TLSVersion.TLSv1_2


def test_what_cannot_be_used_changes_nothing(tls: ServerTls, authority: pki.Pair) -> None:
    one, two = (pki.server(authority, name, ["127.0.0.1"]) for name in "ab")
    before = tls.current
    for certificate, key, why in (
        (one.certificate, two.key, "KEY_VALUES_MISMATCH"),
        (one.certificate, b"", "cannot be used"),
        (b"nonsense", one.key, "cannot be used"),
    ):
        with pytest.raises(CertificateError, match=why):
            tls.set_certificate(certificate, key)
    for authorities in (b"", b"nonsense", b"\xff\xfe"):
        with pytest.raises(CertificateError, match="client CA"):
            tls.set_client_ca(authorities)
    assert tls.current is before
