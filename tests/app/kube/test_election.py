"""One leader at a time: contenders on a real API server, with links that stall and processes that are stopped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from app.kube.client import Client
from app.kube.config import Connection, load
from app.kube.election import LeaderLock, NotLeading, steady
from app.kube.objects import Object
from app.kube.resources import LEASES
from devcluster.cluster import Cluster
from tests.eventually import eventually

LEASE = "farlet-test"
DURATION = 6
"""Seconds; short, so that the tests are, and long enough for a machine that stalls now and then."""


def test_a_lease_must_be_renewed_in_time() -> None:
    client = Client(Connection("https://127.0.0.1:1", "nowhere"))
    with pytest.raises(ValueError, match="a lease of 15 s cannot be renewed every 10"):
        LeaderLock(client, "default", LEASE, "a", lease_duration=15, renew=10.0)


def test_the_clock_never_stands_still() -> None:
    before = steady()
    time.sleep(0.01)
    assert steady() - before >= 0.01


def test_contenders_of_one_name_are_told_apart() -> None:
    client = Client(Connection("https://127.0.0.1:1", "nowhere"))
    one, two = (LeaderLock(client, "default", LEASE, "farlet-0") for _ in range(2))
    assert one.identity != two.identity
    assert one.identity.startswith("farlet-0_")
    assert not one.held()
    with pytest.raises(NotLeading, match="does not hold the lease default/farlet-test"):
        one.check()


# ---------------------------------------------------------------------- on a real API server


class Relay:
    """Passes TCP connections on to the API server, until told to stall: then nothing passes, and nothing is closed."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._open = asyncio.Event()
        self._open.set()
        self._connections: set[asyncio.Task[None]] = set()

    def stall(self) -> None:
        self._open.clear()

    def flow(self) -> None:
        self._open.set()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        yield server.sockets[0].getsockname()[1]
        server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*self._target)
        try:
            await asyncio.gather(self._carry(reader, there_writer), self._carry(there_reader, writer))
        finally:
            for end in (writer, there_writer):
                end.close()
                with contextlib.suppress(OSError):
                    await end.wait_closed()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._open.wait()
                writer.write(data)
            writer.write_eof()


@contextlib.asynccontextmanager
async def relayed(cluster: Cluster) -> AsyncIterator[tuple[Relay, Client]]:
    """A client that reaches the API server through a relay."""
    direct = load(cluster.kubeconfig)
    address = urlsplit(direct.server)
    host, port = str(address.hostname), int(address.port or 443)
    relay = Relay((host, port))
    async with relay.listening() as here:
        there = replace(direct, server=f"https://127.0.0.1:{here}", tls_server_name=host, stamps=(), again=None)
        async with Client(there) as client:
            yield relay, client


@contextlib.asynccontextmanager
async def connected(cluster: Cluster) -> AsyncIterator[Client]:
    async with Client(load(cluster.kubeconfig)) as client:
        yield client


def contender(client: Client, namespace: str, identity: str, **options: Any) -> LeaderLock:
    options = {"lease_duration": DURATION, "renew": 0.5} | options
    return LeaderLock(client, namespace, LEASE, identity, **options)


async def lease_of(client: Client, namespace: str) -> Object:
    lease = await client.get(LEASES.path(namespace, LEASE))
    spec: Object = lease["spec"]
    return spec


@contextlib.asynccontextmanager
async def doing(coroutine: Any) -> AsyncIterator[asyncio.Task[None]]:
    """A task for the length of the block."""
    task = asyncio.create_task(coroutine)
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class Leaders:
    """Who is at work; asked at every turn of the event loop, so that two at once are not missed."""

    def __init__(self, *locks: LeaderLock) -> None:
        self._locks = locks
        self.most = 0
        self.spans: list[tuple[LeaderLock, float]] = []
        """Each time another one held the lease, and when that was first seen."""

    async def watch(self) -> None:
        while True:
            held = [lock for lock in self._locks if lock.held()]
            self.most = max(self.most, len(held))
            if held and (not self.spans or self.spans[-1][0] is not held[0]):
                self.spans.append((held[0], steady()))
            await asyncio.sleep(0.002)


@pytest.mark.cluster
def test_one_holds_and_the_other_waits(local: Cluster, namespace: str) -> None:
    async def scenario() -> None:
        async with connected(local) as client:
            one, two = contender(client, namespace, "one"), contender(client, namespace, "two")
            leaders = Leaders(one, two)
            await one.acquire()
            async with doing(leaders.watch()), doing(one.hold()), doing(two.acquire()) as waiting:
                await asyncio.sleep(1.2 * DURATION)
                one.check()
                assert one.held()
                assert not two.held()
                assert not waiting.done()
                assert two.holder == one.identity
            spec = await lease_of(client, namespace)
            assert spec["holderIdentity"] == one.identity
            assert spec["leaseDurationSeconds"] == DURATION
            assert spec["leaseTransitions"] == 0
            assert spec["acquireTime"] < spec["renewTime"]
            assert leaders.most == 1

    asyncio.run(scenario())


@pytest.mark.cluster
def test_a_holder_that_stops_renewing_is_followed(local: Cluster, namespace: str) -> None:
    async def scenario() -> None:
        async with connected(local) as client:
            one, two = contender(client, namespace, "one"), contender(client, namespace, "two")
            leaders = Leaders(one, two)
            await one.acquire()
            acquired = steady()
            async with doing(leaders.watch()), asyncio.timeout(10 * DURATION):
                await two.acquire()
            assert steady() - acquired >= DURATION - 0.1, "not before the end of the lease"
            assert not one.held()
            assert leaders.most == 1
            assert (await lease_of(client, namespace))["leaseTransitions"] == 1
            # It cannot come back by renewing what is no longer its own.
            await one._try_renew()
            assert not one.held()
            assert (await lease_of(client, namespace))["holderIdentity"] == two.identity

    asyncio.run(scenario())


@pytest.mark.cluster
def test_a_released_lease_is_taken_at_once(local: Cluster, namespace: str) -> None:
    async def scenario() -> None:
        async with connected(local) as client:
            one = contender(client, namespace, "one", lease_duration=120, renew=5)
            two = contender(client, namespace, "two", lease_duration=120, renew=5, retry=120)
            await one.acquire()
            async with doing(two.acquire()) as waiting:
                await asyncio.sleep(1)
                await one.release()
                assert not one.held()
                async with asyncio.timeout(60):  # the lease goes on for longer, and so does the pause between polls
                    await waiting
            assert two.held()
            await one.release()
            assert (await lease_of(client, namespace))["holderIdentity"] == two.identity, "only one's own is given up"

    asyncio.run(scenario())


@pytest.mark.cluster
def test_without_the_right_to_watch_the_lease_is_polled(
    local: Cluster, namespace: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    local.kubectl("-n", namespace, "create", "role", "r", "--verb=get,create,update", "--resource=leases")
    local.kubectl("-n", namespace, "create", "rolebinding", "r", "--role=r", f"--serviceaccount={namespace}:default")
    token = local.kubectl("-n", namespace, "create", "token", "default").stdout.strip()
    config = json.loads(local.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(config))

    async def scenario() -> None:
        async with Client(load(kubeconfig)) as client:
            one, two = contender(client, namespace, "one"), contender(client, namespace, "two")
            await one.acquire()
            async with doing(one.hold()), doing(two.acquire()) as waiting:
                await asyncio.sleep(1.2 * DURATION)
                assert not waiting.done()
            await one.release()
            async with asyncio.timeout(10 * DURATION):
                await two.acquire()

    asyncio.run(scenario())


@pytest.mark.cluster
def test_a_cut_link_ends_leadership_before_another_begins(
    local: Cluster, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with relayed(local) as (relay, client), connected(local) as direct:
            one, two = contender(client, namespace, "one"), contender(direct, namespace, "two")
            leaders = Leaders(one, two)
            lost: list[float] = []
            worked = asyncio.Event()

            async def work() -> None:
                worked.set()
                await asyncio.sleep(3600)

            async with doing(leaders.watch()), doing(one.run(work, lambda: lost.append(steady()))):
                async with asyncio.timeout(60):
                    await worked.wait()
                async with doing(two.acquire()) as waiting:
                    await asyncio.sleep(1)
                    assert not waiting.done()
                    relay.stall()
                    cut = steady()
                    async with asyncio.timeout(10 * DURATION):
                        await waiting
                    taken = steady()
                    assert lost, "the work was ended before another could begin"
                    assert lost[0] < taken
                    assert taken - cut >= DURATION / 2, "the lease was honoured"
                    assert not one.held()
                    async with doing(two.hold()):
                        relay.flow()
                        await asyncio.sleep(DURATION)
                        assert not one.held(), "the link is back, the lease is another's"
                        worked.clear()
                    await two.release()
                    async with asyncio.timeout(60):
                        await worked.wait()
                    assert one.held()
                    await asyncio.sleep(0.1)  # for the watch to see it
            assert leaders.most == 1
            assert [lock for lock, _ in leaders.spans] == [one, two, one]

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    assert "cannot be renewed: no answer within" in caplog.text


@pytest.mark.cluster
def test_a_short_stall_is_survived(local: Cluster, namespace: str) -> None:
    async def scenario() -> None:
        async with relayed(local) as (relay, client):
            one = contender(client, namespace, "one", lease_duration=6, renew=1.0)
            await one.acquire()
            async with doing(one.hold()) as holding:
                await asyncio.sleep(1)
                relay.stall()
                await asyncio.sleep(2)
                relay.flow()
                await asyncio.sleep(4.5)
                assert one.held()
                assert not holding.done()

    asyncio.run(scenario())


@pytest.mark.cluster
def test_the_holder_survives_edits_and_deletion_of_its_lease(local: Cluster, namespace: str) -> None:
    """And a follower does not take a lease for free because somebody deleted it."""

    async def scenario() -> None:
        async with connected(local) as client:
            one, two = contender(client, namespace, "one"), contender(client, namespace, "two")
            leaders = Leaders(one, two)
            await one.acquire()
            async with doing(leaders.watch()), doing(one.hold()) as holding, doing(two.acquire()):
                await asyncio.sleep(0.7)
                label = ["-n", namespace, "label", "lease", LEASE, "by-hand=yes"]
                await asyncio.to_thread(local.kubectl, *label)
                await asyncio.sleep(DURATION)
                assert one.held()
                lease = await client.get(LEASES.path(namespace, LEASE))
                assert lease["metadata"]["labels"] == {"by-hand": "yes"}, "what others put there stays"
                await client.delete(LEASES.path(namespace, LEASE))
                await asyncio.sleep(DURATION)
                assert one.held()
                assert not holding.done()
            assert leaders.most == 1

    asyncio.run(scenario())


@pytest.mark.cluster
def test_clocks_may_differ(local: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record whose times are hours off is neither expired nor eternal."""

    async def scenario() -> None:
        for hours in (-5, 5):
            async with connected(local) as client:
                when = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(time.time() + hours * 3600))
                monkeypatch.setattr("app.kube.election._timestamp", lambda when=when: when)
                one, two = contender(client, namespace, "one"), contender(client, namespace, "two")
                await one.acquire()
                before = steady()
                async with asyncio.timeout(10 * DURATION):
                    await two.acquire()
                assert steady() - before >= DURATION - 0.1
                await two.release()

    asyncio.run(scenario())


@pytest.mark.cluster
def test_many_contenders_have_one_leader(local: Cluster, namespace: str) -> None:
    async def scenario() -> None:
        async with connected(local) as client:
            locks = [contender(client, namespace, str(number)) for number in range(8)]
            leaders = Leaders(*locks)
            turns: list[LeaderLock] = []

            async def take_a_turn(lock: LeaderLock) -> None:
                async def work() -> None:
                    turns.append(lock)
                    await asyncio.sleep(0.05)
                    assert lock.held()

                await lock.run(work)

            async with asyncio.timeout(60), doing(leaders.watch()), asyncio.TaskGroup() as group:
                for lock in locks:
                    group.create_task(take_a_turn(lock))
            assert leaders.most == 1
            assert len(turns) == len(set(turns)) == 8

    asyncio.run(scenario())


@pytest.mark.cluster
def test_what_the_work_raises_is_raised_and_the_lease_is_free(local: Cluster, namespace: str) -> None:
    async def scenario() -> None:
        async with connected(local) as client:
            one = contender(client, namespace, "one")

            async def work() -> None:
                raise ZeroDivisionError("a bug")

            with pytest.raises(ZeroDivisionError):
                await one.run(work)
            assert "holderIdentity" not in await lease_of(client, namespace)
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


@pytest.mark.cluster
def test_cancelled_work_ends_before_the_lease_is_given_up(local: Cluster, namespace: str) -> None:
    async def scenario() -> None:
        async with connected(local) as client:
            one = contender(client, namespace, "one")
            held_at_the_end: list[bool] = []

            async def work() -> None:
                try:
                    await asyncio.sleep(3600)
                finally:
                    await asyncio.sleep(1.2 * DURATION)  # finishing what is in flight takes longer than the lease
                    held_at_the_end.append(one.held())

            async with doing(one.run(work)):
                await asyncio.sleep(1)
            assert held_at_the_end == [True]
            assert not one.held()
            assert "holderIdentity" not in await lease_of(client, namespace)

    asyncio.run(scenario())


PROCESS = """
import asyncio, os, signal, sys, pathlib
from app.kube.client import Client
from app.kube.config import load
from app.kube.election import LeaderLock, steady

async def main(kubeconfig, namespace, name, duration):
    async with Client(load(pathlib.Path(kubeconfig))) as client:
        lock = LeaderLock(client, namespace, name, "process", lease_duration=int(duration), renew=0.5)

        # A signal handler is the first thing that runs in a process that goes on, before the event loop's next turn.
        def say(*_):
            os.write(1, b"held\\n" if lock.held() else b"lost\\n")  # print may be in the middle of a line

        signal.signal(signal.SIGCONT, say)

        async def work():
            print("started", flush=True)
            await asyncio.sleep(3600)

        await lock.run(work, lambda: print("ended", flush=True))

asyncio.run(main(*sys.argv[1:]))
"""


@contextlib.contextmanager
def process(cluster: Cluster, namespace: str) -> Iterator[subprocess.Popen[str]]:
    """A contender of its own, whose standard output tells what it believes."""
    arguments = [str(cluster.kubeconfig), namespace, LEASE, str(DURATION)]
    running = subprocess.Popen(
        [sys.executable, "-c", PROCESS, *arguments], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
    )
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


@pytest.mark.cluster
def test_a_process_that_was_stopped_knows_at_once(local: Cluster, namespace: str) -> None:
    with process(local, namespace) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "started\n"
        os.kill(one.pid, signal.SIGSTOP)
        os.kill(one.pid, signal.SIGCONT)
        assert one.stdout.readline() == "held\n", "a moment is not too long"
        os.kill(one.pid, signal.SIGSTOP)

        async def follow() -> None:
            async with connected(local) as client:
                two = contender(client, namespace, "two")
                async with asyncio.timeout(10 * DURATION):
                    await two.acquire()
                async with doing(two.hold()):
                    os.kill(one.pid, signal.SIGCONT)
                    assert one.stdout is not None
                    lines = [await asyncio.to_thread(one.stdout.readline) for _ in range(2)]
                    assert lines == ["lost\n", "ended\n"], "it knows before it has asked anybody"
                    await asyncio.sleep(DURATION)
                    assert two.held()
                await two.release()

        asyncio.run(follow())
        assert one.stdout.readline() == "started\n", "and it takes its turn again"


@pytest.mark.cluster
def test_a_process_that_was_killed_is_followed(local: Cluster, namespace: str) -> None:
    with process(local, namespace) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "started\n"
        killed = steady()
        one.kill()
        with process(local, namespace) as two:
            assert two.stdout is not None
            assert two.stdout.readline() == "started\n"
            assert steady() - killed > DURATION - 0.1
        holder = eventually(
            lambda: local.kubectl("-n", namespace, "get", "lease", LEASE, "-o=jsonpath={.spec.holderIdentity}").stdout,
            "a holder",
        )
        assert holder.startswith("process_")
