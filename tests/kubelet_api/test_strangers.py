"""What somebody without credentials can hold, and a server that stops while its API server is silent; no cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from app.kube.client import Client
from app.kube.config import load
from app.settings import RunSettings
from kubelet_api.limits import DEFAULT, Limits
from kubelet_api.server import KubeletServer
from tests.kubelet_api.serving import Authority, connected, request, serving

NEVER = 3600.0


@asynccontextmanager
async def unanswered(folder: Path, authority: Authority, limits: Limits) -> AsyncIterator[KubeletServer]:
    """A server whose questions about rights nobody answers."""

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.read(65536):
                pass
        finally:
            writer.transport.abort()

    silent = await asyncio.start_server(listen, "127.0.0.1", 0)
    cluster = {"server": f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"}
    content = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **content}))
    async with silent, Client(load(kubeconfig)) as client, serving(client, authority, limits=limits) as server:
        yield server


@pytest.mark.parametrize(
    ("target", "headers", "status"),
    [("/healthz", [], 401), ("/healthz?" + "x" * 3000, [], 414), ("/healthz", ["X: y"] * 60, 431)],
    ids=["no credentials", "a long URL", "many headers"],
)
def test_nobody_who_is_not_known_keeps_a_connection(
    tmp_path: Path, authority: Authority, target: str, headers: list[str], status: int
) -> None:
    async def main() -> None:
        limits = Limits(url=2048, headers=50, keep_alive=NEVER, farewell=1.0)
        nobody = authority.client_context()
        async with unanswered(tmp_path, authority, limits) as server, connected(server, nobody) as wire:
            await wire.send(request("GET", target, headers))
            answer = await wire.answer()
            assert (answer.status, answer.headers["connection"]) == (status, "close")
            assert await asyncio.wait_for(wire.reader.read(), 60) == b""

    asyncio.run(main())


def test_a_server_that_stops_does_not_wait_for_answers_that_do_not_come(tmp_path: Path, authority: Authority) -> None:
    async def main() -> None:
        admin = authority.user("admin", "system:masters")
        limits = Limits(farewell=NEVER, last_words=NEVER)
        async with unanswered(tmp_path, authority, limits) as server, connected(server, admin) as wire:
            await wire.send(request("GET", "/healthz"))
            async with asyncio.timeout(60):
                while not server._state.tasks:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)  # it asks
            await asyncio.wait_for(server.stop(0), 10)  # before the review is given up

    asyncio.run(main())


def test_the_flags_leave_streams_for_others_than_kubectl() -> None:
    """All of kubectl's are one user's; and who embeds the server has the limits that the flags have."""
    flags = RunSettings()
    assert (flags.max_streams, flags.max_streams_per_user) == (DEFAULT.streams, DEFAULT.streams_per_user)
    assert flags.max_streams_per_user < flags.max_streams <= DEFAULT.connections / 2


def test_connections_are_counted_as_they_are(tmp_path: Path, authority: Authority) -> None:
    async def main() -> None:
        nobody = authority.client_context()
        async with unanswered(tmp_path, authority, Limits(farewell=1.0)) as server:

            def count() -> float:
                (family,) = server.metrics.connections.collect()
                return family.samples[0].value

            async with connected(server, nobody), connected(server, nobody):
                async with asyncio.timeout(60):
                    while count() != 2:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
            async with asyncio.timeout(60):
                while count() != 0:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    asyncio.run(main())
