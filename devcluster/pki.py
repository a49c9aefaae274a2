"""Certificates and kubeconfigs of one cluster, made once and kept in its folder (never in git).

Three authorities, as kubeadm has: the cluster's own, one for the aggregation layer, one for etcd. Every component
has an identity of its own, so that the audit log and RBAC tell them apart, and nothing speaks without TLS.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from devcluster.errors import DevclusterError
from devcluster.layout import ClusterLayout

_CA_LIFE = datetime.timedelta(days=3650)
_LEAF_LIFE = datetime.timedelta(days=365)
_BACKDATE = datetime.timedelta(hours=1)
"""Certificates start in the past, so that a machine whose clock is set back a little still starts."""

CLIENTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "admin": ("admin", ("system:masters",)),
    "kube-controller-manager": ("system:kube-controller-manager", ()),
    "kube-scheduler": ("system:kube-scheduler", ()),
    "kube-proxy": ("system:kube-proxy", ()),
    "coredns": ("devcluster:coredns", ()),
    "metrics-server": ("devcluster:metrics-server", ()),
    "local-path-provisioner": ("devcluster:local-path-provisioner", ()),
    "kwok": ("devcluster:kwok", ()),
}
"""Kubeconfig name -> user and groups. The kubelet's is made from the node's name."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, as PEM."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path, name: str) -> None:
        (folder / f"{name}.crt").write_bytes(self.certificate)
        write_private(folder / f"{name}.key", self.key)

    @classmethod
    def read(cls, folder: Path, name: str) -> Pair:
        return cls((folder / f"{name}.crt").read_bytes(), (folder / f"{name}.key").read_bytes())


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, from its first byte on, and never half of it."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    aside.replace(path)


def authority(common_name: str) -> Pair:
    """A new self-signed authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    start = _now() - _BACKDATE
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + _CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Pair(certificate.public_bytes(serialization.Encoding.PEM), _pem(key))


def client(ca: Pair, user: str, groups: Sequence[str] = (), *, not_after: datetime.datetime | None = None) -> Pair:
    """A client certificate: Kubernetes reads the user from CN and the groups from O."""
    names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    names.append(x509.NameAttribute(NameOID.COMMON_NAME, user))
    return _leaf(ca, x509.Name(names), [ExtendedKeyUsageOID.CLIENT_AUTH], (), not_after)


def server(ca: Pair, common_name: str, sans: Sequence[str], *, also_client: bool = False) -> Pair:
    """A serving certificate for these names and addresses."""
    usages = [ExtendedKeyUsageOID.SERVER_AUTH]
    if also_client:  # etcd's gRPC gateway calls etcd itself with its serving certificate
        usages.append(ExtendedKeyUsageOID.CLIENT_AUTH)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    return _leaf(ca, name, usages, sans, None)


def expired_copy(ca: Pair, certificate_pem: bytes) -> Pair:
    """A certificate for the same subject that ended a minute ago."""
    subject = x509.load_pem_x509_certificate(certificate_pem).subject
    ended = _now() - datetime.timedelta(minutes=1)
    return _leaf(ca, subject, [ExtendedKeyUsageOID.CLIENT_AUTH], (), ended)


def expired_token(signing_key: bytes, token: str) -> str:
    """The same ServiceAccount token with its life moved into the past, signed with the cluster's own key."""
    header, payload, _ = token.split(".")
    claims = json.loads(_unbase64(payload))
    now = int(_now().timestamp())
    claims.update(iat=now - 7200, nbf=now - 7200, exp=now - 3600)
    unsigned = f"{header}.{_base64url(json.dumps(claims).encode())}"
    key = serialization.load_pem_private_key(signing_key, password=None)
    if not isinstance(key, rsa.RSAPrivateKey):
        raise DevclusterError("the cluster's ServiceAccount signing key is not an RSA key")
    signature = key.sign(unsigned.encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{unsigned}.{_base64url(signature)}"


def make(cluster: ClusterLayout) -> None:
    """Make every key, certificate and kubeconfig of the cluster, unless they are there already."""
    done = cluster.pki / "done"
    identity = f"{cluster.ip}\n"
    if done.exists() and done.read_text() == identity:
        return
    cluster.pki.mkdir(parents=True, exist_ok=True)
    cluster.kubeconfig().parent.mkdir(parents=True, exist_ok=True)
    ca, front, etcd = authority("kubernetes"), authority("front-proxy-ca"), authority("etcd-ca")
    ca.write(cluster.pki, "ca")
    front.write(cluster.pki, "front-proxy-ca")
    etcd.write(cluster.pki, "etcd-ca")
    loopback = ("127.0.0.1", "localhost")
    api_names = [
        str(cluster.ip),
        str(cluster.gateway),
        str(cluster.kubernetes_service_ip),
        *loopback,
        *_service_names("kubernetes", "default"),
    ]
    server(ca, "kube-apiserver", api_names).write(cluster.pki, "apiserver")
    metrics_names = _service_names("metrics-server", "kube-system")
    server(ca, "metrics-server", metrics_names).write(cluster.pki, "metrics-server-serving")
    server(ca, "kwok", [str(cluster.ip), *loopback]).write(cluster.pki, "kwok-serving")
    server(etcd, "etcd", loopback, also_client=True).write(cluster.pki, "etcd")
    client(etcd, "kube-apiserver").write(cluster.pki, "apiserver-etcd")
    client(ca, "kube-apiserver-kubelet-client", ["system:masters"]).write(cluster.pki, "apiserver-kubelet")
    client(front, "front-proxy-client").write(cluster.pki, "front-proxy-client")
    write_private(cluster.pki / "sa.key", _rsa_key())
    for name, (user, groups) in CLIENTS.items():
        write_kubeconfig(cluster, name, client(ca, user, groups))
    kubelet = client(ca, f"system:node:{cluster.node_name}", ["system:nodes"])
    write_kubeconfig(cluster, "kubelet", kubelet)
    done.write_text(identity)


def write_kubeconfig(cluster: ClusterLayout, name: str, pair: Pair) -> Path:
    """A kubeconfig for a client certificate of this cluster."""
    return write_kubeconfig_user(
        cluster,
        name,
        {
            "client-certificate-data": base64.b64encode(pair.certificate).decode(),
            "client-key-data": base64.b64encode(pair.key).decode(),
        },
    )


def write_kubeconfig_user(
    cluster: ClusterLayout, name: str, user: dict[str, str], *, server_url: str | None = None
) -> Path:
    """A kubeconfig with everything embedded, so that it can be copied anywhere."""
    ca = (cluster.pki / "ca.crt").read_bytes()
    config = kubeconfig(cluster.name, server_url or cluster.server, ca, name, user)
    path = cluster.kubeconfig(name)
    write_private(path, json.dumps(config, indent=1).encode())
    return path


def kubeconfig(cluster: str, server_url: str, ca: bytes, name: str, user: dict[str, str]) -> dict[str, Any]:
    """A kubeconfig as an object: one cluster, one user, one context."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": cluster,
                "cluster": {
                    "server": server_url,
                    "certificate-authority-data": base64.b64encode(ca).decode(),
                },
            }
        ],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": name}}],
        "current-context": cluster,
    }


def _leaf(
    ca: Pair,
    subject: x509.Name,
    usages: Sequence[x509.ObjectIdentifier],
    sans: Sequence[str],
    not_after: datetime.datetime | None,
) -> Pair:
    issuer = x509.load_pem_x509_certificate(ca.certificate)
    issuer_key = serialization.load_pem_private_key(ca.key, password=None)
    if not isinstance(issuer_key, ec.EllipticCurvePrivateKey):
        raise DevclusterError("the cluster's authority has no elliptic-curve key")
    key = ec.generate_private_key(ec.SECP256R1())
    end = not_after or _now() + _LEAF_LIFE
    start = min(_now(), end) - _BACKDATE
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if sans:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_general_name(san) for san in sans]), critical=False
        )
    certificate = builder.sign(issuer_key, hashes.SHA256())
    return Pair(certificate.public_bytes(serialization.Encoding.PEM), _pem(key))


def _general_name(san: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(san))
    except ValueError:
        return x509.DNSName(san)


def _service_names(service: str, namespace: str) -> list[str]:
    return [
        service,
        f"{service}.{namespace}",
        f"{service}.{namespace}.svc",
        f"{service}.{namespace}.svc.cluster.local",
    ]


def _rsa_key() -> bytes:
    # ServiceAccount tokens are signed with RSA, as in every kubeadm cluster
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _unbase64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
