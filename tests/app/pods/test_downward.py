"""The downward API: what stays a reference, what becomes a value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import names
from app.kube.objects import Object
from app.pods.downward import carrier_key, format_map
from app.pods.forge import forge_twin
from tests.app.pods.pods import OPTIONS, REMOTE, UID, local_pod


def _environment(pod: Object, *env: Object) -> list[Object]:
    pod["spec"]["containers"][0]["env"] = list(env)
    forged: list[Object] = forge_twin(pod, REMOTE, OPTIONS)["spec"]["template"]["spec"]["containers"][0]["env"]
    return forged


def _reference(path: str) -> Object:
    return {"name": "X", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "web-0"),
        ("metadata.namespace", "shop"),
        ("metadata.uid", UID),
        ("spec.nodeName", "far-away"),
        ("spec.serviceAccountName", "shopkeeper"),
        (f"metadata.labels['{names.LABEL_POD_UID}']", ""),
        (f"metadata.annotations['{names.ANNOTATION_LOCAL_NAME}']", ""),
        ("metadata.annotations['kubectl.kubernetes.io/last-applied-configuration']", "$$(X) $$$$"),
        ("metadata.labels['app']", None),
        ("metadata.labels['missing']", None),
        ("metadata.annotations['note']", None),
        ("status.podIP", None),
        ("status.hostIPs", None),
        ("status.of.the.future", None),
    ],
)
def test_environment(path: str, value: str | None) -> None:
    pod = local_pod()
    pod["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = "$(X) $$"
    expected = _reference(path) if value is None else {"name": "X", "value": value}
    assert _environment(pod, _reference(path)) == [expected]


def test_environment_keeps_its_order_and_what_is_no_reference() -> None:
    others: list[Object] = [
        {"name": "A", "value": "$(X)"},
        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        {"name": "D"},
        {"name": "E", "valueFrom": {"ofTheFuture": {}}},
    ]
    forged = _environment(local_pod(), others[0], _reference("metadata.name"), *others[1:])
    assert forged == [others[0], {"name": "X", "value": "web-0"}, *others[1:]]


@pytest.mark.parametrize("projected", [False, True])
def test_volumes(projected: bool) -> None:
    paths = ["metadata.name", "metadata.labels", "metadata.labels['app']", "metadata.annotations"]
    items: list[Object] = [{"path": path, "mode": 256, "fieldRef": {"fieldPath": path}} for path in paths]
    items.append({"path": "cpu", "resourceFieldRef": {"containerName": "main", "resource": "limits.cpu"}})
    source = {"downwardAPI": {"items": items, "ofTheFuture": 1}}
    volume = {"name": "info", "projected": {"sources": [source]}} if projected else {"name": "info", **source}
    pod = local_pod(
        volumes=[volume], metadata={"annotations": {"b": "2", "a": '1"\n', names.ANNOTATION_REMOTE_UID: "x"}}
    )

    template = forge_twin(pod, REMOTE, OPTIONS)["spec"]["template"]
    forged = template["spec"]["volumes"][0]
    forged = forged["projected"]["sources"][0] if projected else forged
    seen = {item["path"]: item for item in forged["downwardAPI"]["items"]}
    annotations = template["metadata"]["annotations"]

    def content(path: str) -> str:
        key = seen[path]["fieldRef"]["fieldPath"].removeprefix("metadata.annotations['").removesuffix("']")
        return str(annotations[key])

    assert content("metadata.name") == "web-0"
    assert content("metadata.labels") == 'app="web"\npod-template-hash="7d9f"'
    assert content("metadata.annotations") == 'a="1\\"\\n"\nb="2"'
    assert seen["metadata.labels['app']"]["fieldRef"]["fieldPath"] == "metadata.labels['app']"
    assert seen["cpu"] == items[-1]
    assert seen["metadata.name"]["mode"] == 256
    assert forged["downwardAPI"]["ofTheFuture"] == 1


def test_carriers_of_two_hops_differ() -> None:
    assert carrier_key("metadata.name", "one") != carrier_key("metadata.name", "two")
    assert carrier_key("metadata.labels['a']", "one") != carrier_key("metadata.labels['b']", "one")


@given(st.text(max_size=60), st.uuids().map(str))
def test_a_carrier_is_a_valid_annotation(key: str, uid: str) -> None:
    prefix, _, name = carrier_key(f"metadata.annotations['{key}']", uid).partition("/")
    assert prefix == names.GROUP
    assert len(name) <= 63


@pytest.mark.parametrize(
    ("value", "quoted"),
    [
        ("plain", '"plain"'),
        ('q " b \\', r'"q \" b \\"'),
        ("\a\b\f\n\r\t\v", r'"\a\b\f\n\r\t\v"'),
        ("\x00\x1f\x7f", r'"\x00\x1f\x7f"'),
        ("é 漢 😀", '"é 漢 😀"'),
        ("\u00a0\u200b\ufeff", r'"\u00a0\u200b\ufeff"'),
        ("\U000e0001", r'"\U000e0001"'),
    ],
)
def test_maps_are_quoted_as_go_does(value: str, quoted: str) -> None:
    """Checked against strconv.Quote."""
    assert format_map({"b": "2", "a": value}) == f'a={quoted}\nb="2"'
