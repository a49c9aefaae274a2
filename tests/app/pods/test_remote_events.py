"""What the remote says about our objects is told once, with its count; what it says about others leaves no trace.

Nothing here needs pods: the caches are filled by hand, and the events are real ones on real API servers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from app import names
from app.kube.client import Client, PatchKind
from app.kube.config import Connection, load
from app.kube.objects import Envelope, Object
from app.kube.resources import EVENTS
from app.kube.store import Store
from app.pods import remote_events
from app.pods.known import BY_UID, by_uid
from app.pods.remote_events import About, Feed, RemoteEvents, Timing
from app.pods.warnings import Mode
from app.settings import SettingsError
from app.settings import load as load_settings
from devcluster.cluster import Cluster
from tests.app.kube import virtual_time
from tests.app.kube.test_informer import EXPIRED, in_space, is_resumed_watch, run, status, until

QUICK = Timing(interval=1.0, look_again=0.05, early=1.0, backoff=(0.05, 0.3), watch=(60, 60), grace=15.0)


def envelope(kind: str, namespace: str, name: str, uid: str, pod_uid: str = "") -> Envelope:
    labels = {names.LABEL_POD_UID: pod_uid} if pod_uid else {}
    metadata = {"name": name, "namespace": namespace, "uid": uid, "labels": labels}
    return Envelope.of({"apiVersion": "v1", "kind": kind, "metadata": metadata})


class Rig:
    """Caches of one local pod ``web`` with all that stands for it in the remote, and what carries its events."""

    def __init__(
        self, *, local: Client, remote: Client, namespace: str = "shop", mode: Mode = "warnings", timing: Timing = QUICK
    ) -> None:
        self.namespace = namespace
        self.local_pods, self.pods = Store({BY_UID: by_uid}), Store()
        replica_sets, jobs = Store(), Store()
        self.local_pods.put(envelope("Pod", namespace, "web", "local-uid"))
        self.pods.put(envelope("Pod", namespace, "web-x1", "pod-uid", "local-uid"))
        self.pods.put(envelope("Pod", namespace, "orphan", "orphan-uid", "gone"))
        self.pods.put(envelope("Pod", namespace, "unlabelled", "unlabelled-uid"))
        replica_sets.put(envelope("ReplicaSet", namespace, "web", "set-uid", "local-uid"))
        jobs.put(envelope("Job", namespace, "web", "job-uid", "local-uid"))
        self.events = RemoteEvents(
            local=local,
            remote=remote,
            local_pods=self.local_pods,
            remote_pods=self.pods,
            replica_sets=replica_sets,
            jobs=jobs,
            mode=mode,
            namespaces=[namespace],
            timing=timing,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[RemoteEvents]:
        task = asyncio.create_task(self.events.run())
        try:
            await until(lambda: task.done() or self.feed.lists, "the first list")
            yield self.events
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task  # shows what it failed with, if it did

    @property
    def feed(self) -> Feed:
        return self.events._feeds[0]


def unconnected(mode: Mode = "warnings") -> Rig:
    """For what needs no server."""
    client = Client(Connection(server="https://127.0.0.1:1", source="a test"))
    return Rig(local=client, remote=client, mode=mode, timing=Timing())


def remote_event(namespace: str, name: str, /, *, count: int = 1, **about: str) -> Object:
    involved = {"kind": "Pod", "namespace": namespace, "name": "web-x1", "uid": "pod-uid", **about}
    return {
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": involved,
        "type": "Warning",
        "reason": "BackOff",
        "message": f"Back-off of {name}",
        "firstTimestamp": "2026-02-01T10:00:00Z",
        "lastTimestamp": "2026-02-01T10:05:00Z",
        "count": count,
        "source": {"component": "kubelet"},
    }


# ---------------------------------------------------------------------- whose event it is


@pytest.mark.parametrize(
    ("about", "ours"),
    [
        pytest.param(About("Pod", "shop", "web-x1", "pod-uid"), True, id="the remote pod"),
        pytest.param(About("ReplicaSet", "shop", "web", "set-uid"), True, id="the ReplicaSet"),
        pytest.param(About("Job", "shop", "web", "job-uid"), True, id="the Job"),
        pytest.param(About("Pod", "shop", "web-x1", ""), True, id="no UID is said"),
        pytest.param(About("Pod", "shop", "web-x1", "other"), False, id="another one of the same name"),
        pytest.param(About("Pod", "elsewhere", "web-x1", "pod-uid"), False, id="another namespace"),
        pytest.param(About("Pod", "shop", "foreign", "foreign-uid"), False, id="somebody else's"),
        pytest.param(About("Pod", "shop", "unlabelled", "unlabelled-uid"), False, id="without our label"),
        pytest.param(About("Pod", "shop", "orphan", "orphan-uid"), False, id="its local pod is gone"),
    ],
)
def test_whose_event_it_is(about: About, ours: bool) -> None:
    async def test() -> None:
        found = unconnected().events._pod_of(about)
        assert (found is not None) is ours
        assert found is None or found.key.name == "web"

    virtual_time.run(test())


def raw(number: int, kind: str = "Pod") -> bytes:
    about = {"kind": kind, "namespace": "shop", "name": f"foreign-{number}", "uid": str(number)}
    return msgspec.json.encode({"metadata": {"uid": f"event-{number}"}, "involvedObject": about, "type": "Warning"})


def test_events_of_others_are_held_for_a_moment_and_within_a_bound() -> None:
    async def test() -> None:
        events = unconnected().events
        for number in range(10 * remote_events.EARLY):
            events.take(raw(number), True)
        assert len(events._early) == remote_events.EARLY
        task = asyncio.create_task(events._look_again())
        await asyncio.sleep(Timing().early + 2 * Timing().look_again)
        assert not events._early
        assert not events._told
        task.cancel()

    virtual_time.run(test())


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(raw(1, kind="Node"), id="of another kind of object"),
        pytest.param(b'{"metadata": null}', id="no event"),
        pytest.param(b"{", id="no JSON"),
    ],
)
def test_what_is_not_taken(content: bytes) -> None:
    async def test() -> None:
        events = unconnected().events
        events.take(content, True)
        assert not events._early

    virtual_time.run(test())


def test_what_waits_to_be_told_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_events, "REMEMBERED", 10)

    async def test() -> None:
        events = unconnected().events
        for number in range(50):
            event = remote_event("shop", f"e{number}")
            event["metadata"]["uid"] = f"event-{number}"
            events.take(msgspec.json.encode(event), True)
        assert len(events._told) == 10
        assert events.counts.dropped == 40

    virtual_time.run(test())


def test_events_that_are_told_as_one_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_events, "PARTS", 5)

    async def test() -> None:
        events = unconnected().events
        for number in (*range(8), 7, 7):
            event = remote_event("shop", "e", kind="ReplicaSet", name="web", uid="set-uid", count=number + 1)
            event |= {"reason": "FailedCreate", "message": f'pods "web-abcd{number}" is forbidden'}
            event["metadata"]["uid"] = f"event-{number}"
            events.take(msgspec.json.encode(event), True)
        (told,) = events._told.values()
        assert told.wanted is not None
        assert told.wanted["count"] == sum(range(1, 9)), "each once, the latest count of it"
        assert len(told.parts) == 5
        assert told.count is None, "what the local cluster says is not known"

    virtual_time.run(test())


def test_none_asks_for_nothing() -> None:
    virtual_time.run(unconnected(mode="none").events.run())


def test_the_setting() -> None:
    flags = {"remote_kubeconfig": "remote"}
    assert load_settings(flags, {}, None).events == "warnings"
    assert load_settings({**flags, "events": "none"}, {}, None).events == "none"
    with pytest.raises(SettingsError, match=r"events 'some' is not valid .one of warnings, all, none"):
        load_settings(flags, {"FARLET_EVENTS": "some"}, None)


# ---------------------------------------------------------------------- telling it


class Clusters:
    """Both API servers as an administrator sees them."""

    def __init__(self, local: Client, remote: Client, namespace: str) -> None:
        self.local, self.remote, self.namespace = local, remote, namespace

    def rig(self, **options: Any) -> Rig:
        return Rig(local=self.local, remote=options.pop("remote", self.remote), namespace=self.namespace, **options)

    async def happen(self, name: str, /, **options: Any) -> None:
        await self.remote.create(EVENTS.path(self.namespace), remote_event(self.namespace, name, **options))

    async def happen_again(self, name: str, count: int) -> None:
        await self.remote.patch(EVENTS.path(self.namespace, name), {"count": count}, PatchKind.MERGE)

    async def told(self) -> dict[str, tuple[int, str]]:
        """Message -> count and resourceVersion of what is told on the local pod."""
        items = (await self.local.get(EVENTS.path(self.namespace)))["items"]
        assert all(item["involvedObject"]["uid"] == "local-uid" for item in items)
        return {item["message"]: (item["count"], item["metadata"]["resourceVersion"]) for item in items}

    async def until_told(self, name: str, count: int = 1) -> None:
        async with asyncio.timeout(60):
            while (await self.told()).get(f"Back-off of {name}", (0, ""))[0] != count:  # noqa: ASYNC110 - a server
                await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def clusters(local: Cluster, remote: Cluster, namespace: str) -> AsyncIterator[Clusters]:
    async with Client(load(local.kubeconfig)) as near, Client(load(remote.kubeconfig), name="remote") as far:
        yield Clusters(near, far, namespace)
    await asyncio.sleep(0.2)  # a TLS connection that is closed still says goodbye, for which aiohttp does not wait


@pytest.mark.cluster
def test_told_once_with_a_count_that_follows_and_few_writes(local: Cluster, remote: Cluster, namespace: str) -> None:
    async def test() -> None:
        async with clusters(local, remote, namespace) as both:
            await both.happen("before", count=3)
            await both.happen("foreign", name="foreign", uid="foreign-uid")
            async with both.rig().running() as events:
                await both.until_told("before", 3)
                await both.happen("after")
                await both.happen("of-the-set", kind="ReplicaSet", name="web", uid="set-uid")
                await both.until_told("after")
                await both.until_told("of-the-set")
                await until(lambda: events.counts.written >= 3, "the answers to the writes are there too")
                assert events.counts.written == 3
                for count in range(2, 12):
                    await both.happen_again("after", count)
                await both.until_told("after", 11)
                assert events.counts.written <= 5, "ten times within a second, and one write in a second"
            assert len(await both.told()) == 3, "nothing of others"

    run(test())


@pytest.mark.cluster
def test_after_a_restart_nothing_is_written_but_what_is_new(local: Cluster, remote: Cluster, namespace: str) -> None:
    async def test() -> None:
        async with clusters(local, remote, namespace) as both:
            for name in ("a", "b"):
                await both.happen(name, count=2)
            async with both.rig().running():
                await both.until_told("a", 2)
                await both.until_told("b", 2)
            before = await both.told()
            async with both.rig().running() as events:
                await until(lambda: all(told.count for told in events._told.values()), "both are looked up")
                assert len(events._told) == 2
                assert events.counts.written == 0
            assert await both.told() == before
            await both.happen_again("a", 5)
            await both.happen("while-away")
            async with both.rig().running() as events:
                await both.until_told("a", 5)
                await both.until_told("while-away")
                await until(lambda: all(told.wanted is None for told in events._told.values()), "all is written")
                await until(lambda: events.counts.written >= 2, "the answers to the writes are there too")
                assert events.counts.written == 2
            assert (await both.told())["Back-off of b"] == before["Back-off of b"]

    run(test())


@pytest.mark.cluster
def test_an_event_that_comes_before_what_it_is_about(local: Cluster, remote: Cluster, namespace: str) -> None:
    async def test() -> None:
        async with clusters(local, remote, namespace) as both:
            rig = both.rig()
            async with rig.running() as events:
                await both.happen("early", name="web-x2", uid="pod-2")
                await until(lambda: events._early, "it is held")
                rig.pods.put(envelope("Pod", namespace, "web-x2", "pod-2", "local-uid"))
                await both.until_told("early")
                assert not events._early

    run(test())


@pytest.mark.cluster
def test_a_local_event_that_is_gone_is_made_again(local: Cluster, remote: Cluster, namespace: str) -> None:
    """Events live for an hour; what goes on for longer is told for longer."""

    async def test() -> None:
        async with clusters(local, remote, namespace) as both:
            await both.happen("a")
            async with both.rig().running():
                await both.until_told("a")
                await both.local.request("DELETE", EVENTS.path(namespace))
                await both.happen_again("a", 2)
                await both.until_told("a", 2)

    run(test())


@pytest.mark.cluster
@pytest.mark.parametrize(("mode", "carried"), [("warnings", False), ("all", True)])
def test_normal_events(local: Cluster, remote: Cluster, namespace: str, mode: Mode, carried: bool) -> None:
    async def test() -> None:
        async with clusters(local, remote, namespace) as both:
            normal = remote_event(namespace, "normal") | {"type": "Normal"}
            async with both.rig(mode=mode).running():
                await both.remote.create(EVENTS.path(namespace), normal)
                await both.happen("warning")
                await both.until_told("warning")
                if carried:
                    await both.until_told("normal")
                assert ("Back-off of normal" in await both.told()) is carried

    run(test())


@pytest.mark.cluster
def test_a_local_namespace_that_is_not_there(local: Cluster, remote: Cluster, namespace: str) -> None:
    """As when it was deleted meanwhile: it is dropped, and others are still told."""

    async def test() -> None:
        async with clusters(local, remote, namespace) as both:
            rig = both.rig()
            rig.local_pods.put(envelope("Pod", "no-such-namespace", "lost", "lost-uid"))
            rig.pods.put(envelope("Pod", namespace, "lost-x1", "lost-x1-uid", "lost-uid"))
            async with rig.running() as events:
                await both.happen("lost", name="lost-x1", uid="lost-x1-uid")
                await until(lambda: events.counts.dropped == 1, "it is dropped")
                await both.happen("a")
                await both.until_told("a")

    run(test())


# ---------------------------------------------------------------------- following


@pytest.mark.cluster
def test_a_watch_that_breaks_goes_on_where_it_was(local: Cluster, remote: Cluster, namespace: str) -> None:
    async def test() -> None:
        async with clusters(local, remote, namespace) as both, in_space(remote, namespace) as space:
            rig = both.rig(remote=space.through_relay)
            async with rig.running():
                await both.happen("a")
                await both.until_told("a")
                space.relay.cut()
                await both.happen("b")
                await both.until_told("b")
                assert rig.feed.lists == 1

    run(test())


@pytest.mark.cluster
@pytest.mark.parametrize("how", ["answer", "line"])
def test_lost_history_is_listed_again_and_nothing_is_told_twice(
    local: Cluster, remote: Cluster, namespace: str, how: str
) -> None:
    async def test() -> None:
        async with clusters(local, remote, namespace) as both, in_space(remote, namespace) as space:
            rig = both.rig(remote=space.through_relay)
            async with rig.running() as events:
                await both.happen("a")
                await both.until_told("a")
                line = msgspec.json.encode({"type": "ERROR", "object": EXPIRED}) + b"\n"
                if how == "answer":
                    space.relay.refuse = lambda query: status(410, "Expired") if is_resumed_watch(query) else None
                else:
                    space.relay.filter = lambda content: line if b'"type"' in content[:9] else content
                space.relay.cut()
                await both.happen("b")
                await until(lambda: rig.feed.lists > 1, "it is listed again")
                space.relay.refuse, space.relay.filter = lambda query: None, lambda content: content
                space.relay.cut()
                await both.until_told("b")
                await both.happen("c")
                await both.until_told("c")
                await until(lambda: events.counts.written >= 3, "the answers to the writes are there too")
                assert events.counts.written == 3

    run(test())


@pytest.mark.cluster
def test_a_watch_that_hangs_is_replaced(local: Cluster, remote: Cluster, namespace: str) -> None:
    timing = Timing(backoff=(0.05, 0.3), watch=(1, 1), grace=1.0)

    async def test() -> None:
        async with (
            clusters(local, remote, namespace) as both,
            in_space(remote, namespace) as space,
            both.rig(remote=space.through_relay, timing=timing).running(),
        ):
            space.relay.hang()
            await both.happen("a")
            await both.until_told("a")

    run(test())


@pytest.mark.cluster
def test_a_server_whose_history_is_shorter_than_ours_is_noticed(
    local: Cluster, remote: Cluster, namespace: str
) -> None:
    timing = Timing(backoff=(0.05, 0.3), watch=(1, 1), grace=1.0)

    async def test() -> None:
        async with clusters(local, remote, namespace) as both:
            rig = both.rig(timing=timing)
            async with rig.running():
                rig.feed._resource_version = "999999999"
                await until(lambda: rig.feed.lists > 1, "it is listed again")

    run(test())


@pytest.mark.cluster
def test_a_long_list_comes_in_chunks(
    local: Cluster, remote: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_events, "_PAGE", "2")

    async def test() -> None:
        async with clusters(local, remote, namespace) as both:
            for number in range(5):
                await both.happen(f"e{number}")
            async with both.rig().running() as events:
                await until(lambda: events.counts.written == 5, "all are told")
            assert len(await both.told()) == 5

    run(test())


@pytest.mark.cluster
def test_a_right_that_is_missing_is_said_once_and_waited_for(
    local: Cluster, remote: Cluster, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with clusters(local, remote, namespace) as both, in_space(remote, namespace) as space:
            space.relay.refuse = lambda query: status(403, "Forbidden")
            rig = both.rig(remote=space.through_relay)
            task = asyncio.create_task(rig.events.run())
            await until(lambda: len(space.relay.queries) > 3, "it is asked for again")
            assert len([line for line in caplog.messages if "manifests/" in line]) == 1
            space.relay.refuse = lambda query: None
            await both.happen("a")
            await both.until_told("a")
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    run(test())
