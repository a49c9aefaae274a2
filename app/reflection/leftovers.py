"""Copies that a virtual node made, found by their labels: for when nobody follows the namespaces they are in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from app import names
from app.kube.client import METADATA_LIST, Client
from app.kube.objects import Envelope, decode_list
from app.kube.resources import CONFIG_MAPS, ENDPOINT_SLICES, SECRETS, SERVICES, Resource
from app.reflection.copies import Owner

REFLECTED: Final = (CONFIG_MAPS, SECRETS, SERVICES, ENDPOINT_SLICES)
_PAGE: Final = 500


async def copies_of(remote: Client, owner: Owner, resource: Resource, namespace: str | None) -> AsyncIterator[Envelope]:
    """The metadata of the copies of one kind, in a remote namespace or in all; never what is in them."""
    selector = f"{names.LABEL_ORIGIN}={owner.origin},{names.LABEL_NODE}={owner.node}"
    params = {"labelSelector": selector, "limit": str(_PAGE)}
    while True:
        page = decode_list(await remote.request("GET", resource.path(namespace), params=params, accept=METADATA_LIST))
        for item in page.items:
            if names.ANNOTATION_REFLECTED in (item.metadata.annotations or {}):
                yield item
        if not page.continue_token:
            return
        params["continue"] = page.continue_token
