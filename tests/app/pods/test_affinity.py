"""An affinity is checked before the first pod needs it, and the error says where it is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from app.pods.affinity import checked

REQUIRED, PREFERRED = (f"{word}DuringSchedulingIgnoredDuringExecution" for word in ("required", "preferred"))
BY_NAME = {"key": "metadata.name", "operator": "In", "values": ["a"]}
POD_TERM = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}}}


def node(**expression: Any) -> dict[str, Any]:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}


@pytest.mark.parametrize(
    "content",
    [
        {},
        node(key="disk", operator="In", values=["ssd"]),
        node(key="disk", operator="Exists"),
        node(key="cores", operator="Gt", values=["8"]),
        {"nodeAffinity": {PREFERRED: [{"weight": 1, "preference": {"matchFields": [BY_NAME]}}]}},
        {"podAffinity": {REQUIRED: [POD_TERM]}},
        {"podAntiAffinity": {PREFERRED: [{"weight": 100, "podAffinityTerm": POD_TERM}]}},
        {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{}]}}},
    ],
)
def test_fine(content: Any) -> None:
    assert checked(content) is content


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "the affinity: nodeAffinity and podAffinity"),
        ([], "the affinity"),
        ({"affinity": {}}, "the affinity"),
        ({"nodeAffinity": []}, "nodeAffinity: required"),
        ({"nodeAffinity": {REQUIRED: []}}, "nodeSelectorTerms"),
        ({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}}, "a list is needed"),
        (node(operator="Exists"), r"matchExpressions\[0\].key"),
        (node(key="a", operator="in", values=["b"]), "operator: one of"),
        (node(key="a", operator="In"), "In needs at least one"),
        (node(key="a", operator="Exists", values=["b"]), "Exists has none"),
        (node(key="a", operator="Gt", values=["b"]), "one whole number"),
        (node(key="a", operator="Gt", values=[8]), "numbers in quotes"),
        ({"podAffinity": {REQUIRED: [{}]}}, "topologyKey"),
        ({"podAffinity": {REQUIRED: {}}}, "a list is needed"),
        ({"podAntiAffinity": {PREFERRED: [{"podAffinityTerm": POD_TERM}]}}, "weight: a number"),
    ],
)
def test_mistakes(content: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        checked(content)
