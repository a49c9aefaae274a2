"""How the Node that exists becomes the Node that should be, and leaves alone what others put on it.

A Node has many authors: an admin labels, taints and cordons it, controllers taint it and add conditions. So what we
applied is recorded in an annotation on it, with the values, and only that is ever changed or removed. The record is
on the node itself, so it survives every restart, with nothing to remember elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app import quantity
from app.kube.objects import Object
from app.names import ANNOTATION_APPLIED
from app.node.conditions import OWN
from app.node.object import ENFORCED_LABELS, applied_record


def metadata_patch(existing: Object, desired: Object) -> Object | None:
    """A strategic merge patch for labels, annotations and taints; None if all is well.

    Who changed the value of a label of ours has made it theirs, except for those without which the node is not ours.
    A cordon is not looked at. With taints, the patch holds only for the version that was read: they are one list.
    """
    recorded = _recorded(existing)
    labels, applied_labels = _merge(_labels_of(existing), _labels_of(desired), recorded.labels, ENFORCED_LABELS)
    wanted = {key: value for key, value in _annotations_of(desired).items() if key != ANNOTATION_APPLIED}
    annotations, applied_annotations = _merge(_annotations_of(existing), wanted, recorded.annotations, frozenset())
    ours = (desired.get("spec") or {}).get("taints") or []
    taints = (existing.get("spec") or {}).get("taints") or []
    merged = _merge_taints(taints, ours, recorded.taints)

    record = applied_record(applied_labels, applied_annotations, ours)
    if _annotations_of(existing).get(ANNOTATION_APPLIED) != record:
        annotations[ANNOTATION_APPLIED] = record
    metadata: Object = {}
    if labels:
        metadata["labels"] = labels
    if annotations:
        metadata["annotations"] = annotations
    patch: Object = {"spec": {"taints": merged}} if merged != taints else {}
    if not metadata and not patch:
        return None
    known = existing["metadata"]
    metadata |= {key: known[key] for key in ("uid",) + (("resourceVersion",) if patch else ()) if key in known}
    return {"metadata": metadata, **patch}


def status_patch(existing: Object, desired: Object, *, heartbeat: bool = False) -> Object | None:
    """A strategic merge patch for ``nodes/status``; None if nothing but heartbeat times differs.

    With ``heartbeat`` there is always one: a kubelet posts its status every five minutes even if nothing changed.
    """
    before, after = existing.get("status") or {}, desired["status"]
    status: Object = {}
    for key in ("capacity", "allocatable"):
        changes = _quantity_changes(before.get(key) or {}, after[key])
        if changes:
            status[key] = changes
    if before.get("addresses") != after["addresses"]:
        # The merge key is the type, of which two families have the same: replace the list, as kubelets do.
        status["addresses"] = [*after["addresses"], {"$patch": "replace"}]
    for key in ("daemonEndpoints", "nodeInfo"):
        if not _contains(before.get(key) or {}, after[key]):
            status[key] = after[key]
    # Servers drop it unless the feature is on: its absence is no difference.
    features = after.get("declaredFeatures") or []
    if before.get("declaredFeatures") and before["declaredFeatures"] != features:
        status["declaredFeatures"] = features

    conditions = _condition_changes(before.get("conditions") or [], after["conditions"])
    if conditions or status or heartbeat:
        status["conditions"] = [*after["conditions"], *(c for c in conditions if "$patch" in c)]
    if not status:
        return None
    known = existing["metadata"]
    return {"metadata": {"uid": known["uid"]} if "uid" in known else {}, "status": status}


@dataclass(frozen=True, slots=True)
class _Applied:
    """What the annotation on a node says that we applied."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    taints: frozenset[tuple[str, str]]
    """Key and effect, which name a taint."""


def _recorded(node: Object) -> _Applied:
    """A record that is missing or spoilt means that nothing on the node is known to be ours."""
    try:
        document = json.loads(_annotations_of(node).get(ANNOTATION_APPLIED, "{}"))
        return _Applied(
            dict(document.get("labels", {})),
            dict(document.get("annotations", {})),
            frozenset((str(key), str(effect)) for key, effect in document.get("taints", [])),
        )
    except (ValueError, TypeError, AttributeError):
        return _Applied({}, {}, frozenset())


def _merge(
    existing: Mapping[str, str], desired: Mapping[str, str], recorded: Mapping[str, str], enforced: frozenset[str]
) -> tuple[dict[str, str | None], dict[str, str]]:
    """Changes to make, and what is ours after them."""
    changes: dict[str, str | None] = {}
    applied: dict[str, str] = {}
    for key, value in desired.items():
        current = existing.get(key)
        if current not in (value, None, recorded.get(key)) and key not in enforced:
            continue  # someone else's
        applied[key] = value
        if current != value:
            changes[key] = value
    for key, value in recorded.items():
        if key not in desired and existing.get(key) == value:
            changes[key] = None
    return changes, applied


def _merge_taints(
    existing: Sequence[Object], desired: Sequence[Object], recorded: frozenset[tuple[str, str]]
) -> list[Object]:
    wanted = {(taint["key"], taint["effect"]): taint for taint in desired}
    merged: list[Object] = []
    for taint in existing:
        name = (taint["key"], taint["effect"])
        ours = wanted.pop(name, None)
        if ours is not None:
            same = (taint.get("value") or "") == (ours.get("value") or "")
            merged.append(taint if same else ours)
        elif name not in recorded:
            merged.append(taint)
    return [*merged, *wanted.values()]


def _quantity_changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    changes: dict[str, str | None] = {
        resource: text
        for resource, text in after.items()
        if resource not in before or quantity.nano(before[resource]) != quantity.nano(text)
    }
    return changes | {resource: None for resource in before if resource not in after}


def _condition_changes(before: Sequence[Object], after: Sequence[Object]) -> list[Object]:
    old, new = ({c["type"]: _without_heartbeat(c) for c in conditions} for conditions in (before, after))
    changed = [c for kind, c in new.items() if old.get(kind) != c]
    return changed + [{"$patch": "delete", "type": kind} for kind in old if kind in OWN and kind not in new]


def _without_heartbeat(condition: Object) -> Object:
    return {key: value for key, value in condition.items() if key != "lastHeartbeatTime"}


def _contains(whole: Mapping[str, object], part: Mapping[str, object]) -> bool:
    return all(whole.get(key) == value for key, value in part.items())


def _labels_of(node: Object) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}


def _annotations_of(node: Object) -> Mapping[str, str]:
    return node["metadata"].get("annotations") or {}
