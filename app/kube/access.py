"""What we may do in a cluster, asked of its API server; every user may ask that of himself."""

from __future__ import annotations

from app.kube.client import Client
from app.kube.objects import Object
from app.kube.resources import SELF_SUBJECT_ACCESS_REVIEWS


async def may(
    client: Client,
    verb: str,
    resource: str,
    *,
    group: str = "",
    subresource: str = "",
    namespace: str = "",
    name: str = "",
) -> bool:
    """Whether we may do this to a kind of object: in one namespace, or in all of them."""
    wanted = {
        "verb": verb,
        "group": group,
        "resource": resource,
        "subresource": subresource,
        "namespace": namespace,
        "name": name,
    }
    review: Object = {
        "apiVersion": SELF_SUBJECT_ACCESS_REVIEWS.api_version,
        "kind": SELF_SUBJECT_ACCESS_REVIEWS.kind,
        "spec": {"resourceAttributes": {key: value for key, value in wanted.items() if value}},
    }
    answer = await client.create(SELF_SUBJECT_ACCESS_REVIEWS.path(), review)
    return bool((answer.get("status") or {}).get("allowed"))
