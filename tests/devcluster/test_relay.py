"""Bytes are late, never lost, changed or out of order; and a connection ends as it would without the relay."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import TypeAlias
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devcluster import relay
from devcluster.relay import RETRANSMISSION_TIMEOUT, Relay, Weather

Address: TypeAlias = tuple[str, int]
Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Handler: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

CLEAR = Weather()


def run(test: Coroutine[None, None, None]) -> None:
    """Run an asynchronous test; one that hangs fails, as nothing here takes long."""

    async def bounded() -> None:
        async with asyncio.timeout(30):
            await test

    asyncio.run(bounded())


@contextlib.asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[Address]:
    """A server on loopback; each connection is closed when its handler returns."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        yield host, port
    finally:
        server.close()


@contextlib.asynccontextmanager
async def relaying(handler: Handler, weather: Weather = CLEAR) -> AsyncIterator[Address]:
    """A relay in front of the handler."""
    async with serving(handler) as target:
        middle = Relay(target, weather, seed=1)
        port = await middle.start("127.0.0.1", 0)
        try:
            yield "127.0.0.1", port
        finally:
            await middle.stop()


@contextlib.asynccontextmanager
async def relayed(handler: Handler, weather: Weather = CLEAR) -> AsyncIterator[Streams]:
    """A connection to the handler through a relay."""
    async with relaying(handler, weather) as address:
        reader, writer = await asyncio.open_connection(*address)
        try:
            yield reader, writer
        finally:
            writer.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(4096):
        writer.write(data)
        await writer.drain()


async def ended(reader: asyncio.StreamReader) -> bool:
    """Wait until the other end is gone, orderly or not; whether nothing came before."""
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


def reset(writer: asyncio.StreamWriter) -> None:
    """Go away with a RST, as a killed process with unread data does."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


weathers = st.builds(
    Weather,
    delay=st.floats(0, 0.003),
    jitter=st.floats(0, 0.005),
    loss=st.floats(0, 1),
)


@settings(max_examples=20, deadline=None)
@given(chunks=st.lists(st.binary(min_size=1, max_size=3000), max_size=6), weather=weathers, pause=st.booleans())
def test_bytes_arrive_intact_and_in_order(chunks: list[bytes], weather: Weather, pause: bool) -> None:
    async def test() -> None:
        async with relayed(echo, weather) as (reader, writer):
            for chunk in chunks:
                writer.write(chunk)
                await writer.drain()
                if pause:  # so that the chunks come one by one, each with a latency of its own
                    await asyncio.sleep(0.001)
            writer.write_eof()
            assert await reader.read() == b"".join(chunks)

    with mock.patch.object(relay, "RETRANSMISSION_TIMEOUT", 0.004):
        run(test())


def test_more_bytes_than_are_under_way_at_once() -> None:
    sent = random.Random(5).randbytes(12 * 1024 * 1024)

    async def test() -> None:
        async with relayed(echo, Weather(delay=0.001)) as (reader, writer):

            async def send() -> None:
                writer.write(sent)
                await writer.drain()
                writer.write_eof()

            async with asyncio.TaskGroup() as group:
                group.create_task(send())
                received = group.create_task(reader.read())
            assert received.result() == sent, "bytes were lost, changed or came out of order"

    run(test())


def test_each_connection_has_its_own_bytes() -> None:
    async def test() -> None:
        async with relaying(echo, Weather(delay=0.001, jitter=0.001)) as address:

            async def ask(text: bytes) -> bytes:
                reader, writer = await asyncio.open_connection(*address)
                writer.write(text)
                writer.write_eof()
                answer = await reader.read()
                writer.close()
                return answer

            texts = [b"%d" % number * 100 for number in range(10)]
            assert await asyncio.gather(*map(ask, texts)) == texts

    run(test())


def test_the_end_of_the_request_passes_while_the_answer_is_awaited() -> None:
    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"%d bytes" % len(await reader.read()))

    async def test() -> None:
        async with relayed(count) as (reader, writer):
            writer.write(b"12345")
            writer.write_eof()
            assert await reader.read() == b"5 bytes"

    run(test())


def test_the_end_of_the_answer_passes_while_the_request_goes_on() -> None:
    received: list[bytes] = []
    done = asyncio.Event()

    async def answer_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"answer")
        writer.write_eof()
        received.append(await reader.read())
        done.set()

    async def test() -> None:
        async with relayed(answer_first) as (reader, writer):
            assert await reader.read() == b"answer"
            writer.write(b"still there")
            writer.write_eof()
            await done.wait()

    run(test())
    assert received == [b"still there"]


def test_hang_passes_nothing() -> None:
    connections = []

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        writer.write(b"hello")

    async def test() -> None:
        async with relayed(greet, Weather(hang=True)) as (reader, writer):
            writer.write(b"x" * 1_000_000)
            await writer.drain()
            writer.write_eof()
            assert await reader.read() == b""

    run(test())
    assert connections == []


def test_a_slow_reader_stops_the_sender() -> None:
    """What is under way is bounded: 4 MiB in the relay, besides what the kernel's sockets hold."""
    bound, offered = 48 * 1024 * 1024, 192 * 1024 * 1024
    release = asyncio.Event()

    async def read_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.transport.abort()

    async def test() -> None:
        async with relaying(read_nothing) as address:
            with socket.create_connection(address) as sender:
                sender.setblocking(False)
                taken = refused = 0
                block = bytes(256 * 1024)
                # a busy machine can only make this end too early, which no bound is hurt by
                while refused < 40 and taken < offered:
                    try:
                        taken += sender.send(block)
                        refused = 0
                        await asyncio.sleep(0)
                    except BlockingIOError:
                        refused += 1
                        await asyncio.sleep(0.005)
            release.set()
            assert 0 < taken < bound

    run(test())


@pytest.mark.parametrize("orderly", [True, False])
def test_client_that_goes_away_is_gone_for_the_server(orderly: bool) -> None:
    gone: list[bool] = []
    done = asyncio.Event()

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        gone.append(await ended(reader))
        done.set()

    async def test() -> None:
        async with relayed(watch, Weather(delay=0.001)) as (reader, writer):
            assert await reader.read(5) == b"hello"
            if orderly:
                writer.close()
            else:
                reset(writer)
            await done.wait()

    run(test())
    assert gone == [True]


@pytest.mark.parametrize("orderly", [True, False])
def test_server_that_goes_away_is_gone_for_the_client(orderly: bool) -> None:
    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(5)
        if not orderly:
            reset(writer)

    async def test() -> None:
        async with relayed(leave, Weather(delay=0.001)) as (reader, writer):
            writer.write(b"hello")
            assert await ended(reader)

    run(test())


def test_a_server_that_is_not_there() -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as reserved:
            target = reserved.getsockname()
        middle = Relay(target, CLEAR)
        port = await middle.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await ended(reader)
        writer.close()
        await middle.stop()

    run(test())


@pytest.mark.parametrize("weather", [CLEAR, Weather(delay=60), Weather(hang=True)])
def test_stopping_closes_open_connections(weather: Weather) -> None:
    reached = asyncio.Event()

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()
        await echo(reader, writer)

    async def test() -> None:
        async with serving(note) as target:
            middle = Relay(target, weather)
            port = await middle.start("127.0.0.1", 0)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"hello")
            if weather == CLEAR:
                assert await reader.read(5) == b"hello"
            elif weather.hang:
                writer.write(bytes(16 * 1024 * 1024))  # more than sockets hold: the relay is reading
                await writer.drain()
            else:
                await reached.wait()
            await middle.stop()
            assert await ended(reader)
            writer.close()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)

    run(test())


@settings(deadline=None)
@given(weathers, st.integers())
def test_latency_is_within_its_bounds(weather: Weather, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        latency = weather.latency(rng)
        late = RETRANSMISSION_TIMEOUT if weather.loss else 0.0
        assert max(0.0, weather.delay - weather.jitter) <= latency <= weather.delay + weather.jitter + late


def test_latency_of_fixed_weather() -> None:
    rng = random.Random(7)
    assert {CLEAR.latency(rng) for _ in range(100)} == {0.0}
    assert {Weather(delay=0.05).latency(rng) for _ in range(100)} == {0.05}
    assert {Weather(delay=0.05, loss=1).latency(rng) for _ in range(100)} == {0.05 + RETRANSMISSION_TIMEOUT}


def test_latency_varies_and_loss_has_its_share() -> None:
    rng = random.Random(7)
    varied = [Weather(delay=0.05, jitter=0.01).latency(rng) for _ in range(1000)]
    assert min(varied) < 0.042 < 0.058 < max(varied)
    lost = sum(Weather(loss=0.1).latency(rng) > 0 for _ in range(10_000))
    assert 800 < lost < 1200


def test_same_seed_same_weather() -> None:
    weather = Weather(delay=0.05, jitter=0.02, loss=0.3)
    one, other = random.Random(3), random.Random(3)
    assert [weather.latency(one) for _ in range(50)] == [weather.latency(other) for _ in range(50)]


def test_addresses() -> None:
    assert relay._address("10.254.1.2:7443") == ("10.254.1.2", 7443)
