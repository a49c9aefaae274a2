"""What this process may do in the local cluster, asked of the API server."""

from __future__ import annotations

from app.kube.client import Client
from app.kube.resources import SELF_SUBJECT_ACCESS_REVIEWS


async def may(
    client: Client, verb: str, resource: str, *, group: str = "", subresource: str = "", name: str = ""
) -> bool:
    """Whether we may do this to a resource that has no namespace (every user may ask that)."""
    wanted = {"verb": verb, "group": group, "resource": resource, "subresource": subresource, "name": name}
    review = await client.create(
        SELF_SUBJECT_ACCESS_REVIEWS.path(),
        {
            "apiVersion": SELF_SUBJECT_ACCESS_REVIEWS.api_version,
            "kind": SELF_SUBJECT_ACCESS_REVIEWS.kind,
            "spec": {"resourceAttributes": {key: value for key, value in wanted.items() if value}},
        },
    )
    return bool(review.get("status", {}).get("allowed"))
