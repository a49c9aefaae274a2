"""The admission webhook as a server: HTTPS, two paths, small requests, and nothing that takes long.

aiohttp's server, since every pod of an extended namespace waits for it: its parser is compiled and an answer leaves in
one piece, for half of the CPU of uvicorn with h11. Each connection is wrapped with the certificate of that moment, so
that a new one drops none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from typing import Final

from aiohttp import StreamReader
from aiohttp.web import BaseRequest, Response, Server

from app import names
from app.kube.client import Client, PatchKind
from app.kube.errors import KubeError, NotFound
from app.kube.informers import Cache
from app.kube.objects import Envelope, Key
from app.kube.resources import NAMESPACE_OFFLOADINGS, NAMESPACES
from app.namespaces.offloading import Offloading
from app.operator import review
from certs.tls import ServerTls

log = logging.getLogger(__name__)

PODS_PATH: Final = "/mutate-pods"
OFFLOADINGS_PATH: Final = "/validate-namespaceoffloadings"

MAX_BODY: Final = 3 << 20
"""Bytes; the API server takes no object of more, and a review of an update holds two."""
_BODY_TIME: Final = 5.0
_ASK_TIME: Final = 2.0
_ABSENT_FOR: Final = 2.0
"""Seconds for which it is believed that a namespace has no object, after the API server said so."""
_ABSENT_MOST: Final = 4096
_PARSED_MOST: Final = 4096
_CONCURRENT: Final = 500
"""Reviews at the same time; more are told to come again."""
_CONNECTIONS: Final = 1000
"""Open at the same time, whether or not anything is asked on them; more are closed at once."""
_KEEP_ALIVE: Final = 100.0
"""Seconds; the API server closes its end after 90."""
_DRAIN: Final = 2.0
"""Seconds for which the one that goes still answers, closing each connection with its answer. One that just vanished
could have a review on its way, which the API server does not send again: the pod would be refused."""
_SEEN_TIME: Final = 1.0
_SEEN_BY_OTHERS: Final = 0.2
"""Seconds by which the API server's copy of a namespace may be later than ours. There is no way to ask it, and with
several API servers no one to ask; one that is later still lets a pod of the very same moment pass unseen."""


class Strategies:
    """What pods of a namespace are to be given, by the caches; what they do not know yet is asked for."""

    def __init__(self, local: Client, namespaces: Cache, offloadings: Cache) -> None:
        self._local = local
        self._namespaces = namespaces
        self._offloadings = offloadings
        self._absent: OrderedDict[str, float] = OrderedDict()
        self._parsed: dict[str, tuple[Envelope, Offloading | None]] = {}

    async def of(self, namespace: str) -> Offloading | None:
        found = self._offloadings.get(Key(namespace, names.OFFLOADING))
        if found is not None and (offloading := self._parse(found)) is not None:
            return offloading
        if found is None and self._absent.get(namespace, 0.0) < time.monotonic():
            try:
                path = NAMESPACE_OFFLOADINGS.path(namespace, names.OFFLOADING)
                return Offloading.of(await self._local.get(path, timeout=_ASK_TIME))
            except NotFound:
                self._note_absent(namespace)
        known = self._namespaces.get(Key("", namespace))
        if known is not None and names.ANNOTATION_ENABLED_BY in (known.metadata.annotations or {}):
            return None  # the label was for an object that is gone
        return Offloading(namespace)

    def _parse(self, found: Envelope) -> Offloading | None:
        """What an object asks for, None if it is being deleted; read once for each of its versions."""
        parsed = self._parsed.get(found.key.namespace)
        if parsed is None or parsed[0] is not found:
            if len(self._parsed) >= _PARSED_MOST:
                self._parsed.clear()
            parsed = found, None if found.metadata.deletionTimestamp else Offloading.of(found.object())
            self._parsed[found.key.namespace] = parsed
        return parsed[1]

    def _note_absent(self, namespace: str) -> None:
        self._absent[namespace] = time.monotonic() + _ABSENT_FOR
        self._absent.move_to_end(namespace)
        if len(self._absent) > _ABSENT_MOST:
            self._absent.popitem(last=False)


class _Refused(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


class Webhook:
    """Answers the API server."""

    def __init__(
        self,
        *,
        address: str,
        tls: ServerTls,
        local: Client,
        namespaces: Cache,
        offloadings: Cache,
        own_namespace: str,
        allow_host: bool,
        taint_key: str,
    ) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._tls = tls
        self._local = local
        self._namespaces = namespaces
        self._strategies = Strategies(local, namespaces, offloadings)
        self._own_namespace = own_namespace
        self._allow_host = allow_host
        self._taint_key = taint_key
        self._reviews = {PODS_PATH: self._pods, OFFLOADINGS_PATH: self._offloading}
        self._under_way = 0
        self._going = False
        self._requests = Server(self._answer, access_log=None, keepalive_timeout=_KEEP_ALIVE)
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Listen; ``OSError`` if that cannot be."""
        self._server = await asyncio.get_running_loop().create_server(
            self._accept,
            self._host,
            self._port,
            ssl=self._tls.context,
            ssl_handshake_timeout=5,
            backlog=256,
        )

    def _accept(self) -> asyncio.BaseProtocol:
        return self._requests() if len(self._requests.connections) < _CONNECTIONS else _Refused()

    async def drain(self) -> None:
        """Let the API server go elsewhere: whoever asks is answered, and told not to ask here again."""
        self._going = True
        end = time.monotonic() + _DRAIN
        while self._requests.connections and time.monotonic() < end:  # noqa: ASYNC110 - short, and rare
            await asyncio.sleep(0.05)

    async def stop(self, grace: float = 5.0) -> None:
        """Take no more connections; what is being answered is."""
        if self._server is None:
            return
        self._server.close()
        end = time.monotonic() + grace
        while self._under_way and time.monotonic() < end:  # noqa: ASYNC110 - aiohttp drops what is still to come of a body
            await asyncio.sleep(0.01)
        self._requests.pre_shutdown()  # else it waits for idle connections, and drops what comes on them
        await self._requests.shutdown(grace)

    # ------------------------------------------------------------------ requests

    async def _answer(self, http: BaseRequest) -> Response:
        response = await self._respond(http)
        if self._going:
            response.force_close()
        return response

    async def _respond(self, http: BaseRequest) -> Response:
        review_of = self._reviews.get(http.path)
        if review_of is None:
            return _text("there is nothing here", 404)
        if http.method != "POST":
            return _text("reviews are sent with POST", 405)
        if self._under_way >= _CONCURRENT:
            return _text("too many reviews at the same time", 503)
        self._under_way += 1
        try:
            return await review_of(http)
        finally:
            self._under_way -= 1

    async def _pods(self, http: BaseRequest) -> Response:
        request = await self._read(http)
        if isinstance(request, Response):
            return request
        try:
            offloading = await self._strategies.of(request.namespace)
        except (KubeError, ValueError) as error:
            log.warning("a pod in %s cannot be judged: %s", request.namespace, error)
            return _text("what its namespace asks for cannot be read", 503)
        return _json(review.review_pod(request, offloading, allow_host=self._allow_host, taint_key=self._taint_key))

    async def _offloading(self, http: BaseRequest) -> Response:
        request = await self._read(http)
        if isinstance(request, Response):
            return request
        try:
            body, enable = review.review_offloading(request, self._own_namespace)
        except (KeyError, ValueError) as error:
            return _text(f"not a NamespaceOffloading: {error}", 400)
        if enable:
            await self._enable(request.namespace)
        return _json(body)

    async def _enable(self, namespace: str) -> None:
        """Label the namespace before its object is there, so that the next pod is seen; the controller does it too."""
        try:
            path = NAMESPACES.path(name=namespace)
            metadata = (await self._local.get(path, timeout=_ASK_TIME))["metadata"]
            patch = review.enabling_patch(metadata.get("labels") or {}, metadata.get("annotations") or {})
            if patch is None:
                return
            await self._local.patch(path, patch, PatchKind.MERGE, timeout=_ASK_TIME)
            # the API server chooses webhooks by its own copy of the namespace, which is as late as ours
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SEEN_TIME):
                    while not self._sees_label(namespace):  # noqa: ASYNC110 - rarely more than once
                        await asyncio.sleep(0.01)
            await asyncio.sleep(_SEEN_BY_OTHERS)
        except KubeError as error:
            log.info("namespace %s is labelled a little later: %s", namespace, error)

    def _sees_label(self, namespace: str) -> bool:
        known = self._namespaces.get(Key("", namespace))
        return known is not None and (known.metadata.labels or {}).get(names.LABEL_ENABLED) == "true"

    async def _read(self, http: BaseRequest) -> review.Request | Response:
        content = http.content
        try:
            # mostly it came with the head: there is nothing to wait for, and a timer costs more than to read it
            body = content.read_nowait() if content.is_eof() else await _body(content)
            return _text("the review is too large", 413) if len(body) > MAX_BODY else review.decode(body)
        except TimeoutError:
            return _text("the review came too slowly", 408)
        except review.NotAReview as error:
            return _text(str(error), 400)


async def _body(content: StreamReader) -> bytes:
    """What is still to come with it; of one that is too large, as much as shows it."""
    pieces: list[bytes] = []
    size = 0
    async with asyncio.timeout(_BODY_TIME):
        async for piece in content.iter_any():
            pieces.append(piece)
            size += len(piece)
            if size > MAX_BODY:
                break
    return b"".join(pieces)


def _json(body: bytes) -> Response:
    return Response(body=body, content_type="application/json")


def _text(text: str, status: int) -> Response:
    return Response(text=text, status=status)
