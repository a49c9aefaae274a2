"""Carries the calls of the kubelet API out in the remote cluster.

An upgrade is repeated to the remote API server and its bytes are passed on unread. Only where something on the way
turns out not to carry SPDY is it translated, and that is remembered for a while, since it is true of the way and not
of a call.
"""

from __future__ import annotations

import enum
import logging
import time

import msgspec

from app.kube.client import Client as KubeClient
from kubelet_api import headers, limits, refusal, translate
from kubelet_api.call import Call, CallError, Downstream, Kind, Meter
from kubelet_api.headers import SPDY, WEBSOCKET
from kubelet_api.logs import LogStream, open_log
from kubelet_api.query import Query, Streams, attach_query, exec_query, port_forward_query, run_query
from kubelet_api.splice import Client, ClientGone, splice
from kubelet_api.upstream import Answer, Unanswered, Upstream
from kubelet_api.websocket import Refused, Tunnel, WebSocket, open_websocket

log = logging.getLogger(__name__)

SPDY_AGAIN = 600.0
"""Seconds after which SPDY is tried again where it was refused."""

MAX_RUN_OUTPUT = 16 << 20
"""Bytes of what ``/run`` gives; a container runtime has the same bound."""

_SUBRESOURCE = {Kind.EXEC: "exec", Kind.RUN: "exec", Kind.ATTACH: "attach", Kind.PORT_FORWARD: "portforward"}
_TUNNEL = headers.TUNNEL.decode()


class _NoSpdy(enum.Enum):
    """That something on the way did not carry SPDY."""

    REFUSED = enum.auto()
    PERHAPS = enum.auto()
    """A gateway whose backend is away for a moment says the same as one that knows no SPDY."""


class RemoteCalls:
    """Calls to one remote cluster, as the user of *client*. Belongs to one event loop."""

    def __init__(self, client: KubeClient, *, stall: float = limits.DEFAULT.stall) -> None:
        """*stall*: after how many seconds of silence an open call is to be known as lost."""
        self._upstream = Upstream(client, stall)
        self._spdy_from = float("-inf")

    @property
    def carries_spdy(self) -> bool:
        """Whether the way to the remote is believed to carry SPDY."""
        return time.monotonic() >= self._spdy_from

    async def logs(self, call: Call) -> LogStream:
        """The log of a container; CallError if it cannot be had."""
        return await open_log(self._upstream, call)

    async def upgrade(self, call: Call, downstream: Downstream, meter: Meter) -> None:
        """Exec, attach or port-forward, to its end. CallError if nothing was written to the client."""
        kind = headers.upgrade_kind(call.headers)
        if kind is None:
            raise CallError(400, "Upgrade request required")
        query = _query(call, kind)
        client = Client(downstream)
        try:
            lasting = False
            if kind == WEBSOCKET or self.carries_spdy:
                answer = await client.unless_gone(self._replay(call, kind, query))
                if isinstance(answer, Answer):
                    await self._pass_on(client, answer, kind, meter)
                    return
                lasting = answer is _NoSpdy.REFUSED
            await self._translate(call, query, client, meter, lasting=lasting)
        except ClientGone:
            downstream.abort()
        finally:
            await client.stop()

    async def run(self, call: Call, meter: Meter) -> bytes:
        """The output of a command that gets no input; CallError with status 500 if it fails, as a kubelet's."""
        assert call.container is not None
        query = run_query(call.query, call.container)
        websocket = await self._open_websocket(call, query, translate.CHANNELS)
        meter.over(websocket.wire)
        outputs = {1: bytearray(), 2: bytearray(), 3: bytearray()}
        try:
            while (message := await websocket.receive()) is not None:
                if len(message) > 1 and message[0] in outputs:
                    outputs[message[0]] += message[1:]
                    if sum(map(len, outputs.values())) > MAX_RUN_OUTPUT:
                        raise CallError(500, f"the command gave more than {MAX_RUN_OUTPUT} bytes")
        finally:
            websocket.abort()
        _check_ended(call, bytes(outputs[3]), bytes(outputs[2]), [value for name, value in query if name == "command"])
        return bytes(outputs[1] + outputs[2])

    # ------------------------------------------------------------------ as it is

    async def _replay(self, call: Call, kind: bytes, query: Query) -> Answer | _NoSpdy:
        """The remote's 101, unless something on the way does not carry SPDY."""
        try:
            answer = await self._upstream.ask(call.method, _path(call), query, headers.for_remote(call.headers, kind))
        except Unanswered:
            if kind == SPDY:  # some gateways say no by hanging up
                return _NoSpdy.REFUSED
            raise
        if headers.is_accepted(answer.head, kind):
            return answer
        body = await answer.refusal()
        if kind == SPDY and refusal.refuses_spdy(answer.head, body):
            return _NoSpdy.PERHAPS if answer.head.status in (502, 503, 504) else _NoSpdy.REFUSED
        raise refusal.of_answer(call, answer.head, body)

    async def _pass_on(self, client: Client, answer: Answer, kind: bytes, meter: Meter) -> None:
        try:
            await client.write(headers.for_client(answer.head, kind))
            if answer.rest:
                meter.to_client(len(answer.rest))
                await client.write(answer.rest)
        except OSError:
            client.abort()
            answer.channel.abort()
            return
        except BaseException:
            answer.channel.abort()
            raise
        meter.over(answer.channel.wire)
        await splice(client, answer.channel, meter)

    # ------------------------------------------------------------------ translated

    async def _translate(self, call: Call, query: Query, client: Client, meter: Meter, *, lasting: bool) -> None:
        """*lasting*: SPDY was refused just now, in a way that will be so the next time."""
        version = (
            "portforward.k8s.io"
            if call.kind is Kind.PORT_FORWARD
            else translate.choose(headers.stream_versions(call.headers))
        )
        offered = (_TUNNEL,) if call.kind is Kind.PORT_FORWARD else translate.CHANNELS
        websocket = await client.unless_gone(self._open_websocket(call, query, offered))
        if lasting and self.carries_spdy:
            log.warning(
                "the way to the remote API server does not carry SPDY; exec, attach and port-forward use WebSocket, "
                "SPDY is tried again in %g minutes",
                SPDY_AGAIN / 60,
            )
            self._spdy_from = time.monotonic() + SPDY_AGAIN
        meter.over(websocket.wire)
        try:
            await client.write(headers.switching(SPDY, [(b"x-stream-protocol-version", version.encode())]))
        except OSError:
            client.abort()
            websocket.abort()
            return
        except BaseException:
            websocket.abort()
            raise
        if call.kind is Kind.PORT_FORWARD:
            await splice(client, Tunnel(websocket), meter)
        else:
            await translate.Command(client, websocket, Streams.of(call.query), version, meter).run()

    async def _open_websocket(self, call: Call, query: Query, subprotocols: tuple[str, ...]) -> WebSocket:
        try:
            return await open_websocket(self._upstream, _path(call), query, subprotocols)
        except Refused as refused:
            raise refusal.of_answer(call, refused.head, refused.body) from None


def _path(call: Call) -> str:
    return f"/api/v1/namespaces/{call.twin.namespace}/pods/{call.twin.pod}/{_SUBRESOURCE[call.kind]}"


def _query(call: Call, kind: bytes) -> Query:
    if call.kind is Kind.PORT_FORWARD:
        tunnelled = headers.TUNNEL in headers.subprotocols(call.headers)
        return port_forward_query(call.query, websocket=kind == WEBSOCKET, tunnelled=tunnelled)
    assert call.container is not None
    return (exec_query if call.kind is Kind.EXEC else attach_query)(call.query, call.container)


def _check_ended(call: Call, status: bytes, complaint: bytes, command: list[str]) -> None:
    """CallError if a command did not end with success, in the words of a kubelet."""
    try:
        found = msgspec.json.decode(status)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = None
    if not isinstance(found, dict):
        raise CallError(500, "the connection to the remote API server was lost while the command ran")
    if found.get("status") == "Success":
        return
    details = found.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    for cause in causes if isinstance(causes, list) else ():
        if isinstance(cause, dict) and cause.get("reason") == "ExitCode":
            shown = complaint.decode(errors="replace")
            raise CallError(500, f"command '{' '.join(command)}' exited with {cause.get('message')}: {shown}")
    raise CallError(500, refusal.in_local_words(call, str(found.get("message") or "the command failed")))
