"""The two ends of the webhook's benchmark, each a process of its own: who sends reviews, and the plainest that answers.

``python -m bench.reviews answer`` serves TLS and HTTP as the operator does and says the same to everyone: what is left
of the time of a review when nobody thinks. ``python -m bench.reviews send`` sends at a steady rate. Both are given what
they need as JSON on stdin.

Open loop: each review is due at its own time, whether or not the one before was answered, and is timed from when it was
due, so that a slow answer is not hidden by a sender that waits for it. The sender shares the machine with what it
measures and may get its turn too late itself: how late it was is told for each review.
"""

from __future__ import annotations

import asyncio
import datetime
import gc
import json
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from aiohttp.web import BaseRequest, Response, Server

from certs.pair import self_signed
from certs.tls import ServerTls
from devcluster.errors import DevclusterError

_CONNECTIONS = 16
"""Each sends every sixteenth review: at 100 a second one that takes 160 ms makes the next of its connection late."""
_WARM = 4
"""Reviews on each connection that are not counted."""
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclass(slots=True)
class Sent:
    """What became of reviews, in seconds."""

    times: list[float] = field(default_factory=list)
    """From when it was due until it was answered."""
    late: list[float] = field(default_factory=list)
    """From when it could be sent (it was due, and its connection free) until it was."""
    cpu: float = 0.0
    """That the server used."""
    waited: float = 0.0
    """For which the server could have gone on, and other processes had the processors."""
    stolen: float = 0.0
    """Share of the machine's processors that its host gave to others; of several, the greatest."""

    def once_sent(self) -> list[float]:
        """The times without the sender's own lateness."""
        return [time - late for time, late in zip(self.times, self.late, strict=True)]

    def __iadd__(self, other: Sent) -> Self:
        self.times += other.times
        self.late += other.late
        self.cpu += other.cpu
        self.waited += other.waited
        self.stolen = max(self.stolen, other.stolen)
        return self


def send(port: int, path: str, body: bytes, *, pid: int, rate: float, count: int) -> Sent:
    """Have a process of its own send them to the server, which is process *pid*; :class:`DevclusterError` unless each
    was answered with a patch."""
    asked = {"port": port, "path": path, "body": body.decode(), "pid": pid, "rate": rate, "count": count}
    done = subprocess.run(
        [sys.executable, "-m", __name__, "send"], input=json.dumps(asked).encode(), capture_output=True, check=False
    )
    if done.returncode != 0:
        raise DevclusterError(f"reviews were not answered as they should be: {done.stderr.decode()[-2000:]}")
    return Sent(**json.loads(done.stdout))


class Plain:
    """A server that answers everything with one body, in a process of its own; ended by ``stop``."""

    def __init__(self, body: bytes) -> None:
        command = [sys.executable, "-m", __name__, "answer"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._process.stdin as stdin:
            stdin.write(json.dumps({"body": body.decode()}).encode())
        self.port = int(self._process.stdout.readline())

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)


def one(port: int, path: str, body: bytes) -> bytes:
    """The body of one answer."""
    with _Connection(port, path, body) as connection:
        return connection.ask()


# ---------------------------------------------------------------------- the processes


async def _answer(body: bytes) -> None:
    tls, pair = ServerTls(), self_signed("plain", ["127.0.0.1"], datetime.timedelta(days=1))
    tls.set_certificate(pair.certificate, pair.key)

    async def respond(http: BaseRequest) -> Response:
        await http.read()
        return Response(body=body, content_type="application/json")

    requests = Server(respond, access_log=None, keepalive_timeout=100)
    server = await asyncio.get_running_loop().create_server(requests, "127.0.0.1", 0, ssl=tls.context)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


def _send(port: int, path: str, body: bytes, pid: int, rate: float, count: int) -> Sent:
    connections = [_Connection(port, path, body) for _ in range(min(_CONNECTIONS, count))]
    for connection in connections:
        for _ in range(_WARM):
            connection.ask()
    shares = [Sent() for _ in connections]
    failures: list[Exception] = []
    start = time.perf_counter() + 0.2

    def work(offset: int) -> None:
        try:
            _share(connections[offset], shares[offset], start, range(offset, count, len(connections)), rate)
        except (OSError, ValueError) as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(len(connections))]
    gc.disable()
    used, machine = _used(pid), _machine()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cpu, waited = (after - before for after, before in zip(_used(pid), used, strict=True))
    stolen, ticks = (after - before for after, before in zip(_machine(), machine, strict=True))
    if failures:
        raise failures[0]
    total = Sent(cpu=cpu, waited=waited, stolen=stolen / ticks)
    for share in shares:
        total += share
    return total


def _used(pid: int) -> tuple[float, float]:
    """Seconds that a process has used so far, and those that it waited for its turn."""
    tasks = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(task[0]) for task in tasks) / 1e9, sum(int(task[1]) for task in tasks) / 1e9


def _machine() -> tuple[int, int]:
    """What the host has given to others so far, and all of the time, in ticks."""
    ticks = [int(number) for number in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return ticks[7], sum(ticks)


def _share(connection: _Connection, share: Sent, start: float, numbers: range, rate: float) -> None:
    free = 0.0
    for number in numbers:
        due = start + number / rate
        time.sleep(max(0.0, due - time.perf_counter()))
        sent = time.perf_counter()
        connection.ask()
        answered = time.perf_counter()
        share.late.append(sent - max(due, free))
        share.times.append(answered - due)
        free = answered


class _Connection:
    """One that is kept, as API servers keep theirs; with little of its own, for it shares the processors."""

    def __init__(self, port: int, path: str, body: bytes) -> None:
        context = ssl.create_default_context()
        context.check_hostname = False  # that it is verified by the API server is tested elsewhere
        context.verify_mode = ssl.CERT_NONE
        raw = socket.create_connection(("127.0.0.1", port), timeout=30)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = context.wrap_socket(raw)
        head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        self._request = f"{head}\r\n\r\n".encode() + body

    def ask(self) -> bytes:
        """Send the review; the body of its answer, which must have a patch."""
        self._socket.sendall(self._request)
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._more()
        length = _LENGTH.search(data, 0, end)
        if length is None or b" 200 " not in data[:20]:
            raise ValueError(data[:300].decode(errors="replace"))
        while len(data) < end + 4 + int(length[1]):
            data += self._more()
        if b'"patch":' not in data:
            raise ValueError(f"a pod was not steered: {data[end:].decode(errors='replace')}")
        return data[end + 4 :]

    def _more(self) -> bytes:
        data = self._socket.recv(65536)
        if not data:
            raise OSError("the server closed the connection")
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def main() -> None:
    given: dict[str, Any] = json.load(sys.stdin)
    body = given.pop("body").encode()
    if sys.argv[1] == "answer":
        asyncio.run(_answer(body))
        return
    sent = _send(body=body, **given)
    json.dump(asdict(sent), sys.stdout)


if __name__ == "__main__":
    main()
