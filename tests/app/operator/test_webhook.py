"""The webhook's server: what strangers may hold of it is bounded, and who is let in is answered."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ssl
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from app import names
from app.kube.objects import Envelope, Key
from app.namespaces.offloading import Offloading, PodStrategy
from app.operator import webhook
from app.operator.webhook import Strategies, Webhook
from certs.pair import self_signed
from certs.tls import ServerTls


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return await asyncio.open_connection("127.0.0.1", port, ssl=context)


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(b"GET /elsewhere HTTP/1.1\r\nHost: x\r\n\r\n")
    return await reader.readuntil(b"there is nothing here")


@contextlib.asynccontextmanager
async def _serving() -> AsyncIterator[Webhook]:
    tls, pair = ServerTls(), self_signed("node", ["127.0.0.1"], datetime.timedelta(days=1))
    tls.set_certificate(pair.certificate, pair.key)
    nothing = cast(Any, None)  # no review is asked for
    server = Webhook(
        address="127.0.0.1:0",
        tls=tls,
        local=nothing,
        namespaces=nothing,
        offloadings=nothing,
        own_namespace="farlet",
        allow_host=False,
        taint_key="x",
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop(1)


def test_a_connection_too_many_is_closed_and_the_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "_CONNECTIONS", 1)

    async def scenario() -> None:
        async with _serving() as server:
            first = await _connect(server.port)
            assert b" 404 " in await _ask(*first)
            second = await _connect(server.port)
            got = b""
            with contextlib.suppress(ConnectionError):  # reset, or just ended
                got = await asyncio.wait_for(second[0].read(), 30)
            assert got == b""
            assert b" 404 " in await _ask(*first)
            first[1].close()
            second[1].close()

    asyncio.run(scenario())


def test_the_one_that_goes_answers_on_old_and_new_connections_and_closes_each_with_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection that closes on its own may have a review on its way, which the API server would not send again."""
    monkeypatch.setattr(webhook, "_DRAIN", 3600.0)

    async def scenario() -> None:
        async with _serving() as server:
            old, idle = await _connect(server.port), await _connect(server.port)
            assert b"Connection: close" not in await _ask(*old)
            drain = asyncio.create_task(server.drain())
            await asyncio.sleep(0)
            for reader, writer in (old, await _connect(server.port), idle):
                assert b"Connection: close" in await _ask(reader, writer)
                assert await asyncio.wait_for(reader.read(), 30) == b""
                writer.close()
            await asyncio.wait_for(drain, 30)  # nobody is left: it need not wait

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ([], b" 400 "),
        ([b"{}"], b" 400 "),
        ([b"{", b"}"], b" 400 "),
        ([b"x" * 21], b" 413 "),
        ([b"x" * 10, b"x" * 11], b" 413 "),
    ],
)
def test_bodies_in_one_piece_and_in_several(
    monkeypatch: pytest.MonkeyPatch, pieces: list[bytes], status: bytes
) -> None:
    monkeypatch.setattr(webhook, "MAX_BODY", 20)

    async def scenario() -> None:
        async with _serving() as server:
            reader, writer = await _connect(server.port)
            head = f"POST {webhook.PODS_PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {sum(map(len, pieces))}\r\n\r\n"
            writer.write(head.encode() + b"".join(pieces[:1]))
            for piece in pieces[1:]:
                while not server._under_way:  # noqa: ASYNC110 - nothing else tells
                    await asyncio.sleep(0.01)
                writer.write(piece)
            assert status in await asyncio.wait_for(reader.readline(), 30)
            writer.close()

    asyncio.run(scenario())


def test_a_strategy_is_that_of_the_objects_newest_version_and_of_the_label_once_it_is_deleted() -> None:
    def offloading(**more: Any) -> Envelope:
        metadata = {"namespace": "shop", "name": names.OFFLOADING, **more.pop("metadata", {})}
        return Envelope.of({"metadata": metadata, "spec": more})

    async def scenario() -> None:
        objects: dict[Key, Envelope] = {}
        spaces: dict[Key, Envelope] = {}
        strategies = Strategies(cast(Any, None), cast(Any, spaces), cast(Any, objects))
        key = Key("shop", names.OFFLOADING)
        objects[key] = offloading(podOffloadingStrategy="Remote")
        first = await strategies.of("shop")
        assert first is not None
        assert first.pods is PodStrategy.REMOTE
        assert await strategies.of("shop") is first, "it is read once"
        objects[key] = offloading(podOffloadingStrategy="Local")
        second = await strategies.of("shop")
        assert second is not None
        assert second.pods is PodStrategy.LOCAL
        objects[key] = offloading(podOffloadingStrategy="SomethingNew")
        for _ in range(2):
            with pytest.raises(ValueError, match="SomethingNew"):
                await strategies.of("shop")
        objects[key] = offloading(podOffloadingStrategy="SomethingNew", metadata={"deletionTimestamp": "now"})
        for _ in range(2):
            assert await strategies.of("shop") == Offloading("shop"), "a person put the label there"
        by_object = {"name": "shop", "annotations": {names.ANNOTATION_ENABLED_BY: names.ENABLED_BY_OFFLOADING}}
        spaces[Key("", "shop")] = Envelope.of({"metadata": by_object})
        assert await strategies.of("shop") is None

    asyncio.run(scenario())


def test_the_end_waits_for_what_is_being_asked_and_not_for_idle_connections() -> None:
    """API servers keep idle ones for 90 s; what is asked on one that the end waits for would be lost."""

    async def scenario() -> None:
        async with _serving() as server:
            idle, busy = await _connect(server.port), await _connect(server.port)
            assert b" 404 " in await _ask(*idle)
            reader, writer = busy
            writer.write(f"POST {webhook.PODS_PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{".encode())
            while not server._under_way:  # noqa: ASYNC110 - nothing else tells
                await asyncio.sleep(0.01)
            end = asyncio.create_task(server.stop(3600))
            await asyncio.sleep(0.1)
            writer.write(b"}")
            assert b" 400 " in await asyncio.wait_for(reader.readline(), 30)
            await asyncio.wait_for(end, 30)
            assert await asyncio.wait_for(idle[0].read(), 30) == b""
            for _, each in (idle, busy):
                each.close()

    asyncio.run(scenario())
