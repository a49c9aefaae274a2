"""Removes a virtual node: what ``farlet remove`` sends and waits for. What to send is decided by :mod:`app.removal`.

A Node must not be deleted under a farlet that runs, which would make it again, and two must never end the same twins.
So the removal contends for the node's leader lock like any other worker: while a farlet holds it, that one ends the
pods that are evicted here; once it is ours, we do so ourselves, and the Node goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from app import names, removal, scope
from app.facts import StartError, cluster_id, remote_identities, short_id
from app.kube import config
from app.kube.client import Client, PatchKind
from app.kube.election import LeaderLock, NotLeading
from app.kube.errors import (
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    KubeError,
    NotFound,
    ServerError,
    TooManyRequests,
    Unreachable,
)
from app.kube.eviction import ASK_AGAIN, NotNow, evict
from app.kube.objects import Object, decode_list
from app.kube.resources import JOBS, LEASES, NAMESPACES, NODES, PODS, REPLICA_SETS, Resource
from app.names import LOCK_NAMESPACE
from app.namespaces.mapping import parse
from app.node.heartbeat import NAMESPACE as HEARTBEAT_NAMESPACE
from app.pods import status
from app.pods.deletion import Deletion
from app.reflection.copies import Owner
from app.reflection.leftovers import REFLECTED, copies_of

T = TypeVar("T")

_ROUND = 1.0
_AT_ONCE = 50
_PAGE = 500
_STANDBY = 1.0
"""Seconds that a waiting farlet has to show itself when the lock is given up."""
_TWINS = {"ReplicaSet": REPLICA_SETS, "Job": JOBS}
_PASSING = (Unreachable, ServerError, TooManyRequests, Gone, NotLeading)
"""What may be otherwise in the next round; Gone is a list whose next page came too late."""


class RemovalError(Exception):
    """The node cannot be removed; the message says why and what to do."""


class NotInTime(RemovalError):
    """What had to be waited for did not come; the same command goes on where this one stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalOptions:
    """What was asked for."""

    node: str
    kubeconfig: Path | None = None
    context: str | None = None
    remote_kubeconfig: Path | None = None
    """None: the remote cluster is not looked at."""
    remote_context: str | None = None
    cluster_id: str | None = None
    namespaces: Sequence[str] = ()
    """``LOCAL=REMOTE``, where the rights in the remote cluster are confined and the node does not say."""
    force: bool = False
    timeout: float = 300.0


def main(options: RemovalOptions, say: Callable[[str], None]) -> None:
    """Remove the node, telling what happens line by line; SIGINT and SIGTERM raise ``KeyboardInterrupt``."""
    try:
        asyncio.run(_until_signalled(remove(options, say)))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _until_signalled(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await task


async def remove(options: RemovalOptions, say: Callable[[str], None]) -> None:
    """Connect and remove."""
    async with contextlib.AsyncExitStack() as stack:
        local = await stack.enter_async_context(Client(config.load(options.kubeconfig, options.context), name="local"))
        remote = None
        if options.remote_kubeconfig is not None:
            connection = config.load(options.remote_kubeconfig, options.remote_context)
            remote = await stack.enter_async_context(Client(connection, name="remote"))
        try:
            origin = options.cluster_id or await cluster_id(local)
            await Remover(local, remote, origin, options, say).run()
        except (StartError, scope.ScopeError) as error:
            raise RemovalError(str(error)) from error


class _Contention:
    """Wants the leader lock from ``begin`` on, and keeps it."""

    def __init__(self, lock: LeaderLock) -> None:
        self._lock = lock
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._keep())

    async def end(self) -> None:
        """Give it up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        await self._lock.release()

    async def _keep(self) -> None:
        while True:
            await self._lock.acquire()
            await self._lock.hold()


class Remover:
    """The removal of one node."""

    def __init__(
        self, local: Client, remote: Client | None, origin: str, options: RemovalOptions, say: Callable[[str], None]
    ) -> None:
        self._name = options.node
        self._force = options.force
        self._timeout = options.timeout
        self._deadline = time.monotonic() + options.timeout
        self._origin = origin
        self._given = parse(options.namespaces)
        self._spaces: tuple[str, ...] | None = None
        """The remote namespaces that the rights are confined to; None: they reach everywhere."""
        self._say = say
        self._said = ""
        """The last line about what is waited for."""
        self._refused: dict[str, tuple[float, str]] = {}
        """UIDs of pods that may not be evicted now: when to ask again, and why not."""

        lock_name = names.lock_name(self._name)
        identity = f"farlet-remove-{socket.gethostname()}-{os.getpid()}"
        self._lock_path = LEASES.path(LOCK_NAMESPACE, lock_name)
        self._lock = LeaderLock(local, LOCK_NAMESPACE, lock_name, identity)
        self._contention = _Contention(self._lock)
        self._local, self._remote = local, remote
        # for what a farlet that runs would do itself
        self._leading_local = local.fenced(self._lock.check)
        self._leading_remote = remote.fenced(self._lock.check) if remote else None

    async def run(self) -> None:
        """Check, drain, clean up, delete the Node. Only then is anything of it gone for good."""
        node = await _find(self._local, NODES.path(name=self._name))
        remote_ids = await self._look_at_remote(node)
        await self._check(node, remote_ids)
        try:
            if self._remote is not None or self._force:
                self._contention.begin()  # without either, a farlet that runs is needed until the pods are gone
            await self._begin(node)
            await self._drain()
            if remote_ids is not None:
                await self._remove_copies()
            if remote_ids is not None and self._spaces is None:  # with confined rights none was made
                await self._remove_namespaces(remote_ids)
            await self._delete_node()
        finally:
            await self._contention.end()
        await self._delete_lock()
        self._say(f"node {self._name} is removed")
        if self._force:
            again = f"farlet remove {self._name} --remote-kubeconfig FILE"
            self._say(f"what ran in the remote cluster was left there; when it can be reached again: {again}")
        elif self._remote is None:
            self._say("the remote cluster was not looked at: namespaces that Farlet made there are still there")

    # ------------------------------------------------------------------ before anything is touched

    async def _look_at_remote(self, node: Object | None) -> list[str] | None:
        """Find out how far the rights reach; what the cluster may be called, None if it is not looked at."""
        if self._remote is None:
            return None
        recorded = scope.recorded(node) or {}
        remotes = [*recorded.values(), *self._given.values()]
        self._spaces = await scope.followed(self._remote, remotes)
        if self._spaces is not None:
            await scope.check_in_sight(self._local, self._name, self._origin, {**self._given, **recorded})
        return [short_id(uid) for uid in (await remote_identities(self._remote, remotes)).values()]

    async def _check(self, node: Object | None, remote_ids: Sequence[str] | None) -> None:
        lock = await _find(self._local, self._lock_path)
        traces = lock is not None
        if lock is not None and not removal.is_leader_lease(lock):
            if node is not None:
                raise RemovalError(f"the lease {self._lock_path.rsplit('/', 1)[1]} is the heartbeat of another node")
            traces = False
        if self._remote is not None:
            mine, others = removal.ours(await self._remote_items(), self._origin)
            traces = traces or bool(mine)
            if others:
                self._say(
                    f"left alone: what a node of this name has in the remote cluster for {', '.join(sorted(others))} "
                    f"(this cluster is {self._origin}; if farlet ran with another --cluster-id, give it here too)"
                )
        if reason := removal.why_not(self._name, node, remote_ids=remote_ids, traces=traces):
            raise RemovalError(reason)

    async def _begin(self, node: Object | None) -> None:
        leader = await self._leader()
        pods = removal.leaving(await self._pods())
        if not leader and pods and self._remote is None and not self._force:
            raise RemovalError(
                f"no farlet runs for node {self._name}, so that nobody would end what stands for its "
                f"{removal.count(pods)} in the remote cluster: give --remote-kubeconfig, or start farlet, or use "
                "--force if that cluster is gone"
            )
        who = f"farlet runs ({leader})" if leader else "no farlet runs for it"
        self._say(f"node {self._name}: {removal.count(pods)}; {who}")
        if bare := [pod for pod in pods if removal.is_bare(pod)]:
            self._say(f"no controller makes these again: {removal.listed_pods(bare)}")
        if node is not None and not node["spec"].get("unschedulable"):
            body: Object = {"metadata": {"uid": node["metadata"]["uid"]}, "spec": {"unschedulable": True}}
            await self._local.patch(NODES.path(name=self._name), body, PatchKind.STRATEGIC)
            self._say("cordoned")

    async def _leader(self) -> str:
        """Who looks after the node; empty if nobody does."""
        first = await _find(self._local, self._lock_path)
        started = time.monotonic()
        now = first
        while not self._lock.held() and _holder(now) != self._lock.identity:
            led = removal.is_led(first, now, time.monotonic() - started)
            if led is not None:
                return _holder(now) if led else ""
            if now is first:
                self._say("looking whether a farlet runs for this node")
            await asyncio.sleep(_ROUND)
            now = await _find(self._local, self._lock_path)
        return ""

    # ------------------------------------------------------------------ pods and twins

    async def _drain(self) -> None:
        """Round by round, until no pod is left on either side and no farlet looks after the node."""
        while True:
            try:
                step = removal.plan(await self._view())
                if step.finished:
                    self._wait_for("")
                    return
                await self._do(step)
                self._wait_for(self._what_is_missing(step))
                if not step.left:
                    self._contention.begin()
            except _PASSING as error:
                self._wait_for(str(error))
            if time.monotonic() > self._deadline:
                why = self._said or "it had just begun"
                raise NotInTime(
                    f"not done within {self._timeout:g} s: {why}; the node stays cordoned: run this again, or "
                    f"undo it with kubectl uncordon {self._name}"
                )
            await asyncio.sleep(_ROUND)

    async def _view(self) -> removal.View:
        leading = self._lock.held()  # first: what is read afterwards holds all that a farlet did before
        pods = await self._pods()
        remote = None
        if self._remote is not None:
            items, _ = removal.ours(await self._remote_items(), self._origin)
            remote = removal.Remote(
                twins=[item for item in items if item["kind"] in _TWINS],
                pods=[item for item in items if item["kind"] == PODS.kind],
            )
        return removal.View(pods=pods, remote=remote, leading=leading, force=self._force)

    async def _do(self, step: removal.Step) -> None:
        await _each(step.evict, self._evict)
        await _each(step.deletions, self._delete_remote)
        await _each(step.end, self._end)

    async def _evict(self, pod: Object) -> None:
        metadata = pod["metadata"]
        uid = metadata["uid"]
        again, said = self._refused.get(uid, (0.0, ""))
        if time.monotonic() < again:
            return
        try:
            gone = not await evict(self._local, metadata["namespace"], metadata["name"], uid)
        except NotNow as refusal:
            why = str(refusal)
            self._refused[uid] = (time.monotonic() + ASK_AGAIN, why)
            if why != said:
                self._say(f"{removal.title(pod)} may not be evicted yet: {why}")
            return
        if gone:
            return
        self._refused.pop(uid, None)
        self._say(f"evicted {removal.title(pod)}")

    async def _delete_remote(self, deletion: Deletion) -> None:
        assert self._leading_remote is not None
        with contextlib.suppress(Conflict):  # another object of that name
            await self._leading_remote.delete(
                _TWINS.get(deletion.kind, PODS).path(deletion.namespace, deletion.name),
                uid=deletion.uid,
                grace=deletion.grace,
                propagation=deletion.propagation,
                missing_ok=True,
            )

    async def _end(self, pod: Object) -> None:
        """Delete a local pod for good, with a phase by which its controller can count it."""
        metadata = pod["metadata"]
        path = PODS.path(metadata["namespace"], metadata["name"])
        try:
            if not status.is_terminal(pod) and (body := status.status_patch(pod, status.ended_status(pod), {})):
                await self._leading_local.patch(f"{path}/status", body, PatchKind.STRATEGIC)
            await self._leading_local.delete(path, uid=metadata["uid"], grace=0)
        except NotFound:
            return
        except ApiError as error:
            if not error.is_another_object():
                raise
            return
        self._say(f"deleted {removal.title(pod)}")

    def _what_is_missing(self, step: removal.Step) -> str:
        if not self._lock.held() and (self._force or not step.left):
            return self._who_has_the_lock()
        if step.left:
            reasons = {self._refused[uid][1] for pod in step.left if (uid := pod["metadata"]["uid"]) in self._refused}
            why = f" ({'; '.join(sorted(reasons))})" if reasons else ""
            return f"waiting for {removal.count(step.left)}: {removal.listed_pods(step.left)}{why}"
        return "waiting for what is left in the remote cluster"

    def _who_has_the_lock(self) -> str:
        holder = self._lock.holder
        if holder in ("", self._lock.identity):
            return ""  # it is ours in a moment
        return f"farlet runs, or did a moment ago, and would make the node again: stop it ({holder})"

    def _wait_for(self, what: str) -> None:
        """Say it when it is news."""
        if what and what != self._said:
            self._say(what)
        self._said = what

    async def _pods(self) -> list[Object]:
        return await _list(self._local, PODS, fieldSelector=f"spec.nodeName={self._name}")

    async def _remote_items(self) -> list[Object]:
        assert self._remote is not None
        selector = f"{names.LABEL_NODE}={self._name}"
        everywhere: tuple[str | None, ...] = (None,)
        found = await asyncio.gather(
            *(
                _list(self._remote, kind, space, labelSelector=selector)
                for space in self._spaces or everywhere
                for kind in (REPLICA_SETS, JOBS, PODS)
            )
        )
        return [item for items in found for item in items]

    # ------------------------------------------------------------------ remote namespaces

    async def _remove_copies(self) -> None:
        """What was reflected. That some stays is no failure: it is said."""
        assert self._remote is not None
        assert self._leading_remote is not None
        owner, removed = Owner(self._origin, self._name), 0
        everywhere: tuple[str | None, ...] = (None,)
        for resource in REFLECTED:
            for space in self._spaces or everywhere:
                try:
                    found = [copy async for copy in copies_of(self._remote, owner, resource, space)]
                    for copy in found:
                        path = resource.path(copy.key.namespace, copy.key.name)
                        await self._leading_remote.delete(path, uid=copy.metadata.uid, missing_ok=True)
                        removed += 1
                except ApiError as error:
                    self._say(f"remote copies of {resource.plural} stay: {error.message}")
        if removed:
            self._say(f"deleted {removed} remote copies of configuration and Services")

    async def _remove_namespaces(self, remote_ids: Sequence[str]) -> None:
        """Those that Farlet made, if nothing is in them. That they stay is no failure: they are named instead."""
        assert self._remote is not None
        assert self._leading_remote is not None
        selector = f"{names.LABEL_ORIGIN}={self._origin}"
        try:
            found = removal.made_by_us(await _list(self._remote, NAMESPACES, labelSelector=selector), self._origin)
        except Forbidden as error:
            self._say(f"remote namespaces were not looked for: {error.message}")
            return
        if not found:
            return
        spaces = removal.listed([namespace["metadata"]["name"] for namespace in found])
        nodes = await _list(self._local, NODES, labelSelector=names.LABEL_VIRTUAL_NODE)
        if sharers := removal.sharing(nodes, self._name, remote_ids):
            self._say(f"remote namespaces {spaces} stay: {', '.join(sharers)} may use them")
            return
        try:
            kinds = await _kinds(self._remote)
        except KubeError as error:
            self._say(f"remote namespaces {spaces} stay: what is in them is not known: {error}")
            return
        for namespace in found:
            name = namespace["metadata"]["name"]
            try:
                if inside := await self._content(name, kinds):
                    self._say(f"remote namespace {name} stays: it holds {removal.listed(inside)}")
                    continue
                await self._leading_remote.delete(
                    NAMESPACES.path(name=name),
                    uid=namespace["metadata"]["uid"],
                    resource_version=namespace["metadata"]["resourceVersion"],
                    missing_ok=True,
                )
            except ApiError as error:
                self._say(f"remote namespace {name} stays ({error.message}); kubectl delete namespace {name}")
            else:
                self._say(f"deleted remote namespace {name}")

    async def _content(self, namespace: str, kinds: Sequence[Resource]) -> list[str]:
        assert self._remote is not None
        inside: list[str] = []
        for kind in kinds:
            try:
                page = decode_list(await self._remote.request("GET", kind.path(namespace), params={"limit": "5"}))
            except NotFound:  # a kind that was taken away just now
                continue
            inside += removal.content(kind.group, kind.plural, [item.key.name for item in page.items])
        return inside

    # ------------------------------------------------------------------ the node

    async def _delete_node(self) -> None:
        """The Node as it is now (it may have been made again meanwhile), and its heartbeat."""
        path = NODES.path(name=self._name)
        node = await _find(self._local, path)
        if node is not None:
            if reason := removal.why_not(self._name, node, remote_ids=None, traces=True):
                raise RemovalError(reason)
            await self._leading_local.delete(path, uid=node["metadata"]["uid"], missing_ok=True)
        heartbeat = LEASES.path(HEARTBEAT_NAMESPACE, self._name)
        lease = await _find(self._local, heartbeat)
        if lease is not None and not removal.is_leader_lease(lease):
            await self._leading_local.delete(heartbeat, uid=lease["metadata"]["uid"], missing_ok=True)

    async def _delete_lock(self) -> None:
        """Given up before, and deleted only if nobody wanted it: a farlet that waited begins anew with the node."""
        await asyncio.sleep(_STANDBY)
        lease = await _find(self._local, self._lock_path)
        if lease is None:
            return
        if holder := _holder(lease):
            raise RemovalError(
                f"another farlet ({holder}) was waiting and makes node {self._name} again: stop it, and run this again"
            )
        metadata = lease["metadata"]
        with contextlib.suppress(Conflict):
            await self._local.delete(
                self._lock_path, uid=metadata["uid"], resource_version=metadata["resourceVersion"], missing_ok=True
            )


def _holder(lease: Object | None) -> str:
    return str(((lease or {}).get("spec") or {}).get("holderIdentity") or "")


async def _find(client: Client, path: str) -> Object | None:
    try:
        return await client.get(path)
    except NotFound:
        return None


async def _list(client: Client, resource: Resource, namespace: str | None = None, **params: str) -> list[Object]:
    """All objects as the API server's store has them, in pages. The continue token fixes one moment for all."""
    return [item async for item in _pages(client, resource.path(namespace), params)]


async def _pages(client: Client, path: str, params: dict[str, str]) -> AsyncIterator[Object]:
    token = ""
    while True:
        more = {"continue": token} if token else {}
        content = await client.request("GET", path, params={**params, "limit": str(_PAGE), **more})
        page = decode_list(content)
        for envelope in page.items:
            yield envelope.object()
        token = page.continue_token
        if not token:
            return


async def _each(items: Sequence[T], act: Callable[[T], Awaitable[None]]) -> None:
    """Act on every item, some at once; a failure is raised when all of its batch are done."""
    for start in range(0, len(items), _AT_ONCE):
        results = await asyncio.gather(*map(act, items[start : start + _AT_ONCE]), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result


async def _kinds(client: Client) -> list[Resource]:
    """Every kind of object that a namespace can hold in this cluster."""
    groups = (await client.get("/apis"))["groups"]
    versions = ["v1", *(group["preferredVersion"]["groupVersion"] for group in groups)]
    kinds: list[Resource] = []
    for version in versions:
        resources = (await client.get(f"/apis/{version}" if "/" in version else f"/api/{version}"))["resources"]
        for item in resources:
            kind = Resource(version, item["kind"], item["name"], namespaced=item["namespaced"])
            if kind.namespaced and "list" in item["verbs"] and removal.may_hold_content(kind.group, kind.plural):
                kinds.append(kind)
    return kinds
