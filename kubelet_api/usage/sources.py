"""Where usage is read: the remote metrics API, the remote kubelets, or nowhere. What talks, and decides nothing.

A source never fails as a whole: a part of the remote cluster (a node, a namespace) that does not answer in time is
named in the reading, and the rest is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import aiohttp
import msgspec

from app.kube.client import Client
from app.kube.errors import KubeError, NotFound, Unreachable, error_of_answer
from app.kube.objects import Object
from app.kube.resources import NODES, Resource
from kubelet_api.twins import Placed
from kubelet_api.usage import metricsapi
from kubelet_api.usage.relabel import Family, Page, Places, ResourcePage
from kubelet_api.usage.snapshot import PodKey, Reading, Sample

POD_METRICS: Final = Resource("metrics.k8s.io/v1beta1", "PodMetrics", "pods")

TIMEOUT: Final = 5.0
"""Seconds that one part may take: whoever scrapes a node waits for ten."""

_TIMEOUT_OF_ALL: Final = 8.0
"""Seconds for all parts together: where more nodes hang than are asked at once, the last ones are not waited for."""

MAX_PAGE: Final = 64 << 20
"""Bytes that a remote kubelet may say at once."""

_AT_ONCE: Final = 16
"""Remote nodes that are asked at the same time."""
_TURN: Final = 500
"""Lines, or pods, after which others get a turn."""
_ADDRESS_KEPT: Final = 300.0
_ADDRESSES: Final = ("InternalIP", "ExternalIP", "InternalDNS", "ExternalDNS", "Hostname")

Pages: TypeAlias = tuple[Sequence[Mapping[str, Family]], Mapping[str, str]]
"""What kubelets said, and the parts of the remote cluster that gave no answer, with why."""

T = TypeVar("T")


class Source(Protocol):
    """Tells what pods use."""

    tells: bool
    """Whether there is anything to be had of it at all."""
    has_pages: bool
    """Whether kubelets can be asked, for details and pages."""

    def part(self, placed: Placed) -> str:
        """Which part of the remote cluster tells of a pod, as :attr:`Reading.failed` names them."""

    async def usage(self, placed: Sequence[Placed]) -> Reading:
        """CPU and memory."""

    async def details(self, placed: Sequence[Placed]) -> Mapping[str, Object]:
        """By the local pod's UID, what only a kubelet's summary says."""

    async def pages(self, path: str, placed: Sequence[Placed]) -> Pages:
        """What kubelets say of these pods on a page such as ``metrics/cadvisor``, and which parts gave no answer."""

    async def close(self) -> None: ...


class Nothing:
    """No source: what pods use is not known."""

    tells = False
    has_pages = False

    def part(self, placed: Placed) -> str:
        return ""

    async def usage(self, placed: Sequence[Placed]) -> Reading:
        return Reading()

    async def details(self, placed: Sequence[Placed]) -> Mapping[str, Object]:
        return {}

    async def pages(self, path: str, placed: Sequence[Placed]) -> Pages:
        return (), {}

    async def close(self) -> None:
        return None


class MetricsApi(Nothing):
    """The remote ``metrics.k8s.io``: one list, or one for each namespace where rights are confined."""

    tells = True

    def __init__(self, client: Client, selector: str, namespaces: Sequence[str] | None = None) -> None:
        self._client = client
        self._selector = selector
        self._namespaces = namespaces

    def part(self, placed: Placed) -> str:
        return placed.twin.namespace if self._namespaces is not None else ""

    async def usage(self, placed: Sequence[Placed]) -> Reading:
        reading = Reading()
        parts: Iterable[str] = [""] if self._namespaces is None else self._namespaces
        answers, reading.failed = await _each(parts, self._list)
        await asyncio.sleep(0)
        reading.containers = metricsapi.Listed(*answers.values())
        await asyncio.sleep(0)
        return reading

    async def _list(self, namespace: str) -> tuple[metricsapi.PodMetrics, ...]:
        path = POD_METRICS.path(namespace or None)
        try:
            answer = await self._client.request("GET", path, params={"labelSelector": self._selector}, timeout=TIMEOUT)
        except NotFound as error:
            raise Unreachable("the remote cluster has no metrics API (metrics-server is not installed)") from error
        return metricsapi.decode(answer)


class Kubelets:
    """The remote nodes that run our pods: their own counters."""

    tells = True
    has_pages = True

    def __init__(self, client: Client, *, straight: bool) -> None:
        """*straight*: at the nodes' addresses; otherwise through the API server, which takes ``nodes/proxy``."""
        self._client = client
        self._straight = _Straight(client) if straight else None

    def part(self, placed: Placed) -> str:
        return placed.node

    async def usage(self, placed: Sequence[Placed]) -> Reading:
        reading = Reading()
        places = Places(placed)

        async def ask(node: str) -> ResourcePage:
            page = ResourcePage(places, time.time())
            await self._read(node, "metrics/resource", page.line)
            return page

        pages, reading.failed = await _each(_nodes(placed), ask)
        containers: dict[PodKey, dict[str, Sample]] = {}
        for page in pages.values():
            for key, container, sample in page.samples():
                if container:
                    containers.setdefault(key, {})[container] = sample
                else:
                    reading.pods[key] = sample
            await asyncio.sleep(0)
        reading.containers = containers
        return reading

    async def details(self, placed: Sequence[Placed]) -> Mapping[str, Object]:
        by_key = {(item.twin.namespace, item.twin.pod, item.twin.uid): item.uid for item in placed}

        async def ask(node: str) -> dict[str, Object]:
            lines: list[str] = []
            await self._read(node, "stats/summary", lines.append)
            found = {}
            for pod in msgspec.json.decode("\n".join(lines), type=_Summary).pods or ():
                reference = pod.get("podRef") or {}
                key = (reference.get("namespace"), reference.get("name"), reference.get("uid"))
                if (uid := by_key.get(key)) is not None:  # type: ignore[arg-type]
                    found[uid] = pod
            return found

        answers, _ = await _each(_nodes(placed), ask)
        return {uid: pod for answer in answers.values() for uid, pod in answer.items()}

    async def pages(self, path: str, placed: Sequence[Placed]) -> Pages:
        places = Places(placed)

        async def ask(node: str) -> Mapping[str, Family]:
            page = Page(places)
            await self._read(node, path, page.line)
            return page.families

        answers, failed = await _each(_nodes(placed), ask)
        return list(answers.values()), failed

    async def close(self) -> None:
        if self._straight is not None:
            await self._straight.close()

    async def _read(self, node: str, path: str, take: Callable[[str], None]) -> None:
        size = 0
        async with self._open(node, path) as lines:
            number = 0
            async for line in lines:
                size += len(line)
                if size > MAX_PAGE:
                    raise Unreachable(f"remote node {node}: /{path} has more than {MAX_PAGE} bytes")
                take(line.decode(errors="replace").rstrip("\r"))
                number += 1
                if number % _TURN == 0:
                    await asyncio.sleep(0)

    def _open(self, node: str, path: str) -> contextlib.AbstractAsyncContextManager[AsyncIterator[bytes]]:
        if self._straight is not None:
            return self._straight.open(node, path)
        # pages are text: a kubelet does not care, but others that play one refuse JSON of them
        return self._client.stream(f"{NODES.path(name=node)}/proxy/{path}", read_timeout=TIMEOUT, accept="*/*")


class _Summary(msgspec.Struct):
    pods: list[dict[str, Any]] | None = None


class _Straight:
    """Kubelets at their own addresses, with our credentials for the API server. Their certificates are verified by the
    same authority, as metrics-server does: a token is not for somebody who cannot prove who it is."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._session: aiohttp.ClientSession | None = None
        self._addresses: dict[str, tuple[float, str]] = {}

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    @contextlib.asynccontextmanager
    async def open(self, node: str, path: str) -> AsyncIterator[AsyncIterator[bytes]]:
        what = f"GET /{path} of remote node {node}"
        base = await self._address(node)
        access = await self._client.access()
        if self._session is None:
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(), read_bufsize=1 << 18, trust_env=False
            )
        try:
            async with self._session.get(
                f"{base}/{path}",
                headers=[*access.headers, ("Accept-Encoding", "identity")],
                ssl=access.tls if access.tls is not None else True,
                proxy=access.proxy,
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    body = await response.content.read(4096)
                    raise error_of_answer(what, response.status, response.reason or "", body)
                yield _lines(response)
        except (aiohttp.ClientError, OSError) as error:
            self._addresses.pop(node, None)
            # aiohttp's own words may hold the request's headers
            raise Unreachable(f"{what}: {type(error).__name__}: {getattr(error, 'os_error', '') or base}") from None

    async def _address(self, node: str) -> str:
        until, base = self._addresses.get(node, (0.0, ""))
        if time.monotonic() < until:
            return base
        params = {"fieldSelector": f"metadata.name={node}"}
        listed = (await self._client.get(NODES.path(), params=params, timeout=TIMEOUT, retry=False)).get("items") or []
        if not listed:
            raise Unreachable(f"remote node {node} is not there")
        base = address_of(listed[0])
        if len(self._addresses) > 10_000:
            self._addresses.clear()
        self._addresses[node] = time.monotonic() + _ADDRESS_KEPT, base
        return base


def address_of(node: Object) -> str:
    """Where a node's kubelet listens, as a URL."""
    status = node.get("status") or {}
    addresses = {item.get("type"): str(item.get("address")) for item in status.get("addresses") or ()}
    host = next((addresses[kind] for kind in _ADDRESSES if kind in addresses), None)
    if host is None:
        raise Unreachable(f"remote node {node['metadata']['name']} has no address")
    port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port") or 10250
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    rest = b""
    while chunk := await response.content.readany():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
        if len(rest) > MAX_PAGE:
            raise Unreachable(f"a line of more than {MAX_PAGE} bytes")
    if rest:
        yield rest


def _nodes(placed: Iterable[Placed]) -> list[str]:
    return sorted({item.node for item in placed if item.node})


async def _each(parts: Iterable[str], ask: Callable[[str], Awaitable[T]]) -> tuple[dict[str, T], dict[str, str]]:
    """Ask all parts at once, each within its time: the answers, and why there is none of the others."""
    turns = asyncio.Semaphore(_AT_ONCE)
    answers: dict[str, T] = {}
    failed: dict[str, str] = {}
    deadline = asyncio.get_running_loop().time() + _TIMEOUT_OF_ALL

    async def one(part: str) -> None:
        try:
            async with asyncio.timeout_at(deadline), turns, asyncio.timeout(TIMEOUT):
                answers[part] = await ask(part)
        except TimeoutError:
            failed[part] = f"no answer within {TIMEOUT:g} s"
        except (KubeError, msgspec.DecodeError, ValueError) as error:
            failed[part] = str(error)

    async with asyncio.TaskGroup() as group:
        for part in parts:
            group.create_task(one(part))
    return answers, failed
