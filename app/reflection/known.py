"""What we did, met and said of each object that no cache shows: forgotten with the namespace, or with the process."""

from __future__ import annotations

from typing import NamedTuple

from app.kube.objects import Envelope
from app.reflection import copies
from app.reflection.copies import Copy
from app.reflection.extensions import Extension
from app.reflection.kind import Kind


class Item(NamedTuple):
    """A local object, whether it is there or not, and where its copy is."""

    kind: str
    extension: Extension
    name: str

    @property
    def namespace(self) -> str:
        return self.extension.namespace

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class Known:
    """The objects of all extended namespaces."""

    def __init__(self) -> None:
        self.written: dict[Item, Envelope] = {}
        """Copies as they were written and the informers have not shown yet."""
        self.conflicts: dict[Item, float] = {}
        """Objects in whose place is somebody else's: the next wait."""
        self.told: dict[Item, str] = {}
        """What was last said of an object."""
        self.lost: dict[Extension, float] = {}
        """Those whose remote namespaces were not there: when to try again, by the loop's clock."""
        self._settled: dict[Item, tuple[str, str]] = {}
        """Where a server keeps something else than it was given: what that was, and what it made of it."""

    def wrote(self, item: Item, kind: Kind, copy: Copy, answer: Envelope, shown: Envelope | None) -> None:
        """A copy was written; *shown* is what its informer has of it."""
        if shown is None or not _as_new(shown, answer):  # the watch may be quicker than the answer
            self.written[item] = answer
        self.conflicts.pop(item, None)
        self.told.pop(item, None)
        if not kind.same(copy.content, answer):
            # another version of Kubernetes may not know a field: asking for it again and again would not help
            self._settled[item] = copies.digest(copy.content), _state(answer)
        else:
            self._settled.pop(item, None)

    def same_content(self, item: Item, kind: Kind, copy: Copy, remote: Envelope) -> bool:
        """Whether a copy that is there is what it should be, or what a server makes of that."""
        if kind.same(copy.content, remote):
            return True
        return self._settled.get(item) == (copies.digest(copy.content), _state(remote))

    def unwanted(self, item: Item) -> bool:
        """There is to be no copy; whether somebody else's was in its place."""
        self.told.pop(item, None)
        self._settled.pop(item, None)
        return self.conflicts.pop(item, None) is not None

    def forget(self, extension: Extension) -> None:
        """Of what was in a namespace that is not followed any more, nothing is kept."""
        for known in (self.written, self._settled, self.conflicts, self.told):
            for item in [item for item in known if item.extension == extension]:
                del known[item]
        self.lost.pop(extension, None)


def _as_new(shown: Envelope, answer: Envelope) -> bool:
    """Whether what the cache has is the answer to our write, or came after it."""
    versions = (shown.resource_version, answer.resource_version)
    return all(version.isdecimal() for version in versions) and int(versions[0]) >= int(versions[1])


def _state(remote: Envelope) -> str:
    """What a remote copy is, for comparing it with itself."""
    return copies.digest({"spec": remote.spec.decode(), "extra": remote.extra.decode()})
