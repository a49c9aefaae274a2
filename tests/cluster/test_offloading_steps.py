"""What keeps a NamespaceOffloading true, step by step and without the rest of Farlet: what is said and waited for when
a remote cluster refuses or does not answer, and what is left behind when an object goes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from app import names
from app.kube import config
from app.kube.client import Client
from app.kube.errors import Unreachable
from app.kube.events import EventRecorder
from app.kube.informer import Informer
from app.kube.resources import NAMESPACE_OFFLOADINGS, NAMESPACES, NODES
from app.namespaces.cleanup import NamespaceCleaner
from app.namespaces.controller import NamespaceController
from app.namespaces.extended import ExtendedNamespaces
from app.namespaces.mapping import NamespaceMap
from app.namespaces.offloading import DRAINING, NOT_GIVEN
from app.namespaces.wishes import Wishes
from app.operator.controller import OffloadingController
from devcluster.cluster import Cluster
from tests.cluster.farlet import install_rights
from tests.cluster.objects import Object, get
from tests.cluster.test_namespace_offloading import entry, offload

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("labels")]


@pytest.fixture
def offloaded(local: Cluster, remote: Cluster, namespace: str, virtual_node: str) -> Iterator[str]:
    """A namespace with an object that asks for one node, which nobody looks after, and has a finalizer as with an
    operator."""
    install_rights(local, remote)
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [virtual_node]}]}
    offload(local, namespace, clusterSelector={"nodeSelectorTerms": [term]})
    finalizers(local, namespace, [names.FINALIZER_OFFLOADING])
    yield namespace
    if local.kubectl("-n", namespace, "get", "nso", "-o", "name").stdout:
        finalizers(local, namespace, None)


def finalizers(local: Cluster, namespace: str, wanted: list[str] | None) -> None:
    body = json.dumps({"metadata": {"finalizers": wanted}})
    local.kubectl("-n", namespace, "patch", "nso", names.OFFLOADING, "--type=merge", "-p", body)


def delete(local: Cluster, namespace: str) -> None:
    local.kubectl("-n", namespace, "delete", "nso", names.OFFLOADING, "--wait=false")


@contextlib.asynccontextmanager
async def followed(*informers: Informer) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(informer.run()) for informer in informers]
    try:
        async with asyncio.timeout(60):
            for informer in informers:
                await informer.wait_synced()
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


class Parts:
    """Those of ``farlet run`` that look after one namespace."""

    def __init__(self, local: Client, remote: Client, recorder: EventRecorder, namespace: str, node: str) -> None:
        self.local_namespaces = Informer(local, NAMESPACES, field_selector=f"metadata.name={namespace}")
        self.offloadings = Informer(local, NAMESPACE_OFFLOADINGS, namespace=namespace)
        wishes = Wishes(
            NamespaceMap("0a1b2c3d", {}, node),
            local=local,
            namespaces=self.local_namespaces,
            offloadings=self.offloadings,
            own_node=Informer(local, NODES, field_selector=f"metadata.name={node}"),
        )
        controller = NamespaceController(remote, wishes)
        self.cleaner = NamespaceCleaner(
            local=local,
            remote=remote,
            local_namespaces=self.local_namespaces,
            namespaces=controller,
            wishes=wishes,
            places=lambda _: {},
            local_pod=lambda _: None,
            reflected=lambda _: False,
            recorder=recorder,
            grace=0,
        )
        self.extensions = ExtendedNamespaces(
            local=local,
            cluster="remote",
            wishes=wishes,
            namespaces=controller,
            local_namespaces=self.local_namespaces,
            offloadings=self.offloadings,
            places=lambda _: {},
            departures=self.cleaner,
        )


@contextlib.asynccontextmanager
async def parts(local: Cluster, remote: Path, namespace: str, node: str) -> AsyncIterator[Parts]:
    """:param remote: a kubeconfig."""
    async with (
        Client(config.load(local.kubeconfig, None), name="local") as here,
        Client(config.load(remote, None), name="remote") as there,
        EventRecorder(here, "farlet", instance=node) as recorder,
    ):
        found = Parts(here, there, recorder, namespace, node)
        async with followed(found.local_namespaces, found.offloadings):
            yield found


def nobody_there(remote: Cluster, folder: Path) -> Path:
    """A kubeconfig that leads to a port where nobody listens."""
    content = remote.kubectl("config", "view", "--raw", "--flatten", "-o", "json").stdout
    found: Object = json.loads(content)
    for cluster in found["clusters"]:
        cluster["cluster"]["server"] = "https://127.0.0.1:1"
    file = folder / "away.kubeconfig"
    file.write_text(json.dumps(found))
    return file


def test_a_remote_cluster_that_does_not_answer_is_told_of(
    local: Cluster, remote: Cluster, offloaded: str, virtual_node: str, tmp_path: Path
) -> None:
    async def check() -> None:
        async with parts(local, nobody_there(remote, tmp_path), offloaded, virtual_node) as found:
            with pytest.raises(Unreachable):
                await found.extensions.reconcile(offloaded)
            assert (found.cleaner.departing("far") or "").endswith("looked at")
            with pytest.raises(Unreachable):
                await found.cleaner.reconcile("far")
            assert "127.0.0.1" in (found.cleaner.departing("far") or "")

    asyncio.run(check())
    said = entry(local, offloaded, virtual_node)
    assert (said["ready"], said["reason"]) == (False, "Failed")
    assert "127.0.0.1" in said["message"]


def test_a_refusal_is_no_proof_that_a_namespace_was_left(
    local: Cluster, remote: Cluster, offloaded: str, virtual_node: str
) -> None:
    """The right may come back in a moment; who waits is told what is missing, and what else can be done."""
    nothing = remote.service_account_kubeconfig(offloaded, "may-nothing")

    async def check() -> None:
        async with parts(local, nothing, offloaded, virtual_node) as found:
            far = f"{offloaded}-far"
            assert found.cleaner.departing(far)
            for _ in range(2):
                assert (await found.cleaner.reconcile(far)).after
                left = found.cleaner.departing(far) or ""
                assert "cannot get resource" in left
                assert names.ANNOTATION_ABANDON in left
            # nobody waits for it: tried a few times, and not for ever
            tries = 0
            while (await found.cleaner.reconcile("another")).after:
                tries += 1
            assert 2 < tries < 10

    asyncio.run(check())


def test_an_object_goes_with_its_label_and_waits_for_nobody_who_extended_nothing(
    local: Cluster, offloaded: str
) -> None:
    """Also if the label came only just now, and the cache has not heard of it."""
    said = [
        {"node": local.nodes()[0]["metadata"]["name"], "cluster": "c", "ready": False, "reason": NOT_GIVEN},
        {"node": "no-such-node", "cluster": "c", "ready": False, "reason": DRAINING},
    ]
    body = json.dumps({"status": {"clusters": said}})
    patch = ["patch", "nso", names.OFFLOADING, "--subresource=status", "--type=merge", "-p", body]
    local.kubectl("-n", offloaded, *patch)

    async def check() -> None:
        async with Client(config.load(local.kubeconfig, None), name="local") as here:
            namespaces = Informer(here, NAMESPACES, field_selector=f"metadata.name={offloaded}")
            offloadings = Informer(here, NAMESPACE_OFFLOADINGS, namespace=offloaded)
            nodes = Informer(here, NODES)
            controller = OffloadingController(here, namespaces=namespaces, offloadings=offloadings, nodes=nodes)
            async with followed(namespaces):
                pass  # as it was before the label
            await asyncio.to_thread(
                local.kubectl, "label", "namespace", offloaded, f"{names.LABEL_ENABLED}=true", "--overwrite"
            )
            by = f"{names.ANNOTATION_ENABLED_BY}={names.ENABLED_BY_OFFLOADING}"
            await asyncio.to_thread(local.kubectl, "annotate", "namespace", offloaded, by)
            await asyncio.to_thread(delete, local, offloaded)
            async with followed(offloadings, nodes):
                assert (await controller.reconcile(offloaded)).after is None

    asyncio.run(check())
    assert not local.kubectl("-n", offloaded, "get", "nso", "-o", "name").stdout
    metadata = get(local, offloaded, "namespace", offloaded)["metadata"]
    assert names.LABEL_ENABLED not in metadata["labels"], metadata
    assert names.ANNOTATION_ENABLED_BY not in metadata.get("annotations", {}), metadata
