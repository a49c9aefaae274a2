"""How fast the kubelet API is by itself: bytes on loopback straight from a TLS server, and through the kubelet API.

``python -m bench.splice``: both ends are processes of their own with blocking sockets, so that only what lies between
them is asyncio. The server plays the remote API server, and the local one that is asked who may do what. Logs come as
a real one sends them: two chunks in a TLS record of 4 KiB, each after the time that it takes to make one, so that the
CPU for it counts and not the speed; a followed log as a chunk and a record for each line. No cluster is needed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import ipaddress
import multiprocessing
import socket
import ssl
import statistics
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from app.kube import config
from app.kube.client import Client
from app.kube.objects import Object
from kubelet_api.remote import RemoteCalls
from kubelet_api.server import KubeletServer
from kubelet_api.twins import Placed, Twin

BLOCK = bytes(256 << 10)
LINE = b"x" * 99 + b"\n"
SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
HALF = b"7f0\r\n%b\r\n" % (LINE * 21)[:0x7F0]
PACE = 0.0001
STREAMED = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
ALLOWED = b'{"kind": "SubjectAccessReview", "status": {"allowed": true}}'


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.splice", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, _source(Path(name)) as port:
        asyncio.run(_measure(Path(name), port, given.megabytes << 20, given.rounds))


async def _measure(folder: Path, port: int, size: int, rounds: int) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    tls.load_verify_locations(folder / "certificate.pem")
    tls.verify_mode = ssl.CERT_OPTIONAL
    async with Client(config.load(folder / "kubeconfig")) as client:
        server = KubeletServer(
            host="127.0.0.1",
            port=0,
            tls=tls,
            node="node",
            version="bench",
            twins=_OnePod(),
            remote=RemoteCalls(client),
            reviews=client,
        )
        await server.start()
        ways = {"direct": port, "Farlet": server.port}
        for what, part in (("down", 1), ("up", 1), ("logs", 16), ("followed", 4)):
            rates: dict[str, list[float]] = {way: [] for way in ways}
            used = 0.0
            for _ in range(rounds):
                for way, where in ways.items():
                    before = time.process_time()
                    rates[way].append(await asyncio.to_thread(_transfer, folder, where, what, size // part))
                    used += time.process_time() - before if way == "Farlet" else 0.0
            direct, farlet = (max(rates[way]) for way in ways)
            each = used / rounds / (size // part / 1e9)
            print(
                f"{what:>8}: direct {direct:6.0f} MB/s   Farlet {farlet:6.0f} MB/s   ratio {farlet / direct:.2f}   "
                f"Farlet's CPU {each:.2f} s/GB"
            )
        for way, where in ways.items():
            times = [await asyncio.to_thread(_first_byte, folder, where) for _ in range(100)]
            print(f"first byte, {way}: p50 {statistics.median(times) * 1000:.2f} ms")
        print(f"an idle session: {await _idle_memory(folder, server.port, 200) / 1024:.0f} KiB")
        await server.stop()


class _OnePod:
    """The pod that everything is asked of."""

    def __init__(self) -> None:
        metadata = {"name": "p", "namespace": "n", "uid": "u"}
        self.pod: Object = {"metadata": metadata, "spec": {"containers": [{"name": "c"}]}}

    def synced(self) -> bool:
        return True

    def local_pod(self, namespace: str, name: str) -> Object | None:
        return self.pod

    def local_pods(self) -> Iterable[Object]:
        return [self.pod]

    def placed(self) -> Iterator[Placed]:
        yield from ()

    def twin(self, pod: Object) -> Twin | None:
        return Twin("n", "p", "u")

    def is_running(self, pod: Object) -> bool:
        return True


async def _idle_memory(folder: Path, port: int, count: int) -> float:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    context = _context(folder)
    wires: list[socket.socket] = []
    before = 0
    for number in range(count + 20):
        if number == 20:
            before = resident()
        wires.append(await asyncio.to_thread(_open, context, port, "idle"))
    used = (resident() - before) / count
    for wire in wires:
        wire.close()
    return used


# ---------------------------------------------------------------------- the two ends


def _context(folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / "certificate.pem"))
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context


def _open(context: ssl.SSLContext, port: int, what: str) -> ssl.SSLSocket:
    """A connection that has been answered."""
    wire = socket.create_connection(("127.0.0.1", port))
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    secure = context.wrap_socket(wire, server_hostname="127.0.0.1")
    if what in ("logs", "followed"):
        query = b"?follow=true" if what == "followed" else b""
        secure.sendall(b"GET /containerLogs/n/p/c" + query + b" HTTP/1.1\r\nHost: bench\r\n\r\n")
    else:
        upgrade = f"POST /exec/n/p/c?command={what}&output=1&input=1 HTTP/1.1\r\nHost: bench\r\n"
        secure.sendall(upgrade.encode() + b"Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
    received = b""
    while b"\r\n\r\n" not in received:
        piece = secure.recv(1)
        if not piece:
            raise ConnectionError(f"closed after {received!r}")
        received += piece
    return secure


def _first_byte(folder: Path, port: int) -> float:
    context = _context(folder)
    started = time.perf_counter()
    with _open(context, port, "idle"):
        return time.perf_counter() - started


def _transfer(folder: Path, port: int, what: str, size: int) -> float:
    """Megabytes a second, measured by a process of its own."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_transfer_here, args=(theirs, folder, port, what, size)
    )
    process.start()
    rate: float = ours.recv()
    process.join()
    return rate


def _transfer_here(result: Pipe, folder: Path, port: int, what: str, size: int) -> None:
    with _open(_context(folder), port, what) as wire:
        buffer = bytearray(len(BLOCK))
        done = 0
        started = time.perf_counter()
        while done < size:
            if what == "up":
                wire.sendall(BLOCK)
                done += len(BLOCK)
            else:
                done += wire.recv_into(buffer)
        result.send(done / 1e6 / (time.perf_counter() - started))


@contextlib.contextmanager
def _source(folder: Path) -> Iterator[int]:
    _write_certificate(folder)
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs, folder), daemon=True)
    process.start()
    port: int = ours.recv()
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(folder / "certificate.pem")}
    content = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(content))
    try:
        yield port
    finally:
        process.terminate()
        process.join()


def _serve(result: Pipe, folder: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    result.send(listener.getsockname()[1])
    while True:
        wire, _ = listener.accept()
        threading.Thread(target=_answer, args=(context, wire), daemon=True).start()


def _answer(context: ssl.SSLContext, raw: socket.socket) -> None:
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(OSError), context.wrap_socket(raw, server_side=True) as wire:
        head = b""
        while b"\r\n\r\n" not in head:
            piece = wire.recv(4096)
            if not piece:
                return
            head += piece
        if b"/subjectaccessreviews" in head:
            wire.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%b" % (len(ALLOWED), ALLOWED))
            return
        if b"/log?" in head or b"/containerLogs/" in head:
            wire.sendall(STREAMED)
            while b"follow=" in head:
                wire.sendall(b"%x\r\n%b\r\n" % (len(LINE), LINE))
            while True:
                wire.sendall(HALF * 2)
                time.sleep(PACE)
        wire.sendall(SWITCHING)
        while b"command=down" in head:
            wire.sendall(BLOCK)
        while wire.recv(len(BLOCK)):
            pass


def _write_certificate(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bench")])
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    loopback = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - day).not_valid_after(now + day)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    made = builder.add_extension(loopback, critical=False).sign(key, hashes.SHA256())
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "certificate.pem").write_bytes(made.public_bytes(encoding))
    (folder / "key.pem").write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))


if __name__ == "__main__":
    main()
