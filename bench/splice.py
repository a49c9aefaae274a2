"""How fast the splice is by itself: bytes on loopback straight from a TLS server, and through the splice.

``python -m bench.splice``: both ends are processes of their own with blocking sockets, so that only the splice is
asyncio. The client's side is TCP without TLS: its TLS is the server's part. Idle sessions and the time to the first
byte are measured against the same server.
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
from collections.abc import Iterator
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from app.kube import config
from app.kube.client import Client
from kubelet_api.call import Call, Kind, User
from kubelet_api.channel import Channel, Scratch
from kubelet_api.remote import RemoteCalls
from kubelet_api.twins import Twin

BLOCK = bytes(256 << 10)
SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
HEADERS = ((b"connection", b"Upgrade"), (b"upgrade", b"SPDY/3.1"))


class _Uncounted:
    def from_client(self, count: int) -> None: ...

    def to_client(self, count: int) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.splice", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, _source(Path(name)) as port:
        asyncio.run(_measure(Path(name), port, given.megabytes << 20, given.rounds))


async def _measure(folder: Path, port: int, size: int, rounds: int) -> None:
    async with Client(config.load(folder / "kubeconfig"), name="remote") as client:
        calls = RemoteCalls(client)
        tasks: set[asyncio.Task[None]] = set()
        scratch = Scratch()
        server = await asyncio.get_running_loop().create_server(
            lambda: _Accepted(scratch, calls, tasks), "127.0.0.1", 0
        )
        through = server.sockets[0].getsockname()[1]
        for direction in ("down", "up"):
            rates: dict[str, list[float]] = {"direct": [], "splice": []}
            for _ in range(rounds):
                rates["direct"].append(await asyncio.to_thread(_transfer, folder, port, True, direction, size))
                rates["splice"].append(await asyncio.to_thread(_transfer, folder, through, False, direction, size))
            direct, splice = max(rates["direct"]), max(rates["splice"])
            print(
                f"{direction:>5}: direct {direct:6.0f} MB/s   splice {splice:6.0f} MB/s   ratio {splice / direct:.2f}"
            )
        for what, where, tls in (("direct", port, True), ("splice", through, False)):
            times = [await asyncio.to_thread(_first_byte, folder, where, tls) for _ in range(100)]
            print(f"first byte, {what}: p50 {statistics.median(times) * 1000:.2f} ms")
        print(f"an idle session: {await _idle_memory(through, tasks, 200) / 1024:.0f} KiB")
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Accepted(Channel):
    """A client's connection: the end of its head starts a session."""

    def __init__(self, scratch: Scratch, calls: RemoteCalls, tasks: set[asyncio.Task[None]]) -> None:
        super().__init__(scratch)
        self._calls, self._tasks = calls, tasks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        task = asyncio.create_task(self._serve())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self) -> None:
        command = (await self.read()).decode()
        call = Call(
            kind=Kind.EXEC,
            user=User("bench"),
            method="POST",
            namespace="n",
            pod="p",
            uid="u",
            container="c",
            twin=Twin("n", "p", "u"),
            query=(("command", command), ("output", "1")),
            headers=HEADERS,
        )
        await self._calls.upgrade(call, self, _Uncounted())


async def _idle_memory(port: int, tasks: set[asyncio.Task[None]], count: int) -> float:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    wires: list[socket.socket] = []
    before = 0
    for number in range(count + 20):
        if number == 20:
            before = resident()
        wires.append(await asyncio.to_thread(_ask, socket.create_connection(("127.0.0.1", port)), "idle"))
    used = (resident() - before) / count
    for wire in wires:
        wire.close()
    return used


# ---------------------------------------------------------------------- the two ends


def _open(folder: Path, port: int, tls: bool) -> socket.socket:
    wire = socket.create_connection(("127.0.0.1", port))
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not tls:
        return wire
    context = ssl.create_default_context(cafile=str(folder / "certificate.pem"))
    return context.wrap_socket(wire, server_hostname="127.0.0.1")


def _ask(wire: socket.socket, command: str, *, tls: bool = False) -> socket.socket:
    wire.sendall(f"POST /?command={command} HTTP/1.1\r\n\r\n".encode() if tls else command.encode())
    received = b""
    while b"\r\n\r\n" not in received:
        received += wire.recv(len(SWITCHING) if tls else 4096)
    return wire


def _first_byte(folder: Path, port: int, tls: bool) -> float:
    started = time.perf_counter()
    with _open(folder, port, tls) as wire:
        _ask(wire, "idle", tls=tls)
    return time.perf_counter() - started


def _transfer(folder: Path, port: int, tls: bool, direction: str, size: int) -> float:
    """Megabytes a second, measured by a process of its own."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_transfer_here, args=(theirs, folder, port, tls, direction, size)
    )
    process.start()
    rate: float = ours.recv()
    process.join()
    return rate


def _transfer_here(result: Pipe, folder: Path, port: int, tls: bool, direction: str, size: int) -> None:
    with _open(folder, port, tls) as wire:
        _ask(wire, direction, tls=tls)
        buffer = bytearray(len(BLOCK))
        done = 0
        started = time.perf_counter()
        while done < size:
            if direction == "down":
                done += wire.recv_into(buffer)
            else:
                wire.sendall(BLOCK)
                done += len(BLOCK)
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
    made = builder.add_extension(loopback, critical=False).sign(key, hashes.SHA256())
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "certificate.pem").write_bytes(made.public_bytes(encoding))
    (folder / "key.pem").write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))


if __name__ == "__main__":
    main()
