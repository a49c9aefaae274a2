"""Informers of single namespaces look like one informer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from app.kube.client import Client
from app.kube.config import load
from app.kube.errors import Forbidden
from app.kube.informer import Informer, Timing
from app.kube.informers import Cache, Informers
from app.kube.objects import Envelope, Key
from app.kube.resources import CONFIG_MAPS
from devcluster.cluster import Cluster

pytestmark = pytest.mark.cluster

QUICK = Timing(backoff=(0.05, 0.3))
BY_NAME = "name"


def informers(client: Client, namespaces: list[str]) -> Informers:
    def informer(namespace: str) -> Informer:
        indexers = {BY_NAME: lambda envelope: envelope.metadata.name}
        return Informer(client, CONFIG_MAPS, namespace=namespace, indexers=indexers, timing=QUICK)

    return Informers(CONFIG_MAPS, namespaces, informer)


@contextlib.asynccontextmanager
async def following(cache: Cache) -> AsyncIterator[None]:
    task = asyncio.create_task(cache.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def until(probe: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(30):
            while not probe():  # noqa: ASYNC110 - what is waited for happens in code that knows no event
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"{what}: not within 30 s") from None


@pytest.fixture
def reader(remote: Cluster, namespace: str) -> Path:
    """Credentials that may read ConfigMaps in one namespace."""
    remote.kubectl("-n", namespace, "create", "role", "reader", "--verb=list,watch", "--resource=configmaps")
    remote.kubectl(
        "-n", namespace, "create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={namespace}:reader"
    )
    return remote.service_account_kubeconfig(namespace, "reader")


def test_several_are_one(remote: Cluster, namespace: str) -> None:
    other = "default"
    name = f"box-{namespace}"

    def make(space: str) -> None:
        remote.kubectl("-n", space, "create", "configmap", name)

    async def scenario() -> None:
        told: list[str] = []

        def on_change(key: Key, _old: Envelope | None, new: Envelope | None) -> None:
            if key.name == name:
                told.append(f"{key.namespace} {'there' if new else 'gone'}")

        async with Client(load(remote.kubeconfig), name="remote") as client:
            cache = informers(client, [namespace, other])
            cache.listen(on_change)
            assert not cache.synced
            async with following(cache):
                await until(lambda: cache.synced, "both are read")
                assert cache.error is None
                assert told == [f"{namespace} there"]
                await asyncio.to_thread(make, other)
                await until(lambda: len(told) == 2, "the second namespace is followed")
                found = {envelope.metadata.namespace for envelope in cache.by_index(BY_NAME, name)}
                assert found == {namespace, other}
                both = cache.each_by_index(BY_NAME, [name, "none", name])
                assert [{envelope.key.namespace for envelope in each} for each in both] == [found, set(), found]
                assert found <= {envelope.metadata.namespace for envelope in cache.list()}
                assert len(cache) == len(cache.list())
                for space in (namespace, other):
                    envelope = cache.get(Key(space, name))
                    assert envelope is not None
                    assert envelope.metadata.namespace == space
                assert cache.get(Key("kube-system", "kube-root-ca.crt")) is None, "it is not one of them"
        await asyncio.sleep(0.2)  # a TLS connection that is closed still says goodbye, for which aiohttp does not wait

    make(namespace)
    try:
        asyncio.run(scenario())
    finally:
        remote.kubectl("-n", other, "delete", "configmap", name, "--ignore-not-found")


def test_one_that_may_not_be_read_is_said(remote: Cluster, namespace: str, reader: Path) -> None:
    async def scenario() -> None:
        async with Client(load(reader), name="remote") as client:
            cache = informers(client, [namespace, "default"])
            async with following(cache):
                await until(lambda: len(cache) > 0 and cache.error is not None, "one is read, the other is refused")
                assert isinstance(cache.error, Forbidden)
                assert not cache.synced
        await asyncio.sleep(0.2)

    asyncio.run(scenario())
