"""Changes go in as a whole and come out one by one; indexes agree with the objects whatever happened before."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kube.objects import Envelope, Key
from app.kube.store import Change, Store


def make(name: str, version: int = 1, uid: str = "u", **labels: str) -> Envelope:
    metadata = {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": str(version), "labels": labels}
    return Envelope.of({"metadata": metadata})


def key(name: str) -> Key:
    return Key("ns", name)


def mapping(*envelopes: Envelope) -> dict[Key, Envelope]:
    return {envelope.key: envelope for envelope in envelopes}


def test_new_changed_and_gone() -> None:
    store, one, other = Store(), make("a", 1), make("a", 2)
    assert store.put(one) == [Change(key("a"), None, one)]
    assert store.put(other) == [Change(key("a"), one, other)]
    assert store.get(key("a")) is other
    assert store.all() == [other]
    assert store.remove(key("a")) == [Change(key("a"), other, None)]
    assert store.get(key("a")) is None
    assert len(store) == 0


def test_the_same_version_is_no_change() -> None:
    store, one = Store(), make("a", 1)
    store.put(one)
    assert store.put(make("a", 1, note="as another server writes it")) == []
    assert store.get(key("a")) is one
    assert store.remove(key("b")) == []


def test_another_object_of_the_same_name_is_a_deletion_and_a_new_one() -> None:
    store, one, other = Store(), make("a", 1, uid="u1"), make("a", 1, uid="u2")
    store.put(one)
    assert store.put(other) == [Change(key("a"), one, None), Change(key("a"), None, other)]
    assert store.all() == [other]


def test_replacing_reports_only_the_differences() -> None:
    store = Store()
    kept, changed, gone = make("kept", 1), make("changed", 2), make("gone", 3)
    store.replace(mapping(kept, changed, gone))
    later, new = make("changed", 5), make("new", 6)
    assert store.replace(mapping(make("kept", 1), later, new)) == [
        Change(key("gone"), gone, None),
        Change(key("changed"), changed, later),
        Change(key("new"), None, new),
    ]
    assert store.replace(mapping(make("kept", 1), later, new)) == []


def test_an_old_version_is_not_kept_by_its_key() -> None:
    store, one, other = Store(), make("a", 1), make("a", 2)
    store.put(one)
    store.put(other)
    assert [held is other.key for held in store._objects] == [True]


def test_a_list_is_of_its_moment() -> None:
    store = Store()
    store.put(make("a"))
    listed = store.all()
    store.put(make("b"))
    assert len(listed) == 1


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (None, {}),
        ("x", {"x": ["a"]}),
        ((), {}),
        (["x", "y", "x"], {"x": ["a"], "y": ["a"]}),
    ],
)
def test_indexers_give_none_one_or_many(values: str | Iterable[str] | None, found: dict[str, list[str]]) -> None:
    store = Store({"by": lambda _: values})
    store.put(make("a"))
    got = {value: [one.key.name for one in store.by_index("by", value)] for value in ("x", "y")}
    assert {value: names for value, names in got.items() if names} == found
    store.remove(key("a"))
    assert store._indexes["by"]._keys == {}


def test_an_indexer_that_fails_does_no_more_harm_than_that(caplog: pytest.LogCaptureFixture) -> None:
    store = Store({"bad": lambda envelope: envelope.object()["nothing"], "good": lambda envelope: envelope.key.name})
    store.put(make("a"))
    assert store.by_index("bad", "a") == []
    assert [one.key for one in store.by_index("good", "a")] == [key("a")]
    assert "an indexer failed on ns/a" in caplog.text


def test_an_index_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(KeyError):
        Store().by_index("uid", "x")


envelopes = st.builds(
    make,
    name=st.sampled_from("abc"),
    version=st.integers(1, 3),
    uid=st.sampled_from("uv"),
    team=st.sampled_from("xyz"),
)
steps = st.lists(
    st.tuples(st.just("put"), envelopes)
    | st.tuples(st.just("remove"), envelopes)
    | st.tuples(st.just("replace"), st.lists(envelopes, max_size=3).map(lambda some: mapping(*some))),
    max_size=12,
)


@given(steps)
def test_reported_changes_and_indexes_agree_with_the_objects(script: list[tuple[str, object]]) -> None:
    """Whoever applies the reported changes one by one has what the store has, at the end of each step."""
    store = Store({"team": lambda envelope: envelope.metadata.labels["team"]})
    mirror: dict[Key, Envelope] = {}
    for verb, what in script:
        argument = what.key if verb == "remove" and isinstance(what, Envelope) else what
        for changed, old, new in getattr(store, verb)(argument):
            assert mirror.get(changed) is old
            if new is None:
                del mirror[changed]
            else:
                mirror[changed] = new
        assert mirror == {envelope.key: envelope for envelope in store.all()}
        for team in "xyz":
            expected = {k for k, v in mirror.items() if v.metadata.labels["team"] == team}
            assert {envelope.key for envelope in store.by_index("team", team)} == expected
        assert list(map(list, store.each_by_index("team", "xyz"))) == [store.by_index("team", team) for team in "xyz"]
        assert len(store._indexes["team"]._keys) == len({v.metadata.labels["team"] for v in mirror.values()})


def test_another_thread_never_sees_half_a_change() -> None:
    store, versions, over = Store({"uid": lambda envelope: envelope.metadata.uid}), 5000, threading.Event()
    store.put(make("a", 0))
    seen: list[bool] = []

    def read() -> None:
        while not over.is_set():
            seen.append(store.get(key("a")) is not None and len(store.by_index("uid", "u")) == 1)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    reader = threading.Thread(target=read)
    reader.start()
    try:
        for version in range(1, versions):
            store.put(make("a", version))
    finally:
        over.set()
        reader.join()
        sys.setswitchinterval(interval)
    assert seen
    assert all(seen)
