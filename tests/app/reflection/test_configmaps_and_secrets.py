"""ConfigMaps and Secrets are carried whole; tokens never are; what cannot be changed is made anew."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import names
from app.kube.objects import Envelope
from app.reflection.configmaps import ConfigMaps
from app.reflection.kind import Kind
from app.reflection.rules import Rules
from app.reflection.secrets import TOKEN, Secrets
from tests.app.reflection.envelopes import NOWHERE, OWNER, envelope, rules, stored

MAPS, SECRETS = ConfigMaps(OWNER, Rules()), Secrets(OWNER, Rules())
BIG = 1024 * 1024


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"data": {"a": "1"}},
        {"data": {"a": "1"}, "binaryData": {"b": "AAE="}},
        {"data": {"a": ""}, "immutable": True},
        {"data": {"a": "1"}, "ofTheFuture": {"x": [1]}},
    ],
)
def test_all_of_a_config_map_is_carried(content: dict[str, Any]) -> None:
    copy = MAPS.forge(envelope("ConfigMap", **content), NOWHERE)
    assert copy is not None
    assert copy.content == content
    assert MAPS.same(copy.content, stored(MAPS, envelope("ConfigMap", **content)))


def test_the_root_ca_has_another_name() -> None:
    copy = MAPS.forge(envelope("ConfigMap", names.ROOT_CA, data={"ca.crt": "x"}), NOWHERE)
    assert copy is not None
    assert copy.name == "kube-root-ca.crt-home"
    assert copy.annotations[names.ANNOTATION_LOCAL_NAME] == names.ROOT_CA
    choosy = ConfigMaps(OWNER, rules(configmaps="none"))
    assert choosy.forge(envelope("ConfigMap", names.ROOT_CA), NOWHERE), "nobody annotates it"
    assert choosy.forge(envelope("ConfigMap", "other"), NOWHERE) is None


@pytest.mark.parametrize("policy", ["all", "none"])
def test_the_root_ca_cannot_say_no(policy: str) -> None:
    """The references of remote pods are renamed without a look at it."""
    no = envelope("ConfigMap", names.ROOT_CA, annotations={names.ANNOTATION_REFLECT: "false"}, data={"ca.crt": "x"})
    kind = ConfigMaps(OWNER, rules(configmaps=policy))
    copy = kind.forge(kind.slim_local(no), NOWHERE)
    assert copy is not None
    assert copy.content == {"data": {"ca.crt": "x"}}
    assert ConfigMaps(OWNER, rules(configmaps="off")).forge(no, NOWHERE) is None


@pytest.mark.parametrize(
    "kind", [None, "Opaque", "kubernetes.io/dockerconfigjson", "kubernetes.io/tls", "helm.sh/release.v1", "own"]
)
def test_secrets_of_every_type(kind: str | None) -> None:
    content: dict[str, Any] = {"data": {"a": "MQ=="}} | ({"type": kind} if kind else {})
    copy = SECRETS.forge(envelope("Secret", **content), NOWHERE)
    assert copy is not None
    assert copy.content == content


@pytest.mark.parametrize("said", [{}, {names.ANNOTATION_REFLECT: "true"}])
@pytest.mark.parametrize("policy", ["all", "none"])
def test_tokens_are_never_carried_nor_held(said: dict[str, str], policy: str) -> None:
    kind = Secrets(OWNER, rules(secrets=policy))
    token = envelope("Secret", annotations=said, type=TOKEN, data={"token": "c2VjcmV0"})
    assert kind.forge(token, NOWHERE) is None
    assert b"c2VjcmV0" not in kind.slim_local(token).extra
    assert kind.field_selector == f"type!={TOKEN}", "nor asked for"


@pytest.mark.parametrize(
    ("kind", "before", "after", "anew"),
    [
        (MAPS, {"data": {"a": "1"}}, {"data": {"a": "2"}}, False),
        (MAPS, {"data": {"a": "1"}}, {"data": {"a": "1"}, "immutable": True}, False),
        (MAPS, {"data": {"a": "1"}, "immutable": True}, {"data": {"a": "2"}, "immutable": True}, True),
        (MAPS, {"data": {"a": "1"}, "immutable": True}, {"data": {"a": "1"}}, True),
        (MAPS, {"data": {"a": "1"}, "immutable": True}, {"data": {"a": "1"}, "immutable": True}, False),
        (SECRETS, {"type": "Opaque"}, {"type": "own"}, True),
        (SECRETS, {"type": "Opaque"}, {}, False),
        (SECRETS, {"type": "own", "immutable": True}, {"type": "own", "immutable": True, "data": {"a": ""}}, True),
    ],
)
def test_what_cannot_be_changed_is_made_anew(
    kind: Kind, before: dict[str, Any], after: dict[str, Any], anew: bool
) -> None:
    remote = stored(kind, envelope("x", **before))
    copy = kind.forge(envelope("x", **after), NOWHERE)
    assert copy is not None
    assert kind.must_replace(copy.content, remote) is anew


@given(
    st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3),
    st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3),
)
def test_any_other_content_is_another(one: dict[str, str], other: dict[str, str]) -> None:
    remote = stored(MAPS, envelope("ConfigMap", data=one))
    copy = MAPS.forge(envelope("ConfigMap", data=other), NOWHERE)
    assert copy is not None
    assert MAPS.same(copy.content, remote) is (one == other)


def test_the_content_is_held_once_and_only_of_what_is_reflected() -> None:
    local = envelope("ConfigMap", data={"a": "x" * BIG})
    assert _size(stored(MAPS, local)) < 1000, "of a copy there is a digest"
    assert MAPS.slim_local(local) == local
    refused = envelope("ConfigMap", data={"a": "x" * BIG}, annotations={names.ANNOTATION_REFLECT: "false"})
    assert _size(MAPS.slim_local(refused)) < 1000


def _size(found: Envelope) -> int:
    return len(found.raw_metadata) + len(found.spec) + len(found.status) + len(found.extra)
