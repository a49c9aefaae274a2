"""What somebody may do, asked of the local API server as the kubelet asks it.

Each route says which subresources of the node it belongs to; the first that is allowed is enough. The kubelet takes
the verb from the HTTP method; here exec, attach, port-forward and run are ``create`` whatever the method, since the
kubelet lets everybody who may ``get nodes/proxy`` run commands by a GET. Without an answer nobody may do anything.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from app.kube.client import Client
from app.kube.errors import KubeError
from app.kube.objects import Object
from kubelet_api import reviews
from kubelet_api.cache import Answers
from kubelet_api.call import CallError, User

log = logging.getLogger(__name__)

ALLOWED_FOR: Final = 300.0
DENIED_FOR: Final = 30.0
CACHE_SIZE: Final = 8192
BIG: Final = 10_000
"""Bytes of a question that is not kept: whoever asks chooses what is in it."""

_VERBS: Final = {"POST": "create", "GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}

_ENCODER: Final = msgspec.json.Encoder(order="deterministic")


def verb(method: str, *, creates: bool) -> str:
    """The verb of a request; empty, which only ``*`` covers, for methods that Kubernetes has no verb for."""
    return "create" if creates else _VERBS.get(method, "")


def review(user: User, verb: str, subresource: str, node: str) -> Object:
    """The ``spec`` of the SubjectAccessReview that asks whether a user may do this to the node."""
    spec: Object = {
        "resourceAttributes": {
            "verb": verb,
            "version": "v1",
            "resource": "nodes",
            "subresource": subresource,
            "name": node,
        },
        "user": user.name,
    }
    if user.groups:
        spec["groups"] = list(user.groups)
    if user.extra:
        spec["extra"] = {key: list(values) for key, values in user.extra}
    if user.uid:
        spec["uid"] = user.uid
    return spec


def allows(status: Object) -> bool:
    """Whether the answer to a review is yes; an answer that is both yes and no is an error, as the kubelet's."""
    allowed, denied = status.get("allowed") is True, bool(status.get("denied"))
    if allowed and denied:
        raise KubeError("the review of a user's rights says both allowed and denied")
    return allowed


class Authorizer:
    """Asks, and remembers."""

    def __init__(self, client: Client, node: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._node = node
        self._answers: Answers[bytes, bool] = Answers(size=CACHE_SIZE, clock=clock)

    async def authorize(self, user: User, verb: str, subresources: Sequence[str]) -> None:
        """Return if one of the subresources is allowed, else raise what the kubelet would answer."""
        for subresource in subresources:
            try:
                allowed = await self._allowed(review(user, verb, subresource, self._node))
            except KubeError as error:
                what = f"user={user.name}, verb={verb}, resource=nodes, subresource={subresource}"
                log.error("Authorization error (%s): %s", what, error)
                raise CallError(500, f"Authorization error ({what})") from error
            if allowed:
                return
        what = f"user={user.name}, verb={verb}, resource=nodes, subresource(s)=[{' '.join(subresources)}]"
        log.info("Forbidden (%s)", what)
        raise CallError(403, f"Forbidden ({what})\n")

    async def close(self) -> None:
        await self._answers.close()

    async def _allowed(self, spec: Object) -> bool:
        key = _ENCODER.encode(spec)

        async def ask() -> tuple[bool, float]:
            allowed = allows(await reviews.ask(self._client, reviews.SUBJECT_ACCESS_REVIEWS, spec))
            return allowed, 0.0 if len(key) >= BIG else ALLOWED_FOR if allowed else DENIED_FOR

        return await self._answers.get(key, ask)
