"""The patch that brings a pod's status from what it is to what it should be.

A strategic merge patch, as the kubelet sends: several writers share a pod's conditions, and with it each touches only
its own; the UID in the patch makes the API server refuse it for a newer pod of the same name. How lists merge is in
the types of Kubernetes: conditions by type, addresses by ip, container statuses are replaced as a whole. What is the
same is not sent, and when all is the same there is no patch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from app.kube.objects import Object

_MERGE_KEYS: Final = {"conditions": "type", "podIPs": "ip", "hostIPs": "ip"}

KEPT: Final = frozenset(
    {
        "qosClass",
        "nominatedNodeName",
        "resourceClaimStatuses",
        "extendedResourceClaimStatus",
        "nodeAllocatableResourceClaimStatuses",
    }
)
"""Fields of a pod's status that a kubelet never writes."""

Paths = frozenset[tuple[str, ...]]


def status_patch(
    local: Object, desired: Object, annotations: Mapping[str, str], *, unknown: Paths = frozenset()
) -> Object | None:
    """The body for PATCH ``pods/status``; None if nothing differs. *unknown*: what ``dropped_fields`` has found."""
    body: Object = {}
    metadata = local["metadata"]
    have = metadata.get("annotations") or {}
    if changed := {key: value for key, value in annotations.items() if have.get(key) != value}:
        body["annotations"] = changed
    before = local.get("status") or {}
    # most often all is as it was, and then it need not be taken apart
    status = {} if before == desired else _changes(_bare(before), _known(_bare(desired), unknown, ()))
    if not body and not status:
        return None
    patch: Object = {"metadata": {"uid": metadata["uid"], **body}}
    return patch | {"status": status} if status else patch


def dropped_fields(sent: Object, stored: Object) -> Paths:
    """Which fields of a status the local API server did not keep, from its answer to the patch.

    A remote cluster that is newer, or has other feature gates, tells things that the local one does not know. They
    would make the status differ for ever, and be written at each turn.
    """
    return frozenset(_dropped(_bare(sent), stored, ()))


def is_stored(desired: Object, stored: Object) -> bool:
    """Whether a status is, after a patch, what it was meant to be, and nothing else: nobody wrote in between."""
    have, want = ({key: value for key, value in _bare(each).items() if key not in KEPT} for each in (stored, desired))
    return _by_key(have.pop("conditions", []), "type") == _by_key(want.pop("conditions", []), "type") and have == want


def _changes(old: Object, new: Object) -> Object:
    changes: Object = {}
    for field in sorted(old.keys() | new.keys()):
        before, after = old.get(field), new.get(field)
        if field in KEPT or _same(field, before, after):
            continue
        if field in _MERGE_KEYS:
            changes |= _list_changes(field, before or [], after or [])
        elif isinstance(after, dict) and isinstance(before, dict):
            changes[field] = _map_changes(before, after)
        else:
            changes[field] = after
    return changes


def _same(field: str, before: Any, after: Any) -> bool:
    if field == "conditions":  # a set: who came first is nobody's business
        return _by_key(before or [], "type") == _by_key(after or [], "type")
    return bool(before == after or (not before and not after and type(before) is not bool))


def _map_changes(before: Object, after: Object) -> Object:
    """Nulls for what is gone; ``$patch: replace`` would lose the whole map where the server has none to replace."""
    changes: Object = dict.fromkeys(before.keys() - after.keys())
    for key, value in after.items():
        was = before.get(key)
        if isinstance(value, dict) and isinstance(was, dict):
            if inner := _map_changes(was, value):
                changes[key] = inner
        elif value != was:
            changes[key] = value
    return changes


def _list_changes(field: str, before: list[Object], after: list[Object]) -> Object:
    key = _MERGE_KEYS[field]
    old, new = _by_key(before, key), _by_key(after, key)
    changed: list[Object] = []
    for name, item in new.items():
        was = old.get(name)
        if was is None or was != item:
            # an element is merged too: what it no longer says must be taken away
            changed.append(item | dict.fromkeys((was or {}).keys() - item.keys()))
    changed += [{"$patch": "delete", key: name} for name in old if name not in new]
    result: Object = {field: changed}
    if field != "conditions" and new:
        # the API server drops all but podIP unless that is the first
        result[f"$setElementOrder/{field}"] = [{key: name} for name in new]
    return result


def _by_key(items: list[Object], key: str) -> dict[str, Object]:
    return {str(item[key]): item for item in items}


def _bare(value: Any) -> Any:
    """Without nulls, which the API server writes for times that are not set."""
    if isinstance(value, dict):
        return {key: _bare(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_bare(item) for item in value]
    return value


def _known(value: Any, unknown: Paths, path: tuple[str, ...]) -> Any:
    if not unknown:
        return value
    if isinstance(value, dict):
        return {key: _known(item, unknown, (*path, key)) for key, item in value.items() if (*path, key) not in unknown}
    if isinstance(value, list):
        return [_known(item, unknown, path) for item in value]
    return value


def _dropped(sent: Any, stored: Any, path: tuple[str, ...]) -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()
    if isinstance(sent, dict) and isinstance(stored, dict):
        for key, value in sent.items():
            if key not in stored:
                # an empty list or map may be left out by any server, known or not
                found |= {(*path, key)} if value not in ({}, [], "") else set()
            else:
                found |= _dropped(value, stored[key], (*path, key))
    elif isinstance(sent, list) and isinstance(stored, list):
        for one, other in _pairs(sent, stored):
            found |= _dropped(one, other, path)
    return found


def _pairs(sent: list[Any], stored: list[Any]) -> Iterator[tuple[Any, Any]]:
    """What was sent beside what was kept of it: merged lists come back in the server's order, with others' entries."""
    for key in ("type", "name", "ip"):
        if all(isinstance(item, dict) and key in item for item in (*sent, *stored)):
            kept = {item[key]: item for item in stored}
            yield from ((item, kept[item[key]]) for item in sent if item[key] in kept)
            return
    if len(sent) == len(stored):
        yield from zip(sent, stored, strict=True)
