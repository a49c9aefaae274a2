"""The copies in the remote cluster, written one at a time.

A copy is created with POST, which refuses to take the place of what somebody else has put there, and changed with a
PUT of the version that was seen, which refuses to undo what was not. Server-side apply can do neither: it takes over
what it finds, and it does not own what a POST has set. Each is one write.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import msgspec

from app import names
from app.kube.client import Client
from app.kube.errors import Conflict, Invalid, NotFound
from app.kube.objects import Envelope, Object, decode_object
from app.reflection import copies
from app.reflection.copies import Copy
from app.reflection.kind import Kind


class RemoteCopies:
    """What of them is kept in memory is decided by their kinds."""

    def __init__(self, remote: Client) -> None:
        self.writes: Counter[tuple[str, str]] = Counter()
        """By kind and verb."""
        self._remote = remote

    async def look(self, kind: Kind, namespace: str, name: str) -> Envelope | None:
        """Ask the API server itself: what is not ours is in no cache."""
        try:
            return kind.slim(decode_object(await self._remote.request("GET", kind.resource.path(namespace, name))))
        except NotFound:
            return None

    async def create(self, kind: Kind, namespace: str, copy: Copy) -> Envelope:
        """Make the copy, or as much of it as the remote cluster can have."""
        path = kind.resource.path(namespace)
        try:
            return await self._write("POST", kind, path, copies.new_object(copy, kind.head(), namespace))
        except Invalid as error:
            content = kind.relaxed(copy.content, error.message)
            if content is None:
                raise
        less = replace(copy, content=content)
        return await self._write("POST", kind, path, copies.new_object(less, kind.head(), namespace))

    async def change(self, kind: Kind, namespace: str, copy: Copy, remote: Envelope) -> Envelope:
        """Make *remote* what the copy should be."""
        body = copies.changed_object(copy, kind.head(), remote, kind.merged(copy.content, remote))
        return await self._write("PUT", kind, kind.resource.path(namespace, copy.name), body)

    async def delete(self, kind: Kind, remote: Envelope) -> None:
        try:
            path = kind.resource.path(remote.key.namespace, remote.key.name)
            await self._remote.delete(path, uid=remote.metadata.uid, missing_ok=True)
        except Conflict:
            return  # not the one that we knew: its own change is looked at
        self.writes[kind.resource.plural, "DELETE"] += 1

    async def _write(self, method: str, kind: Kind, path: str, body: Object) -> Envelope:
        params = {"fieldManager": names.FIELD_MANAGER_REFLECTION}
        answer = await self._remote.request(method, path, params=params, body=msgspec.json.encode(body))
        self.writes[kind.resource.plural, method] += 1
        return kind.slim(decode_object(answer))
