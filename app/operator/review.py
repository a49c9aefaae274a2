"""Admission reviews: what the API server asks about a new pod or a NamespaceOffloading, and the answer. Pure."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from app import names
from app.kube.objects import Object
from app.namespaces.mapping import RESERVED
from app.namespaces.offloading import Offloading, PodStrategy
from app.operator.mutation import TooManyTerms, mutate

_MAX_WARNING: Final = 250
"""Longer ones are cut by API servers."""


class NotAReview(ValueError):
    """What was sent is not an AdmissionReview."""


class Request(msgspec.Struct, frozen=True):
    """What is asked. Field names are the API's."""

    uid: str
    operation: str = ""
    namespace: str = ""
    dryRun: bool = False
    object: Any = None
    oldObject: Any = None


class _Review(msgspec.Struct, frozen=True):
    request: Request


_DECODER: Final = msgspec.json.Decoder(_Review)


def decode(body: bytes) -> Request:
    try:
        return _DECODER.decode(body).request
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotAReview(f"not an AdmissionReview: {error}") from error


def answer(
    request: Request,
    *,
    patch: Sequence[Object] = (),
    warnings: Sequence[str] = (),
    refusal: str | None = None,
) -> bytes:
    """The review that goes back."""
    response: Object = {"uid": request.uid, "allowed": refusal is None}
    if refusal is not None:
        response["status"] = {"code": 403, "reason": "Forbidden", "message": refusal}
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(patch)).decode()
    if warnings:
        response["warnings"] = [f"farlet: {text}"[:_MAX_WARNING] for text in warnings]
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})


def review_pod(request: Request, offloading: Offloading | None, *, allow_host: bool, taint_key: str) -> bytes:
    """What becomes of a new pod."""
    if request.operation != "CREATE" or not isinstance(request.object, dict):
        return answer(request)
    try:
        found = mutate(request.object, offloading, allow_host=allow_host, taint_key=taint_key)
    except TooManyTerms as error:
        return answer(request, refusal=str(error))
    return answer(request, patch=found.patch, warnings=found.warnings)


def review_offloading(request: Request, own_namespace: str) -> tuple[bytes, bool]:
    """What becomes of a NamespaceOffloading, and whether its namespace is to be enabled at once."""
    if request.operation not in ("CREATE", "UPDATE") or not isinstance(request.object, dict):
        return answer(request), False
    if request.namespace in RESERVED | {own_namespace}:
        text = f"namespace {request.namespace} is the cluster's own and is not offloaded: use another one"
        return answer(request, refusal=text), False
    new = Offloading.of(request.object)
    old = Offloading.of(request.oldObject) if isinstance(request.oldObject, dict) else None
    warnings = []
    if old is not None and not new.deleting:
        if is_tighter(old, new):
            warnings.append(
                "pods that run where new ones may not stay until they are replaced "
                f"(kubectl -n {request.namespace} rollout restart ...)"
            )
        if may_leave_clusters(old, new):
            warnings.append(
                "clusters that the clusterSelector does not choose any more are left: after a grace (--unmap-grace of "
                "farlet run) pods that run there are evicted, and the namespace there is deleted"
            )
    enable = not request.dryRun and not new.deleting and new.pods is not PodStrategy.LOCAL
    return answer(request, warnings=warnings), enable


def is_tighter(old: Offloading, new: Offloading) -> bool:
    """Whether pods may be where new ones may not, and nothing moves them."""
    return new.pods is not old.pods and new.pods is not PodStrategy.LOCAL_AND_REMOTE


def may_leave_clusters(old: Offloading, new: Offloading) -> bool:
    """Whether a cluster may be chosen no more. Terms are ORed: with all that were there before, none is."""
    if new.terms is None:
        return False
    return old.terms is None or any(term not in new.terms for term in old.terms)


def enabling_patch(labels: Object, annotations: Object) -> Object | None:
    """The merge patch that lets the webhook see the pods of a namespace with an object; None if it does already."""
    if labels.get(names.LABEL_ENABLED) == "true":
        return None
    return {
        "metadata": {
            "labels": {names.LABEL_ENABLED: "true"},
            "annotations": {names.ANNOTATION_ENABLED_BY: names.ENABLED_BY_OFFLOADING},
        }
    }


def disabling_patch(labels: Object, annotations: Object) -> Object | None:
    """The merge patch that takes it back; None if a person put the label there, or nobody did."""
    if names.ANNOTATION_ENABLED_BY not in annotations:
        return None
    return {"metadata": {"labels": {names.LABEL_ENABLED: None}, "annotations": {names.ANNOTATION_ENABLED_BY: None}}}
