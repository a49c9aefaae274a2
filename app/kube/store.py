"""The objects of one kind that an informer knows, by key and by index. No I/O.

Every change goes in as a whole and comes out as a list of single changes, so that whoever is told of one of them
already finds all of them in the store. One thread changes it; others may read it, and never see half a change.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from app.kube.objects import Envelope, Key

log = logging.getLogger(__name__)

Indexer: TypeAlias = Callable[[Envelope], str | Iterable[str] | None]
"""Under which value, or values, an object is to be found."""


class Change(NamedTuple):
    """What became of one object. ``old`` is None for a new one, ``new`` for one that is gone."""

    key: Key
    old: Envelope | None
    new: Envelope | None


class Store:
    """Objects by key, and by the values that the indexers give them."""

    def __init__(self, indexers: Mapping[str, Indexer] | None = None) -> None:
        self._objects: dict[Key, Envelope] = {}
        self._indexes = {name: _Index(indexer) for name, indexer in (indexers or {}).items()}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: Key) -> Envelope | None:
        with self._lock:
            return self._objects.get(key)

    def all(self) -> list[Envelope]:
        """All objects, as they are now."""
        with self._lock:
            return list(self._objects.values())

    def by_index(self, name: str, value: str) -> list[Envelope]:
        """The objects that the indexer of this name found this value in."""
        index = self._indexes[name]
        with self._lock:
            found = index.get(value)
            if isinstance(found, Key):
                return [self._objects[found]]
            return [self._objects[key] for key in found] if found else []

    def each_by_index(self, name: str, values: Iterable[str]) -> list[tuple[Envelope, ...]]:
        """What :meth:`by_index` finds for each of many values, all at one moment: a call, a lock and a list for each
        cost more than to find it."""
        index, objects = self._indexes[name], self._objects
        with self._lock:
            return [
                (objects[found],) if isinstance(found, Key) else tuple([objects[key] for key in found]) if found else ()
                for found in map(index.get, values)
            ]

    def put(self, new: Envelope) -> list[Change]:
        """Add an object or a new version of one; a version that is known already is no change."""
        old = self._objects.get(new.key)
        if old is None:
            with self._lock:
                self._add(new)
            return [Change(new.key, None, new)]
        if old is new:
            return []
        same_object = old.metadata.uid == new.metadata.uid
        if same_object and old.resource_version == new.resource_version:
            return []
        with self._lock:
            self._drop(old)
            self._add(new)
        if same_object:
            return [Change(new.key, old, new)]
        return [Change(new.key, old, None), Change(new.key, None, new)]  # deleted, and made again under the same name

    def remove(self, key: Key) -> list[Change]:
        """Take an object out; one that is not there is no change."""
        old = self._objects.get(key)
        if old is None:
            return []
        with self._lock:
            self._drop(old)
        return [Change(key, old, None)]

    def replace(self, objects: Mapping[Key, Envelope]) -> list[Change]:
        """Make these the only objects: what is not among them is gone, and what did not change is no change."""
        gone = [key for key in self._objects if key not in objects]
        changes = [change for key in gone for change in self.remove(key)]
        return changes + [change for new in objects.values() for change in self.put(new)]

    def _add(self, new: Envelope) -> None:
        self._objects[new.key] = new
        for index in self._indexes.values():
            index.add(new)

    def _drop(self, old: Envelope) -> None:
        # A dict keeps the first key that was equal: with the entry taken out, the old version's is not kept alive.
        del self._objects[old.key]
        for index in self._indexes.values():
            index.discard(old)


class _Index:
    """Keys by value. Most values have one key (a UID, a name), and a set for each would cost more than the keys."""

    def __init__(self, indexer: Indexer) -> None:
        self._indexer = indexer
        self._keys: dict[str, Key | set[Key]] = {}
        self.get = self._keys.get
        """The key, or keys, of a value. Bound once: a scrape looks up each of ten thousand pods three times."""

    def add(self, envelope: Envelope) -> None:
        for value in self._values(envelope):
            found = self._keys.get(value)
            if found is None:
                self._keys[value] = envelope.key
            elif isinstance(found, Key):
                self._keys[value] = {found, envelope.key}
            else:
                found.add(envelope.key)

    def discard(self, envelope: Envelope) -> None:
        for value in self._values(envelope):
            found = self._keys.get(value)
            if isinstance(found, set):
                found.discard(envelope.key)
            if not found or found == envelope.key:
                self._keys.pop(value, None)

    def _values(self, envelope: Envelope) -> Iterable[str]:
        try:
            values = self._indexer(envelope)
        except Exception:  # a bug in an indexer must not end what everything else hangs on
            log.exception("an indexer failed on %s", envelope.key)
            return ()
        if values is None:
            return ()
        return (values,) if isinstance(values, str) else set(values)
