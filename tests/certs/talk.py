"""A TLS server and client over loopback, for tests of certificates: the real ssl on both ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass

from cryptography import x509

from app.kube.tls import load_certificate
from certs.tls import ServerTls
from devcluster import pki

VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


@dataclass(frozen=True, slots=True)
class Seen:
    """What both ends saw of a connection."""

    server: x509.Certificate
    client: str
    """The client's name as the server believes it; empty for none."""
    resumed: bool
    protocol: str | None
    """What ALPN agreed on."""
    session: ssl.SSLSession | None


def name_of(certificate: bytes | None) -> str:
    """The common name in a certificate."""
    if certificate is None:
        return ""
    subject = x509.load_der_x509_certificate(certificate).subject
    return str(subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)


@contextlib.asynccontextmanager
async def serving(tls: ServerTls, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """A server that answers each line with whom it believes the client to be; gives its port."""
    writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        connection = writer.get_extra_info("ssl_object")
        with contextlib.suppress(OSError):
            while await reader.readline():
                who = name_of(tls.peer_certificate(connection))
                writer.write(f"{who} {connection.session_reused}\n".encode())
                await writer.drain()
        writer.transport.abort()

    server = await asyncio.start_server(serve, host, 0, ssl=tls.context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0)


class Talker:
    """A client; one SSLContext, so that it could resume sessions."""

    def __init__(
        self,
        certificate: pki.Pair | None = None,
        version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
        sni: str | None = None,
    ) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE
        self._context.minimum_version = self._context.maximum_version = version
        self._context.set_alpn_protocols(["h2", "http/1.1"])
        if certificate is not None:
            load_certificate(self._context, certificate.certificate + certificate.key)
        self._sni = sni

    async def talk(self, port: int, session: ssl.SSLSession | None = None) -> Seen:
        """One connection; raises ssl.SSLError or OSError where it is refused."""
        return await asyncio.to_thread(self._talk, port, session)

    def _talk(self, port: int, session: ssl.SSLSession | None) -> Seen:
        with self.connect(port, session) as connection:
            client, resumed = ask(connection)
            server = connection.getpeercert(binary_form=True)
            assert server is not None
            return Seen(
                x509.load_der_x509_certificate(server),
                client,
                resumed,
                connection.selected_alpn_protocol(),
                connection.session,
            )

    def connect(self, port: int, session: ssl.SSLSession | None = None) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", port), 10)
        try:
            return self._context.wrap_socket(plain, server_hostname=self._sni, session=session)
        except BaseException:
            plain.close()
            raise


def ask(connection: ssl.SSLSocket) -> tuple[str, bool]:
    """Whom the server believes the client to be now, and whether the session was resumed."""
    connection.sendall(b"who am I?\n")
    answer = connection.recv(1000)
    if not answer:
        raise ConnectionResetError("the server closed the connection")  # how TLS 1.3 tells a refused certificate
    client, resumed = answer.decode().rstrip("\n").split(" ")
    return client, resumed == "True"
