"""Remote namespaces that go and come back behind our back, step by step: what was seen before is not believed for long,
and whoever waits is told."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from app.kube import config
from app.kube.client import Client
from app.kube.informer import Informer
from app.kube.resources import NAMESPACE_OFFLOADINGS, NAMESPACES, NODES
from app.namespaces.controller import NamespaceController, NotMapped
from app.namespaces.extended import ExtendedNamespaces
from app.namespaces.mapping import NamespaceMap, remote_name
from app.namespaces.offloading import CONFLICT
from app.namespaces.wishes import Wishes
from devcluster.cluster import Cluster

pytestmark = pytest.mark.cluster


class Extended:
    """The parts that look after the remote namespace of one local one, without the rest of Farlet."""

    def __init__(self, local: Client, remote: Client, namespace: str) -> None:
        self.there, self.namespace = remote, namespace
        origin = uuid.uuid4().hex[:8]
        self.far = remote_name(namespace, origin)
        self.local_namespaces = Informer(local, NAMESPACES, field_selector=f"metadata.name={namespace}")
        wishes = Wishes(
            NamespaceMap(origin, {namespace: None}, "far"),
            local=local,
            namespaces=self.local_namespaces,
            offloadings=Informer(local, NAMESPACE_OFFLOADINGS),
            own_node=Informer(local, NODES),
        )
        self.controller = NamespaceController(remote, wishes)
        self.extensions = ExtendedNamespaces(
            local=local,
            cluster="remote",
            wishes=wishes,
            namespaces=self.controller,
            local_namespaces=self.local_namespaces,
            offloadings=Informer(local, NAMESPACE_OFFLOADINGS),
            places=lambda _: {},
            departures=NoDepartures(),
        )

    async def resolve(self) -> str:
        return await self.controller.resolve(self.namespace)

    async def reconcile(self) -> None:
        await self.extensions.reconcile(self.namespace)


class NoDepartures:
    """Nothing is ever over."""

    def keep(self, remote_namespace: str) -> None:
        pass

    def departing(self, remote_namespace: str) -> str | None:
        return None


@contextlib.asynccontextmanager
async def extended(local: Cluster, remote: Cluster, namespace: str) -> AsyncIterator[Extended]:
    async with (
        Client(config.load(local.kubeconfig, None), name="local") as here,
        Client(config.load(remote.kubeconfig, None), name="remote") as there,
    ):
        found = Extended(here, there, namespace)
        following = asyncio.create_task(found.local_namespaces.run())
        try:
            await found.local_namespaces.wait_synced()
            yield found
        finally:
            following.cancel()
            await asyncio.wait((following,))
            await there.delete(NAMESPACES.path(name=found.far), missing_ok=True)


Check = Callable[[Extended], Awaitable[None]]


def run(local: Cluster, remote: Cluster, namespace: str, check: Check) -> None:
    async def between() -> None:
        async with extended(local, remote, namespace) as found, asyncio.timeout(120):
            await check(found)

    asyncio.run(between())


def test_what_is_said_while_it_is_looked_at_is_heeded(local: Cluster, remote: Cluster, namespace: str) -> None:
    """An answer that was on its way when somebody said that the namespace is gone may be from before that."""

    async def check(found: Extended) -> None:
        def answers() -> int:
            return sum(found.there.requests.counts().values())

        await found.resolve()
        found.controller.forget(found.far)
        before = answers()
        look = asyncio.create_task(found.resolve())
        while not found.there.limiter.in_flight:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)
        found.controller.forget(found.far)
        assert await look == found.far
        assert answers() == before + 2, "it is looked at once more"
        assert await found.resolve() == found.far
        assert answers() == before + 2, "and believed then"

    run(local, remote, namespace, check)


def test_who_waits_is_told_when_it_is_there_again(local: Cluster, remote: Cluster, namespace: str) -> None:
    """Also if it is the same one as before: pods that came meanwhile wait for that."""
    told: list[None] = []

    async def check(found: Extended) -> None:
        found.extensions.listen(lambda: told.append(None))
        await found.reconcile()
        assert len(told) == 1
        await found.reconcile()
        assert len(told) == 1, "nothing new"

        await asyncio.to_thread(remote.kubectl, "delete", "namespace", found.far, timeout=60)
        await asyncio.to_thread(remote.kubectl, "create", "namespace", found.far)  # somebody else was quicker
        found.controller.forget(found.far)
        await found.reconcile()
        with pytest.raises(NotMapped) as refused:
            await found.resolve()
        assert refused.value.reason == CONFLICT
        assert len(told) == 1

        await asyncio.to_thread(remote.kubectl, "delete", "namespace", found.far, timeout=60)
        while len(told) == 1:
            await found.reconcile()
            await asyncio.sleep(0.1)

    run(local, remote, namespace, check)


def test_it_is_not_made_again_in_the_same_moment(local: Cluster, remote: Cluster, namespace: str) -> None:
    """What Kubernetes makes in every namespace would be refused by whoever has not heard yet, and not tried again."""

    async def check(found: Extended) -> None:
        assert await found.resolve() == found.far, "nothing is known of one before: it is made at once"
        await asyncio.to_thread(remote.kubectl, "delete", "namespace", found.far, timeout=60)
        found.controller.forget(found.far)
        with pytest.raises(NotMapped, match="is being deleted") as refused:
            await found.resolve()
        assert refused.value.again
        await asyncio.sleep(refused.value.again)
        assert await found.resolve() == found.far

    run(local, remote, namespace, check)
