"""What was asked of a cluster, by the audit log of its API server."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from http import HTTPStatus

from devcluster.cluster import Cluster
from tests.cluster.objects import Object

FARLET = "system:serviceaccount:farlet:farlet"
READS = frozenset({"get", "list", "watch"})
TWINS = ("pods", "replicasets", "jobs")

_BEGINNING = b'{"kind":"Event"'


def mark(cluster: Cluster) -> int:
    """Where the log ends now, for what asks since when."""
    return cluster.layout.audit_log.stat().st_size


def events(cluster: Cluster, since: int = 0) -> Iterator[Object]:
    """The requests that were answered, each as the audit log has it."""
    with cluster.layout.audit_log.open("rb") as log:
        assert log.seek(0, os.SEEK_END) >= since, f"{cluster.layout.audit_log} was rotated: what was asked is not known"
        log.seek(since)
        for line in log:
            # the last may be half written yet; and what a server that was killed had half written begins the next
            begins = line.rfind(_BEGINNING)
            if line.endswith(b"\n") and begins >= 0:
                yield json.loads(line[begins:])


def about(cluster: Cluster, since: int, namespace: str, user: str = FARLET) -> Iterator[tuple[Object, Object]]:
    """The requests of one user (``system:node:*``: of all whose names begin so) in a namespace, and their objects."""
    for event in events(cluster, since):
        item = event.get("objectRef", {})
        if item.get("namespace") == namespace and fnmatchcase(event["user"].get("username", ""), user):
            yield event, item


def writes(
    cluster: Cluster,
    since: int,
    namespace: str,
    kinds: Collection[str] = TWINS,
    user: str = FARLET,
    *,
    accepted: bool = False,
) -> list[str]:
    """What was written to objects of these kinds, or was to be, unless *accepted*: ``patch pods box status``."""
    return [
        f"{event['verb']} {item['resource']} {item.get('name')} {item.get('subresource', '')}"
        for event, item in about(cluster, since, namespace, user)
        if event["verb"] not in READS
        and item.get("resource") in kinds
        and (not accepted or event["responseStatus"]["code"] < HTTPStatus.BAD_REQUEST)
    ]


def status_writes(cluster: Cluster, since: int, namespace: str, user: str) -> list[str]:
    """The pods whose status was written, once for each time."""
    return [
        str(item.get("name"))
        for event, item in about(cluster, since, namespace, user)
        if event["verb"] not in READS and item.get("subresource") == "status"
    ]
