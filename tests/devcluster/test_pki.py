"""Every certificate verifies where it is used and nowhere else, and no key can be read by others."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import itertools
import json
import ssl
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from hypothesis import given, settings
from hypothesis import strategies as st

from devcluster import pki
from devcluster.errors import DevclusterError
from devcluster.layout import ClusterLayout
from devcluster.pki import Pair

AUTHORITIES = ("ca", "front-proxy-ca", "etcd-ca")


def certificate(pair: Pair) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pair.certificate)


def names(pair: Pair, kind: x509.ObjectIdentifier) -> list[str]:
    return [str(attribute.value) for attribute in certificate(pair).subject.get_attributes_for_oid(kind)]


def identity(pair: Pair) -> tuple[str, list[str]]:
    """User and groups, as the API server reads them."""
    (user,) = names(pair, NameOID.COMMON_NAME)
    return user, names(pair, NameOID.ORGANIZATION_NAME)


def kubeconfig_user(cluster: ClusterLayout, name: str) -> dict[str, str]:
    user: dict[str, str] = json.loads(cluster.kubeconfig(name).read_text())["users"][0]["user"]
    return user


def kubeconfig_pair(cluster: ClusterLayout, name: str) -> Pair:
    user = kubeconfig_user(cluster, name)
    decoded = [base64.b64decode(user[key]) for key in ("client-certificate-data", "client-key-data")]
    return Pair(*decoded)


def verify_server(ca: Pair, leaf: Pair, name: str) -> None:
    """As strict as a browser: names in the SAN, usages, key identifiers, lifetimes."""
    try:
        subject: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        subject = x509.DNSName(name)
    verifier = PolicyBuilder().store(Store([certificate(ca)])).build_server_verifier(subject)  # type: ignore[arg-type]
    verifier.verify(certificate(leaf), [])


def handshake(folder: Path, *, serving: Pair, server_ca: Pair, client: Pair, client_ca: Pair) -> None:
    """A mutual TLS handshake in memory; raises ssl.SSLError when one side refuses the other."""
    serving.write(folder, "serving")
    client.write(folder, "client")
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.verify_mode = ssl.CERT_REQUIRED
    server_side.load_cert_chain(folder / "serving.crt", folder / "serving.key")
    server_side.load_verify_locations(cadata=client_ca.certificate.decode())
    client_side = ssl.create_default_context(cadata=server_ca.certificate.decode())
    client_side.load_cert_chain(folder / "client.crt", folder / "client.key")
    for context in (server_side, client_side):
        context.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client_side.wrap_bio(to_client, to_server, server_hostname="127.0.0.1"),
        server_side.wrap_bio(to_server, to_client, server_side=True),
    ]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)


def test_authorities_are_three(made: ClusterLayout) -> None:
    pairs = [Pair.read(made.pki, name) for name in AUTHORITIES]
    assert len({pair.certificate for pair in pairs}) == 3
    for pair in pairs:
        constraints = certificate(pair).extensions.get_extension_for_class(x509.BasicConstraints)
        assert (constraints.critical, constraints.value.ca) == (True, True)
        certificate(pair).verify_directly_issued_by(certificate(pair))


def test_no_certificate_has_the_name_of_its_authority(made: ClusterLayout) -> None:
    """OpenSSL would take it for self-signed and refuse it."""
    for path in made.pki.glob("*.crt"):
        found = x509.load_pem_x509_certificate(path.read_bytes())
        assert (found.subject == found.issuer) == (path.stem in AUTHORITIES), path.name


@pytest.mark.parametrize(
    ("name", "ca", "where"),
    [
        ("apiserver", "ca", "10.254.1.2"),
        ("apiserver", "ca", "10.254.1.1"),
        ("apiserver", "ca", "10.101.0.1"),
        ("apiserver", "ca", "127.0.0.1"),
        ("apiserver", "ca", "localhost"),
        ("apiserver", "ca", "kubernetes.default.svc"),
        ("apiserver", "ca", "kubernetes.default.svc.cluster.local"),
        ("metrics-server-serving", "ca", "metrics-server.kube-system.svc"),
        ("kwok-serving", "ca", "10.254.1.2"),
        ("etcd", "etcd-ca", "127.0.0.1"),
    ],
)
def test_serving_certificates_verify(made: ClusterLayout, name: str, ca: str, where: str) -> None:
    verify_server(Pair.read(made.pki, ca), Pair.read(made.pki, name), where)


@pytest.mark.parametrize(
    ("name", "ca", "where"),
    [
        ("apiserver", "ca", "10.254.2.2"),
        ("apiserver", "etcd-ca", "127.0.0.1"),
        ("apiserver", "front-proxy-ca", "127.0.0.1"),
        ("etcd", "ca", "127.0.0.1"),
        ("apiserver-kubelet", "ca", "127.0.0.1"),
    ],
)
def test_certificates_do_not_serve_elsewhere(made: ClusterLayout, name: str, ca: str, where: str) -> None:
    with pytest.raises(VerificationError):
        verify_server(Pair.read(made.pki, ca), Pair.read(made.pki, name), where)


@pytest.mark.parametrize(
    ("serving", "server_ca", "client", "client_ca"),
    [
        ("apiserver", "ca", "apiserver-kubelet", "ca"),
        ("metrics-server-serving", "ca", "front-proxy-client", "front-proxy-ca"),
        ("etcd", "etcd-ca", "apiserver-etcd", "etcd-ca"),
        ("etcd", "etcd-ca", "etcd", "etcd-ca"),
    ],
)
def test_mutual_tls_as_the_components_do_it(
    made: ClusterLayout, tmp_path: Path, serving: str, server_ca: str, client: str, client_ca: str
) -> None:
    server_pair = Pair.read(made.pki, serving)
    if serving.startswith("metrics"):  # it has service names only; the handshake here is with an address
        server_pair = pki.server(Pair.read(made.pki, server_ca), "metrics-server", ["127.0.0.1"])
    handshake(
        tmp_path,
        serving=server_pair,
        server_ca=Pair.read(made.pki, server_ca),
        client=Pair.read(made.pki, client),
        client_ca=Pair.read(made.pki, client_ca),
    )


@pytest.mark.parametrize("client", ["apiserver-etcd", "front-proxy-client", "apiserver"])
def test_api_server_refuses_clients_of_another_authority_or_purpose(
    made: ClusterLayout, tmp_path: Path, client: str
) -> None:
    ca = Pair.read(made.pki, "ca")
    with pytest.raises(ssl.SSLError):
        handshake(
            tmp_path,
            serving=Pair.read(made.pki, "apiserver"),
            server_ca=ca,
            client=Pair.read(made.pki, client),
            client_ca=ca,
        )


def test_expired_client_is_refused(made: ClusterLayout, tmp_path: Path) -> None:
    ca = Pair.read(made.pki, "ca")
    good = kubeconfig_pair(made, "admin")
    handshake(tmp_path, serving=Pair.read(made.pki, "apiserver"), server_ca=ca, client=good, client_ca=ca)
    expired = pki.expired_copy(ca, good.certificate)
    assert identity(expired) == identity(good)
    with pytest.raises(ssl.SSLError, match="expired"):
        handshake(tmp_path, serving=Pair.read(made.pki, "apiserver"), server_ca=ca, client=expired, client_ca=ca)


def test_every_component_has_an_identity_of_its_own(made: ClusterLayout) -> None:
    found = {path.stem: identity(kubeconfig_pair(made, path.stem)) for path in made.kubeconfig().parent.iterdir()}
    assert found.pop("kubelet") == ("system:node:local-node", ["system:nodes"])
    assert found == {name: (user, list(groups)) for name, (user, groups) in pki.CLIENTS.items()}
    assert len({user for user, _ in found.values()}) == len(found)
    assert [name for name, (_, groups) in found.items() if "system:masters" in groups] == ["admin"]


def test_kubeconfigs_carry_everything(made: ClusterLayout) -> None:
    for path in made.kubeconfig().parent.iterdir():
        config = json.loads(path.read_text())
        (entry,) = config["clusters"]
        assert entry["cluster"]["server"] == made.server
        assert "certificate-authority-data" in entry["cluster"]
        assert "insecure-skip-tls-verify" not in entry["cluster"]
        (context,) = config["contexts"]
        assert config["current-context"] == context["name"]
        assert context["context"] == {"cluster": entry["name"], "user": config["users"][0]["name"]}


def test_secrets_are_only_for_their_owner(made: ClusterLayout) -> None:
    secrets = [*made.pki.glob("*.key"), *made.kubeconfig().parent.iterdir()]
    assert len(secrets) > 15
    assert {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in secrets} == {
        path.name: "0o600" for path in secrets
    }
    for path in made.pki.glob("*.crt"):
        assert b"PRIVATE KEY" not in path.read_bytes()


def test_write_private_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("old")
    path.chmod(0o644)
    pki.write_private(path, b"new")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o600)
    assert list(tmp_path.iterdir()) == [path]


def test_keys_belong_to_their_certificates(made: ClusterLayout) -> None:
    for path in made.pki.glob("*.crt"):
        pair = Pair.read(made.pki, path.stem)
        key = serialization.load_pem_private_key(pair.key, password=None)
        assert key.public_key() == certificate(pair).public_key(), path.name


def test_all_keys_and_serial_numbers_differ(made: ClusterLayout) -> None:
    pairs = [Pair.read(made.pki, path.stem) for path in made.pki.glob("*.crt")]
    for one, other in itertools.combinations(pairs, 2):
        assert one.key != other.key
        assert certificate(one).serial_number != certificate(other).serial_number


def test_making_twice_changes_nothing_and_another_address_changes_all(
    layout: ClusterLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pki, "_rsa_key", lambda: b"made once\n")  # the slow part
    pki.make(layout)
    first = {path: path.read_bytes() for path in layout.folder.rglob("*") if path.is_file()}
    pki.make(layout)
    assert {path: path.read_bytes() for path in layout.folder.rglob("*") if path.is_file()} == first
    moved = replace(layout, slot=3)
    pki.make(moved)
    assert moved.kubeconfig().read_bytes() != first[layout.kubeconfig()]
    verify_server(Pair.read(moved.pki, "ca"), Pair.read(moved.pki, "apiserver"), str(moved.ip))


def test_an_interrupted_making_is_made_anew(layout: ClusterLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(pki, "_rsa_key", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pki.make(layout)
    monkeypatch.setattr(pki, "_rsa_key", lambda: b"key\n")
    pki.make(layout)
    ca = certificate(Pair.read(layout.pki, "ca"))
    for name in (*pki.CLIENTS, "kubelet"):
        certificate(kubeconfig_pair(layout, name)).verify_directly_issued_by(ca)


def test_certificates_start_in_the_past(made: ClusterLayout) -> None:
    now = datetime.datetime.now(datetime.UTC)
    for path in made.pki.glob("*.crt"):
        found = x509.load_pem_x509_certificate(path.read_bytes())
        assert found.not_valid_before_utc < now - datetime.timedelta(minutes=30), path.name
        assert found.not_valid_after_utc > now + datetime.timedelta(days=300), path.name


CA = pki.authority("test")
dns_names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?(\.[a-z]([a-z0-9-]{0,20}[a-z0-9])?){0,3}", fullmatch=True)
addresses = st.ip_addresses().map(str)
subjects = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=16)


@settings(max_examples=25, deadline=None)
@given(user=subjects, groups=st.lists(subjects, max_size=4, unique=True))
def test_user_and_groups_survive(user: str, groups: list[str]) -> None:
    pair = pki.client(CA, user, groups)
    assert identity(pair) == (user, groups)
    certificate(pair).verify_directly_issued_by(certificate(CA))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.one_of(dns_names, addresses), min_size=1, max_size=5, unique=True))
def test_serves_each_of_its_names(sans: list[str]) -> None:
    pair = pki.server(CA, "server", sans)
    extension = certificate(pair).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    found = [*extension.get_values_for_type(x509.DNSName), *map(str, extension.get_values_for_type(x509.IPAddress))]
    assert sorted(found) == sorted(sans)
    certificate(pair).verify_directly_issued_by(certificate(CA))


def test_a_token_needs_the_kind_of_key_that_signed_it() -> None:
    with pytest.raises(DevclusterError, match="RSA"):
        pki.expired_token(CA.key, "e30.e30.c2ln")
