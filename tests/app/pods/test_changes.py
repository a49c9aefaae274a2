"""What is sent when a local pod changes, and what is left alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app import names
from app.kube.objects import Object
from app.names import ANNOTATION_EPHEMERAL, MARK_METADATA, MARK_RESOURCES, MARK_SPEC, MARKS
from app.pods.changes import Changes, Patch, Target, is_from_template, live_changes
from app.pods.forge import ForgeOptions
from tests.app.pods.pods import OPTIONS, local_pod, made_by, twin_of


class World:
    """A local pod, its twin and the remote pod, to which patches can be sent."""

    def __init__(self, pod: Object, options: ForgeOptions = OPTIONS) -> None:
        self.pod, self.options = pod, options
        self.twin = twin_of(pod, options)
        self.live: Object | None = copy.deepcopy(made_by(self.twin))

    def changes(self) -> Changes:
        return live_changes(self.pod, self.live, self.twin, self.options)

    def carry(self) -> list[Patch]:
        """Send everything, after which there is nothing to send."""
        changes = self.changes()
        for patch in changes.patches:
            self.send(patch)
        assert not self.changes().steps, "once is enough"
        return list(changes.patches)

    def send(self, patch: Patch) -> None:
        target = self.twin if patch.target is Target.TWIN else self.live
        assert target is not None
        assert patch.body["metadata"]["uid"] == target["metadata"]["uid"]
        assert (patch.namespace, patch.name) == (target["metadata"]["namespace"], target["metadata"]["name"])
        merge(target, patch.body)

    def replace_live(self) -> None:
        """Somebody deletes the remote pod and its controller makes another one."""
        self.live = copy.deepcopy(made_by(self.twin))
        self.live["metadata"]["uid"] = "second-uid"


def merge(into: Object, patch: Object) -> None:
    """Strategic merge, as far as these patches need it: lists of named things by name, other lists as a whole."""
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            merge(into.setdefault(key, {}), value)
        elif isinstance(value, list) and value and "name" in value[0]:
            have = {item["name"]: item for item in into.setdefault(key, [])}
            for item in value:
                if item["name"] in have:
                    merge(have[item["name"]], item)
                else:
                    into[key].append(copy.deepcopy(item))
        else:
            into[key] = copy.deepcopy(value)


def targets(patches: list[Patch]) -> list[Target]:
    return [patch.target for patch in patches]


def without_marks(body: Object) -> Object:
    body = copy.deepcopy(body)
    for holder in (body, body.get("spec", {}).get("template", {})):
        annotations = holder.get("metadata", {}).get("annotations", {})
        for mark in MARKS:
            annotations.pop(mark, None)
    return body


def test_a_pod_as_its_template_has_it() -> None:
    world = World(local_pod())
    assert world.live is not None
    assert is_from_template(world.live, world.twin)
    world.pod["metadata"]["labels"]["team"] = "other"
    world.carry()
    assert not is_from_template(made_by(twin_of(local_pod())), world.twin), "the pod is older than the template"


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
def test_a_fresh_twin_is_up_to_date(policy: str) -> None:
    world = World(local_pod(restartPolicy=policy, activeDeadlineSeconds=60))
    assert not world.changes()
    world.live = None
    assert not world.changes()


def test_labels_and_annotations() -> None:
    world = World(local_pod())
    world.pod["metadata"]["labels"] = {"app": "other", "tier": "front"}
    world.pod["metadata"]["annotations"]["note"] = "bye"
    first, second = world.carry()
    changed: Object = {
        "labels": {"app": "other", "tier": "front", "pod-template-hash": None},
        "annotations": {"note": "bye"},
    }
    assert without_marks(first.body) == {"metadata": {"uid": "pod-uid", **changed}}
    template = {"spec": {"template": {"metadata": changed}}}
    assert without_marks(second.body) == {"metadata": {"uid": "twin-uid"}, **template}
    assert (first.target, first.subresource, second.target) == (Target.POD, None, Target.TWIN)
    assert (first.resource.kind, second.resource.kind) == ("Pod", "ReplicaSet")


def test_metadata_of_others_is_left_alone() -> None:
    world = World(local_pod())
    assert world.live is not None
    world.live["metadata"]["labels"] |= {"app": "rewritten", "theirs": "x"}
    world.live["metadata"]["annotations"] |= {"theirs": "x"}
    assert not world.changes(), "a webhook of the remote cluster has its reasons"
    world.pod["metadata"]["labels"]["tier"] = "front"
    assert without_marks(world.carry()[0].body)["metadata"]["labels"] == {"tier": "front"}


def test_a_label_that_a_jobs_template_lacks_can_be_removed() -> None:
    world = World(local_pod(restartPolicy="Never"))
    world.pod["metadata"]["labels"]["late"] = "yes"
    assert targets(world.carry()) == [Target.POD]
    del world.pod["metadata"]["labels"]["late"]
    (patch,) = world.carry()
    assert patch.body["metadata"]["labels"] == {"late": None}


def test_what_is_too_large_is_said_and_not_sent() -> None:
    world = World(local_pod())
    world.pod["metadata"]["annotations"]["big"] = "x" * 262144
    world.pod["metadata"]["labels"]["tier"] = "front"
    patches = world.carry()
    assert [patch.body.get("metadata", {}).get("annotations") for patch in patches] == [None, None]
    assert patches[0].body["metadata"]["labels"] == {"tier": "front"}
    assert "262144 are allowed" in world.changes().warnings[0]


def test_images() -> None:
    world = World(local_pod(initContainers=[{"name": "init", "image": "init:1"}]))
    world.pod["spec"]["containers"][0]["image"] = "web:2"
    first, second = world.carry()
    spec = {"containers": [{"name": "main", "image": "web:2"}]}
    assert first.body["spec"] == spec
    assert second.body["spec"]["template"]["spec"] == spec


def test_an_image_that_the_remote_rewrote_is_left_alone() -> None:
    world = World(local_pod(initContainers=[{"name": "init", "image": "init:1"}]))
    assert world.live is not None
    world.live["spec"]["initContainers"][0]["image"] = "mirror/init:1"
    assert not world.changes()
    world.pod["spec"]["containers"][0]["image"] = "web:2"
    assert world.carry()[0].body["spec"] == {"containers": [{"name": "main", "image": "web:2"}]}


@pytest.mark.parametrize(
    "change",
    [
        lambda pod: pod["metadata"]["labels"].update(app="new"),
        lambda pod: pod["spec"]["containers"][0].update(image="web:2"),
        lambda pod: pod["spec"]["containers"][0].update(resources={"requests": {"cpu": "7"}}),
    ],
    ids=["labels", "images", "resources"],
)
def test_a_replacement_from_an_old_template_catches_up(change: Callable[[Object], None]) -> None:
    """It is made in the moment between the patches of the pod and of the template."""
    world = World(local_pod())
    change(world.pod)
    patches = world.changes().patches
    world.replace_live()
    world.send(patches[-1])
    again = world.carry()
    assert Target.TWIN not in targets(again)
    assert world.live is not None
    assert world.live["metadata"]["labels"] == world.twin["spec"]["template"]["metadata"]["labels"]
    assert world.live["spec"] == world.twin["spec"]["template"]["spec"]


@pytest.mark.parametrize("policy", ["Always", "Never"])
def test_a_replacement_ends_up_like_the_pod_before_it(policy: str) -> None:
    world = World(local_pod(restartPolicy=policy))
    world.pod["metadata"]["labels"]["app"] = "new"
    world.pod["spec"]["containers"][0]["image"] = "web:2"
    world.pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "200m"}, "limits": {"cpu": "1"}}
    world.carry()
    before = copy.deepcopy(world.live)
    world.replace_live()
    sent = world.carry()
    assert bool(sent) == (policy == "Never"), "a Job's template cannot be changed, so each of its pods is patched"
    assert before is not None
    assert world.live is not None
    assert world.live["spec"] == before["spec"]
    assert world.live["metadata"]["labels"] == before["metadata"]["labels"]


def test_a_refused_patch_is_sent_again() -> None:
    world = World(local_pod())
    world.pod["spec"]["containers"][0]["image"] = "web:2"
    world.pod["metadata"]["labels"]["app"] = "new"
    metadata, spec = world.changes().steps
    assert [patch.target for patch in spec.patches] == [Target.POD, Target.TWIN]
    for patch in metadata.patches:
        world.send(patch)
    assert world.changes().steps == (spec,)
    world.send(spec.patches[0])
    assert [patch.target for patch in world.changes().patches] == [Target.TWIN]


def test_tolerations_are_added_to_what_is_there() -> None:
    own = {"key": "own", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    world = World(local_pod(tolerations=[own]))
    assert world.live is not None
    theirs = {"key": "theirs", "operator": "Exists"}
    world.live["spec"]["tolerations"].append(theirs)
    longer, late = {**own, "tolerationSeconds": 600}, {"key": "late"}
    world.pod["spec"]["tolerations"] = [longer, late, {"key": names.TAINT_KEY}]
    first, second = world.carry()
    assert first.body["spec"] == {"tolerations": [longer, theirs, late]}
    assert second.body["spec"]["template"]["spec"] == {"tolerations": [longer, late]}


@pytest.mark.parametrize(
    ("policy", "before", "after", "sent"),
    [
        ("Always", None, 5, []),  # the worker's business
        ("Never", None, 5, [(Target.POD, 5)]),
        ("Never", 60, 5, [(Target.POD, 5)]),
        ("OnFailure", None, 5, [(Target.TWIN, 5)]),
        ("OnFailure", 60, 5, [(Target.TWIN, 5)]),
    ],
)
def test_deadlines(policy: str, before: int | None, after: int, sent: list[object]) -> None:
    pod = local_pod(restartPolicy=policy)
    if before is not None:
        pod["spec"]["activeDeadlineSeconds"] = before
    world = World(pod)
    world.pod["spec"]["activeDeadlineSeconds"] = after
    assert [(patch.target, patch.body["spec"]["activeDeadlineSeconds"]) for patch in world.carry()] == sent


# ---------------------------------------------------------------------- debug containers


def test_a_debug_container_is_added_once() -> None:
    world = World(local_pod())
    world.pod["spec"]["ephemeralContainers"] = [{"name": "one", "image": "debug"}]
    first, second = world.carry()
    assert (first.target, first.subresource) == (Target.EPHEMERAL_CONTAINERS, "ephemeralcontainers")
    assert first.body["spec"] == {"ephemeralContainers": [{"name": "one", "image": "debug"}]}
    assert second.body["metadata"]["annotations"] == {ANNOTATION_EPHEMERAL: "one"}
    world.replace_live()
    assert not world.changes(), "never added to a replacement"
    world.pod["spec"]["ephemeralContainers"].append({"name": "two", "image": "debug"})
    assert world.carry()[0].body["spec"] == {"ephemeralContainers": [{"name": "two", "image": "debug"}]}
    assert world.twin["metadata"]["annotations"][ANNOTATION_EPHEMERAL] == "one,two"


def test_a_debug_container_that_was_added_before_a_crash_is_recorded() -> None:
    world = World(local_pod())
    world.pod["spec"]["ephemeralContainers"] = [{"name": "one", "image": "debug"}]
    world.send(world.changes().patches[0])
    assert targets(world.carry()) == [Target.TWIN]


def test_a_privileged_debug_container_follows_the_policy() -> None:
    debugger = {"name": "root", "image": "debug", "securityContext": {"privileged": True}}
    world = World(local_pod())
    world.pod["spec"]["ephemeralContainers"] = [debugger]
    assert not world.changes().steps
    assert "privileged container root" in world.changes().warnings[0]
    world.options = replace(OPTIONS, allow_host=True)
    assert targets(world.carry()) == [Target.EPHEMERAL_CONTAINERS, Target.TWIN]


# ---------------------------------------------------------------------- resources


def test_resize() -> None:
    world = World(local_pod(resources={"limits": {"cpu": "2"}}))
    assert world.live is not None
    world.live["spec"]["containers"][0]["resources"]["limits"] = {"memory": "1Gi"}  # a LimitRange of the remote
    world.pod["spec"]["containers"][0]["resources"] = {"requests": {"memory": "1Mi"}}
    world.pod["spec"]["resources"]["limits"]["cpu"] = "3"
    resize, mark, template = world.carry()
    spec = {
        "resources": {"limits": {"cpu": "3"}},
        "containers": [{"name": "main", "resources": {"requests": {"memory": "1Mi", "cpu": None}}}],
    }
    assert (resize.target, resize.subresource, resize.body["spec"]) == (Target.RESIZE, "resize", spec)
    assert mark.body["metadata"]["annotations"].keys() == {MARK_RESOURCES}
    assert template.body["spec"]["template"]["spec"] == spec


def test_an_old_remote_cannot_resize() -> None:
    world = World(local_pod(), replace(OPTIONS, remote_minor=32))
    world.pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "7"}}
    assert not world.changes().steps
    assert "1.32" in world.changes().warnings[0]


# ---------------------------------------------------------------------- which pod


@pytest.mark.parametrize("over", ["Succeeded", "Failed", "terminating"])
def test_a_pod_that_is_over_is_left_alone(over: str) -> None:
    world = World(local_pod())
    assert world.live is not None
    if over == "terminating":
        world.live["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    else:
        world.live["status"]["phase"] = over
    world.pod["metadata"]["labels"]["app"] = "new"
    world.pod["spec"]["containers"][0]["image"] = "web:2"
    world.pod["spec"]["ephemeralContainers"] = [{"name": "one"}]
    assert targets(world.carry()) == [Target.TWIN, Target.TWIN]


edits = st.lists(
    st.sampled_from(
        [
            lambda pod: pod["metadata"]["labels"].update(app="new"),
            lambda pod: pod["metadata"]["labels"].update(late="x"),
            lambda pod: pod["metadata"]["labels"].pop("late", None),
            lambda pod: pod["metadata"]["labels"].pop("app", None),
            lambda pod: pod["metadata"]["annotations"].update(note="new"),
            lambda pod: pod["metadata"]["annotations"].pop("note", None),
            lambda pod: pod["spec"]["containers"][0].update(image="web:2"),
            lambda pod: pod["spec"]["containers"][0]["resources"]["requests"].update(cpu="7"),
            "crash",
            "replaced",
        ]
    ),
    max_size=8,
)


@settings(max_examples=200)
@given(edits, st.sampled_from(["Always", "Never"]))
def test_any_history_ends_with_the_remote_pod_like_the_local_one(history: list[object], policy: str) -> None:
    """Edits, crashes after the first patch and replacements, in any order."""
    world = World(local_pod(restartPolicy=policy))
    for edit in history:
        if edit == "crash":
            for patch in world.changes().patches[:1]:
                world.send(patch)
        elif edit == "replaced":
            world.replace_live()
        elif callable(edit):
            edit(world.pod)
    world.carry()
    wanted = twin_of(world.pod)["spec"]["template"]
    assert world.live is not None
    assert world.live["spec"] == wanted["spec"]
    assert world.live["metadata"]["labels"] == wanted["metadata"]["labels"]
    for mark in (MARK_SPEC, MARK_METADATA):
        assert world.live["metadata"]["annotations"][mark].split(" ")[0] == wanted["metadata"]["annotations"][mark]
    if policy == "Always":
        assert world.twin["spec"]["template"] == wanted
