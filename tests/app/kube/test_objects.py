"""Whatever the server sent comes out again, but for ``managedFields``; and nothing keeps the server's answer alive."""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kube import objects
from app.kube.objects import Envelope, Key, Metadata, Object, OwnerReference

POD: Object = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "web-0",
        "generateName": "web-",
        "namespace": "shop",
        "uid": "6c1f2a34-0000-4000-8000-000000000001",
        "resourceVersion": "812",
        "generation": 3,
        "creationTimestamp": "2026-11-16T04:00:00Z",
        "deletionTimestamp": "2026-11-16T05:00:00Z",
        "deletionGracePeriodSeconds": 30,
        "labels": {"app": "web"},
        "annotations": {"note": "käse\n"},
        "ownerReferences": [
            {
                "apiVersion": "apps/v1",
                "kind": "StatefulSet",
                "name": "web",
                "uid": "u-1",
                "controller": True,
                "blockOwnerDeletion": True,
                "fromTheFuture": {"a": 1},
            }
        ],
        "finalizers": ["farlet.dev/twin"],
        "selfLink": "/api/v1/namespaces/shop/pods/web-0",
        "fieldOfNextYear": [1, 2, {"three": None}],
    },
    "spec": {"containers": [{"name": "web", "image": "web:1"}], "fieldOfNextYear": 1.5},
    "status": {"phase": "Running"},
    "topLevelOfNextYear": {"a": [True, None]},
}
MANAGED = [{"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:status": {"f:phase": {}}}}]

texts = st.text(max_size=12)
words = st.text(min_size=1, max_size=12)
# what a Go program reads and writes: 64-bit integers, finite floats
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
json_objects = st.dictionaries(texts, json_values, max_size=4)
names = st.fixed_dictionaries({}, optional={"name": texts, "namespace": texts, "resourceVersion": texts, "uid": texts})


@st.composite
def kubernetes_objects(draw: st.DrawFn) -> Object:
    """Anything with metadata, whose names are text; apart from that, any JSON in any field."""
    result = draw(json_objects)
    result.pop("apiVersion", None), result.pop("kind", None)
    result |= draw(st.fixed_dictionaries({}, optional={"apiVersion": words, "kind": words}))
    result |= draw(st.fixed_dictionaries({}, optional={"spec": json_values, "status": json_values}))
    unknown = {key: value for key, value in draw(json_objects).items() if key not in Metadata.__struct_fields__}
    return result | {"metadata": unknown | draw(names)}


def with_managed_fields(content: Object) -> Object:
    return content | {"metadata": content["metadata"] | {"managedFields": MANAGED}}


def encode(content: object, *, spaces: bool = False) -> bytes:
    return json.dumps(content, indent=2 if spaces else None, ensure_ascii=spaces).encode()


def list_of(*items: Object, kind: str = "PodList", **metadata: str) -> bytes:
    return encode({"kind": kind, "apiVersion": "v1", "metadata": metadata, "items": items})


@given(content=kubernetes_objects(), managed=st.booleans(), spaces=st.booleans())
def test_every_field_comes_back_but_managed_fields(content: Object, managed: bool, spaces: bool) -> None:
    content["metadata"].pop("managedFields", None)
    sent = with_managed_fields(content) if managed else content
    assert objects.decode_object(encode(sent, spaces=spaces)).object() == content


@given(contents=st.lists(kubernetes_objects(), max_size=3))
def test_the_items_of_a_list_come_back(contents: list[Object]) -> None:
    for content in contents:
        content["metadata"].pop("managedFields", None)
    page = objects.decode_list(list_of(*map(with_managed_fields, contents), kind="List"))
    assert [item.object() for item in page.items] == contents


@given(content=kubernetes_objects(), kind=st.sampled_from([objects.ADDED, objects.MODIFIED, objects.DELETED]))
def test_the_object_of_an_event_comes_back(content: Object, kind: str) -> None:
    content["metadata"].pop("managedFields", None)
    event, envelope = objects.decode_event(encode({"type": kind, "object": with_managed_fields(content)}))
    assert isinstance(envelope, Envelope)
    assert (event, envelope.object()) == (kind, content)


@given(content=kubernetes_objects())
def test_an_object_at_hand_gets_the_same_envelope_as_one_that_arrives(content: Object) -> None:
    assert Envelope.of(content) == objects.decode_object(msgspec.json.encode(content))


def test_metadata() -> None:
    assert Envelope.of(POD).metadata == Metadata(
        name="web-0",
        namespace="shop",
        uid="6c1f2a34-0000-4000-8000-000000000001",
        resourceVersion="812",
        generation=3,
        creationTimestamp="2026-11-16T04:00:00Z",
        deletionTimestamp="2026-11-16T05:00:00Z",
        deletionGracePeriodSeconds=30,
        labels={"app": "web"},
        annotations={"note": "käse\n"},
        ownerReferences=[OwnerReference("apps/v1", "StatefulSet", "web", "u-1", controller=True)],
        finalizers=["farlet.dev/twin"],
    )


def test_metadata_with_as_little_as_the_server_may_send() -> None:
    metadata = Envelope.of({"metadata": {"name": "a", "creationTimestamp": None}}).metadata
    assert metadata == Metadata(name="a")
    assert (metadata.labels, metadata.annotations, metadata.ownerReferences, metadata.finalizers) == ({}, {}, [], [])


def test_two_decoded_objects_share_nothing() -> None:
    envelope = Envelope.of(POD)
    envelope.object()["metadata"]["labels"]["app"] = "changed"
    envelope.metadata.labels["app"] = "changed"
    assert envelope.object() == POD
    assert envelope.metadata.labels == {"app": "web"}


@pytest.mark.parametrize(
    ("metadata", "key", "text"),
    [
        ({"namespace": "shop", "name": "web-0"}, Key("shop", "web-0"), "shop/web-0"),
        ({"name": "node-1"}, Key("", "node-1"), "node-1"),
    ],
)
def test_keys(metadata: Object, key: Key, text: str) -> None:
    envelope = Envelope.of({"metadata": metadata})
    assert envelope.key == key
    assert str(key) == text


@pytest.mark.parametrize(
    ("content", "spec", "status", "extra"),
    [
        ({}, b"", b"", b""),
        ({"spec": {}, "status": None}, b"{}", b"null", b""),
        ({"data": {"a": "1"}, "immutable": True}, b"", b"", b'{"data":{"a":"1"},"immutable":true}'),
    ],
)
def test_parts(content: Object, spec: bytes, status: bytes, extra: bytes) -> None:
    envelope = Envelope.of({"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "a"}} | content)
    assert (envelope.spec, envelope.status, envelope.extra) == (spec, status, extra)


def test_a_part_is_the_bytes_that_came() -> None:
    envelope = objects.decode_object(b'{"metadata":{"name":"a"},"spec":{ "cpu" : 1e3, "text": "\\u00e4" }}')
    assert envelope.spec == b'{ "cpu" : 1e3, "text": "\\u00e4" }'


def test_a_list_says_what_its_items_are_and_where_it_goes_on() -> None:
    item = {"metadata": {"name": "a", "resourceVersion": "5"}}
    page = objects.decode_list(list_of(item, resourceVersion="9", **{"continue": "token"}))
    assert (page.resource_version, page.continue_token) == ("9", "token")
    assert page.items[0].object() == {"apiVersion": "v1", "kind": "Pod"} | item


@pytest.mark.parametrize("items", [None, []])
def test_an_empty_list(items: list[Object] | None) -> None:
    content = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": items}
    assert objects.decode_list(encode(content)) == ([], "9", "")


@pytest.mark.parametrize("kind", [objects.BOOKMARK, objects.ERROR])
def test_bookmarks_and_errors_are_plain(kind: str) -> None:
    content = {"kind": "Pod", "metadata": {"resourceVersion": "99", "annotations": {"a": "b"}}}
    assert objects.decode_event(encode({"type": kind, "object": content})) == (kind, content)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'"text"', b'{"spec":{}}', b'{"metadata":null}', b'{"metadata":{"name":7}}'],
)
def test_what_is_no_object_is_refused(content: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        objects.decode_object(content)


def test_nothing_keeps_the_answer_alive() -> None:
    """No part is a view of the answer: what an envelope refers to is text and bytes of its own, of its own size."""
    answer = list_of(*[with_managed_fields(POD) for _ in range(100)])
    references = sys.getrefcount(answer)
    page = objects.decode_list(answer)
    for part in (getattr(page.items[0], field) for field in Envelope.__struct_fields__):
        assert type(part) in (str, bytes, Key)
    assert sys.getrefcount(answer) == references
    assert sum(map(held, page.items)) < 100 * 1200


def test_the_content_of_an_object_stays_out_of_logs() -> None:
    secret = {"kind": "Secret", "metadata": {"name": "a", "namespace": "b"}, "data": {"password": "hunter2"}}
    assert repr(Envelope.of(secret)) == "<Secret b/a>"


def test_repeated_words_are_held_once() -> None:
    one, other = objects.decode_list(list_of(POD, POD)).items
    assert one.key.namespace is other.key.namespace
    assert one.kind is other.kind
    assert one.api_version is other.api_version


def held(envelope: Envelope) -> int:
    parts: list[Any] = [getattr(envelope, field) for field in Envelope.__struct_fields__]
    return sum(len(part) for part in parts)
