"""Questions to the local API server, who somebody is and what they may do, with the kubelet's patience."""

from __future__ import annotations

import asyncio
import random

import msgspec

from app.kube.client import Client
from app.kube.errors import ApiError, KubeError, Unreachable
from app.kube.objects import Object
from app.kube.resources import Resource

TOKEN_REVIEWS = Resource("authentication.k8s.io/v1", "TokenReview", "tokenreviews", namespaced=False)
SUBJECT_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io/v1", "SubjectAccessReview", "subjectaccessreviews", namespaced=False
)

_STEPS = 5
_FIRST_PAUSE = 0.5
_FACTOR = 1.5
_JITTER = 0.2
"""As the kubelet's: five tries, half a second and then half as long again each time."""

_TRY_TIMEOUT = 10.0
_TIMEOUT = 20.0
"""Seconds for one try, and for all of them: whoever waits has somebody waiting too."""


async def ask(client: Client, resource: Resource, spec: Object) -> Object:
    """The ``status`` of a review; raises :class:`KubeError` if there is none to be had."""
    body = msgspec.json.encode({"apiVersion": resource.api_version, "kind": resource.kind, "spec": spec})
    path = resource.path()
    failure: KubeError | None = None
    try:
        async with asyncio.timeout(_TIMEOUT):
            pause = _FIRST_PAUSE
            for step in range(_STEPS):
                if step:
                    await asyncio.sleep(_next_pause(failure, pause))
                    pause *= _FACTOR
                try:
                    return _status(await client.request("POST", path, body=body, timeout=_TRY_TIMEOUT, retry=False))
                except KubeError as error:
                    failure = error
                    if not worth_another_try(error):
                        raise
    except TimeoutError:
        pass
    raise failure or Unreachable(f"POST {path}: no answer within {_TIMEOUT:g} s")


def worth_another_try(error: KubeError) -> bool:
    """Whether the kubelet would ask again after such an error."""
    if isinstance(error, ApiError):
        return error.status in (429, 500, 504) or error.retry_after is not None
    return isinstance(error, Unreachable)


def _next_pause(failure: KubeError | None, pause: float) -> float:
    asked = failure.retry_after if isinstance(failure, ApiError) else None
    return max(asked or 0.0, pause * random.uniform(1.0, 1.0 + _JITTER))


def _status(answer: bytes) -> Object:
    try:
        status = msgspec.json.decode(answer)["status"]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        status = None
    if not isinstance(status, dict):
        raise Unreachable("the answer to a review has no status")
    return status
