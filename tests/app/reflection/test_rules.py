"""What is reflected, by policy and by what an object says."""

from __future__ import annotations

import pytest

from app import names
from app.reflection.rules import Policy, Rules, parse


@pytest.mark.parametrize(
    ("policy", "said", "wanted"),
    [
        ("all", None, True),
        ("all", "true", True),
        ("all", "false", False),
        ("all", "False", False),
        ("all", "maybe", True),
        ("none", None, False),
        ("none", "true", True),
        ("none", "TRUE", True),
        ("none", "false", False),
        ("off", "true", False),
    ],
)
def test_policy_and_annotation(policy: str, said: str | None, wanted: bool) -> None:
    annotations = {} if said is None else {names.ANNOTATION_REFLECT: said}
    assert Rules({"secrets": Policy(policy)}).wanted("secrets", annotations) is wanted


def test_all_is_the_default() -> None:
    assert Rules().wanted("configmaps", {})


def test_parse() -> None:
    assert parse(["secrets=none", "services=off"]) == {"secrets": Policy.NONE, "services": Policy.OFF}


@pytest.mark.parametrize(
    "options", [["secrets"], ["secrets="], ["pods=all"], ["secrets=some"], ["secrets=all"] * 2, ["endpointslices=none"]]
)
def test_what_is_no_policy_is_refused(options: list[str]) -> None:
    with pytest.raises(ValueError, match=r"KIND=POLICY|twice|follow"):
        parse(options)


def test_labels_and_annotations_that_are_not_carried() -> None:
    rules = Rules({}, ("team.example/*", "exact"), ("kubectl.kubernetes.io/last-applied-configuration",))
    assert rules.labels({"a": "1", "team.example/x": "2", "exact": "3", "exactly": "4", "farlet.dev/origin": "5"}) == {
        "a": "1",
        "exactly": "4",
    }
    assert rules.annotations(
        {"kubectl.kubernetes.io/last-applied-configuration": "{}", "farlet.dev/x": "", "b": ""}
    ) == {"b": ""}
