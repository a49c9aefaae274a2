"""Container statuses of a local pod, from those of its remote pod.

Two things make this more than copying. A remote pod can be replaced while the local one stays: what its containers
did last is kept as their last state, and while there is no remote pod they wait, with a reason. And the API server
does not let a container that is done leave its terminated state, so the end of a remote pod that will be replaced is
not told as the end of its containers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from app import names
from app.kube.objects import Object

CREATING: Final = "ContainerCreating"
_UNKNOWN: Final = "ContainerStatusUnknown"

LISTS: Final = {
    "initContainerStatuses": "initContainers",
    "containerStatuses": "containers",
    "ephemeralContainerStatuses": "ephemeralContainers",
}
"""Where a pod's status tells of which containers of its spec."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a container does not run, for the person who looks at the local pod."""

    reason: str
    message: str = ""

    def state(self) -> Object:
        return {"waiting": {"reason": self.reason} | ({"message": self.message} if self.message else {})}


@dataclass(frozen=True, slots=True)
class Telling:
    """How the statuses of one remote pod are told."""

    before: Mapping[str, int]
    """Restarts to add."""
    replaced: bool
    """The local status still tells of an earlier remote pod."""
    held: Wait | None
    """The remote pod ends and will be replaced: containers that ended wait."""
    missing: Wait
    """Why a container that has run before is not there yet."""
    now: str


def tell(local: Object, remote: Object, telling: Telling) -> Object:
    """The three lists of container statuses for the local pod."""
    status: Object = {}
    for kind in LISTS:
        specs = _specs(local, kind)
        old, new = _statuses(local, kind), _statuses(remote, kind)
        if kind == "ephemeralContainerStatuses":
            there = {spec["name"] for spec in _specs(remote, kind).values()}
            found = [_ephemeral(name, old.get(name), new.get(name), there, telling.now) for name in specs]
        else:
            found = [_entry(spec, local["spec"], old.get(name), new.get(name), telling) for name, spec in specs.items()]
        if entries := [entry for entry in found if entry is not None]:
            status[kind] = ordered(kind, entries)
    return status


def hold(local: Object, wait: Wait, now: str) -> Object:
    """The lists while there is no remote pod: what ran is over, and waits."""
    status: Object = {}
    for kind, old in _all(local).items():
        if kind == "ephemeralContainerStatuses":
            status[kind] = [_ephemeral(entry["name"], entry, None, set(), now) for entry in old]
            continue
        specs = _specs(local, kind)
        status[kind] = [
            _kept(entry)
            if _must_stay(specs.get(entry["name"]) or {}, local["spec"], entry)
            else _waiting(entry, wait, now)
            for entry in old
        ]
    return status


@dataclass(frozen=True, slots=True)
class Ending:
    """How a container ended that nobody saw end; as a kubelet tells it, unless something better is known."""

    now: str
    reason: str = _UNKNOWN
    message: str = "The container could not be located when the pod was terminated"
    exit_code: int = 137

    def terminated(self, entry: Object) -> Object:
        seen: Object = {"exitCode": self.exit_code, "reason": self.reason, "finishedAt": self.now}
        if self.message:
            seen["message"] = self.message
        if started := ((entry.get("state") or {}).get("running") or {}).get("startedAt"):
            seen["startedAt"] = started
        if entry.get("containerID"):
            seen["containerID"] = entry["containerID"]
        return seen


def end(local: Object, ending: Ending) -> Object:
    """The lists of a pod that is over, of which nobody can tell more: what has not ended ended now."""
    status: Object = {}
    for kind, old in _all(local).items():
        # a kubelet leaves init containers that had not begun as they are
        status[kind] = [
            _ended(entry, ending) if kind != "initContainerStatuses" or _began(entry) else _kept(entry) for entry in old
        ]
    return status


def ordered(kind: str, entries: list[Object]) -> list[Object]:
    """As a kubelet sorts them: init containers as in the spec (which is how they come), the others by name."""
    return entries if kind == "initContainerStatuses" else sorted(entries, key=lambda entry: str(entry["name"]))


def may_restart(container: Object, pod_spec: Object, exit_code: int) -> bool:
    """Whether the API server lets a container leave its terminated state (ContainerShouldRestart in Kubernetes)."""
    if any(
        rule.get("action") == "RestartAllContainers"
        for kind in ("initContainers", "containers")
        for other in pod_spec.get(kind) or []
        for rule in other.get("restartPolicyRules") or []
    ):
        return True
    policy = container.get("restartPolicy")
    if policy and any(_matches(rule, exit_code) for rule in container.get("restartPolicyRules") or []):
        return True
    policy = policy or pod_spec.get("restartPolicy") or "Always"
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def _matches(rule: Object, exit_code: int) -> bool:
    codes = rule.get("exitCodes") or {}
    inside = exit_code in (codes.get("values") or [])
    applies = inside if codes.get("operator") == "In" else not inside
    return rule.get("action") == "Restart" and applies


def _entry(spec: Object, pod_spec: Object, old: Object | None, new: Object | None, telling: Telling) -> Object | None:
    before = telling.before.get(spec["name"], 0)
    if new is None:
        if old is None:
            return None
        if telling.replaced:
            entry = _waiting(old, telling.missing, telling.now)
            entry.pop("containerID", None)
            entry["restartCount"] = before
        elif "waiting" in (old.get("state") or {}):
            entry = _waiting(old, telling.missing, telling.now)
        else:
            return _kept(old)
    else:
        entry = _copied(spec, new)
        entry["restartCount"] = before + int(new.get("restartCount") or 0)
        if before and old is not None and not entry["lastState"]:
            entry["lastState"] = _last_state(old, telling.now) if telling.replaced else old.get("lastState") or {}
        if telling.held and "terminated" in entry["state"]:
            entry = _waiting(entry, telling.held, telling.now)
    if old is not None and "terminated" not in entry["state"] and _must_stay(spec, pod_spec, old):
        return _kept(old) | {"restartCount": entry["restartCount"]}
    return entry


def _ephemeral(name: str, old: Object | None, new: Object | None, there: set[str], now: str) -> Object | None:
    """An ephemeral container: it is never made again, so one that its remote pod does not have has ended."""
    if old is not None and "terminated" in (old.get("state") or {}) and "terminated" not in ((new or old)["state"]):
        return _kept(old)
    if new is not None:
        return _copied({}, new)
    if old is None:
        return None
    return _kept(old) if name in there else _ended(old, _replaced(now))


def _must_stay(spec: Object, pod_spec: Object, old: Object) -> bool:
    terminated = (old.get("state") or {}).get("terminated")
    return terminated is not None and not may_restart(spec, pod_spec, int(terminated.get("exitCode") or 0))


def _copied(spec: Object, new: Object) -> Object:
    entry = _kept(new)
    if health := entry.pop("allocatedResourcesStatus", None):
        # refused for resources that the local container does not ask for
        requests = (spec.get("resources") or {}).get("requests") or {}
        if known := [item for item in health if item.get("name") in requests]:
            entry["allocatedResourcesStatus"] = known
    return entry


def _waiting(was: Object, wait: Wait, now: str) -> Object:
    """A container between two remote pods."""
    waiting = _kept(was) | {"ready": False, "state": wait.state(), "lastState": _last_state(was, now)}
    if "started" in waiting:
        waiting["started"] = False
    return waiting


def _last_state(was: Object, now: str) -> Object:
    """What a container did last, when its remote pod is no more."""
    state = was.get("state") or {}
    if terminated := state.get("terminated"):
        return {"terminated": terminated}
    if "running" in state:
        return {"terminated": _replaced(now).terminated(was)}
    return was.get("lastState") or {}


def _replaced(now: str) -> Ending:
    return Ending(now, message="its remote pod was replaced")


def _ended(entry: Object, ending: Ending) -> Object:
    state = entry.get("state") or {}
    if "terminated" in state:
        return _kept(entry)
    ended = _kept(entry) | {"ready": False}
    if "started" in ended:
        ended["started"] = False
    waiting, last = state.get("waiting") or {}, (entry.get("lastState") or {}).get("terminated")
    if waiting.get("reason") == names.REMOTE_REPLACED and last:
        # the end that was held back, because the twin could have run it again
        return ended | {"state": {"terminated": last}, "lastState": {}}
    return ended | {"state": {"terminated": ending.terminated(entry)}}


def _began(entry: Object) -> bool:
    return bool(entry.get("containerID") or entry.get("lastState")) or "waiting" not in (entry.get("state") or {})


def _kept(entry: Object) -> Object:
    """A status of its own, with the fields that the API server always writes."""
    return entry | {"state": entry.get("state") or {}, "lastState": entry.get("lastState") or {}}


def _specs(pod: Object, kind: str) -> dict[str, Object]:
    return {spec["name"]: spec for spec in pod["spec"].get(LISTS[kind]) or []}


def _statuses(pod: Object, kind: str) -> dict[str, Object]:
    return {entry["name"]: entry for entry in (pod.get("status") or {}).get(kind) or []}


def _all(local: Object) -> dict[str, list[Object]]:
    status = local.get("status") or {}
    return {kind: status[kind] for kind in LISTS if status.get(kind)}
