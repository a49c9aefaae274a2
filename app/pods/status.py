"""The status of a local pod, from its remote pod and the twin that makes the remote pod.

The local pod outlives remote pods, so its status is not a copy. What decides:

==============================  =======================================================================
the remote pod                  the local pod
==============================  =======================================================================
none yet, or not scheduled      Pending; if the remote says why (quota, no node fits), so does the local
runs                            as the remote pod, Ready only with the local readiness gates
ended, made by a ReplicaSet     never ends: its containers wait (RemoteReplaced) for the next remote pod
ended, made by a Job            ends when the Job would not run it again: at once if it succeeded, or
                                failed by itself and the Job allows no retry; else once the Job is over
gone, the Job is over           ends as the Job did
gone, local pod being deleted   ends (Succeeded if all containers had, else Failed)
past the local pod's deadline   ends as Failed once nothing of it runs (``expired_status``)
replaced                        stays; restartCount rises, lastState tells of the old one
==============================  =======================================================================

A local pod never leaves a terminal phase, and one that has run is never Pending again. Times are the remote
cluster's, as they are: clocks differ, and a shifted time would be a lie on both.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app import names
from app.kube.objects import Object
from app.pods import conditions, containers, deadline, restarts
from app.pods.addresses import IpMap
from app.pods.containers import Ending, Telling, Wait
from app.pods.patch import KEPT, status_patch
from app.pods.restarts import TERMINAL, restart_annotations

__all__ = [
    "choose",
    "ended_status",
    "expired_status",
    "failed_status",
    "is_terminal",
    "leaving_status",
    "local_status",
    "pending_status",
    "restart_annotations",
    "status_patch",
    "unreachable_status",
]

_OURS: Final = frozenset(
    {
        "allocatedResources",
        "conditions",
        "hostIP",
        "hostIPs",
        "message",
        "observedGeneration",
        "phase",
        "podIP",
        "podIPs",
        "reason",
        "resize",
        "resources",
        "startTime",
        *containers.LISTS,
    }
)
"""What a kubelet writes. A field that is in neither list is carried if the remote pod has it, and else left alone."""


@dataclass(frozen=True, slots=True)
class _End:
    phase: str
    reason: str = ""
    message: str = ""


def is_terminal(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in TERMINAL


def choose(remote_pods: Sequence[Object], twin: Object | None) -> Object | None:
    """The remote pod to tell of: the newest one that lives, else the newest."""
    if twin is not None and not _deleting(twin):
        # while the twin is taken away its pods may have lost their owner already
        remote_pods = [pod for pod in remote_pods if _owned_by(pod, twin["metadata"]["uid"])]

    def rank(pod: Object) -> tuple[bool, str, str]:
        alive = not is_terminal(pod) and not _deleting(pod)
        return alive, str(pod["metadata"].get("creationTimestamp") or ""), str(pod["metadata"]["uid"])

    return max(remote_pods, key=rank, default=None)


def local_status(
    local: Object,
    remote: Object | None,
    twin: Object | None,
    *,
    ip_map: IpMap | None = None,
    now: str | None = None,
) -> Object:
    """The status that the local pod should have; to be written together with ``restart_annotations``."""
    if is_terminal(local):
        return _kept(local)
    now = now or _now()
    if remote is None:
        return _without_pod(local, twin, now)
    end = _end(local, remote, twin)
    if end is None and not _taken_up(remote):
        return _not_started(local, remote, now)
    held = None if end else _held(local, remote, twin)
    return _told(local, remote, end, held, ip_map or IpMap(), now)


def leaving_status(
    local: Object, remote: Object, twin: Object | None, *, ip_map: IpMap | None = None, now: str | None = None
) -> Object:
    """The status of a pod that is being deleted, while its remote pod is still there.

    A deletion raises the pod's generation. That alone is not worth a write: there is one more to come, the last.
    """
    if seen := (local.get("status") or {}).get("observedGeneration"):
        local = local | {"metadata": local["metadata"] | {"generation": seen}}
    return local_status(local, remote, twin, ip_map=ip_map, now=now)


def failed_status(local: Object, reason: str, message: str, *, now: str | None = None) -> Object:
    """The pod is over and nobody can tell more of it."""
    return _concluded(local, _End("Failed", reason, message), Ending(now or _now(), reason, message))


def ended_status(local: Object, *, now: str | None = None) -> Object:
    """A pod being deleted of which nothing runs any more."""
    now = now or _now()
    status = _concluded(local, _End("Failed"), Ending(now))
    ends = [entry["state"].get("terminated") or {} for entry in status.get("containerStatuses") or []]
    if not is_terminal(local) and ends and all(end.get("exitCode") == 0 for end in ends):
        return _concluded(local, _End("Succeeded"), Ending(now))
    return status


def pending_status(local: Object, reason: str, message: str, *, now: str | None = None) -> Object:
    """The pod is not in the remote cluster, and this is why."""
    if is_terminal(local):
        return _kept(local)
    return _explained(local, Wait(reason, message), now or _now())


def expired_status(
    local: Object,
    remote: Object | None,
    *,
    over: bool,
    ip_map: IpMap | None = None,
    now: str | None = None,
) -> Object:
    """A pod that ran longer than its deadline, while it is ended and, once that is *over*, for ever."""
    if is_terminal(local):
        return _kept(local)
    now, end = now or _now(), _End("Failed", names.DEADLINE_EXCEEDED, deadline.MESSAGE)
    if remote is None or not _taken_up(remote):
        status = _concluded(local, end, Ending(now)) if over else _kept(local)
    elif is_terminal(remote) and not over:
        status = _kept(local)  # something else of it still runs
    else:
        status = _told(local, remote, end if over else None, None, ip_map or IpMap(), now)
    return _with_reason(status, end.reason, end.message)


def unreachable_status(local: Object, message: str, *, now: str | None = None) -> Object:
    """The remote cluster cannot be asked: Services should not send anybody there. ``local_status`` is the way back."""
    status = _kept(local)
    kinds = (conditions.CONTAINERS_READY, conditions.READY)
    # one write when the remote goes away: not again when the message grows older
    if not is_terminal(local) and any(conditions.holds(local, kind) for kind in kinds):
        wanted = conditions.unready(names.REMOTE_UNREACHABLE, message)
        status["conditions"] = conditions.merged(
            local, wanted, drop=False, generation=int(status.get("observedGeneration") or 0), now=now or _now()
        )
    return status


# ---------------------------------------------------------------------- how a pod ends


def _end(local: Object, remote: Object, twin: Object | None) -> _End | None:
    """The terminal phase that may be told, if the remote pod is in one."""
    if not is_terminal(remote):
        return None
    status = remote["status"]
    own = _End(status["phase"], status.get("reason") or "", status.get("message") or "")
    if _deleting(local) and (twin is None or _deleting(twin)):
        return own
    if not _runs_once(local):
        return None
    if twin is None:
        return own
    if job := _job_end(twin):
        # out of time, a pod may still have stopped in good order
        return job if job.phase != own.phase or job.reason == "DeadlineExceeded" else own
    if _deleting(remote):
        return None
    if own.phase == "Succeeded":
        return own
    retried = twin["spec"].get("backoffLimit") != 0 or conditions.holds(remote, conditions.DISRUPTED)
    return None if retried else own


def _job_end(twin: Object) -> _End | None:
    for kind, phase in (("Complete", "Succeeded"), ("Failed", "Failed")):
        found = conditions.find(twin, kind)
        if found is not None and found["status"] == "True":
            if phase == "Succeeded":
                return _End(phase)
            return _End(phase, found.get("reason") or "", found.get("message") or "")
    return None


def _held(local: Object, remote: Object, twin: Object | None) -> Wait | None:
    """Why ends of containers are not told: they run again in the next remote pod."""
    leaving = _deleting(remote) or conditions.holds(remote, conditions.DISRUPTED)
    again = _runs_once(local) and twin is not None and not _deleting(local)
    if not is_terminal(remote) and not (again and leaving):
        return None
    status, metadata = remote["status"], remote["metadata"]
    cause = status.get("reason") or (conditions.find(remote, conditions.DISRUPTED) or {}).get("reason")
    cause = cause or ("deleted" if _deleting(remote) else status["phase"])
    details = f": {status['message']}" if status.get("message") else ""
    maker = (twin or {}).get("kind") or "twin"
    ended = f"remote pod {metadata.get('namespace')}/{metadata['name']} ended ({cause}{details})"
    return Wait(names.REMOTE_REPLACED, f"{ended}; its {maker} decides what follows")


def _concluded(local: Object, end: _End, ending: Ending) -> Object:
    """The local pod's status as its last one, but over."""
    status = _kept(local)
    if is_terminal(local):
        return status
    status |= containers.end(local, ending)
    return _finished(status, end, local, [], ending.now)


def _finished(
    status: Object, end: _End, local: Object, told: list[Object], now: str, remote: Object | None = None
) -> Object:
    why = "PodCompleted" if end.phase == "Succeeded" else "PodFailed"
    kinds = (conditions.CONTAINERS_READY, conditions.READY)
    wanted = [each for each in told if each["type"] not in kinds or each["status"] != "True"]
    said = {each["type"] for each in wanted}
    wanted += [each for each in conditions.unready(why, "") if each["type"] not in said]
    status = _with_reason(status, end.reason, end.message) | {"phase": end.phase}
    observed = _observed(local, remote)
    status["conditions"] = conditions.merged(local, wanted, drop=bool(told), generation=observed, now=now)
    return _with_generation(status, observed)


# ---------------------------------------------------------------------- no remote pod, or none that has started


def _without_pod(local: Object, twin: Object | None, now: str) -> Object:
    if _deleting(local):
        return ended_status(local, now=now) if twin is None else _kept(local)
    offloaded = names.ANNOTATION_REMOTE_UID in (local["metadata"].get("annotations") or {})
    if twin is None:
        if _runs_once(local) and offloaded:
            message = "the twin of this pod was deleted in the remote cluster; a pod that runs once is not run again"
            return failed_status(local, names.REMOTE_TWIN_LOST, message, now=now)
        if not _has_run(local):
            return _kept(local)
        return _explained(local, Wait(names.REMOTE_REPLACED, "its twin in the remote cluster is made again"), now)
    if job := _job_end(twin):
        # the pod is not there to ask: its Job knows how it went, and no more
        succeeded = Ending(now, "Completed", "", 0)
        return _concluded(local, job, succeeded if job.phase == "Succeeded" else Ending(now))
    trouble = conditions.find(twin, "ReplicaFailure")
    if trouble is not None and trouble["status"] == "True":
        return _explained(local, Wait(f"Remote{trouble.get('reason') or 'Failure'}", trouble.get("message") or ""), now)
    if _has_run(local):
        kind = twin.get("kind") or "twin"
        return _explained(
            local, Wait(names.REMOTE_REPLACED, f"the remote pod is gone; its {kind} decides what follows"), now
        )
    return _unexplained(local)


def _not_started(local: Object, remote: Object, now: str) -> Object:
    """A remote pod that no kubelet has yet."""
    scheduled = conditions.find(remote, conditions.SCHEDULED) or {}
    waits = scheduled.get("status") == "False"
    wait = Wait(f"Remote{scheduled.get('reason') or 'Unschedulable'}", scheduled.get("message") or "")
    if not _has_run(local):
        return _explained(local, wait, now) if waits else _unexplained(local)
    wait = wait if waits else Wait(containers.CREATING)
    status = _explained(local, wait, now)
    if not waits:
        status = _with_reason(status, "", "")  # nothing is wrong with it
    return status | containers.tell(local, remote, _telling(local, remote, now, missing=wait))


def _explained(local: Object, wait: Wait, now: str) -> Object:
    """The local pod with a reason why nothing of it runs."""
    status = _with_reason(_kept(local), wait.reason, wait.message)
    for field in ("podIP", "podIPs", "hostIP", "hostIPs"):
        status.pop(field, None)
    status |= containers.hold(local, wait, now)
    status["phase"] = status.get("phase") or "Pending"
    wanted = conditions.unready(wait.reason, wait.message)
    for kind in (conditions.SANDBOX, conditions.INITIALIZED):
        again = kind == conditions.SANDBOX or local["spec"].get("initContainers")
        if conditions.holds(local, kind) and again:
            wanted.append(conditions.condition(kind, "False", wait.reason))
    observed = _observed(local, None)
    status["conditions"] = conditions.merged(local, wanted, drop=False, generation=observed, now=now)
    return _with_generation(status, observed)


def _unexplained(local: Object) -> Object:
    """A pod that waits for nothing but its turn: as the scheduler left it, so that there is nothing to write."""
    status = _with_reason(_kept(local), "", "")
    others = [each for each in status.get("conditions") or [] if each["type"] not in conditions.OWNED]
    return status | ({"conditions": others} if "conditions" in status else {})


# ---------------------------------------------------------------------- a remote pod with a kubelet


def _told(local: Object, remote: Object, end: _End | None, held: Wait | None, ip_map: IpMap, now: str) -> Object:
    old, new = local.get("status") or {}, remote["status"]
    status = {key: value for key, value in old.items() if key not in _OURS}
    status |= {key: value for key, value in new.items() if key not in KEPT and key not in containers.LISTS}
    if not local["spec"].get("resources"):
        # some kubelets tell of resources of the whole pod where none were asked for; that is about their machine
        for key in ("resources", "allocatedResources"):
            status.pop(key, None)
    status |= containers.tell(local, remote, _telling(local, remote, now, held=held))
    status |= _addresses(new, ip_map)
    if start := old.get("startTime") or new.get("startTime"):
        status["startTime"] = start
    told = conditions.from_remote(local, remote)
    if conditions.find(local, conditions.SCHEDULED) is None:
        told.insert(0, conditions.condition(conditions.SCHEDULED, "True"))  # bound by spec.nodeName, by no scheduler
    if end:
        disrupted = conditions.find(remote, conditions.DISRUPTED)
        if disrupted and disrupted["status"] == "True":
            told.append({key: value for key, value in disrupted.items() if key != "observedGeneration"})
        return _finished(status, end, local, told, now, remote)
    if is_terminal(remote):
        assert held is not None
        status = _with_reason(status, held.reason, held.message)
        told = [each for each in told if each["type"] not in (conditions.CONTAINERS_READY, conditions.READY)]
        told += conditions.unready(held.reason, held.message)
    observed = _observed(local, remote)
    status["conditions"] = conditions.merged(local, told, drop=True, generation=observed, now=now)
    status["phase"] = _phase(old.get("phase"), new.get("phase"))
    return _with_generation(status, observed)


def _telling(
    local: Object, remote: Object, now: str, *, held: Wait | None = None, missing: Wait | None = None
) -> Telling:
    hidden = restarts.hidden_restarts(local, remote)
    return Telling(hidden.before, hidden.replaced, held, missing or Wait(containers.CREATING), now)


def _phase(old: str | None, new: str | None) -> str:
    """The phase while the pod is not over."""
    if new in TERMINAL or (old == "Running" and new in (None, "Pending")):
        return old or "Pending"
    return new or old or "Pending"


def _addresses(status: Object, ip_map: IpMap) -> Object:
    """All addresses of the pod and of its remote node; the first is also told on its own."""
    result: Object = {}
    for one, many in (("podIP", "podIPs"), ("hostIP", "hostIPs")):
        found = [entry["ip"] for entry in status.get(many) or []] or [status[one]] if status.get(one) else []
        if one == "podIP":
            found = [ip_map.translate(ip) for ip in found]
        if found:
            result |= {one: found[0], many: [{"ip": ip} for ip in found]}
    return result


# ---------------------------------------------------------------------- parts


def _kept(local: Object) -> Object:
    return dict(local.get("status") or {})


def _with_reason(status: Object, reason: str, message: str) -> Object:
    rest = {key: value for key, value in status.items() if key not in ("reason", "message")}
    return rest | {key: value for key, value in (("reason", reason), ("message", message)) if value}


def _observed(local: Object, remote: Object | None) -> int:
    """The generation of the local pod that the remote one is in step with; 0 where pods have none."""
    old = int((local.get("status") or {}).get("observedGeneration") or 0)
    if remote is not None:
        seen = remote["status"].get("observedGeneration")
        if old and seen and seen < (remote["metadata"].get("generation") or 0):
            return old  # the remote kubelet has not seen the last change yet
    return max(old, int(local["metadata"].get("generation") or 0))


def _with_generation(status: Object, generation: int) -> Object:
    rest = {key: value for key, value in status.items() if key != "observedGeneration"}
    return rest | ({"observedGeneration": generation} if generation else {})


def _taken_up(remote: Object) -> bool:
    """Whether a kubelet (or who plays one) has told something of the pod."""
    status = remote.get("status") or {}
    if status.get("startTime") or is_terminal(remote) or any(status.get(kind) for kind in containers.LISTS):
        return True
    return conditions.find(remote, conditions.READY) is not None


def _has_run(local: Object) -> bool:
    status = local.get("status") or {}
    return any(status.get(kind) for kind in containers.LISTS)


def _runs_once(local: Object) -> bool:
    return (local["spec"].get("restartPolicy") or "Always") != "Always"


def _deleting(item: Object) -> bool:
    return bool(item["metadata"].get("deletionTimestamp"))


def _owned_by(pod: Object, uid: str) -> bool:
    return any(owner.get("uid") == uid for owner in pod["metadata"].get("ownerReferences") or [])


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
