"""What answers each route, given a request that was let in. The kubelet's statuses and texts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import generate_latest
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.kube.objects import Object
from kubelet_api.call import Call, CallError
from kubelet_api.metrics import CONTENT_TYPE
from kubelet_api.request import Request
from kubelet_api.usage.exposition import zipped
from kubelet_api.validate import quoted

if TYPE_CHECKING:
    from kubelet_api.service import Service

_TEXT: Final = "text/plain; charset=utf-8"
_JSON: Final = "application/json"
_PIECE: Final = 64 << 10
_PARTS: Final = 64
"""Of which one piece is made at most: small ones take their time too."""
_NOT_KNOWN: Final = "the pods of this node are not all known yet; try again in a few seconds"


# ---------------------------------------------------------------------- pods


async def container_logs(service: Service, request: Request) -> ASGIApp:
    return _Logs(service, service.call(request))


async def not_upgraded(service: Service, request: Request) -> ASGIApp:
    """An exec, attach or port-forward that does not ask for an upgrade."""
    service.call(request)
    raise CallError(500, "Upgrade request required\n")


async def run(service: Service, request: Request) -> ASGIApp:
    return _Run(service, service.call(request))


async def pods(service: Service, request: Request) -> ASGIApp:
    """The pods that are bound to the node."""
    return _PodList(_known(service))


async def running_pods(service: Service, request: Request) -> ASGIApp:
    """The pods that run, as a container runtime knows them: names and images."""
    return _PodList(_as_runtime_knows(pod) for pod in _known(service) if service.twins.is_running(pod))


def _known(service: Service) -> Iterable[Object]:
    if not service.twins.synced():
        raise CallError(503, _NOT_KNOWN)
    return service.twins.local_pods()


def _as_runtime_knows(pod: Object) -> Object:
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    containers = [{"name": c.get("name"), "image": c.get("image", "")} for c in spec.get("containers") or ()]
    return {
        "metadata": {
            "name": metadata.get("name"),
            "namespace": metadata.get("namespace"),
            "uid": metadata.get("uid"),
            "creationTimestamp": None,
        },
        "spec": {"containers": containers},
        "status": {},
    }


class _Logs:
    """A log, as it comes. The head of the answer is sent at once, also when there is nothing to say yet."""

    def __init__(self, service: Service, call: Call) -> None:
        self._service = service
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._service.sessions.session(self._call) as session, _while_connected(receive):
            session.over(scope["state"]["wire"])
            stream = await self._service.remote.logs(self._call)
            session.over(stream.wire)
            try:
                await send(_start(_TEXT))
                async for piece in stream:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    session.to_client(len(piece))
            finally:
                await stream.aclose()
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Run:
    """What a command wrote."""

    def __init__(self, service: Service, call: Call) -> None:
        self._service = service
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._service.sessions.session(self._call) as session, _while_connected(receive):
            session.over(scope["state"]["wire"])
            output = await self._service.remote.run(self._call, session)
            await send(_start(_JSON))
            async for piece in _pieces(output):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                session.to_client(len(piece))
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class _PodList:
    """A v1.PodList, written pod by pod: all of them as one text would be held several times over."""

    def __init__(self, pods: Iterable[Object]) -> None:
        self._pods = pods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(_start(_JSON))
        for piece in _gathered(self._text()):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _text(self) -> Iterator[bytes]:
        yield b'{"kind":"PodList","apiVersion":"v1","metadata":{},"items":['
        for number, pod in enumerate(self._pods):
            if number:
                yield b","
            yield msgspec.json.encode({key: value for key, value in pod.items() if key not in ("kind", "apiVersion")})
        yield b"]}\n"


def _gathered(parts: Iterable[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size >= _PIECE or len(held) >= _PARTS:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)


async def _pieces(output: bytes | AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if isinstance(output, bytes):
        for start in range(0, len(output), _PIECE):
            yield output[start : start + _PIECE]
        return
    try:
        async for piece in output:
            yield piece
    finally:
        close = getattr(output, "aclose", None)
        if close is not None:
            await close()


def _start(content_type: str) -> dict[str, Any]:
    return {"type": "http.response.start", "status": 200, "headers": [(b"content-type", content_type.encode())]}


@contextlib.asynccontextmanager
async def _while_connected(receive: Receive) -> AsyncIterator[None]:
    """Ends the block with ``ConnectionResetError`` when the client goes."""
    task = asyncio.current_task()
    assert task is not None
    over = gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        if not over:
            gone = True
            task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not gone:
            raise
        task.uncancel()
        raise ConnectionResetError("the client went away") from None
    finally:
        over = True
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)


# ---------------------------------------------------------------------- the node


async def healthz(service: Service, request: Request) -> ASGIApp:
    excluded = {value for name, value in request.query if name == "exclude"}
    lines, failed = [], False
    for name, check in service.checks.items():
        if name in excluded:
            lines.append(f"[+]{name} excluded: ok")
        elif check():
            failed = True
            lines.append(f"[-]{name} failed: reason withheld")
        else:
            lines.append(f"[+]{name} ok")
    if unknown := sorted(excluded - service.checks.keys()):
        names = ", ".join(quoted(name) for name in unknown)
        lines.append(f"warn: some health checks cannot be excluded: no matches for {names}")
    if failed:
        return _text("\n".join([*lines, "healthz check failed"]) + "\n", 500)
    if any(name == "verbose" for name, _ in request.query):
        return _text("\n".join([*lines, "healthz check passed"]) + "\n")
    return _text("ok")


async def healthz_check(service: Service, request: Request) -> ASGIApp:
    check = service.checks.get(request.names["check"])
    if check is None:
        return await not_found(service, request)
    problem = check()
    return _text(f"internal server error: {problem}\n", 500) if problem else _text("ok")


async def configz(service: Service, request: Request) -> ASGIApp:
    return _json({"kubeletconfig": service.config})


async def stats_summary(service: Service, request: Request) -> ASGIApp:
    """What pods use, and what is known of the node. Figures that are not known are left out."""
    if not service.twins.synced():
        raise CallError(503, _NOT_KNOWN)
    short = any(name == "only_cpu_and_memory" and value in ("true", "1") for name, value in request.query)
    return _Pieces(await service.usage.summary(only_cpu_and_memory=short), _JSON)


async def metrics(service: Service, request: Request) -> ASGIApp:
    return _own(service, service.metrics.exposition(), request)


async def metrics_cadvisor(service: Service, request: Request) -> ASGIApp:
    packed = _takes_gzip(request)
    return _page(service, await service.usage.cadvisor(packed=packed), packed=packed)


async def metrics_resource(service: Service, request: Request) -> ASGIApp:
    packed = _takes_gzip(request)
    return _page(service, await service.usage.resource(packed=packed), packed=packed)


async def metrics_probes(service: Service, request: Request) -> ASGIApp:
    packed = _takes_gzip(request)
    return _page(service, await service.usage.probes(packed=packed), packed=packed)


def _own(service: Service, text: bytes, request: Request) -> ASGIApp:
    """Metrics of our own: a page, whatever the number of pods."""
    packed = _takes_gzip(request)
    return _page(service, [*zipped([text])] if packed else [text], packed=packed)


def _page(service: Service, pieces: Sequence[bytes], *, packed: bool) -> ASGIApp:
    """Metrics, with the header by which a kubelet says since when it counts."""
    headers = [(b"process-start-time-unix", str(int(service.usage.started)).encode())]
    if packed:
        headers.append((b"content-encoding", b"gzip"))
    return _Pieces(pieces, CONTENT_TYPE, headers)


def _takes_gzip(request: Request) -> bool:
    """Whether the client wants its answer packed, as the kubelet's pages of metrics do on demand."""
    for name, value in request.headers:
        if name == b"accept-encoding":
            for token in value.lower().split(b","):
                coding, _, quality = token.strip().partition(b";")
                if coding.strip() == b"gzip" and quality.replace(b" ", b"") not in (b"q=0", b"q=0.0"):
                    return True
    return False


class _Pieces:
    """An answer that is there already, sent piece by piece so that others get their turns."""

    def __init__(self, pieces: Sequence[bytes], content_type: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._pieces = pieces
        self._headers = [
            (b"content-type", content_type.encode()),
            (b"content-length", str(sum(map(len, pieces))).encode()),
            *headers,
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def metrics_slis(service: Service, request: Request) -> ASGIApp:
    registry = CollectorRegistry()
    help_text = "[STABLE] This metric records the result of a single healthcheck."
    gauge = Gauge("kubernetes_healthcheck", help_text, ["name", "type"], registry=registry)
    for name, check in service.checks.items():
        gauge.labels(name, "healthz").set(0 if check() else 1)
    return _own(service, generate_latest(registry), request)


# ---------------------------------------------------------------------- what a virtual node has not


async def logs_disabled(service: Service, request: Request) -> NoReturn:
    raise CallError(405, "logs endpoint is disabled.\n")


async def profiling_disabled(service: Service, request: Request) -> NoReturn:
    raise CallError(405, "profiling endpoint is disabled.\n")


async def flags_disabled(service: Service, request: Request) -> NoReturn:
    raise CallError(405, "flags endpoint is disabled.\n")


async def not_found(service: Service, request: Request) -> NoReturn:
    raise CallError(404, "404: Page Not Found")


def _text(text: str, status: int = 200) -> Response:
    return Response(text, status, {"X-Content-Type-Options": "nosniff"}, _TEXT)


def _json(content: object) -> Response:
    return Response(msgspec.json.encode(content), media_type=_JSON)
