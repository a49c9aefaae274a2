"""The copy is late at worst: whatever breaks between us and a real API server, nothing vanishes and nothing is missed.

Most faults are made by a relay in front of the real API server, so that each can be had at the right moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from app.kube.client import Client
from app.kube.config import Connection, load
from app.kube.errors import Forbidden, NotFound, TooManyRequests
from app.kube.informer import Informer, Timing, _Backoff, _older
from app.kube.informers import Informers
from app.kube.objects import Envelope, Key
from app.kube.resources import CONFIG_MAPS, PODS, Resource
from devcluster import faults
from devcluster.cluster import Cluster
from devcluster.controlplane import API_SERVER
from devcluster.fleet import Fleet

QUICK = Timing(backoff=(0.05, 0.3), silence=2.0, list_silence=1.0)
EXPIRED = {
    "kind": "Status",
    "apiVersion": "v1",
    "status": "Failure",
    "reason": "Expired",
    "code": 410,
    "message": "too old resource version: 1 (2)",
}


def run(test: Coroutine[None, None, None], timeout: float = 90) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(timeout):
            await test
        await asyncio.sleep(0.2)  # a TLS connection that is closed still says goodbye, for which aiohttp does not wait

    asyncio.run(bounded())


async def until(probe: Callable[[], object], what: str, timeout: float = 20) -> None:
    try:
        async with asyncio.timeout(timeout):
            while not probe():  # noqa: ASYNC110 - what is waited for happens in code that knows no event
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"{what}: not within {timeout:g} s") from None


class Log:
    """What an informer reported, in words."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    def __call__(self, key: Key, old: Envelope | None, new: Envelope | None) -> None:
        what = "added" if old is None else "deleted" if new is None else "changed"
        self.entries.append(f"{what} {key.name}")

    def take(self) -> list[str]:
        entries, self.entries = self.entries, []
        return entries


class Relay:
    """Passes requests on to a real API server; what a test wants to go wrong goes wrong here."""

    def __init__(self, client: Client, upstream: aiohttp.ClientSession) -> None:
        self.queries: list[dict[str, str]] = []
        """The query of each request so far."""
        self.refuse: Callable[[Mapping[str, str]], web.Response | None] = lambda query: None
        """Gives the answer to requests that are not to be passed on."""
        self.filter: Callable[[bytes], bytes] = lambda line: line
        """Changes each line that passes; an empty one does not pass."""
        self.flowing = True
        """Whether connections to come pass anything."""
        self._client = client
        self._upstream = upstream
        self._open: set[_Passage] = set()

    def cut(self) -> None:
        """Break every connection that is open now."""
        for passage in self._open:
            passage.transport.abort()

    def hang(self) -> None:
        """Every connection that is open now stays open, and passes nothing any more."""
        for passage in self._open:
            passage.flowing.clear()

    async def close(self) -> None:
        """End what is open, and wait until its connections to the API server are closed too."""
        handling = [passage.task for passage in self._open]
        for task in handling:
            task.cancel()
        await asyncio.gather(*handling, return_exceptions=True)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        query = dict(request.query)
        self.queries.append(query)
        if (refusal := self.refuse(query)) is not None:
            return refusal
        access = await self._client.access()
        url = f"{access.server}{request.rel_url}"
        async with self._upstream.get(url, ssl=access.tls or True, headers=access.headers) as upstream:
            response = web.StreamResponse(status=upstream.status)
            await response.prepare(request)
            passage = _Passage(request, self.flowing)
            self._open.add(passage)
            try:
                async for line in upstream.content:
                    await passage.flowing.wait()
                    await response.write(self.filter(line))
            except ConnectionError:
                pass  # the informer is gone, or the test cut the connection
            finally:
                self._open.discard(passage)
            return response


class _Passage:
    def __init__(self, request: web.BaseRequest, flowing: bool) -> None:
        task = asyncio.current_task()
        assert request.transport is not None
        assert task is not None
        self.transport = request.transport
        self.task = task
        self.flowing = asyncio.Event()
        if flowing:
            self.flowing.set()


class Space:
    """ConfigMaps of one namespace, written directly, and the relay that the informer goes through."""

    def __init__(self, client: Client, through_relay: Client, relay: Relay, namespace: str) -> None:
        self.client = client
        self.through_relay = through_relay
        self.relay = relay
        self.namespace = namespace
        self.log = Log()

    def path(self, name: str | None = None) -> str:
        return CONFIG_MAPS.path(self.namespace, name)

    def key(self, name: str) -> Key:
        return Key(self.namespace, name)

    async def make(self, *names: str, **labels: str) -> None:
        for name in names:
            obj = {"metadata": {"name": name, "labels": {"ours": "yes", **labels}}, "data": {"a": "1"}}
            await self.client.create(self.path(), obj)

    async def change(self, name: str, value: str = "2") -> None:
        current = await self.client.get(self.path(name))
        await self.client.replace(self.path(name), current | {"data": {"a": value}})

    async def delete(self, name: str) -> None:
        await self.client.delete(self.path(name))

    @contextlib.asynccontextmanager
    async def informer(
        self, *, client: Client | None = None, resource: Resource = CONFIG_MAPS, synced: bool = True, **options: Any
    ) -> AsyncIterator[Informer]:
        """A running informer of the ConfigMaps that :meth:`make` made."""
        defaults: dict[str, Any] = {"label_selector": "ours=yes", "on_change": self.log, "timing": QUICK}
        informer = Informer(client or self.through_relay, resource, namespace=self.namespace, **(defaults | options))
        task = asyncio.create_task(informer.run())
        try:
            if synced:
                await until(lambda: informer.synced or task.done(), "the first list")
            yield informer
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task  # shows what it failed with, if it did


@contextlib.asynccontextmanager
async def in_space(cluster: Cluster, namespace: str) -> AsyncIterator[Space]:
    """A namespace of a real cluster, with a relay in front of it."""
    connection = load(cluster.kubeconfig)
    async with Client(connection, name="real") as client, aiohttp.ClientSession() as upstream:
        relay = Relay(client, upstream)
        server = web.Server(relay.handle)
        listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        try:
            # plain HTTP between informer and relay: what passes there can be changed
            near = replace(connection, server=f"http://127.0.0.1:{port}", stamps=(), again=None)
            async with Client(near, name="relayed") as through_relay:
                yield Space(client, through_relay, relay, namespace)
        finally:
            listening.close()
            await relay.close()
            await server.shutdown()


def status(code: int, reason: str) -> web.Response:
    content = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}
    return web.json_response(content, status=code)


def is_streaming_list(query: Mapping[str, str]) -> bool:
    return "sendInitialEvents" in query


def is_resumed_watch(query: Mapping[str, str]) -> bool:
    return "watch" in query and bool(query["resourceVersion"])


# ---------------------------------------------------------------------- lists and watches


def test_how_far_it_has_come() -> None:
    """What was made at a version that it has reached, and is not in it, is gone again."""
    client = Client(Connection("https://127.0.0.1:1", "nowhere"))
    informer = Informer(client, PODS)
    both = Informers(PODS, ["a", "b"], lambda namespace: Informer(client, PODS, namespace=namespace))
    assert not informer.has_reached("a", "9"), "it has listed nothing yet"
    informer._replace({}, "10")
    assert [informer.has_reached("a", version) for version in ("9", "10", "11", "x", "")] == [True, True, *[False] * 3]
    informer._take(b'{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"12"}}}')
    assert informer.has_reached("a", "11")
    both._informers["a"]._replace({}, "10")
    assert [both.has_reached(namespace, "10") for namespace in ("a", "b", "c")] == [True, False, False]


@pytest.mark.cluster
def test_more_than_two_chunks_and_a_streaming_list_give_the_same(local: Cluster, namespace: str) -> None:
    names = {f"cm-{number:04d}" for number in range(1250)}

    async def test() -> None:
        async with in_space(local, namespace) as space:
            async with asyncio.TaskGroup() as group:
                for share in range(16):
                    group.create_task(space.make(*sorted(names)[share::16]))
            async with space.informer(streaming=False) as chunked, space.informer(client=space.client) as streamed:
                assert [query.get("limit") for query in space.relay.queries[:3]] == ["500"] * 3
                assert {envelope.key.name for envelope in chunked.list()} == names
                assert {envelope.key: envelope for envelope in streamed.list()} == {
                    envelope.key: envelope for envelope in chunked.list()
                }
                assert streamed.streaming, "the server of devcluster has streaming lists"
                assert (streamed.counts.lists, streamed.counts.watches) == (1, 1)
                assert (len(chunked), chunked.counts.lists) == (1250, 1)
                sent = await space.client.get(space.path("cm-0007"))
                del sent["metadata"]["managedFields"]
                held = chunked.get(space.key("cm-0007"))
                assert held is not None
                assert held.object() == sent

    run(test())


@pytest.mark.cluster
@pytest.mark.parametrize("streaming", [True, False])
def test_changes_are_seen_as_they_happen(local: Cluster, namespace: str, streaming: bool) -> None:
    async def test() -> None:
        async with in_space(local, namespace) as space:
            await space.make("before")
            async with space.informer(client=space.client, streaming=streaming) as informer:
                assert space.log.take() == ["added before"]
                await space.make("new")
                await space.change("before")
                await space.delete("new")
                await until(lambda: len(space.log.entries) == 3, "three changes")
                assert space.log.take() == ["added new", "changed before", "deleted new"]
                assert [one.object()["data"] for one in informer.list()] == [{"a": "2"}]
                assert informer.get(space.key("new")) is None
                assert informer.error is None

    run(test())


@pytest.mark.cluster
def test_selectors(local: Cluster, namespace: str) -> None:
    async def test() -> None:
        async with in_space(local, namespace) as space:
            await space.make("red", colour="red")
            await space.make("blue", colour="blue")
            fields = "metadata.name!=blue"
            async with (
                space.informer(label_selector="ours=yes,colour=red") as by_label,
                space.informer(field_selector=fields, on_change=None) as by_field,
            ):
                assert [one.key.name for one in by_label.list()] == ["red"]
                assert [one.key.name for one in by_field.list()] == ["red"]
                await space.make("scarlet", colour="red")
                await until(lambda: len(by_label) == len(by_field) == 2, "one more of each")
                left = await space.client.get(space.path("red"))
                left["metadata"]["labels"]["colour"] = "blue"
                await space.client.replace(space.path("red"), left)
                await until(lambda: len(by_label) == 1, "what the selector does not match any more is gone")
                assert space.log.take() == ["added red", "added scarlet", "deleted red"]
                assert len(by_field) == 2

    run(test())


@pytest.mark.cluster
def test_indexes_follow(local: Cluster, namespace: str) -> None:
    async def test() -> None:
        async with in_space(local, namespace) as space:
            await space.make("one")
            uid = (await space.client.get(space.path("one")))["metadata"]["uid"]
            indexers = {"uid": lambda envelope: envelope.metadata.uid}
            async with space.informer(indexers=indexers) as informer:
                assert [one.key.name for one in informer.by_index("uid", uid)] == ["one"]
                await space.delete("one")
                await until(lambda: not informer.by_index("uid", uid), "the index forgets it")

    run(test())


@pytest.mark.cluster
def test_a_listener_that_fails_harms_nobody(local: Cluster, namespace: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail(key: Key, old: Envelope | None, new: Envelope | None) -> None:
        raise ValueError("a bug")

    async def test() -> None:
        async with in_space(local, namespace) as space:
            await space.make("one")
            async with space.informer(on_change=fail) as informer:
                await space.make("two")
                await until(lambda: len(informer) == 2, "the next change")
                assert f"a listener failed on the change of {namespace}/one" in caplog.text

    run(test())


@pytest.mark.cluster
@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("when", ["watching", "listing", "waiting"])
def test_cancelling_leaves_nothing_behind(local: Cluster, namespace: str, streaming: bool, when: str) -> None:
    async def test() -> None:
        async with in_space(local, namespace) as space:
            await space.make("one")
            if when == "waiting":
                space.relay.refuse = lambda query: status(403, "Forbidden")
            space.relay.flowing = when != "listing"
            before = asyncio.all_tasks()
            slow = replace(QUICK, backoff=(30, 30), list_silence=30)
            async with space.informer(streaming=streaming, synced=when == "watching", timing=slow) as informer:
                await until(lambda: space.relay.queries, "the first request")
                await asyncio.sleep(0.2)
                assert informer.synced == (when == "watching")
            await asyncio.sleep(0)
            left = [task for task in asyncio.all_tasks() - before if "RequestHandler" not in repr(task)]
            assert left == [], "tasks that are not the relay's"

    run(test())


# ---------------------------------------------------------------------- what breaks


@pytest.mark.cluster
def test_a_broken_watch_goes_on_where_it_was(local: Cluster, namespace: str) -> None:
    async def test() -> None:
        async with in_space(local, namespace) as space:
            await space.make("kept", "changed", "gone")
            async with space.informer() as informer:
                space.log.take()
                space.relay.refuse = lambda query: status(503, "ServiceUnavailable")
                space.relay.cut()
                await until(lambda: informer.error is not None, "the informer knows that it is not up to date")
                await space.change("changed")
                await space.delete("gone")
                await space.make("new")
                assert informer.synced
                assert len(informer) == 3
                space.relay.refuse = lambda query: None
                await until(lambda: len(space.log.entries) == 3, "what was missed")
                assert space.log.take() == ["changed changed", "deleted gone", "added new"]
                assert informer.counts.lists == 1
                assert is_resumed_watch(space.relay.queries[-1])
                assert informer.error is None

    run(test())


@pytest.mark.cluster
def test_a_watch_that_hangs_is_replaced(local: Cluster, namespace: str) -> None:
    async def test() -> None:
        async with in_space(local, namespace) as space:
            await space.make("kept", "gone")
            async with space.informer() as informer:
                space.log.take()
                space.relay.hang()
                await space.delete("gone")
                await space.make("new")
                await until(lambda: len(space.log.entries) == 2, "what happened while it hung")
                assert space.log.take() == ["deleted gone", "added new"]
                assert informer.counts.lists == 1

    run(test())


@pytest.mark.cluster
@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("as_event", [True, False])
def test_lost_history_is_listed_again_and_only_differences_are_reported(
    local: Cluster, namespace: str, streaming: bool, as_event: bool
) -> None:
    expired = status(410, "Expired")
    if as_event:
        event = json.dumps({"type": "ERROR", "object": EXPIRED}) + "\n"
        expired = web.Response(text=event, content_type="application/json")

    async def test() -> None:
        async with in_space(local, namespace) as space:
            await space.make("kept", "changed", "gone", "replaced")
            async with space.informer(streaming=streaming) as informer:
                space.log.take()
                # until everything has changed, what comes back is neither a watch nor a list
                space.relay.refuse = lambda query: status(503, "ServiceUnavailable")
                space.relay.cut()
                await space.change("changed")
                await space.delete("gone")
                await space.delete("replaced")
                await space.make("replaced", "new")
                answers = [web.Response(text=expired.text, status=expired.status, content_type="application/json")]
                space.relay.refuse = lambda query: answers.pop() if is_resumed_watch(query) and answers else None
                await until(lambda: informer.counts.lists == 2, "the second list")
                assert sorted(space.log.take()) == [
                    "added new",
                    "added replaced",
                    "changed changed",
                    "deleted gone",
                    "deleted replaced",
                ]
                await space.make("later")
                await until(lambda: space.log.entries, "the watch after the second list")
                assert space.log.take() == ["added later"]

    run(test())


@pytest.mark.cluster
@pytest.mark.parametrize("streaming", [True, False])
def test_nothing_is_deleted_by_a_list_that_is_not_complete(local: Cluster, namespace: str, streaming: bool) -> None:
    names = [f"cm-{number}" for number in range(6)]

    async def test() -> None:
        async with in_space(local, namespace) as space:
            await space.make(*names)
            async with space.informer(streaming=streaming, page_size=2) as informer:
                assert sorted(space.log.take()) == [f"added {name}" for name in names]
                passed: list[bytes] = []

                def break_off(line: bytes) -> bytes:
                    passed.append(line)
                    if len(passed) % 3 == 0:
                        space.relay.cut()
                    return line

                def lose_history(query: Mapping[str, str]) -> web.Response | None:
                    if query.get("continue"):
                        return status(500, "InternalError")
                    return status(410, "Expired") if is_resumed_watch(query) else None

                space.relay.refuse = lose_history
                if streaming:
                    space.relay.filter = break_off
                space.relay.cut()
                await until(lambda: informer.counts.errors >= 4, "a few attempts that fail half-way")
                assert space.log.take() == []
                assert len(informer) == 6
                assert informer.counts.lists == 1
                space.relay.refuse, space.relay.filter = lambda query: None, lambda line: line
                await space.delete("cm-3")
                await until(lambda: informer.counts.lists == 2, "a list that is complete")
                await until(lambda: space.log.entries, "the deletion")
                assert space.log.take() == ["deleted cm-3"]

    run(test())


@pytest.mark.cluster
def test_not_synced_before_the_first_list_is_complete(local: Cluster, namespace: str) -> None:
    async def test() -> None:
        async with in_space(local, namespace) as space:
            await space.make("one", "two")
            space.relay.filter = lambda line: b"" if b"initial-events-end" in line else line
            async with space.informer(synced=False, timing=replace(QUICK, list_silence=30)) as informer:
                await until(lambda: space.relay.queries, "the list began")
                await asyncio.sleep(0.5)
                assert not informer.synced
                assert informer.list() == []
                assert space.log.take() == []
                space.relay.filter = lambda line: line
                space.relay.cut()
                await informer.wait_synced()
                assert sorted(space.log.take()) == ["added one", "added two"]

    run(test())


@pytest.mark.cluster
@pytest.mark.parametrize("code", [400, 405, 422, 501])
def test_a_server_without_streaming_lists_is_asked_once(local: Cluster, namespace: str, code: int) -> None:
    async def test() -> None:
        async with in_space(local, namespace) as space:
            await space.make("one")
            space.relay.refuse = lambda query: status(code, "Invalid") if is_streaming_list(query) else None
            async with space.informer() as informer:
                assert space.log.take() == ["added one"]
                assert (informer.streaming, informer.counts.errors) == (False, 0)
                informer._resource_version = ""
                space.relay.cut()
                await until(lambda: informer.counts.lists == 2, "another list")
                assert [is_streaming_list(query) for query in space.relay.queries].count(True) == 1

    run(test())


@pytest.mark.cluster
def test_a_streaming_list_without_an_end_is_given_up(local: Cluster, namespace: str) -> None:
    """As aggregated API servers do that do not know the parameter."""

    async def test() -> None:
        async with in_space(local, namespace) as space:
            await space.make("one")
            space.relay.filter = lambda line: b"" if b"initial-events-end" in line else line
            async with space.informer() as informer:
                assert space.log.take() == ["added one"]
                assert not informer.streaming
                await space.make("two")
                await until(lambda: space.log.entries, "the watch after the list")

    run(test())


@pytest.mark.cluster
def test_a_hiccup_of_the_server_does_not_end_streaming_lists(local: Cluster, namespace: str) -> None:
    async def test() -> None:
        async with in_space(local, namespace) as space:
            await space.make("one")
            space.relay.refuse = lambda query: status(500, "InternalError") if is_streaming_list(query) else None
            async with space.informer() as informer:
                assert informer.streaming
                assert len(informer) == 1

    run(test())


@pytest.mark.cluster
def test_a_list_slower_than_history_is_taken_whole(local: Cluster, namespace: str) -> None:
    async def test() -> None:
        async with in_space(local, namespace) as space:
            await space.make("a", "b", "c", "d")
            space.relay.refuse = lambda query: status(410, "Expired") if query.get("continue") else None
            async with space.informer(streaming=False, page_size=2) as informer:
                assert len(informer) == 4
                assert ["limit" in query for query in space.relay.queries[:3]] == [True, True, False]

    run(test())


@pytest.mark.cluster
def test_a_server_whose_history_is_shorter_than_ours_is_noticed(local: Cluster, namespace: str) -> None:
    """As after its etcd was restored: it accepts a watch from the future and says nothing."""

    async def test() -> None:
        async with in_space(local, namespace) as space:
            await space.make("one")
            async with space.informer() as informer:
                informer._resource_version = "999999999"
                space.relay.cut()
                await until(lambda: is_resumed_watch(space.relay.queries[-1]), "a watch from the future")
                await space.make("two")
                await until(lambda: informer.counts.lists == 2, "another list")
                assert sorted(space.log.take()) == ["added one", "added two"]

    run(test())


@pytest.mark.cluster
def test_an_event_that_makes_no_sense_is_asked_for_again(local: Cluster, namespace: str) -> None:
    async def test() -> None:
        async with in_space(local, namespace) as space, space.informer() as informer:
            garbled: list[bytes] = []

            def garble(line: bytes) -> bytes:
                if b'"ADDED"' in line and not garbled:
                    garbled.append(line)
                    return line[: len(line) // 2] + b"\n"
                return line

            space.relay.filter = garble
            await space.make("one")
            await until(lambda: len(informer) == 1, "the event, whole")
            assert (len(garbled), informer.counts.lists) == (1, 1)

    run(test())


@pytest.mark.cluster
def test_a_right_that_is_missing_is_said_and_waited_for(
    local: Cluster, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with in_space(local, namespace) as space:
            space.relay.refuse = lambda query: status(403, "Forbidden")
            async with space.informer(synced=False) as informer:
                await until(lambda: isinstance(informer.error, Forbidden), "the refusal")
                assert not informer.synced
                assert f"informer of /api/v1/namespaces/{namespace}/configmaps: " in caplog.text
                space.relay.refuse = lambda query: None
                await informer.wait_synced()
                assert informer.error is None

    run(test())


@pytest.mark.cluster
def test_a_kind_that_is_not_there_yet_is_waited_for(local: Cluster, namespace: str) -> None:
    async def test() -> None:
        async with in_space(local, namespace) as space:
            missing = Resource("farlet.dev/v1alpha1", "Nothing", "nothings")
            async with space.informer(resource=missing, synced=False) as informer:
                await until(lambda: isinstance(informer.error, NotFound), "the refusal")
                await until(lambda: informer.counts.errors >= 2, "another attempt")

    run(test())


@pytest.mark.faults
@pytest.mark.parametrize("streaming", [True, False])
def test_an_api_server_that_is_killed_and_started_again(faulty: Fleet, faulty_namespace: str, streaming: bool) -> None:
    """Its new watch cache does not know our resourceVersion any more: a real 410."""
    cluster = faulty.cluster("local")

    async def test() -> None:
        async with in_space(cluster, faulty_namespace) as space:
            names = [f"cm-{number}" for number in range(50)]
            await space.make(*names)
            async with space.informer(streaming=streaming) as informer:
                space.log.take()
                # so that the informer misses what follows: with the watch that it has, one on its way, and the next
                space.relay.refuse = lambda query: status(503, "ServiceUnavailable")
                space.relay.flowing = False
                space.relay.hang()
                version = informer._resource_version
                await space.change("cm-1")
                await space.delete("cm-2")
                await space.make("new")
                await asyncio.to_thread(faults.kill, cluster, API_SERVER)
                await until(lambda: informer.counts.errors > 2, "the informer notices")
                assert informer._resource_version == version
                assert len(informer) == 50
                assert space.log.take() == []
                await asyncio.to_thread(faults.start, cluster, API_SERVER)
                space.relay.flowing = True
                space.relay.refuse = lambda query: None
                await until(lambda: len(space.log.entries) == 3, "what was missed", timeout=60)
                await asyncio.sleep(1)
                assert sorted(space.log.take()) == ["added new", "changed cm-1", "deleted cm-2"]
                assert informer.counts.lists == 2, "the new API server had no history: this was a 410"
                await space.make("later")
                await until(lambda: space.log.entries, "the watch goes on")

    run(test(), timeout=150)


@pytest.mark.faults
def test_an_api_server_that_is_restarted_while_nothing_changes(faulty: Fleet) -> None:
    """The pods of a whole cluster: not one is reported, neither deleted nor changed by us."""
    cluster = faulty.cluster("local")
    deleted: list[Key] = []

    def note(key: Key, old: Envelope | None, new: Envelope | None) -> None:
        if new is None:
            deleted.append(key)

    async def test() -> None:
        async with Client(load(cluster.kubeconfig)) as client:
            informer = Informer(client, PODS, on_change=note, timing=QUICK)
            async with asyncio.TaskGroup() as group:
                task = group.create_task(informer.run())
                await informer.wait_synced()
                before = {one.key: one.metadata.uid for one in informer.list()}
                watches = informer.counts.watches
                await asyncio.to_thread(faults.restart, cluster, API_SERVER)
                await until(lambda: informer.counts.watches > watches, "the watch is back", timeout=60)
                await until(lambda: informer.error is None, "it is up to date", timeout=60)
                await asyncio.sleep(1)
                assert {one.key: one.metadata.uid for one in informer.list()} == before
                assert deleted == []
                task.cancel()

    run(test(), timeout=150)


# ---------------------------------------------------------------------- patience


def test_pauses_grow_vary_and_stay_in_their_bounds() -> None:
    backoff = _Backoff(0.2, 30.0)
    pauses = [backoff.next() for _ in range(200)]
    assert all(0.2 <= pause <= 30.0 for pause in pauses)
    assert pauses[0] <= 0.6
    assert max(pauses) == 30.0
    assert len(set(pauses)) > 50
    backoff.reset()
    assert backoff.next() <= 0.6


@pytest.mark.parametrize(
    ("lasted", "error", "least", "most"),
    [
        (61.0, None, 0.0, 0.0),  # the server ended it in time: at once again
        (61.0, NotFound(404, "NotFound", "x"), 0.2, 0.6),  # a good watch: short pauses again
        (0.1, None, 0.2, 30.0),  # a server or proxy that closes watches at once is not asked in a loop
        (None, NotFound(404, "NotFound", "x"), 0.2, 30.0),
        (None, TooManyRequests(429, "TooManyRequests", "x", retry_after=25), 25.0, 30.0),
        (None, TooManyRequests(429, "TooManyRequests", "x", retry_after=3600), 30.0, 30.0),
    ],
)
def test_how_long_it_waits(lasted: float | None, error: Exception | None, least: float, most: float) -> None:
    async def test() -> None:
        informer = Informer(Client(Connection(server="https://nowhere.test", source="a test")), PODS)
        for _ in range(20):
            informer._backoff.next()
        informer._watching_since = None if lasted is None else time.monotonic() - lasted
        assert least <= informer._pause(error) <= most
        assert informer.error is error

    run(test())


@pytest.mark.parametrize(
    ("one", "other", "older"),
    [("9", "10", True), ("10", "9", False), ("9", "9", False), ("", "9", False), ("9", "", False), ("a", "b", False)],
)
def test_which_version_is_older(one: str, other: str, older: bool) -> None:
    assert _older(one, other) is older
