"""A kind that is installed while we run is picked up; before that there are none of it, and nobody waits for it."""

from __future__ import annotations

import asyncio
import json
import uuid

import pytest

from app.kube import config
from app.kube.client import Client
from app.kube.informer import Informer
from app.kube.objects import Key
from app.kube.optional import OptionalInformer
from app.kube.resources import Resource
from devcluster.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("labels")]


def definition(group: str) -> str:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    content = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"widgets.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }
    return json.dumps(content)


def test_a_kind_that_comes_later(local: Cluster, namespace: str) -> None:
    group = f"t{uuid.uuid4().hex[:8]}.example.com"
    widgets = Resource(f"{group}/v1", "Widget", "widgets")
    widget = {"apiVersion": f"{group}/v1", "kind": "Widget", "metadata": {"name": "one", "namespace": namespace}}

    async def follow() -> None:
        async with Client(config.load(local.kubeconfig, None)) as client:
            cache = OptionalInformer(client, Informer(client, widgets), widgets.path(), look=0.2)
            task = asyncio.create_task(cache.run())
            try:
                await until(lambda: cache.synced)
                assert cache.list() == []
                assert cache.readable
                await asyncio.to_thread(local.kubectl, "apply", "-f", "-", stdin=definition(group))
                established = ["wait", "--for=condition=Established", f"crd/widgets.{group}", "--timeout=30s"]
                await asyncio.to_thread(local.kubectl, *established)
                await asyncio.to_thread(local.kubectl, "create", "-f", "-", stdin=json.dumps(widget))
                await until(lambda: cache.get(Key(namespace, "one")) is not None)
            finally:
                task.cancel()
                await asyncio.wait((task,))

    try:
        asyncio.run(follow())
    finally:
        local.kubectl("delete", "crd", f"widgets.{group}", "--ignore-not-found", "--wait=false")


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.05)
