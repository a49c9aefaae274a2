"""Pods are steered as the strategy says, and whatever they asked for themselves still holds."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import names
from app.kube.objects import Object
from app.namespaces.offloading import Offloading, PodStrategy
from app.node.selector import any_term_allows
from app.operator.mutation import MAX_TERMS, TooManyTerms, merged, mutate, wanted_terms

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NORTH: Object = {"matchExpressions": [{"key": "region", "operator": "In", "values": ["north"]}]}
VIRTUAL: Object = {"key": names.LABEL_VIRTUAL_NODE, "operator": "In", "values": ["true"]}
REAL: Object = {"key": names.LABEL_VIRTUAL_NODE, "operator": "NotIn", "values": ["true"]}
TOLERATION: Object = {"key": names.TAINT_KEY, "operator": "Exists"}


def pod(**spec: Any) -> Object:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


def patched(content: Object, patch: list[Object]) -> Object:
    result: Object = json.loads(json.dumps(content))
    for step in patch:
        assert step["op"] == "add"
        _, top, name = step["path"].split("/")
        assert top == "spec"
        result["spec"][name] = step["value"]
    return result


def terms(content: Object) -> list[Object] | None:
    required = content["spec"].get("affinity", {}).get("nodeAffinity", {}).get(REQUIRED)
    return None if required is None else required["nodeSelectorTerms"]


def affinity(*own: Object) -> Object:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(own)}}}


@pytest.mark.parametrize(
    ("strategy", "selector", "tolerates", "expected"),
    [
        ("Local", None, False, None),
        ("Local", (NORTH,), False, None),
        ("LocalAndRemote", None, True, None),
        ("LocalAndRemote", (NORTH,), True, [NORTH, {"matchExpressions": [REAL]}]),
        ("Remote", None, True, [{"matchExpressions": [VIRTUAL]}]),
        ("Remote", (NORTH,), True, [{"matchExpressions": [*NORTH["matchExpressions"], VIRTUAL]}]),
    ],
)
def test_strategies(
    strategy: str, selector: tuple[Object, ...] | None, tolerates: bool, expected: list[Object] | None
) -> None:
    offloading = Offloading("n", pods=PodStrategy(strategy), terms=selector)
    found = mutate(pod(), offloading)
    result = patched(pod(), found.patch)
    assert result["spec"].get("tolerations") == ([TOLERATION] if tolerates else None)
    assert terms(result) == expected
    assert found.warnings == []
    assert mutate(result, offloading).patch == [], "asked again, it changes nothing"


@pytest.mark.parametrize(
    "left",
    [
        {"metadata": {"ownerReferences": [{"kind": "DaemonSet", "controller": True}]}, "spec": {}},
        {"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}, "spec": {}},
        pod(nodeName="here"),
        pod(runtimeClassName="farlet"),
    ],
)
def test_whose_pods_are_left_alone(left: Object) -> None:
    assert mutate(left, Offloading("n", pods=PodStrategy.REMOTE)).patch == []


def test_no_offloading_no_change() -> None:
    for offloading in (None, Offloading("n", pods=PodStrategy.REMOTE, deleting=True)):
        assert mutate(pod(), offloading).patch == []


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {"kubernetes.io/hostname": "here"}},
        {"affinity": affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["here"]}]})},
        {
            "affinity": affinity(
                {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["here"]}]}
            )
        },
    ],
)
def test_a_pod_that_names_its_node_keeps_it(spec: Object) -> None:
    content = pod(**spec)
    result = patched(content, mutate(content, Offloading("n", pods=PodStrategy.REMOTE)).patch)
    assert result["spec"].get("affinity") == content["spec"].get("affinity")
    assert result["spec"]["tolerations"] == [TOLERATION]


HOST = [
    {"hostNetwork": True},
    {"hostPID": True},
    {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]},
    {"containers": [{"name": "c", "securityContext": {"privileged": True}}]},
    {"resourceClaims": [{"name": "gpu"}]},
]


@pytest.mark.parametrize("spec", HOST)
def test_what_cannot_be_offloaded_is_kept_here_and_said(spec: Object) -> None:
    found = mutate(pod(**spec), Offloading("n"))
    result = patched(pod(**spec), found.patch)
    assert "tolerations" not in result["spec"]
    assert terms(result) == [{"matchExpressions": [REAL]}]
    assert "stays on local nodes" in found.warnings[0]
    found = mutate(pod(**spec), Offloading("n", pods=PodStrategy.REMOTE))
    assert "will not run" in found.warnings[0]
    if "resourceClaims" not in spec:
        assert mutate(pod(**spec), Offloading("n"), allow_host=True).warnings == []


def test_other_wishes_are_kept() -> None:
    content = pod(
        tolerations=[{"key": "gpu", "operator": "Exists"}],
        affinity={"podAffinity": {"x": 1}, "nodeAffinity": {"preferred": 2, REQUIRED: {"nodeSelectorTerms": [NORTH]}}},
    )
    result = patched(content, mutate(content, Offloading("n", pods=PodStrategy.REMOTE)).patch)["spec"]
    assert result["tolerations"] == [{"key": "gpu", "operator": "Exists"}, TOLERATION]
    assert result["affinity"]["podAffinity"] == {"x": 1}
    assert result["affinity"]["nodeAffinity"]["preferred"] == 2


def test_there_is_an_end_to_terms() -> None:
    own = [{"matchExpressions": [{"key": f"k{n}", "operator": "Exists"}]} for n in range(MAX_TERMS)]
    with pytest.raises(TooManyTerms):
        merged(own, [NORTH, {"matchExpressions": [REAL]}])


KEYS = ("region", "size", names.LABEL_VIRTUAL_NODE)
LABELS = [
    {k: v for k, v in zip(KEYS, values, strict=True) if v is not None}
    for values in itertools.product((None, "north", "south"), (None, "1", "7"), (None, "true"))
]
NODES = [(name, labels) for name in ("one", "two") for labels in LABELS]
EXPRESSIONS = st.one_of(
    st.builds(
        lambda operator, values: {"key": "region", "operator": operator, "values": values},
        st.sampled_from(["In", "NotIn"]),
        st.lists(st.sampled_from(["north", "south"]), min_size=1, unique=True),
    ),
    st.builds(
        lambda key, operator: {"key": key, "operator": operator},
        st.sampled_from(KEYS),
        st.sampled_from(["Exists", "DoesNotExist"]),
    ),
    st.builds(lambda operator: {"key": "size", "operator": operator, "values": ["3"]}, st.sampled_from(["Gt", "Lt"])),
)
FIELDS = st.builds(
    lambda operator, name: {"key": "metadata.name", "operator": operator, "values": [name]},
    st.sampled_from(["In", "NotIn"]),
    st.sampled_from(["one", "two"]),
)
TERMS = st.builds(
    lambda e, f: {k: v for k, v in (("matchExpressions", e), ("matchFields", f)) if v},
    st.lists(EXPRESSIONS, max_size=2),
    st.lists(FIELDS, max_size=1),
)


@given(st.one_of(st.none(), st.lists(TERMS, min_size=1, max_size=4)), st.lists(TERMS, min_size=1, max_size=4))
def test_both_wishes_hold_on_every_node(own: list[Object] | None, wanted: list[Object]) -> None:
    together = merged(own, wanted)
    for name, labels in NODES:
        both = (own is None or any_term_allows(own, name, labels)) and any_term_allows(wanted, name, labels)
        assert any_term_allows(together, name, labels) == both, (name, labels)
    again = merged(together, wanted)
    assert again == together


@given(st.one_of(st.none(), st.lists(TERMS, min_size=1, max_size=3)), st.sampled_from(list(PodStrategy)))
def test_strategies_select_what_they_say(selector: list[Object] | None, strategy: PodStrategy) -> None:
    chosen = None if selector is None else tuple(selector)
    wanted = wanted_terms(Offloading("n", pods=strategy, terms=chosen))
    for name, labels in NODES:
        virtual = labels.get(names.LABEL_VIRTUAL_NODE) == "true"
        in_selector = chosen is None or any_term_allows(chosen, name, labels)
        expected = {
            PodStrategy.LOCAL: True,
            PodStrategy.REMOTE: virtual and in_selector,
            PodStrategy.LOCAL_AND_REMOTE: not virtual or in_selector,
        }[strategy]
        allowed = not wanted or any_term_allows(wanted, name, labels)
        assert allowed == expected, (name, labels)
