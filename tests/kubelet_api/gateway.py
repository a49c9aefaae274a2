"""A real gateway in front of the remote API server: nginx, which lets WebSocket through and drops SPDY."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat
from cryptography.x509.oid import NameOID

from devcluster import debian
from devcluster.cluster import Cluster
from tests.eventually import eventually

CONFIGURATION = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 512; }}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    map $http_upgrade $forwarded_upgrade {{ default ""; websocket websocket; }}
    map $http_upgrade $forwarded_connection {{ default close; websocket upgrade; }}
    server {{
        listen 127.0.0.1:{port} ssl http2;
        ssl_certificate {folder}/certificate.pem;
        ssl_certificate_key {folder}/key.pem;
        location / {{
            proxy_pass {server};
            proxy_ssl_verify off;
            proxy_http_version 1.1;
            proxy_buffering off;
            proxy_set_header Upgrade $forwarded_upgrade;
            proxy_set_header Connection $forwarded_connection;
            proxy_read_timeout 600s;
            proxy_send_timeout 600s;
        }}
    }}
}}
"""


@contextlib.contextmanager
def gateway(cluster: Cluster, folder: Path) -> Iterator[Path]:
    """Run it; gives a kubeconfig for the way through it, with a token, since it ends TLS."""
    debian.ensure("nginx")
    program = debian.Machine().command("nginx")
    assert program is not None
    folder.mkdir()
    folder.chmod(0o777)  # its worker is not root
    content = yaml.safe_load(
        cluster.service_account_kubeconfig("default", "gateway", cluster_role="cluster-admin").read_text()
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = content["clusters"][0]["cluster"]["server"]
    content["clusters"][0]["cluster"] = {
        "server": f"https://127.0.0.1:{port}",
        "certificate-authority": str(certificate(folder)),
    }
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(content))
    configuration = folder / "nginx.conf"
    configuration.write_text(CONFIGURATION.format(folder=folder, port=port, server=server))
    process = subprocess.Popen([program, "-c", str(configuration), "-e", str(folder / "start.log")])
    try:
        eventually(lambda: _listens(port), "nginx listens", timeout=60)
        yield kubeconfig
    finally:
        process.terminate()
        process.wait(60)


def certificate(folder: Path) -> Path:
    """A certificate for loopback, signed by itself, and its key beside it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gateway")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, serialization.NoEncryption()))
    path = folder / "certificate.pem"
    path.write_bytes(made.public_bytes(Encoding.PEM))
    return path


def _listens(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), 1):
        return True
