"""A TCP relay that is slow, lossy or silent on demand: what ``tc netem`` does, for kernels that have no netem.

TCP hides packet loss from both ends and shows it as a pause of at least one retransmission timeout, so that is what
a loss is here: the chunk comes later, never not at all. ``python -m devcluster.relay`` runs it in a cluster's network
namespace, in front of the API server.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
from dataclasses import dataclass

RETRANSMISSION_TIMEOUT = 0.2
"""Seconds that a lost segment costs; Linux never waits less."""

_CHUNK = 64 * 1024
_IN_FLIGHT = 64
"""Chunks under way in one direction: bounds the memory of a connection, as a congestion window would."""


@dataclass(frozen=True, slots=True)
class Weather:
    """What happens to the bytes."""

    delay: float = 0.0
    """Seconds that every byte takes, each way."""
    jitter: float = 0.0
    """Seconds by which the delay varies, up and down."""
    loss: float = 0.0
    """Share (0 to 1) of chunks that come one retransmission late."""
    hang: bool = False
    """Accept connections and never pass a byte."""

    def latency(self, rng: random.Random) -> float:
        """How long the next chunk takes."""
        late = RETRANSMISSION_TIMEOUT if rng.random() < self.loss else 0.0
        return max(0.0, self.delay + rng.uniform(-self.jitter, self.jitter)) + late


class Relay:
    """Accepts connections on one address and passes them on to another through the weather."""

    def __init__(self, target: tuple[str, int], weather: Weather, seed: int | None = None) -> None:
        self._target = target
        self._weather = weather
        self._rng = random.Random(seed)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port."""
        self._server = await asyncio.start_server(self._accept, host, port)
        port = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Stop listening and close every connection, also those in the middle of something."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._weather.hang:
                while await reader.read(_CHUNK):
                    pass
                return
            there_reader, there_writer = await asyncio.open_connection(*self._target)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._carry(reader, there_writer))
                    group.create_task(self._carry(there_reader, writer))
            finally:
                there_writer.close()
        except* OSError:
            pass  # either end went away; closing both is all there is to do
        finally:
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass bytes one way, in order, each after its latency; then the end of the stream."""
        loop = asyncio.get_running_loop()
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_IN_FLIGHT)

        async def take() -> None:
            due = 0.0
            while True:
                data = await reader.read(_CHUNK)
                due = max(due, loop.time() + self._weather.latency(self._rng))
                await under_way.put((due, data))
                if not data:
                    return

        async def give() -> None:
            while True:
                due, data = await under_way.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                if not data:
                    if writer.can_write_eof():
                        writer.write_eof()
                    return
                writer.write(data)
                await writer.drain()

        async with asyncio.TaskGroup() as group:
            group.create_task(take())
            group.create_task(give())


async def _run(listen: tuple[str, int], target: tuple[str, int], weather: Weather) -> None:
    relay = Relay(target, weather)
    await relay.start(*listen)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await ended.wait()
    await relay.stop()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def main() -> None:
    parser = argparse.ArgumentParser(description="A TCP relay with delay, loss or silence.")
    parser.add_argument("--listen", type=_address, required=True)
    parser.add_argument("--target", type=_address, required=True)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds each way")
    parser.add_argument("--jitter", type=float, default=0.0, help="seconds up and down")
    parser.add_argument("--loss", type=float, default=0.0, help="share of chunks, 0 to 1")
    parser.add_argument("--hang", action="store_true", help="never pass a byte")
    given = parser.parse_args()
    weather = Weather(given.delay, given.jitter, given.loss, given.hang)
    asyncio.run(_run(given.listen, given.target, weather))


if __name__ == "__main__":
    main()
