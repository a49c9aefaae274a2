"""The engine of reflection by itself, step by step: a remote namespace that becomes another one, a virtual node that is
no more, and more namespaces than are followed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from app import names
from app.kube import config
from app.kube.client import Client
from app.kube.events import EventRecorder
from app.kube.informer import DEFAULT_TIMING
from app.reflection.configmaps import ConfigMaps
from app.reflection.copies import Owner
from app.reflection.engine import Reflector
from app.reflection.extensions import Extension
from app.reflection.rules import Rules
from devcluster.cluster import Cluster
from tests.cluster.objects import Object, apply, get
from tests.cluster.sockets import run
from tests.eventually import eventually

pytestmark = pytest.mark.cluster


class Asked:
    """Namespaces that are extended as the test says."""

    def __init__(self) -> None:
        self.mapped: dict[str, str] = {}
        self.pods: set[Extension] = set()
        """Where pods are."""
        self.listeners: list[Callable[[], None]] = []

    def map(self, **mapped: str) -> None:
        self.mapped = mapped
        for told in self.listeners:
            told()

    def current(self) -> Mapping[str, str]:
        return dict(self.mapped)

    def listen(self, on_change: Callable[[], None]) -> None:
        self.listeners.append(on_change)

    async def has_ended(self, namespace: str, remote_namespace: str) -> bool:
        return self.mapped.get(namespace) != remote_namespace

    def runs_in(self, namespace: str, remote_namespace: str) -> bool:
        return Extension(namespace, remote_namespace) in self.pods

    def in_use(self, remote_namespace: str) -> bool:
        return any(each.remote_namespace == remote_namespace for each in self.pods)

    def lost(self, namespace: str) -> None:
        pass


class Engine:
    """What virtual nodes of one local cluster reflect; one of them at a time."""

    def __init__(self, local: Cluster, remote: Cluster) -> None:
        self.local, self.remote = local, remote
        self.origin = uuid.uuid4().hex[:8]
        self.asked = Asked()

    @contextlib.asynccontextmanager
    async def reflector(self, node: str, most: int = 200) -> AsyncIterator[Reflector]:
        """Not running yet."""
        owner = Owner(self.origin, node)
        async with (
            Client(config.load(self.local.kubeconfig, None), name="local") as here,
            Client(config.load(self.remote.kubeconfig, None), name="remote") as there,
            EventRecorder(here, "farlet", instance=node) as recorder,
        ):
            yield Reflector(
                local=here,
                remote=there,
                owner=owner,
                kinds=[ConfigMaps(owner, Rules())],
                remote_cluster=self.origin,
                extensions=self.asked,
                in_use=self.asked.in_use,
                recorder=recorder,
                may_write=lambda: True,
                timing=DEFAULT_TIMING,
                most=most,
            )

    def config(self, namespace: str, value: str, *configs: str) -> None:
        """Make local ConfigMaps, or change them."""
        made = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}} for name in configs]
        apply(self.local, namespace, *(json.dumps({**each, "data": {"v": value}}) for each in made))

    def copies(self, namespace: str) -> dict[str, tuple[str, str]]:
        """The value of each, and the node that keeps it; but for the root CA's."""
        items = get(self.remote, namespace, "configmaps", "-l", f"{names.LABEL_ORIGIN}={self.origin}")["items"]
        return {
            item["metadata"]["name"]: (item["data"]["v"], item["metadata"]["labels"].get(names.LABEL_NODE, ""))
            for item in items
            if "v" in item["data"]
        }


@contextlib.asynccontextmanager
async def running(reflector: Reflector) -> AsyncIterator[None]:
    """As long as it leads."""
    task = asyncio.create_task(reflector.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def until(probe: Callable[[], object], what: str, wanted: object) -> None:
    await asyncio.to_thread(eventually, probe, what, until=wanted.__eq__)


def listed(reflector: Reflector) -> dict[tuple[bool, str], int]:
    """How many lists came to their end, as the figures have it."""
    found: dict[tuple[bool, str], int] = {}
    for remote in (False, True):
        for informer in reflector.informers(remote=remote):
            key = remote, informer.resource.plural
            found[key] = found.get(key, 0) + informer.counts.lists
    return found


def never_fell(before: Mapping[tuple[bool, str], int], after: Mapping[tuple[bool, str], int]) -> None:
    assert all(after.get(key, 0) >= count for key, count in before.items()), (before, after)


def test_both_remote_namespaces_are_kept_while_pods_are_in_both(
    local: Cluster, remote: Cluster, namespace: str
) -> None:
    """A pod that is evicted from the old one is only ready in the new one with what it needs; until then the others
    stay where they are, for as long as a disruption budget wants, and however often Farlet is started meanwhile."""
    engine, other = Engine(local, remote), f"{namespace}-other"
    remote.kubectl("create", "namespace", other)

    async def followed(reflector: Reflector, value: str) -> None:
        await asyncio.to_thread(engine.config, namespace, value, "a")
        for place in (namespace, other):
            await until(lambda p=place: engine.copies(p), f"followed in {place}", {"a": (value, "far")})  # type: ignore[misc]
            assert reflector.keeps(place)

    async def check() -> None:
        async with engine.reflector("far") as reflector, running(reflector):
            await asyncio.to_thread(engine.config, namespace, "1", "a", "b")
            engine.asked.map(**{namespace: namespace})
            await until(lambda: engine.copies(namespace), "made", {"a": ("1", "far"), "b": ("1", "far")})
            engine.asked.pods.add(Extension(namespace, namespace))
            engine.asked.map(**{namespace: other})
            await until(lambda: engine.copies(other), "made in the new one", {"a": ("1", "far"), "b": ("1", "far")})
            await asyncio.to_thread(local.kubectl, "-n", namespace, "delete", "configmap", "b")
            await followed(reflector, "2")
        # another process
        async with engine.reflector("far") as reflector:
            async with running(reflector):
                await followed(reflector, "3")
                before = listed(reflector)

                engine.asked.pods.clear()
                await until(lambda: engine.copies(namespace), "the old one is cleaned", {})
                await until(lambda: reflector.keeps(namespace), "and left", False)
                assert reflector.keeps(other)
                assert engine.copies(other) == {"a": ("3", "far")}
                await asyncio.to_thread(engine.config, namespace, "4", "a")
                await until(lambda: engine.copies(other), "the new one is followed on", {"a": ("4", "far")})
                never_fell(before, listed(reflector))
            # and leads again
            never_fell(before, listed(reflector))
            async with running(reflector):
                await asyncio.to_thread(engine.config, namespace, "5", "a")
                await until(lambda: engine.copies(other), "followed", {"a": ("5", "far")})
            assert len(engine.asked.listeners) == 2, "one for each of them, however often it leads"
            assert listed(reflector)[True, "configmaps"] > before[True, "configmaps"]

    try:
        run(check(), 180)
    finally:
        remote.kubectl("delete", "namespace", other, "--wait=false")


def test_what_a_virtual_node_left_behind_is_taken_over(
    local: Cluster, remote: Cluster, namespace: str, virtual_node: str
) -> None:
    """Copies of a node that is there are left to it; of one that is gone, or of none, they are kept like our own."""
    engine = Engine(local, remote)
    node: Object = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": virtual_node, "labels": {names.LABEL_REMOTE_CLUSTER: engine.origin}},
        "spec": {"unschedulable": True},
    }
    first = ("1", virtual_node)

    async def check() -> None:
        engine.asked.map(**{namespace: namespace})
        async with engine.reflector(virtual_node) as reflector, running(reflector):
            await asyncio.to_thread(engine.config, namespace, "1", "a", "b", "nobodys")
            await until(lambda: engine.copies(namespace), "made", dict.fromkeys(["a", "b", "nobodys"], first))
        async with engine.reflector("second") as reflector, running(reflector):
            await asyncio.to_thread(engine.config, namespace, "2", "a", "nobodys")
            await asyncio.to_thread(local.kubectl, "-n", namespace, "delete", "configmap", "b")
            bare = ["label", "configmap", "nobodys", f"{names.LABEL_NODE}-"]
            await asyncio.to_thread(remote.kubectl, "-n", namespace, *bare)
            kept = {"a": first, "b": first, "nobodys": ("2", "second")}
            await until(lambda: engine.copies(namespace), "only nobody's is taken", kept)
            await asyncio.to_thread(local.kubectl, "delete", "node", virtual_node)
            taken = {"a": ("2", "second"), "nobodys": ("2", "second")}
            await until(lambda: engine.copies(namespace), "all are", taken)

    local.kubectl("apply", "-f", "-", stdin=json.dumps(node))
    try:
        run(check(), 180)
    finally:
        local.kubectl("delete", "node", virtual_node, "--ignore-not-found", "--wait=false")


def test_a_namespace_too_many_is_told(
    local: Cluster, remote: Cluster, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine, other = Engine(local, remote), f"{namespace}-other"
    local.kubectl("create", "namespace", other)
    about = f"involvedObject.kind=Namespace,involvedObject.name={other}"

    def events() -> list[str]:
        return [item["reason"] for item in get(local, "default", "events", "--field-selector", about)["items"]]

    async def check() -> None:
        async with engine.reflector("far", most=1) as reflector, running(reflector):
            await asyncio.to_thread(engine.config, namespace, "1", "a")
            engine.asked.map(**{namespace: namespace})
            await until(lambda: engine.copies(namespace), "followed", {"a": ("1", "far")})
            runs = reflector.spaces_queue.stats().runs
            for _ in range(2):
                engine.asked.map(**{namespace: namespace, other: namespace})
                runs += 2
                while reflector.spaces_queue.stats().runs < runs:  # noqa: ASYNC110 - nothing tells of it
                    await asyncio.sleep(0.1)
            await until(events, "it is said", [names.REFLECTION_FAILED])
            assert len(reflector.informers(remote=True)) == 1

    try:
        with caplog.at_level(logging.ERROR):
            run(check(), 180)
        assert len([record for record in caplog.records if "which is the most" in record.message]) == 1
    finally:
        local.kubectl("delete", "namespace", other, "--wait=false")
