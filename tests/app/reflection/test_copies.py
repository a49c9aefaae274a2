"""A copy carries what it should, keeps what others added, and loses what its local object has lost."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import names
from app.kube.objects import Envelope
from app.reflection import copies
from app.reflection.configmaps import ConfigMaps
from app.reflection.copies import Holder, Owner
from app.reflection.rules import Rules
from tests.app.reflection.envelopes import NOWHERE, OWNER, envelope, stored

KIND = ConfigMaps(OWNER, Rules())

texts = st.dictionaries(st.text("abc/", min_size=1, max_size=4), st.text(max_size=4), max_size=4)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def test_identity_and_nothing_of_the_local_cluster() -> None:
    copy = KIND.forge(envelope("ConfigMap", labels={"a": "1"}, annotations={"b": "2"}, data={"k": "v"}), NOWHERE)
    assert copy is not None
    body = copies.new_object(copy, KIND.head(), "there")
    assert body == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "web",
            "namespace": "there",
            "labels": {"a": "1", names.LABEL_ORIGIN: "home", names.LABEL_NODE: "far"},
            "annotations": {
                "b": "2",
                names.ANNOTATION_LOCAL_NAME: "web",
                names.ANNOTATION_LOCAL_NAMESPACE: "shop",
                names.ANNOTATION_REFLECTED: '{"labels":["a"],"annotations":["b"]}',
            },
        },
        "data": {"k": "v"},
    }


@given(labels=texts, annotations=texts, data=texts)
def test_a_copy_that_is_stored_needs_nothing(
    labels: dict[str, str], annotations: dict[str, str], data: dict[str, str]
) -> None:
    local = envelope("ConfigMap", labels=labels, annotations=annotations, data=data)
    copy = KIND.forge(local, NOWHERE)
    assert copy is not None
    assert copy == KIND.forge(local, NOWHERE), "the same object gives the same copy"
    remote = stored(KIND, local)
    assert copies.same_metadata(copy, remote)
    assert KIND.same(copy.content, remote)


@given(before=texts, after=texts, theirs=texts)
def test_replacing_keeps_what_others_added_and_loses_what_went(
    before: dict[str, str], after: dict[str, str], theirs: dict[str, str]
) -> None:
    remote = stored(KIND, envelope("ConfigMap", labels=before))
    metadata = msgspec.json.decode(remote.raw_metadata)
    others = {f"theirs-{key}": value for key, value in theirs.items()}
    metadata["labels"].update(others)
    remote = Envelope.of({**KIND.head(), "metadata": metadata})
    copy = KIND.forge(envelope("ConfigMap", labels=after), NOWHERE)
    assert copy is not None
    body = copies.changed_object(copy, KIND.head(), remote, copy.content)
    assert body["metadata"]["labels"] == {**others, **copy.labels}
    assert body["metadata"]["resourceVersion"] == "9", "only the version that was seen is replaced"
    assert body["metadata"]["uid"] == "r1"


@pytest.mark.parametrize(
    ("changes", "whose"),
    [
        ({}, Holder.OURS),
        ({"labels": {names.LABEL_NODE: "near"}}, Holder.SIBLING),
        (
            {"labels": {names.LABEL_NODE: "near"}, "annotations": {names.ANNOTATION_LOCAL_NAMESPACE: "x"}},
            Holder.FOREIGN,
        ),
        ({"labels": {names.LABEL_ORIGIN: "elsewhere"}}, Holder.FOREIGN),
        ({"annotations": {names.ANNOTATION_LOCAL_NAME: "edited"}}, Holder.OURS),
    ],
)
def test_whose_it_is(changes: dict[str, dict[str, str]], whose: Holder) -> None:
    remote = stored(KIND, envelope("ConfigMap"))
    metadata = msgspec.json.decode(remote.raw_metadata)
    for part, values in changes.items():
        metadata[part].update(values)
    found = Envelope.of({**KIND.head(), "metadata": metadata})
    assert copies.holder(found, OWNER, "shop", "web") is whose


def test_a_bare_object_is_not_ours() -> None:
    found = Envelope.of({"metadata": {"name": "web"}})
    assert copies.holder(found, Owner("home", "far"), "shop", "web") is Holder.FOREIGN


def test_drift_of_metadata_is_seen_and_additions_are_not() -> None:
    local = envelope("ConfigMap", labels={"a": "1"})
    copy = KIND.forge(local, NOWHERE)
    assert copy is not None
    metadata = msgspec.json.decode(stored(KIND, local).raw_metadata)
    metadata["labels"]["added"] = "x"
    assert copies.same_metadata(copy, Envelope.of({"metadata": metadata}))
    metadata["labels"]["a"] = "2"
    assert not copies.same_metadata(copy, Envelope.of({"metadata": metadata}))


def test_a_stamp_that_somebody_broke_is_no_error() -> None:
    for text in ("{", "[]", "1"):
        remote = Envelope.of({"metadata": {"name": "x", "annotations": {names.ANNOTATION_REFLECTED: text}}})
        copy = KIND.forge(envelope("ConfigMap"), NOWHERE)
        assert copy is not None
        assert copies.changed_object(copy, KIND.head(), remote, {})["metadata"]["annotations"] == copy.annotations


def test_too_large() -> None:
    fits = KIND.forge(envelope("ConfigMap", annotations={"a": "x" * 200_000}), NOWHERE)
    bursts = KIND.forge(envelope("ConfigMap", annotations={"a": "x" * (256 * 1024 - 100)}), NOWHERE)
    assert fits is not None
    assert bursts is not None
    assert copies.too_large(fits) is None
    assert "bytes of annotations" in str(copies.too_large(bursts))


@given(st.dictionaries(st.text(max_size=5), json_values, max_size=4))
def test_digests_do_not_depend_on_order_or_on_empty_fields(content: dict[str, object]) -> None:
    backwards = dict(reversed(list(content.items())))
    assert copies.digest(content) == copies.digest(backwards)
    assert copies.digest(content) == copies.digest({**content, "never a key so long": None})
    assert copies.digest(content) != copies.digest({**content, "never a key so long": "x"})


def test_a_copy_never_shows_what_is_in_it() -> None:
    copy = KIND.forge(envelope("ConfigMap", data={"password": "hunter2"}), NOWHERE)
    assert "hunter2" not in repr(copy)
