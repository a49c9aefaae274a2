"""What a twin is made of. The table of all rules is in docs/forging.md."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import names
from app.kube.objects import Object
from app.names import MARKS
from app.pods.forge import NOT_CARRIED, ForgeOptions, forge_ephemeral_container, forge_twin, twin_resource
from tests.app.pods.pods import OPTIONS, REMOTE, UID, local_pod


def _spec(pod: Object, options: ForgeOptions = OPTIONS) -> Object:
    spec: Object = forge_twin(pod, REMOTE, options)["spec"]["template"]["spec"]
    return spec


# ---------------------------------------------------------------------- the twin


def test_a_replica_set_for_what_runs_for_ever() -> None:
    twin = forge_twin(local_pod(activeDeadlineSeconds=60), REMOTE, OPTIONS)
    ours = {names.LABEL_ORIGIN: "home", names.LABEL_NODE: "far-away", names.LABEL_POD_UID: UID}
    assert (twin["apiVersion"], twin["kind"]) == ("apps/v1", "ReplicaSet")
    assert twin["metadata"] == {
        "name": "web-0-dzwxdyawrz",
        "namespace": REMOTE,
        "labels": ours,
        "annotations": {names.ANNOTATION_LOCAL_NAME: "web-0", names.ANNOTATION_LOCAL_NAMESPACE: "shop"},
    }
    template = twin["spec"].pop("template")
    assert twin["spec"] == {"replicas": 1, "selector": {"matchLabels": {names.LABEL_POD_UID: UID}}}
    assert template["metadata"].keys() == {"labels", "annotations"}
    assert template["metadata"]["labels"] == {"app": "web", "pod-template-hash": "7d9f", **ours}
    annotations = {key: value for key, value in template["metadata"]["annotations"].items() if key not in MARKS}
    assert annotations == {"note": "hello", **twin["metadata"]["annotations"]}
    assert "activeDeadlineSeconds" not in template["spec"], "a ReplicaSet's template must not have one"


@pytest.mark.parametrize(
    ("policy", "rules", "pod_deadline"),
    [
        (
            "Never",
            {
                "backoffLimit": 0,
                "podFailurePolicy": {
                    "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
                },
            },
            60,
        ),
        ("OnFailure", {"backoffLimit": 2147483647, "activeDeadlineSeconds": 60}, None),
    ],
)
def test_a_job_for_what_ends(policy: str, rules: Object, pod_deadline: int | None) -> None:
    twin = forge_twin(local_pod(restartPolicy=policy, activeDeadlineSeconds=60), REMOTE, OPTIONS)
    assert (twin["apiVersion"], twin["kind"]) == ("batch/v1", "Job")
    template = twin["spec"].pop("template")
    assert twin["spec"] == {
        "completions": 1,
        "parallelism": 1,
        "manualSelector": True,
        "selector": {"matchLabels": {names.LABEL_POD_UID: UID}},
        "podReplacementPolicy": "Failed",
        **rules,
    }
    assert template["spec"].get("activeDeadlineSeconds") == pod_deadline
    assert template["spec"]["restartPolicy"] == policy


def test_a_pod_without_restart_policy_runs_for_ever() -> None:
    pod = local_pod()
    del pod["spec"]["restartPolicy"]
    assert twin_resource(pod) == "ReplicaSet"


# ---------------------------------------------------------------------- what must not travel


def test_the_local_token_stays_at_home() -> None:
    pod = local_pod(initContainers=[copy.deepcopy(local_pod()["spec"]["containers"][0])])
    spec = _spec(pod)
    assert spec["automountServiceAccountToken"] is False
    assert [volume["name"] for volume in spec["volumes"]] == ["data"]
    for container in (spec["containers"][0], spec["initContainers"][0]):
        assert [mount["name"] for mount in container["volumeMounts"]] == ["data"]


def test_the_root_ca_is_the_local_one() -> None:
    """Wherever a pod can use a ConfigMap; other ConfigMaps, and pods where none are reflected, are left as they are."""

    def pod(name: str) -> Object:
        volumes: list[Object] = [
            {"name": "one", "configMap": {"name": name}},
            {"name": "two", "projected": {"sources": [{"configMap": {"name": name}}, {"secret": {"name": name}}]}},
            {"name": "other", "configMap": {"name": "other"}},
        ]
        container: Object = {
            "name": "main",
            "envFrom": [{"configMapRef": {"name": name}}, {"secretRef": {"name": name}}],
            "env": [
                {"name": "A", "valueFrom": {"configMapKeyRef": {"name": name, "key": "ca.crt"}}},
                {"name": "B", "value": name},
            ],
        }
        return local_pod(volumes=volumes, containers=[container], initContainers=[{**container, "name": "first"}])

    def ours(spec: Object) -> str:
        return json.dumps([spec["volumes"], spec["containers"], spec["initContainers"]])

    reflecting = replace(OPTIONS, root_ca="kube-root-ca.crt-home")
    original = pod(names.ROOT_CA)
    before = copy.deepcopy(original)
    renamed = ours(_spec(original, reflecting))
    assert original == before
    for secret in ('"secret": {"name": "kube-root-ca.crt"}', '"secretRef": {"name": "kube-root-ca.crt"}'):
        assert secret in renamed
    assert renamed.count('{"name": "kube-root-ca.crt-home"') == 6
    assert renamed.count('"configMap": {"name": "other"}') == 1
    assert ours(_spec(original)) == ours(_spec(before, OPTIONS))
    assert "kube-root-ca.crt-home" not in ours(_spec(original))
    debug = {"name": "d", "envFrom": [{"configMapRef": {"name": names.ROOT_CA}}]}
    assert forge_ephemeral_container(debug, original, reflecting)["envFrom"][0]["configMapRef"] == {
        "name": "kube-root-ca.crt-home"
    }


def test_no_volumes_are_left_of_a_pod_that_had_only_a_token() -> None:
    pod = local_pod()
    del pod["spec"]["volumes"][0]
    assert "volumes" not in _spec(pod)


def test_a_projected_token_is_removed_from_its_volume() -> None:
    sources = [{"serviceAccountToken": {"path": "token"}}, {"podCertificate": {}}, {"secret": {"name": "s"}}]
    volumes = [{"name": "mixed", "projected": {"sources": sources, "defaultMode": 420}}]
    assert _spec(local_pod(volumes=volumes))["volumes"] == [
        {"name": "mixed", "projected": {"sources": [{"secret": {"name": "s"}}], "defaultMode": 420}}
    ]


def test_placement_stays_at_home() -> None:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    other = {"key": "team", "operator": "Exists"}
    spec = _spec(
        local_pod(
            affinity={"nodeAffinity": {required: {}}, "podAntiAffinity": {required: []}, "ofTheFuture": {"a": 1}},
            tolerations=[{"key": names.TAINT_KEY, "operator": "Exists"}, other],
            runtimeClassName="farlet",
        )
    )
    assert spec["affinity"] == {"podAntiAffinity": {required: []}, "ofTheFuture": {"a": 1}}
    assert spec["tolerations"] == [other]
    assert "runtimeClassName" not in spec
    only_nodes = _spec(local_pod(affinity={"nodeAffinity": {}}, tolerations=[{"key": names.TAINT_KEY}]))
    assert not {"affinity", "tolerations"} & only_nodes.keys()


def test_label_keys_that_were_merged_into_a_selector_are_not_merged_again() -> None:
    merged = {"matchExpressions": [{"key": "release", "operator": "In", "values": ["7"]}]}
    rule = {"labelSelector": merged, "matchLabelKeys": ["release"], "mismatchLabelKeys": ["tenant"], "topologyKey": "x"}
    kept = {"labelSelector": merged, "mismatchLabelKeys": ["tenant"], "topologyKey": "x"}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": dict(rule)}]}
    spec = _spec(local_pod(topologySpreadConstraints=[dict(rule)], affinity={"podAffinity": preferred}))
    assert spec["topologySpreadConstraints"] == [kept]
    term = spec["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0]
    assert term == {"weight": 1, "podAffinityTerm": kept}


def test_affinity_means_the_remote_namespace() -> None:
    required = [{"topologyKey": "zone", "namespaces": ["shop", "other"]}]
    spec = _spec(local_pod(affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}))
    term = spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]
    assert term["namespaces"] == [REMOTE, "other"]


def test_an_affinity_of_the_options_means_what_it_says() -> None:
    """A remote namespace may be called as a local one is."""
    required = [{"topologyKey": "zone", "namespaces": ["shop"]}]
    added = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    assert _spec(local_pod(), replace(OPTIONS, affinity=added))["affinity"] == added


def test_annotations_of_ours_and_of_kubectl_stay_at_home() -> None:
    pod = local_pod()
    before = forge_twin(pod, REMOTE, OPTIONS)
    pod["metadata"]["annotations"] |= {
        names.ANNOTATION_REMOTE_UID: "x",
        names.ANNOTATION_REMOTE_POD: "shop-1/web-1",
        names.ANNOTATION_RESTARTS_BEFORE: "3",
        names.ANNOTATION_STARTED: "true",
        "kubectl.kubernetes.io/last-applied-configuration": "{}",
    }
    assert forge_twin(pod, REMOTE, OPTIONS) == before, "what Farlet writes back is no change to carry"


# ---------------------------------------------------------------------- what is added


def test_options_are_added() -> None:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    options = replace(
        OPTIONS,
        node_selector={"zone": "b"},
        affinity={"nodeAffinity": {required: {"nodeSelectorTerms": []}}, "podAntiAffinity": {required: [{"b": 2}]}},
        tolerations=[{"key": "team", "operator": "Exists"}],
        runtime_class="gvisor",
        priority_class="low",
        labels={"team": "red", "app": "injected", names.LABEL_ORIGIN: "never"},
    )
    own = {"podAntiAffinity": {required: [{"a": 1}]}}
    pod = local_pod(affinity=own, tolerations=[{"key": "own"}], priorityClassName="high", nodeSelector={"only": "here"})
    twin = forge_twin(pod, REMOTE, options)
    spec, labels = twin["spec"]["template"]["spec"], twin["spec"]["template"]["metadata"]["labels"]
    assert spec["nodeSelector"] == {"zone": "b"}
    assert spec["affinity"] == {
        "podAntiAffinity": {required: [{"a": 1}, {"b": 2}]},
        "nodeAffinity": {required: {"nodeSelectorTerms": []}},
    }
    assert spec["tolerations"] == [{"key": "own"}, {"key": "team", "operator": "Exists"}]
    assert spec["runtimeClassName"] == "gvisor"
    assert spec["priorityClassName"] == "low"
    assert (labels["team"], labels["app"], labels[names.LABEL_ORIGIN]) == ("red", "injected", "home")
    assert twin["metadata"]["labels"]["team"] == "red"
    assert _spec(local_pod(runtimeClassName="own"), options)["runtimeClassName"] == "own"


def test_an_ephemeral_container_is_forged_like_the_others() -> None:
    pod = local_pod()
    debugger = {
        "name": "debugger",
        "targetContainerName": "main",
        "env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "volumeMounts": pod["spec"]["containers"][0]["volumeMounts"],
    }
    forged = forge_ephemeral_container(debugger, pod, OPTIONS)
    assert forged == {
        "name": "debugger",
        "targetContainerName": "main",
        "env": [{"name": "X", "value": "web-0"}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    assert len(debugger["volumeMounts"]) == 2


# ---------------------------------------------------------------------- for any pod

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=5,
)
unknown = st.dictionaries(st.text(min_size=1, max_size=8).map(lambda name: f"x-{name}"), json_values, max_size=3)
references = st.sampled_from(
    [
        "metadata.name",
        "metadata.uid",
        "spec.nodeName",
        "metadata.labels['app']",
        "status.podIP",
        "metadata.annotations['a']",
    ]
)
environments = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.just("V"),
            "valueFrom": st.fixed_dictionaries({"fieldRef": references.map(lambda p: {"fieldPath": p})}),
        }
    )
    | st.fixed_dictionaries({"name": st.just("V"), "value": st.text(max_size=5)}),
    max_size=3,
)


@st.composite
def pods(draw: st.DrawFn) -> tuple[Object, dict[str, Object]]:
    """A pod with unknown fields at several depths, and those fields by depth."""
    pod = local_pod(restartPolicy=draw(st.sampled_from(["Always", "OnFailure", "Never"])))
    strange = {depth: draw(unknown) for depth in ("spec", "container", "volume", "toleration")}
    pod["spec"].update(strange["spec"])
    pod["spec"]["containers"][0].update(strange["container"], env=draw(environments))
    pod["spec"]["volumes"][0].update(strange["volume"])
    pod["spec"]["tolerations"] = [{"key": names.TAINT_KEY}, {"key": "own", **strange["toleration"]}]
    for name in draw(st.sets(st.sampled_from(NOT_CARRIED))):
        pod["spec"][name] = draw(json_values)
    pod["metadata"]["annotations"] = draw(st.dictionaries(st.sampled_from(["a", "b", *MARKS]), st.text(max_size=9)))
    return pod, strange


@given(pods())
def test_unknown_fields_survive(made: tuple[Object, dict[str, Object]]) -> None:
    pod, strange = made
    spec = _spec(pod)
    assert spec.items() >= strange["spec"].items()
    assert spec["containers"][0].items() >= strange["container"].items()
    assert spec["volumes"][0].items() >= strange["volume"].items()
    assert spec["tolerations"][0].items() >= strange["toleration"].items()


@given(pods())
def test_nothing_travels_that_must_not(made: tuple[Object, dict[str, Object]]) -> None:
    twin = forge_twin(made[0], REMOTE, OPTIONS)
    template = twin["spec"]["template"]
    assert not set(NOT_CARRIED) & template["spec"].keys()
    assert names.TAINT_KEY not in json.dumps(template["spec"])
    assert "kube-api-access-" not in json.dumps(template)
    everything = json.dumps(twin)
    for word in ("ownerReferences", "finalizers", "generateName", "managedFields", "resourceVersion"):
        assert word not in everything


@given(pods())
def test_forging_is_repeatable_and_leaves_its_input_alone(made: tuple[Object, dict[str, Any]]) -> None:
    pod = made[0]
    before = copy.deepcopy(pod)
    first = forge_twin(pod, REMOTE, OPTIONS)
    assert pod == before
    assert forge_twin(json.loads(json.dumps(pod)), REMOTE, OPTIONS) == first
