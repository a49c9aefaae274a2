"""What is to be done to remove a virtual node, decided from what both clusters hold.

Pure and level-based: each round :func:`plan` is given what there is now and says the next things to do, so an
interrupted removal goes on where it stopped. Two rules shape it. Whatever a ``farlet run`` would do itself (ending
twins, deleting local pods for good) is planned only while its leader lock is ours. And what runs remotely goes before
the local pod that stands for it, unless the remote cluster is given up (``force``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from app import names
from app.kube.objects import Object
from app.namespaces.content import EVERY_NAMESPACE_HAS
from app.namespaces.mapping import remote_name
from app.pods.deletion import Deletion, plan_removal

_MIRROR: Final = "kubernetes.io/config.mirror"
_SHOWN: Final = 5
"""Names in a line of progress, before it is 'and 37 more'."""

_NOT_CONTENT: Final = {("", "events"), ("events.k8s.io", "events")}
"""Traces that end by themselves."""
_COMPUTED: Final = {"metrics.k8s.io"}
"""Groups that show other objects once more."""


@dataclass(frozen=True, slots=True)
class Remote:
    """What stands for the node's pods in the remote cluster."""

    twins: Sequence[Object] = ()
    pods: Sequence[Object] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What there is at one moment."""

    pods: Sequence[Object]
    """All local pods on the node."""
    remote: Remote | None
    """None: the remote cluster is not looked at."""
    leading: bool
    """The leader lock of the node is ours: no farlet works for it, and none begins to."""
    force: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """What is due now; all of it may be sent at once."""

    evict: tuple[Object, ...] = ()
    """Local pods that are asked to go."""
    deletions: tuple[Deletion, ...] = ()
    """In the remote cluster."""
    end: tuple[Object, ...] = ()
    """Local pods of which nothing runs any more: deleted with grace 0."""
    left: tuple[Object, ...] = ()
    """Local pods that are not gone yet."""
    finished: bool = False
    """Nothing is left but the Node itself."""


def why_not(name: str, node: Object | None, *, remote_ids: Sequence[str] | None, traces: bool) -> str | None:
    """Why nothing may be removed; None if it may.

    *remote_ids*: what the remote cluster may be called. *traces*: something of a node that is gone is left, as after
    an interruption.
    """
    if node is None:
        return None if traces else f"there is no node {name}, and nothing is left of one that was Farlet's"
    labels = node["metadata"].get("labels") or {}
    if names.LABEL_VIRTUAL_NODE not in labels:
        return f"node {name} is not a virtual node of Farlet: nothing was touched"
    behind = labels.get(names.LABEL_REMOTE_CLUSTER)
    if remote_ids is not None and behind not in remote_ids:
        return (
            f"node {name} stands for the remote cluster {behind}, and --remote-kubeconfig leads to {remote_ids[0]}: "
            "nothing was touched"
        )
    return None


def is_leader_lease(lease: Object) -> bool:
    """Whether a Lease of the lock's name is one; a node called ``farlet-...`` has a heartbeat of such a name."""
    owners = lease["metadata"].get("ownerReferences") or []
    return not any(owner.get("kind") == "Node" for owner in owners)


def is_led(first: Object | None, now: Object | None, waited: float) -> bool | None:
    """Whether a farlet renews the leader Lease, by how it looked first and now; None if more waiting will tell.

    Times in the Lease are by another machine's clock, so only a change counts, as for the lock itself.
    """
    spec = (now or {}).get("spec") or {}
    if not spec.get("holderIdentity"):
        return False
    if spec != ((first or {}).get("spec") or {}):
        return True
    return False if waited > float(spec.get("leaseDurationSeconds") or 0) else None


def leaving(pods: Iterable[Object]) -> list[Object]:
    """The pods that have to go before the node does: mirror and DaemonSet pods only go with it."""
    return [pod for pod in pods if not _goes_with_the_node(pod)]


def _goes_with_the_node(pod: Object) -> bool:
    metadata = pod["metadata"]
    owners = {owner["kind"] for owner in metadata.get("ownerReferences") or [] if owner.get("controller")}
    return _MIRROR in (metadata.get("annotations") or {}) or bool(owners & {"Node", "DaemonSet"})


def is_bare(pod: Object) -> bool:
    """Whether no controller makes the pod again elsewhere."""
    return not any(owner.get("controller") for owner in pod["metadata"].get("ownerReferences") or [])


def plan(view: View) -> Step:
    """What is due."""
    left = leaving(view.pods)
    if view.force:
        return Step(end=tuple(left) if view.leading else (), left=tuple(left), finished=view.leading and not left)
    evict = tuple(pod for pod in left if not pod["metadata"].get("deletionTimestamp"))
    if not view.leading or view.remote is None:
        return Step(evict=evict, left=tuple(left), finished=view.leading and not left)
    deletions: list[Deletion] = []
    end: list[Object] = []
    for pod in left:
        metadata = pod["metadata"]
        if not metadata.get("deletionTimestamp"):
            continue
        removal = plan_removal(metadata.get("deletionGracePeriodSeconds"), *_of(view.remote, metadata["uid"]))
        deletions += removal.deletions
        if removal.finished:
            end.append(pod)
    orphans = _uids(view.remote) - {pod["metadata"]["uid"] for pod in left}
    for uid in sorted(orphans):
        deletions += plan_removal(None, *_of(view.remote, uid)).deletions
    return Step(evict, tuple(deletions), tuple(end), tuple(left), finished=not left and not orphans)


def _of(remote: Remote, uid: str) -> tuple[list[Object], list[Object]]:
    """Twins and pods that stand for one local pod."""
    return [twin for twin in remote.twins if _uid(twin) == uid], [pod for pod in remote.pods if _uid(pod) == uid]


def _uids(remote: Remote) -> set[str]:
    return {_uid(item) for item in (*remote.twins, *remote.pods)}


def _uid(item: Object) -> str:
    return str((item["metadata"].get("labels") or {}).get(names.LABEL_POD_UID, ""))


def ours(items: Iterable[Object], origin: str) -> tuple[list[Object], set[str]]:
    """Of objects with the node's label those of this origin, and the origins of the others.

    Another local cluster may have a node of the same name. What lacks the UID of a pod is nothing that we wrote.
    """
    mine: list[Object] = []
    others: set[str] = set()
    for item in items:
        labels = item["metadata"].get("labels") or {}
        if labels.get(names.LABEL_ORIGIN) != origin:
            others.add(str(labels.get(names.LABEL_ORIGIN)))
        elif labels.get(names.LABEL_POD_UID):
            mine.append(item)
    return mine, others


# ---------------------------------------------------------------------- remote namespaces


def made_by_us(namespaces: Iterable[Object], origin: str) -> list[Object]:
    """The remote namespaces that Farlet made; one that was named with a flag is the user's."""
    made = []
    for namespace in namespaces:
        metadata = namespace["metadata"]
        annotations = metadata.get("annotations") or {}
        local = annotations.get(names.ANNOTATION_LOCAL_NAMESPACE)
        ours = names.ANNOTATION_MAPPED_BY in annotations
        labelled = (metadata.get("labels") or {}).get(names.LABEL_ORIGIN) == origin
        if labelled and local and (ours or metadata["name"] == remote_name(local, origin)):
            made.append(namespace)
    return [namespace for namespace in made if not namespace["metadata"].get("deletionTimestamp")]


def sharing(nodes: Iterable[Object], name: str, remote_ids: Sequence[str]) -> list[str]:
    """Other virtual nodes in front of the same remote cluster, which may use the same namespaces there."""
    return sorted(
        node["metadata"]["name"]
        for node in nodes
        if node["metadata"]["name"] != name
        and (node["metadata"].get("labels") or {}).get(names.LABEL_REMOTE_CLUSTER) in remote_ids
    )


def may_hold_content(group: str, plural: str) -> bool:
    """Whether objects of a kind keep a namespace from being empty."""
    return group not in _COMPUTED and (group, plural) not in _NOT_CONTENT


def content(group: str, plural: str, found: Iterable[str]) -> list[str]:
    """What of a kind is in a namespace besides that which every namespace has."""
    return [f"{plural}/{name}" for name in found if (group, plural, name) not in EVERY_NAMESPACE_HAS]


# ---------------------------------------------------------------------- words


def listed(items: Sequence[str]) -> str:
    """A few names, and how many more there are."""
    rest = len(items) - _SHOWN
    return ", ".join(items) if rest <= 0 else f"{', '.join(items[:_SHOWN])} and {rest} more"


def listed_pods(pods: Sequence[Object]) -> str:
    return listed([title(pod) for pod in pods])


def count(pods: Sequence[Object]) -> str:
    return f"{len(pods)} pod" if len(pods) == 1 else f"{len(pods)} pods"


def title(pod: Object) -> str:
    """How people call a pod."""
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
