"""The running server: what it answers, what it hands on, and that nothing is left of it."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import logging
import os
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.kube.client import Client
from app.kube.config import load
from certs.tls import ServerTls
from devcluster import pki
from devcluster.cluster import Cluster
from kubelet_api.call import CallError, Kind
from kubelet_api.limits import Limits
from kubelet_api.server import KubeletServer
from tests.kubelet_api.serving import (
    NODE,
    SPDY,
    SWITCHED,
    UID,
    Answer,
    Authority,
    Pods,
    Recorder,
    Wire,
    ask,
    bearer,
    connected,
    pod,
    request,
    serving,
)

pytestmark = pytest.mark.cluster

Reviews = Callable[[], AbstractAsyncContextManager[Client]]
EXEC = "/exec/shop/web/main?command=sh&input=1&output=1"
NEVER = 3600.0


class Scene:
    """A server with an administrator's connection to it."""

    def __init__(self, server: KubeletServer, admin: ssl.SSLContext, remote: Recorder, twins: Pods) -> None:
        self.server, self.admin, self.remote, self.twins = server, admin, remote, twins

    async def ask(self, method: str, target: str, *headers: str) -> Answer:
        return await ask(self.server, self.admin, method, target, headers)

    def connected(self) -> AbstractAsyncContextManager[Wire]:
        return connected(self.server, self.admin)

    async def figures(self) -> dict[tuple[str, tuple[str, ...]], float]:
        text = (await self.ask("GET", "/metrics")).text
        return {
            (sample.name, tuple(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@pytest.fixture
def scene(reviews: Reviews, authority: Authority) -> Callable[..., AbstractAsyncContextManager[Scene]]:
    @asynccontextmanager
    async def make(limits: Limits | None = None, twins: Pods | None = None) -> AsyncIterator[Scene]:
        remote, twins = Recorder(), twins or Pods([pod(), pod("pending", uid="another")], without_twin=["pending"])
        async with (
            reviews() as client,
            serving(client, authority, twins=twins, remote=remote, limits=limits) as server,
        ):
            yield Scene(server, authority.user("admin", "system:masters"), remote, twins)

    return make


MakeScene = Callable[..., AbstractAsyncContextManager[Scene]]


async def until(condition: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.01)
    assert condition(), what


ANSWERS = [
    ("GET", "/healthz", 200, "ok"),
    ("POST", "/healthz", 200, "ok"),
    ("GET", "/healthz/ping", 200, "ok"),
    ("GET", "/healthz/log", 200, "ok"),
    ("GET", "/healthz/syncloop", 200, "ok"),
    ("GET", "/healthz/else", 404, "404: Page Not Found"),
    ("GET", "/healthz?verbose", 200, "[+]ping ok\n[+]log ok\n[+]syncloop ok\nhealthz check passed\n"),
    ("GET", "/nothing", 404, "404: Page Not Found"),
    ("GET", "/", 404, "404: Page Not Found"),
    ("GET", "/docs", 404, "404: Page Not Found"),
    ("GET", "/openapi.json", 404, "404: Page Not Found"),
    ("GET", "/metrics/../exec/shop/web/main", 404, "404: Page Not Found"),
    ("POST", "/pods", 405, "405: Method Not Allowed"),
    ("GET", "/run/shop/web/main", 405, "405: Method Not Allowed"),
    ("DELETE", "/containerLogs/shop/web/main", 405, "405: Method Not Allowed"),
    ("GET", "/logs/", 405, "logs endpoint is disabled.\n"),
    ("GET", "/logs", 405, "logs endpoint is disabled.\n"),
    ("GET", "/logs/a/b", 405, "logs endpoint is disabled.\n"),
    ("GET", "/debug/pprof/profile", 405, "profiling endpoint is disabled.\n"),
    ("PUT", "/debug/flags/v", 405, "flags endpoint is disabled.\n"),
    ("POST", "/checkpoint/shop/web/main", 404, "404: Page Not Found"),
    ("GET", "/flagz", 404, "404: Page Not Found"),
    ("GET", "/statusz", 404, "404: Page Not Found"),
    ("GET", EXEC, 500, "Upgrade request required\n"),
    ("POST", "/run/shop/web/main?cmd=ls", 200, "one\ntwo\n"),
    ("POST", f"/run/shop/web/{UID}/main?cmd=ls", 200, "one\ntwo\n"),
    ("GET", "/containerLogs/shop/web/main", 200, "one\ntwo\n"),
    ("GET", "/containerLogs/shop/web/init", 200, "one\ntwo\n"),
    ("GET", "/containerLogs/shop/web/debug", 200, "one\ntwo\n"),
    ("GET", "/containerLogs/shop/w%65b/main", 200, "one\ntwo\n"),
    ("GET", "/containerLogs/shop/w%2565b/main", 404, 'pod "w%65b" does not exist'),
    ("GET", "/containerLogs/shop/web%2Fmain", 404, "404: Page Not Found"),
    ("GET", "/containerLogs/shop/other/main", 404, 'pod "other" does not exist'),
    ("GET", "/containerLogs/shop/web/other", 404, 'container "other" not found in pod "web"'),
    ("GET", "/containerLogs/shop/pending/main", 400, 'container "main" in pod "pending" is not available'),
]


def test_answers(scene: MakeScene) -> None:
    async def main() -> None:
        async with scene() as s:
            for method, target, status, text in ANSWERS:
                answer = await s.ask(method, target)
                assert (method, target, answer.status, answer.text) == (method, target, status, text)

    asyncio.run(main())


REFUSALS = [
    ("/exec/shop/other/main?output=1", 404, "pod does not exist"),
    ("/exec/shop/web/other?output=1", 500, 'container not found ("other")'),
    ("/exec/shop/web/another-uid/main?output=1", 500, 'container not found ("main")'),
    ("/exec/shop/pending/main?output=1", 500, 'container not found ("main")'),
    ("/portForward/shop/other", 404, "pod does not exist"),
    ("/portForward/shop/web/another-uid", 404, "pod not found"),
    ("/portForward/shop/pending", 500, 'pod not found ("pending_shop")'),
    ("/exec/..%2F..%2Fsecrets/web/main", 404, "pod does not exist"),
]


def test_an_upgrade_that_is_refused(scene: MakeScene) -> None:
    async def main() -> None:
        async with scene() as s:
            for target, status, text in REFUSALS:
                for method in ("GET", "POST"):
                    answer = await s.ask(method, target, *SPDY, "Content-Length: 0")
                    assert (target, answer.status, answer.text) == (target, status, text)
            assert not s.remote.calls

    asyncio.run(main())


UPGRADES: list[tuple[str, Kind, str | None]] = [
    (EXEC, Kind.EXEC, "main"),
    (f"/exec/shop/web/{UID}/debug?output=1", Kind.EXEC, "debug"),
    ("/attach/shop/web/side?output=1", Kind.ATTACH, "side"),
    (f"/attach/shop/web/{UID}/side?output=1", Kind.ATTACH, "side"),
    ("/portForward/shop/web", Kind.PORT_FORWARD, None),
    (f"/portForward/shop/web/{UID}", Kind.PORT_FORWARD, None),
]


@pytest.mark.parametrize("headers", [(), ("Content-Length: 0",), ("Expect: 100-continue", "Content-Length: 0")])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_upgrade(scene: MakeScene, method: str, headers: tuple[str, ...]) -> None:
    """Bytes that come with the head are the first that the stream gets."""

    async def one(s: Scene, target: str, kind: Kind, container: str | None) -> None:
        async with s.connected() as wire:
            await wire.send(request(method, target, [*SPDY, *headers]) + b"early")
            assert await wire.reader.readexactly(len(SWITCHED)) == SWITCHED
            await wire.send(b" bird")
            assert await wire.reader.readexactly(10) == b"early bird"
            call = s.remote.calls[-1]
            assert (call.kind, call.container, call.twin.pod, call.method) == (kind, container, "web-twin", method)
            assert (call.namespace, call.pod, call.uid, call.user.name) == ("shop", "web", UID, "admin")
        await until(lambda: s.remote.open_streams == 0, "the stream ends with its client")

    async def main() -> None:
        async with scene() as s:
            for target, kind, container in UPGRADES:
                await one(s, target, kind, container)

    asyncio.run(main())


def test_the_query_arrives_decoded_once(scene: MakeScene) -> None:
    async def main() -> None:
        async with scene() as s:
            await s.ask("GET", "/containerLogs/shop/web/main?a=%2520&a=b+c&empty=")
            assert s.remote.calls[0].query == (("a", "%20"), ("a", "b c"), ("empty", ""))
            answer = await s.ask("GET", "/containerLogs/shop/web/main?command=%FF")
            assert (answer.status, len(s.remote.calls)) == (400, 1)

    asyncio.run(main())


def test_the_remote_refuses(scene: MakeScene) -> None:
    async def main() -> None:
        async with scene() as s:
            s.remote.error = CallError(400, "no such thing", (("Retry-After", "3"),))
            for answer in (
                await s.ask("GET", "/containerLogs/shop/web/main"),
                await s.ask("POST", EXEC, *SPDY),
            ):
                assert (answer.status, answer.text) == (400, "no such thing")
                assert answer.headers["retry-after"] == "3"

    asyncio.run(main())


def test_an_upgrade_with_a_body_is_refused(scene: MakeScene) -> None:
    async def main() -> None:
        async with scene() as s:
            for header in ("Content-Length: 5", "Transfer-Encoding: chunked"):
                answer = await s.ask("POST", EXEC, *SPDY, header)
                assert answer.status == 400
            assert not s.remote.calls

    asyncio.run(main())


def test_an_upgrade_that_no_route_knows_is_a_plain_request(scene: MakeScene) -> None:
    async def main() -> None:
        async with scene() as s:
            answer = await s.ask("GET", "/healthz", "Connection: Upgrade", "Upgrade: websocket")
            assert answer.text == "ok"

    asyncio.run(main())


def test_caches_that_are_not_complete(scene: MakeScene) -> None:
    async def main() -> None:
        async with scene() as s:
            s.twins.complete = False
            for target in ("/containerLogs/shop/web/main", "/pods", "/runningpods/", "/stats/summary"):
                assert (await s.ask("GET", target)).status == 503
            assert (await s.ask("GET", EXEC, *SPDY)).status == 503
            answer = await s.ask("GET", "/healthz")
            assert (answer.status, answer.text.splitlines()[2]) == (500, "[-]syncloop failed: reason withheld")
            assert not s.remote.calls

    asyncio.run(main())


def test_pods(scene: MakeScene) -> None:
    async def main() -> None:
        async with scene() as s:
            listed = json.loads((await s.ask("GET", "/pods")).body)
            assert (listed["kind"], listed["apiVersion"]) == ("PodList", "v1")
            assert [item["metadata"]["name"] for item in listed["items"]] == ["web", "pending"]
            running = json.loads((await s.ask("GET", "/runningpods/")).body)
            assert [item["metadata"]["name"] for item in running["items"]] == ["web"]
            summary = json.loads((await s.ask("GET", "/stats/summary")).body)
            assert summary["node"]["nodeName"] == NODE
            assert [entry["podRef"]["name"] for entry in summary["pods"]] == ["web"]
            assert summary["pods"][0]["containers"] == [], "no figure without a source"
            config = json.loads((await s.ask("GET", "/configz")).body)["kubeletconfig"]
            assert config["authentication"]["anonymous"] == {"enabled": False}

    asyncio.run(main())


def test_every_exposition_can_be_read(scene: MakeScene) -> None:
    async def main() -> None:
        async with scene() as s:
            for path in ("/metrics", "/metrics/cadvisor", "/metrics/probes", "/metrics/resource", "/metrics/slis"):
                answer = await s.ask("GET", path)
                assert answer.headers["content-type"].startswith("text/plain; version=0.0.4"), path
                assert list(text_string_to_metric_families(answer.text)), path
                assert int(answer.headers["process-start-time-unix"]) > 0, path

    asyncio.run(main())


def test_pages_of_metrics_are_packed_on_demand(scene: MakeScene) -> None:
    async def main() -> None:
        async with scene() as s:
            for path in ("/metrics/resource", "/metrics/cadvisor", "/metrics/probes"):
                plain = await s.ask("GET", path, "Accept: application/vnd.google.protobuf")
                packed = await s.ask("GET", path, "Accept-Encoding: deflate, gzip;q=0.5")
                refused = await s.ask("GET", path, "Accept-Encoding: gzip;q=0, identity")
                assert packed.headers["content-encoding"] == "gzip"
                assert gzip.decompress(packed.body) == plain.body == refused.body
                assert "content-encoding" not in plain.headers
                assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
            summary = await s.ask("GET", "/stats/summary?only_cpu_and_memory=true", "Accept-Encoding: gzip")
            assert summary.headers["content-type"] == "application/json"
            assert json.loads(summary.body)["node"]["nodeName"] == NODE

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/metrics", "/metrics/slis"])
def test_our_own_metrics_are_packed_on_demand(scene: MakeScene, path: str) -> None:
    def told(text: str) -> dict[str, int]:
        """Which figures, and how many of each; their values have moved on by the second time."""
        return {family.name: len(family.samples) for family in text_string_to_metric_families(text)}

    async def main() -> None:
        async with scene() as s:
            await s.ask("GET", path)
            plain = await s.ask("GET", path)
            packed = await s.ask("GET", path, "Accept-Encoding: gzip")
            assert (packed.headers["content-encoding"], plain.headers.get("content-encoding")) == ("gzip", None)
            assert packed.headers["content-type"] == plain.headers["content-type"]
            assert told(gzip.decompress(packed.body).decode()) == told(plain.text)

    asyncio.run(main())


def test_a_log_begins_before_there_is_anything_in_it(scene: MakeScene) -> None:
    async def main() -> None:
        async with scene() as s, s.connected() as wire:
            s.remote.pieces, s.remote.follow = [], True
            await wire.send(request("GET", "/containerLogs/shop/web/main?follow=true"))
            assert (await wire.head())[0] == 200
            assert s.remote.open_logs == 1
            wire.writer.transport.abort()
            await until(lambda: s.remote.open_logs == 0, "the log is closed at the remote when the client goes")

    asyncio.run(main())


def test_limits_of_streams(scene: MakeScene) -> None:
    async def main() -> None:
        async with scene(Limits(streams=3, streams_per_user=2, farewell=1.0)) as s:
            async with s.connected() as one, s.connected() as two:
                for wire in (one, two):
                    await wire.send(request("POST", EXEC, SPDY))
                    assert (await wire.head())[0] == 101
                refused = await s.ask("POST", EXEC, *SPDY)
                assert refused.status == 429
                assert "2 of user admin" in refused.text
                assert (await s.ask("GET", "/healthz")).status == 200
            await until(lambda: s.remote.open_streams == 0, "both end")
            assert (await s.ask("GET", "/containerLogs/shop/web/main")).status == 200
            figures = await s.figures()
            assert figures["farlet_sessions_open", ("exec",)] == 0
            assert figures["farlet_refusals_total", ("streams-per-user",)] == 1

    asyncio.run(main())


def test_an_idle_stream_is_closed(scene: MakeScene) -> None:
    async def main() -> None:
        async with scene(Limits(idle=0.2, farewell=1.0)) as s, s.connected() as wire:
            await wire.send(request("POST", EXEC, SPDY))
            assert (await wire.head())[0] == 101
            assert await wire.reader.read() == b""
            assert (await s.figures())["farlet_sessions_total", ("exec", "idle")] == 1

    asyncio.run(main())


def test_stop_lets_streams_end_and_takes_no_new_ones(scene: MakeScene) -> None:
    async def main() -> None:
        async with scene() as s, s.connected() as kept, s.connected() as wire:
            await kept.send(request("GET", "/healthz"))
            await kept.answer()
            await wire.send(request("POST", EXEC, SPDY))
            assert (await wire.head())[0] == 101
            stopping = asyncio.create_task(s.server.stop(NEVER))
            assert await kept.reader.read() == b""
            with pytest.raises(OSError):
                await s.ask("GET", "/healthz")
            await wire.send(b"still here")
            assert await wire.reader.readexactly(10) == b"still here"
            wire.writer.close()
            await asyncio.wait_for(stopping, 60)

    asyncio.run(main())


def test_stop_ends_streams_after_their_time(scene: MakeScene, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with scene() as s, s.connected() as wire, s.connected() as log:
            s.remote.follow = True
            await wire.send(request("POST", EXEC, SPDY))
            assert (await wire.head())[0] == 101
            await log.send(request("GET", "/containerLogs/shop/web/main?follow=true"))
            await log.reader.readuntil(b"two\n")
            await asyncio.wait_for(s.server.stop(0.1), 60)
            assert await wire.reader.read() == b""
            assert b"0\r\n\r\n" not in await log.reader.read(), "a log that is cut must not look complete"
            assert (s.remote.open_logs, s.remote.open_streams) == (0, 0)

    with caplog.at_level(logging.INFO, "farlet.audit"):
        asyncio.run(main())
    assert re.search(r'kind=exec user="admin".* result="shutdown"', caplog.text)


def test_stop_does_not_wait_for_clients_that_do_not_listen(scene: MakeScene) -> None:
    """Not even for the end of TLS, which a client that does not read never confirms."""

    async def main() -> None:
        async with scene(Limits(farewell=NEVER, last_words=0.1)) as s, s.connected() as wire:
            await wire.send(request("POST", EXEC, SPDY))
            assert (await wire.head())[0] == 101
            wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.wait_for(s.server.stop(0), 60)

    asyncio.run(main())


@pytest.mark.parametrize("size", [1000, 64 << 20])
def test_a_client_that_goes_while_the_remote_does_not_read(scene: MakeScene, size: int) -> None:
    """Nobody reads from it then, so that nobody sees its end."""

    async def main() -> None:
        async with scene(Limits(stall=0.5, farewell=1.0)) as s, s.connected() as wire:
            s.remote.reads = False
            await wire.send(request("POST", EXEC, SPDY))
            assert (await wire.head())[0] == 101
            wire.writer.write(bytes(size))
            await _standstill(wire.writer.transport.get_write_buffer_size)
            assert s.remote.open_streams == 1, "who is only slow is waited for"
            at_once = struct.pack("ii", 1, 0)
            wire.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
            wire.writer.transport.abort()
            await until(lambda: s.remote.open_streams == 0, "it ends")
            assert (await s.figures())["farlet_sessions_total", ("exec", "stalled")] == 1

    asyncio.run(main())


class Gone:
    """A connection to a remote that has answered none of the system's last three questions, for an hour."""

    def getsockopt(self, _level: int, _option: int, _size: int) -> bytes:
        return struct.pack("=2x2B20xI28xI", 0, 3, 0, 3_600_000)


@pytest.mark.parametrize(
    ("method", "target", "kind"),
    [("GET", "/containerLogs/shop/web/main?follow=true", "logs"), ("POST", "/run/shop/web/main?cmd=x", "run")],
)
def test_a_remote_that_is_silently_gone_ends_logs_and_commands(
    scene: MakeScene, method: str, target: str, kind: str
) -> None:
    async def main() -> None:
        async with scene(limits=Limits(stall=0.2)) as s, s.connected() as wire:
            s.remote.follow = True
            s.remote.wire = Gone()
            await wire.send(request(method, target))
            assert b"0\r\n\r\n" not in await asyncio.wait_for(wire.reader.read(), 60), "it must not look complete"
            assert (
                f'farlet_sessions_total{{kind="{kind}",result="stalled"}} 1.0' in (await s.ask("GET", "/metrics")).text
            )

    asyncio.run(main())


def test_the_audit_line(scene: MakeScene, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with scene() as s:
            async with s.connected() as wire:
                await wire.send(request("POST", "/exec/shop/web/main?command=secret-word&output=1", SPDY))
                assert (await wire.head())[0] == 101
                await wire.send(b"password")
                assert await wire.reader.readexactly(8) == b"password"
            await until(lambda: s.remote.open_streams == 0, "it ends")
            await s.ask("GET", "/containerLogs/shop/web/main")

    with caplog.at_level(logging.INFO, "farlet.audit"):
        asyncio.run(main())
    lines = [record.getMessage() for record in caplog.records if record.name == "farlet.audit"]
    assert len(lines) == 1
    expected = (
        'kind=exec user="admin" groups="system:masters,system:authenticated" pod=shop/web '
        rf"uid={UID} container=main remote=remote-shop/web-twin seconds=\d+\.\d+ received=8 sent=8 result=\S+"
    )
    assert re.fullmatch(expected, lines[0])


def test_a_slow_reader_holds_the_sender_back(scene: MakeScene) -> None:
    async def main() -> None:
        async with scene() as s, s.connected() as wire:
            s.remote.flood = total = 256 << 20
            await wire.send(request("POST", EXEC, SPDY))
            assert (await wire.head())[0] == 101
            sent = await _standstill(lambda: total - s.remote.flood)
            assert sent < 64 << 20, "it is in buffers of the two systems, and of ours"
            assert len(await wire.reader.readexactly(1 << 20)) == 1 << 20

    asyncio.run(main())


def test_a_slow_remote_holds_the_client_back(scene: MakeScene) -> None:
    async def main() -> None:
        async with scene() as s, s.connected() as wire:
            s.remote.reads = False
            await wire.send(request("POST", EXEC, SPDY))
            assert (await wire.head())[0] == 101
            sent = 0

            async def fill() -> None:
                nonlocal sent
                while True:
                    await wire.send(bytes(65536))
                    sent += 65536

            filling = asyncio.create_task(fill())
            assert await _standstill(lambda: sent) < 64 << 20
            filling.cancel()
            await asyncio.gather(filling, return_exceptions=True)

    asyncio.run(main())


async def _standstill(count: Callable[[], int]) -> int:
    """What a count is once it does not change any more."""
    async with asyncio.timeout(60):
        before, same = -1, 0
        while same < 10:
            await asyncio.sleep(0.05)
            same = same + 1 if count() == before else 0
            before = count()
    return before


# ---------------------------------------------------------------------- tokens


def test_tokens(scene: MakeScene, local: Cluster, authority: Authority) -> None:
    local.service_account_kubeconfig("default", "kubelet-api-admin", cluster_role="system:kubelet-api-admin")
    token = local.kubectl("create", "token", "kubelet-api-admin").stdout.strip()
    encoded = base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")
    upgrade = ["Connection: Upgrade", "Upgrade: websocket"]
    offer = f"Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.{encoded}"

    async def main() -> None:
        nobody = authority.client_context()
        async with scene() as s:

            async def status(*headers: str, target: str = EXEC) -> int:
                return (await ask(s.server, nobody, "GET", target, headers)).status

            assert await status(bearer(token), target="/healthz") == 200
            assert await status(f"authorization:  bearer {token}", target="/healthz") == 200
            assert await status(bearer(token[:-2]), target="/healthz") == 401
            assert await status(f"Authorization: Basic {token}", target="/healthz") == 401
            assert await status(*upgrade, offer) == 401, "a token needs another protocol beside it"
            assert await status(*upgrade, offer, offer, "Sec-WebSocket-Protocol: v4.channel.k8s.io") == 401
            assert await status(offer, "Sec-WebSocket-Protocol: v4.channel.k8s.io", target="/healthz") == 401
            assert not s.remote.calls
            async with connected(s.server, nobody) as wire:
                both = f"{offer}, v4.channel.k8s.io"
                await wire.send(request("GET", EXEC, [*upgrade, both]))
                assert (await wire.head())[0] == 101
            call = s.remote.calls[0]
            assert dict(call.headers)[b"sec-websocket-protocol"] == b"v4.channel.k8s.io"
            assert call.user.name == "system:serviceaccount:default:kubelet-api-admin"
            assert "system:authenticated" in call.user.groups
            assert not any(encoded.encode() in value or token.encode() in value for _, value in call.headers)

    asyncio.run(main())


def test_without_an_answer_nobody_may_do_anything(authority: Authority, local: Cluster) -> None:
    """A client that may not ask."""
    path = local.service_account_kubeconfig("default", "kubelet-api-without-rights")

    async def main() -> None:
        admin = authority.user("admin", "system:masters")
        async with Client(load(path), name="local") as client, serving(client, authority) as server:
            answer = await ask(server, admin, "GET", "/metrics")
            expected = "Authorization error (user=admin, verb=get, resource=nodes, subresource=metrics)"
            assert (answer.status, answer.text) == (500, expected)
            nobody = authority.client_context()
            assert (await ask(server, nobody, "GET", "/metrics", [bearer("a.b.c")])).status == 401

    asyncio.run(main())


# ---------------------------------------------------------------------- connections


def test_limits_of_connections(scene: MakeScene) -> None:
    """A handshake that goes nowhere counts too, and does not last."""

    async def main() -> None:
        async with scene(Limits(connections=2, tls_handshake=5.0, farewell=1.0)) as s:
            silent = [await asyncio.open_connection("127.0.0.1", s.server.port) for _ in range(2)]
            await until(lambda: len(s.server._connections) == 2, "both are there")
            with pytest.raises(OSError):
                await s.ask("GET", "/healthz")
            for reader, writer in silent:
                assert await reader.read() == b"", "the server gave up on it"
                writer.close()
                await writer.wait_closed()
            await until(lambda: not s.server._connections, "both are gone")
            figures = await s.figures()
            assert figures["farlet_refusals_total", ("connections",)] == 1
            assert figures["farlet_refusals_total", ("tls",)] == 2
            assert figures["farlet_connections", ()] == 1

    asyncio.run(main())


def test_a_certificate_that_is_no_longer_believed(reviews: Reviews, authority: Authority) -> None:
    """It is looked at for each request: the client authority may be replaced while a connection is open."""
    believed = True

    def peer_certificate(connection: ssl.SSLObject) -> bytes | None:
        return connection.getpeercert(binary_form=True) if believed else None

    async def main() -> None:
        nonlocal believed
        admin = authority.user("admin", "system:masters")
        async with (
            reviews() as client,
            serving(client, authority, peer_certificate=peer_certificate) as server,
            connected(server, admin) as wire,
        ):
            for believed, status in ((True, 200), (True, 200), (False, 401)):  # noqa: B007
                await wire.send(request("GET", "/healthz"))
                assert (await wire.answer()).status == status
            assert await wire.reader.read() == b"", "it is nobody's any more"

    asyncio.run(main())


def test_the_client_authority_is_replaced(reviews: Reviews, authority: Authority) -> None:
    """Connections that are open already lose their word with it; those after it are not even made."""
    after = Authority(servers=authority.servers)
    tls = ServerTls()
    pair = pki.server(authority.servers, NODE, ["127.0.0.1"])
    tls.set_certificate(pair.certificate, pair.key)
    tls.set_client_ca(authority.clients.certificate)
    old, new = authority.user("admin", "system:masters"), after.user("admin", "system:masters")

    async def main() -> None:
        async with (
            reviews() as client,
            serving(client, authority, tls=tls.context, peer_certificate=tls.peer_certificate) as server,
            connected(server, old) as wire,
        ):
            await wire.send(request("GET", "/healthz"))
            assert (await wire.answer()).status == 200
            tls.set_client_ca(after.clients.certificate)
            await wire.send(request("GET", "/healthz"))
            assert (await wire.answer()).status == 401
            assert (await ask(server, new, "GET", "/healthz")).status == 200
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await ask(server, old, "GET", "/healthz")

    asyncio.run(main())


def test_a_connection_goes_on_after_a_refusal(scene: MakeScene) -> None:
    async def main() -> None:
        async with scene() as s, s.connected() as wire:
            for target, status in (("/else", 404), ("/healthz", 200), ("/exec/shop/web/main", 500), ("/pods", 200)):
                await wire.send(request("GET", target))
                assert (await wire.answer()).status == status

    asyncio.run(main())


# ---------------------------------------------------------------------- nothing is left


def test_nothing_is_left_of_many_sessions(scene: MakeScene) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - counted, not looked at

    async def main() -> None:
        async with scene() as s:

            async def one(number: int) -> None:
                if number % 3 == 0:
                    await s.ask("GET", "/containerLogs/shop/web/main")
                    return
                async with s.connected() as wire:
                    await wire.send(request("POST", EXEC, SPDY))
                    assert (await wire.head())[0] == 101
                    await wire.send(b"x" * number)
                    if number % 3 == 1:
                        await wire.reader.readexactly(number)

            await one(1)
            await until(lambda: not s.server._connections, "the first ends")
            before = len(asyncio.all_tasks()), descriptors()
            for start in range(0, 300, 20):
                await asyncio.gather(*(one(number) for number in range(start, start + 20)))
            await until(lambda: not s.server._connections, "all end")
            await until(lambda: (len(asyncio.all_tasks()), descriptors()) <= before, "nothing is left")
            assert (s.remote.open_logs, s.remote.open_streams, len(s.server._sessions)) == (0, 0, 0)

    asyncio.run(main())
