"""What a later change of a local pod means for its remote pod and twin, as patches.

A changed ReplicaSet template never reaches the pod that runs, and a Job's template cannot be changed. So a change is
first carried to the live remote pod and then, for a ReplicaSet, to the template, so that a replacement is like it.

What has been carried is read off the objects themselves. Remote admission may rewrite what we send (an image's
registry, requests, labels), so a difference between the local and the remote pod proves nothing: undoing it would
fight with that cluster's owner. Instead every template, and so every remote pod, has the hashes of what it was forged
from (``names.MARKS``). A pod whose hash is not today's is behind: because the local pod changed, or because the pod
is a replacement from a template that had not been patched yet. Then only what differs from the template is sent.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.kube.objects import Object
from app.kube.resources import JOBS, PODS, REPLICA_SETS, Resource
from app.names import ANNOTATION_EPHEMERAL, MARK_METADATA, MARK_RESOURCES, MARK_SPEC, MARKS
from app.pods.forge import (
    CONTAINER_LISTS,
    ForgeOptions,
    clone,
    forge_ephemeral_container,
    forge_twin,
)
from app.pods.policy import MAX_ANNOTATIONS, annotations_size, container_host_access

RESIZE_SINCE: Final = 33
"""The minor version of Kubernetes that has the ``resize`` subresource."""

_SECTIONS: Final = ("labels", "annotations")


class Target(enum.Enum):
    """What a patch is sent to."""

    POD = "the live remote pod"
    EPHEMERAL_CONTAINERS = "its ephemeralcontainers subresource"
    RESIZE = "its resize subresource"
    TWIN = "the ReplicaSet or Job"


@dataclass(frozen=True, slots=True)
class Patch:
    """A strategic merge patch, with the UID of what it is meant for."""

    target: Target
    resource: Resource
    namespace: str
    name: str
    body: Object

    @property
    def subresource(self) -> str | None:
        if self.target is Target.EPHEMERAL_CONTAINERS:
            return "ephemeralcontainers"
        return "resize" if self.target is Target.RESIZE else None


@dataclass(frozen=True, slots=True)
class Step:
    """Patches that follow from one change, in their order: when one is refused, the rest of the step waits."""

    what: str
    patches: tuple[Patch, ...]


@dataclass(frozen=True, slots=True)
class Changes:
    """What is to be sent, steps that do not depend on each other; and what cannot be carried, in words."""

    steps: tuple[Step, ...] = ()
    warnings: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.steps or self.warnings)

    @property
    def patches(self) -> tuple[Patch, ...]:
        return tuple(patch for step in self.steps for patch in step.patches)


def live_changes(pod: Object, remote_pod: Object | None, twin: Object, options: ForgeOptions) -> Changes:
    """What a remote pod and its twin lack of what the local pod is now; nothing if they are up to date."""
    desired = forge_twin(pod, twin["metadata"]["namespace"], options)
    comparison = _Comparison(desired, twin, None if remote_pod is None or _is_over(remote_pod) else remote_pod)
    warnings: list[str] = []
    steps = [
        Step("labels and annotations", tuple(_metadata(comparison, warnings))),
        Step("images, tolerations and deadline", tuple(_spec(comparison))),
        Step("debug containers", tuple(_ephemeral_containers(pod, comparison, options, warnings))),
        Step("resources", tuple(_resources(comparison, options, warnings))),
    ]
    return Changes(tuple(step for step in steps if step.patches), tuple(warnings))


def is_from_template(remote_pod: Object, twin: Object) -> bool:
    """Whether all that can be changed of a remote pod is as its twin's template has it."""
    have, made = (item["metadata"].get("annotations") or {} for item in (remote_pod, twin["spec"]["template"]))
    return all(have.get(mark) == made.get(mark) for mark in MARKS)


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The twin as it should be and is, and the live pod if it can still be changed."""

    desired: Object
    twin: Object
    live: Object | None

    @property
    def want(self) -> Object:
        """The template as it should be."""
        template: Object = self.desired["spec"]["template"]
        return template

    @property
    def base(self) -> Object:
        """The template as it is."""
        template: Object = self.twin["spec"]["template"]
        return template

    def wanted_mark(self, mark: str) -> str:
        return str(self.want["metadata"]["annotations"][mark])

    def template_is_behind(self, mark: str) -> bool:
        """Whether the template has to be patched, which only a ReplicaSet's can be."""
        return self.desired["kind"] == "ReplicaSet" and not self._template_has(mark)

    def pod_is_behind(self, mark: str) -> bool:
        if self.live is None:
            return False
        have = (self.live["metadata"].get("annotations") or {}).get(mark, "")
        return str(have).partition(" ")[0] != self.wanted_mark(mark)

    def must_send(self, mark: str, base: object, want: object) -> bool:
        """Whether a value has to go to a live pod that is behind.

        Not if the template has had it all along: what the pod has instead is the remote cluster's doing.
        """
        return base != want or self._template_has(mark)

    def _template_has(self, mark: str) -> bool:
        annotations = self.base["metadata"].get("annotations") or {}
        return bool(annotations.get(mark) == self.wanted_mark(mark))

    def to_pod(self, target: Target, body: Object) -> Patch:
        assert self.live is not None
        return _patch(target, PODS, self.live, body)

    def to_twin(self, body: Object) -> Patch:
        resource = REPLICA_SETS if self.desired["kind"] == "ReplicaSet" else JOBS
        return _patch(Target.TWIN, resource, self.twin, body)

    def to_template(self, body: Object) -> Patch:
        return self.to_twin({"spec": {"template": body}})

    def mark_body(self, mark: str) -> Object:
        return {"metadata": {"annotations": {mark: self.wanted_mark(mark)}}}


def _is_over(pod: Object) -> bool:
    ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return ended or bool(pod["metadata"].get("deletionTimestamp"))


def _patch(target: Target, resource: Resource, item: Object, body: Object) -> Patch:
    """A patch for this very object: the API server refuses it for another one of the same name."""
    metadata = item["metadata"]
    marked = {**body, "metadata": {"uid": metadata["uid"], **body.get("metadata", {})}}
    return Patch(target, resource, metadata["namespace"], metadata["name"], marked)


# ---------------------------------------------------------------------- labels and annotations


def _metadata(comparison: _Comparison, warnings: list[str]) -> Iterator[Patch]:
    want = {section: _section(comparison.want, section) for section in _SECTIONS}
    base = {section: _section(comparison.base, section) for section in _SECTIONS}
    mark = {MARK_METADATA: comparison.wanted_mark(MARK_METADATA)}
    live = comparison.live
    if (size := annotations_size(want["annotations"])) > MAX_ANNOTATIONS:
        warnings.append(
            f"changed annotations are not carried: the remote pod would have {size} bytes of them and "
            f"{MAX_ANNOTATIONS} are allowed"
        )
        want["annotations"] = base["annotations"]
        mark = {}
    if live is not None and comparison.pod_is_behind(MARK_METADATA):
        have = {section: _section(live, section) for section in _SECTIONS}
        late = _late_keys(live)
        body: Object = {}
        for section in _SECTIONS:
            sent = {
                k: v for k, v in want[section].items() if comparison.must_send(MARK_METADATA, base[section].get(k), v)
            }
            known = base[section].keys() | late.get(section, set())
            if changed := _map_changes(have[section], sent, {k for k in known if k not in want[section]}):
                body[section] = changed
        if mark:
            body.setdefault("annotations", {})[MARK_METADATA] = mark[MARK_METADATA] + _late_suffix(want, base)
        if body:
            yield comparison.to_pod(Target.POD, {"metadata": body})
    if comparison.template_is_behind(MARK_METADATA):
        body = {}
        for section in _SECTIONS:
            if changed := _map_changes(base[section], want[section], base[section].keys() - want[section].keys()):
                body[section] = changed
        if mark:
            body.setdefault("annotations", {}).update(mark)
        if body:
            yield comparison.to_template({"metadata": body})


def _section(item: Object, section: str) -> dict[str, str]:
    values = item["metadata"].get(section) or {}
    return {key: value for key, value in values.items() if key not in MARKS}


def _map_changes(have: Mapping[str, Any], want: Mapping[str, Any], gone: set[str]) -> Object:
    """The part of a merge patch that makes one map contain another and lose some keys."""
    changed: Object = {key: value for key, value in want.items() if have.get(key) != value}
    changed.update({key: None for key in gone if key in have})
    return changed


# A key that the template lacks is remembered in the pod's mark, so that it is ours to remove when it is gone locally.


def _late_suffix(want: Mapping[str, Mapping[str, str]], base: Mapping[str, Mapping[str, str]]) -> str:
    late = ((section, sorted(want[section].keys() - base[section].keys())) for section in _SECTIONS)
    return "".join(f" {section}={','.join(keys)}" for section, keys in late if keys)


def _late_keys(live: Object) -> dict[str, set[str]]:
    mark = (live["metadata"].get("annotations") or {}).get(MARK_METADATA, "")
    parts = (part.partition("=") for part in mark.split(" ")[1:])
    return {section: set(keys.split(",")) for section, _, keys in parts}


# ---------------------------------------------------------------------- images, tolerations, deadline


def _spec(comparison: _Comparison) -> Iterator[Patch]:
    want, base, live = comparison.want["spec"], comparison.base["spec"], comparison.live
    if live is not None and comparison.pod_is_behind(MARK_SPEC):
        have = live["spec"]
        spec = _image_changes(comparison, have)
        if comparison.must_send(MARK_SPEC, base.get("tolerations") or [], want.get("tolerations") or []):
            spec.update(_toleration_changes(have, want))
        deadline, running = want.get("activeDeadlineSeconds"), have.get("activeDeadlineSeconds")
        if deadline is not None and (running is None or deadline < running):  # the API allows no other change
            spec["activeDeadlineSeconds"] = deadline
        body = comparison.mark_body(MARK_SPEC)
        yield comparison.to_pod(Target.POD, {**body, "spec": spec} if spec else body)
    if comparison.template_is_behind(MARK_SPEC):
        spec = _image_changes(comparison, base)
        spec.update(_toleration_changes(base, want))
        body = comparison.mark_body(MARK_SPEC)
        yield comparison.to_template({**body, "spec": spec} if spec else body)
    deadline = comparison.desired["spec"].get("activeDeadlineSeconds")
    if deadline is not None and deadline != comparison.twin["spec"].get("activeDeadlineSeconds"):
        yield comparison.to_twin({"spec": {"activeDeadlineSeconds": deadline}})


def _image_changes(comparison: _Comparison, have: Object) -> Object:
    changed: Object = {}
    for kind in CONTAINER_LISTS:
        before, running = _by_name(comparison.base["spec"], kind), _by_name(have, kind)
        for container in comparison.want["spec"].get(kind) or []:
            name, image = container["name"], container.get("image")
            if name not in running or image is None or running[name].get("image") == image:
                continue
            if comparison.must_send(MARK_SPEC, before.get(name, {}).get("image"), image):
                changed.setdefault(kind, []).append({"name": name, "image": image})
    return changed


def _toleration_changes(have: Object, want: Object) -> Object:
    """Tolerations can only be added, or last longer or shorter; the list is replaced as a whole."""
    before: list[Object] = have.get("tolerations") or []
    seconds = {_toleration_key(toleration): toleration for toleration in want.get("tolerations") or []}
    after = [seconds.pop(_toleration_key(toleration), toleration) for toleration in before]
    after += seconds.values()
    return {"tolerations": clone(after)} if after != before else {}


def _toleration_key(toleration: Object) -> tuple[str, ...]:
    return tuple(toleration.get(name) or "" for name in ("key", "operator", "value", "effect"))


def _by_name(spec: Object, kind: str) -> dict[str, Object]:
    return {container["name"]: container for container in spec.get(kind) or []}


# ---------------------------------------------------------------------- debug containers


def _ephemeral_containers(
    pod: Object, comparison: _Comparison, options: ForgeOptions, warnings: list[str]
) -> Iterator[Patch]:
    live = comparison.live
    asked: list[Object] = pod["spec"].get("ephemeralContainers") or []
    if live is None or not asked:
        return
    there = _by_name(live["spec"], "ephemeralContainers")
    recorded = (comparison.twin["metadata"].get("annotations") or {}).get(ANNOTATION_EPHEMERAL, "")
    carried = [name for name in recorded.split(",") if name]
    added = []
    for container in asked:
        name = container["name"]
        if name in carried:
            continue
        needs = [] if options.allow_host else list(container_host_access(container))
        if needs:
            warnings.append(f"debug container {name} needs the host ({', '.join(needs)}), which is not allowed here")
            continue
        carried.append(name)
        if name not in there:
            added.append(forge_ephemeral_container(container, pod, options))
    if added:
        yield comparison.to_pod(Target.EPHEMERAL_CONTAINERS, {"spec": {"ephemeralContainers": added}})
    if ",".join(carried) != recorded:
        yield comparison.to_twin({"metadata": {"annotations": {ANNOTATION_EPHEMERAL: ",".join(carried)}}})


# ---------------------------------------------------------------------- resources


def _resources(comparison: _Comparison, options: ForgeOptions, warnings: list[str]) -> Iterator[Patch]:
    live = comparison.live
    behind = comparison.pod_is_behind(MARK_RESOURCES)
    if behind and options.remote_minor < RESIZE_SINCE:
        warnings.append(
            f"resources were changed, and the remote cluster (Kubernetes 1.{options.remote_minor}) cannot resize a "
            f"running pod: that came with 1.{RESIZE_SINCE}"
        )
        return
    if live is not None and behind:
        if spec := _resource_changes(comparison, live["spec"]):
            yield comparison.to_pod(Target.RESIZE, {"spec": spec})
        yield comparison.to_pod(Target.POD, comparison.mark_body(MARK_RESOURCES))
    if comparison.template_is_behind(MARK_RESOURCES):
        spec = _resource_changes(comparison, comparison.base["spec"])
        body = comparison.mark_body(MARK_RESOURCES)
        yield comparison.to_template({**body, "spec": spec} if spec else body)


def _resource_changes(comparison: _Comparison, have: Object) -> Object:
    """The part of a patch that gives containers, and the pod as a whole, the wanted requests and limits."""
    want, base = comparison.want["spec"], comparison.base["spec"]
    changed: Object = {}
    if whole := _requirement_changes(comparison, have, base, want):
        changed["resources"] = whole
    for kind in CONTAINER_LISTS:
        before, running = _by_name(base, kind), _by_name(have, kind)
        for container in want.get(kind) or []:
            name = container["name"]
            if name in running and (
                part := _requirement_changes(comparison, running[name], before.get(name, {}), container)
            ):
                changed.setdefault(kind, []).append({"name": name, "resources": part})
    return changed


def _requirement_changes(comparison: _Comparison, have: Object, base: Object, want: Object) -> Object:
    changed: Object = {}
    for kind in ("requests", "limits"):
        now, before, after = ((item.get("resources") or {}).get(kind) or {} for item in (have, base, want))
        sent = {k: v for k, v in after.items() if comparison.must_send(MARK_RESOURCES, before.get(k), v)}
        if part := _map_changes(now, sent, before.keys() - after.keys()):
            changed[kind] = part
    return changed
