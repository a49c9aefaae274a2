"""The client against real API servers, directly and through gates and gateways that misbehave."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import json
import shutil
import socket
import ssl
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from app.kube import client as module
from app.kube import credentials as credentials_module
from app.kube.client import Client, PatchKind
from app.kube.config import Connection, load
from app.kube.errors import (
    AlreadyExists,
    ApiError,
    ConfigError,
    Conflict,
    Forbidden,
    Invalid,
    KubeError,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from app.kube.limiter import Limiter
from app.kube.objects import Object
from app.kube.resources import CONFIG_MAPS, NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS
from app.kube.tls import file_in_memory
from devcluster import faults, pki
from devcluster.cluster import Cluster
from devcluster.layout import API_PORT

NO_UID = "00000000-0000-0000-0000-000000000000"
WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


async def who_am_i(client: Client) -> str:
    review = await client.create(WHO, {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
    return str(review["status"]["userInfo"]["username"])


def kubeconfig(cluster: Cluster, path: Path, user: dict[str, Any] | None = None, **more: Any) -> Path:
    """A copy of the administrator's kubeconfig with another user or other settings of the cluster."""
    config = json.loads(cluster.kubeconfig.read_text())
    if user is not None:
        config["users"][0]["user"] = user
    config["clusters"][0]["cluster"].update({key.replace("_", "-"): value for key, value in more.items()})
    path.write_text(json.dumps(config))
    return path


def token_of(cluster: Cluster, namespace: str, role: str | None = "cluster-admin") -> str:
    path = cluster.service_account_kubeconfig(namespace, "tester", cluster_role=role)
    return str(json.loads(path.read_text())["users"][0]["user"]["token"])


def config_map(name: str, **data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


class Gate:
    """A TCP relay in front of an API server, which may go silent, refuse, or play an HTTP proxy."""

    def __init__(self, cluster: Cluster) -> None:
        self._target = (str(cluster.layout.ip), API_PORT)
        self.open = asyncio.Event()
        self.open.set()
        self.connections = 0
        """Connections at this moment."""
        self.seen: list[str] = []
        """First lines of what asked this proxy."""
        self.proxy = False
        self.port = 0

    @contextlib.asynccontextmanager
    async def running(self, host: str = "127.0.0.1") -> AsyncIterator[Gate]:
        tasks: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(accept, host, 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            if self.proxy:
                head = await reader.readuntil(b"\r\n\r\n")
                self.seen.append(head.decode())
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            there_reader, there_writer = await asyncio.open_connection(*self._target)
            back = asyncio.get_running_loop().create_task(self._carry(there_reader, writer))
            try:
                await self._carry(reader, there_writer)
            finally:
                back.cancel()
                there_writer.close()
        except OSError:
            pass
        finally:
            self.connections -= 1
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self.open.wait()
                writer.write(data)
                await writer.drain()


Injection = Callable[[web.BaseRequest], web.StreamResponse | None]


@contextlib.asynccontextmanager
async def gateway(cluster: Cluster, inject: Injection, prefix: str = "") -> AsyncIterator[str]:
    """A TLS-terminating gateway in front of the API server that answers some requests itself; gives its URL."""
    authority = pki.Pair.read(cluster.layout.pki, "ca")
    serving = pki.server(authority, "gateway", ["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with file_in_memory(serving.certificate + serving.key) as path:
        context.load_cert_chain(path)
    trust = ssl.create_default_context(cadata=authority.certificate.decode())
    async with aiohttp.ClientSession(auto_decompress=False) as session:

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            if (answer := inject(request)) is not None:
                return answer
            assert request.raw_path.startswith(prefix + "/")
            url = f"https://{cluster.layout.ip}:{API_PORT}{request.raw_path.removeprefix(prefix)}"
            headers = {key: request.headers[key] for key in ("Authorization", "Content-Type") if key in request.headers}
            body = await request.read()
            async with session.request(request.method, url, data=body, headers=headers, ssl=trust) as response:
                kept = {"Content-Type": response.headers["Content-Type"]}
                return web.Response(status=response.status, body=await response.read(), headers=kept)

        runner = web.ServerRunner(web.Server(handle), handle_signals=False)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        assert runner.addresses
        try:
            yield f"https://127.0.0.1:{runner.addresses[0][1]}{prefix}"
        finally:
            await runner.cleanup()


@contextlib.asynccontextmanager
async def behind_gateway(
    cluster: Cluster, token: str, folder: Path, inject: Injection, prefix: str = ""
) -> AsyncIterator[Client]:
    """A client that goes through such a gateway."""
    async with gateway(cluster, inject, prefix) as url:
        path = kubeconfig(cluster, folder / "gateway.kubeconfig", {"token": token}, server=url + "/")
        async with Client(load(path)) as client:
            yield client


def refusal(code: int, reason: str, retry_after: str | None = None, **details: Any) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
    body |= {"message": f"injected {reason}", "details": details}
    headers = {"Retry-After": retry_after} if retry_after is not None else {}
    return web.json_response(body, status=code, headers=headers)


def run(scenario: Awaitable[None]) -> None:
    async def main() -> None:
        await scenario
        await asyncio.sleep(0)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left, f"tasks left over: {left}"

    asyncio.run(main())
    gc.collect()  # a connection that was not closed is a warning, and that an error, here and not in another test


# ---------------------------------------------------------------------- pure parts


def test_limiter_halves_once_per_round_trip_and_grows_by_windows() -> None:
    async def scenario() -> None:
        limiter = Limiter(start=16, ceiling=20)
        sent = time.monotonic()
        limiter.throttled(sent)
        limiter.throttled(sent)
        assert limiter.limit == 8, "the answers of one round trip say the same thing"
        limiter.throttled(time.monotonic())
        assert limiter.limit == 4
        for _ in range(20):
            limiter.throttled(time.monotonic())
        assert limiter.limit == 1
        await limiter.acquire()
        for _ in range(30):
            limiter.accepted()
        assert 1 < limiter.limit < 10, "about one more for each windowful"
        limiter.limit = 16
        for _ in range(1000):
            limiter.accepted()
        assert limiter.limit == 16, "a limit that nobody reaches does not grow"
        limiter.in_flight = 20
        for _ in range(1000):
            limiter.accepted()
        assert limiter.limit == 20

    run(scenario())


def test_limiter_bounds_what_is_under_way_and_survives_cancellation() -> None:
    async def scenario() -> None:
        limiter = Limiter(start=3)
        most = 0

        async def work() -> None:
            nonlocal most
            await limiter.acquire()
            try:
                most = max(most, limiter.in_flight)
                await asyncio.sleep(0.001)
            finally:
                limiter.release()

        tasks = [asyncio.create_task(work()) for _ in range(60)]
        for task in tasks[::3]:
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert most == 3
        assert (limiter.in_flight, limiter.waiting) == (0, 0)

    run(scenario())


def test_nothing_listens() -> None:
    async def scenario() -> None:
        connection = Connection("https://127.0.0.1:1", "a test")
        async with Client(connection, name="remote") as client:
            with pytest.raises(
                Unreachable, match=r"^GET /version: the remote API server is not reachable: 127.0.0.1:1"
            ):
                await client.request("GET", "/version", retry=False)
            with pytest.raises(Unreachable, match="Connect"):
                await client.request("POST", "/x", body=b"{}", timeout=1)
            with pytest.raises(Unreachable, match="Connect"):
                async with client.stream("/x", read_timeout=5):
                    pass

    run(scenario())


def test_unknown_name() -> None:
    async def scenario() -> None:
        async with Client(Connection("https://no-such-host.invalid", "a test")) as client:
            with pytest.raises(Unreachable, match=r"the name 'no-such-host.invalid' cannot be resolved"):
                await client.request("GET", "/", retry=False)

    run(scenario())


def test_used_outside_of_its_context() -> None:
    async def scenario() -> None:
        with pytest.raises(RuntimeError, match="async with"):
            await Client(Connection("https://127.0.0.1:1", "a test")).get("/")

    run(scenario())


# ---------------------------------------------------------------------- who we are


@pytest.mark.cluster
def test_administrators_certificate(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with Client(load(cluster.kubeconfig)) as client:
            version = await client.server_version()
            assert version["gitVersion"].startswith("v1.")
            assert await who_am_i(client) == "admin"

    run(scenario())


@pytest.mark.cluster
def test_service_account_token_and_token_file(remote: Cluster, namespace: str, tmp_path: Path) -> None:
    token = token_of(remote, namespace, None)
    (tmp_path / "token").write_text(token + "\n")

    async def scenario() -> None:
        for user in ({"token": token}, {"tokenFile": "token"}):
            async with Client(load(kubeconfig(remote, tmp_path / "config", user))) as client:
                assert await who_am_i(client) == f"system:serviceaccount:{namespace}:tester"

    run(scenario())


@pytest.mark.cluster
def test_impersonation(remote: Cluster, tmp_path: Path) -> None:
    user = json.loads(remote.kubeconfig.read_text())["users"][0]["user"]
    path = kubeconfig(remote, tmp_path / "config", {**user, "as": "jane", "as-groups": ["g1", "g2"]})

    async def scenario() -> None:
        async with Client(load(path)) as client:
            with pytest.raises(Forbidden, match='User "jane" cannot list resource "nodes"'):
                await client.get(NODES.path())

    run(scenario())


@pytest.mark.cluster
@pytest.mark.parametrize("kind", ["token", "certificate"])
def test_expired_credentials_are_renewed_without_a_restart(
    remote: Cluster, namespace: str, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the 401, whatever the clock says: files are not looked at in between."""
    monkeypatch.setattr(credentials_module, "FILE_CHECK", 3600.0)
    path = tmp_path / "config"
    if kind == "token":
        kubeconfig(remote, path, {"token": token_of(remote, namespace, None)})
        expected = f"system:serviceaccount:{namespace}:tester"
    else:
        shutil.copy(remote.kubeconfig, path)
        expected = "admin"

    async def scenario() -> None:
        faults.expire(remote, path)
        async with Client(load(path)) as client:
            with pytest.raises(Unauthorized, match=f"refuses the credentials from .*{path}.*; renew them there"):
                await who_am_i(client)
            with pytest.raises(Unauthorized, match="renew them there"):
                async with client.stream(PODS.path(), params={"watch": "1"}, read_timeout=5):
                    pass
            faults.renew(path)
            assert await asyncio.gather(*(who_am_i(client) for _ in range(10))) == [expected] * 10
            faults.expire(remote, path)
            assert await who_am_i(client) == expected, "what is in use is good still"

    run(scenario())


@pytest.mark.cluster
def test_a_stream_renews_credentials_too(
    remote: Cluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials_module, "FILE_CHECK", 3600.0)
    path = kubeconfig(remote, tmp_path / "config", {"token": token_of(remote, namespace)})

    async def scenario() -> None:
        faults.expire(remote, path)
        async with Client(load(path)) as client:
            await client.access()
            faults.renew(path)
            params = {"watch": "1", "timeoutSeconds": "1"}
            async with client.stream(PODS.path(namespace), params=params, read_timeout=10) as lines:
                assert [line async for line in lines] == []

    run(scenario())


@pytest.mark.cluster
def test_a_rotated_file_is_noticed_before_the_old_credential_is_refused(
    remote: Cluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials_module, "FILE_CHECK", 0.1)
    token = token_of(remote, namespace, None)

    async def scenario() -> None:
        path = tmp_path / "config"
        shutil.copy(remote.kubeconfig, path)
        async with Client(load(path)) as client:
            assert await who_am_i(client) == "admin"
            kubeconfig(remote, path, {"token": token})
            await asyncio.sleep(0.2)
            assert await who_am_i(client) == f"system:serviceaccount:{namespace}:tester", (
                "not on a connection that the certificate of before has opened"
            )

    run(scenario())


@pytest.mark.cluster
def test_exec_plugin_is_run_again_when_its_credential_ends(
    remote: Cluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = token_of(remote, namespace, None)
    expired = pki.expired_token((remote.layout.pki / "sa.key").read_bytes(), good)
    token, plugin = tmp_path / "token", tmp_path / "plugin"
    plugin.write_text(
        "#!/bin/sh\n"
        f"echo x >>{tmp_path}/runs\n"
        f'echo \'{{"apiVersion":"client.authentication.k8s.io/v1","status":{{"token":"\'$(cat {token})\'"}}}}\'\n'
    )
    plugin.chmod(0o755)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}}

    def runs() -> int:
        return len((tmp_path / "runs").read_text().split())

    async def scenario() -> None:
        token.write_text(expired)
        async with Client(load(kubeconfig(remote, tmp_path / "config", user))) as client:
            with pytest.raises(Unauthorized, match="expired"):
                await who_am_i(client)
            with pytest.raises(Unauthorized, match="expired"):
                await who_am_i(client)
            assert runs() == 1, "not for every refusal"
            token.write_text(good)
            monkeypatch.setattr(credentials_module, "PLUGIN_PAUSE", 0.0)
            assert await who_am_i(client) == f"system:serviceaccount:{namespace}:tester"
            assert runs() == 2
            plugin.write_text("#!/bin/sh\nexit 1\n")
            assert await who_am_i(client)

    run(scenario())


# ---------------------------------------------------------------------- how the server is reached


@pytest.mark.cluster
def test_tls_server_name(remote: Cluster, tmp_path: Path) -> None:
    async def scenario() -> None:
        gate = Gate(remote)
        async with gate.running("127.0.0.2"):  # an address that the certificate does not have
            url = f"https://127.0.0.2:{gate.port}"
            async with Client(load(kubeconfig(remote, tmp_path / "a", server=url))) as client:
                with pytest.raises(Unreachable, match=r"certificate is not trusted: .*127\.0\.0\.2"):
                    await client.server_version()
            path = kubeconfig(remote, tmp_path / "b", server=url, tls_server_name="kubernetes.default.svc")
            async with Client(load(path)) as client:
                assert await who_am_i(client) == "admin"
            path = kubeconfig(remote, tmp_path / "c", server=url, tls_server_name="other.example")
            async with Client(load(path)) as client:
                with pytest.raises(Unreachable, match="certificate is not trusted"):
                    await client.server_version()

    run(scenario())


@pytest.mark.cluster
def test_another_clusters_authority_is_not_trusted_unless_told_so(
    local: Cluster, remote: Cluster, tmp_path: Path
) -> None:
    foreign = base64.b64encode((local.layout.pki / "ca.crt").read_bytes()).decode()

    async def scenario() -> None:
        path = kubeconfig(remote, tmp_path / "a", certificate_authority_data=foreign)
        async with Client(load(path)) as client:
            with pytest.raises(Unreachable, match="is the certificate-authority of the kubeconfig right"):
                await client.server_version()
        path = kubeconfig(remote, tmp_path / "b", certificate_authority_data=foreign, insecure_skip_tls_verify=True)
        async with Client(load(path)) as client:
            assert await who_am_i(client) == "admin"

    run(scenario())


@pytest.mark.cluster
def test_through_an_http_proxy(remote: Cluster, tmp_path: Path) -> None:
    async def scenario() -> None:
        gate = Gate(remote)
        gate.proxy = True
        async with gate.running():
            path = kubeconfig(remote, tmp_path / "a", proxy_url=f"http://me:pass-word@127.0.0.1:{gate.port}")
            async with Client(load(path)) as client:
                assert await who_am_i(client) == "admin"
                async with client.stream(
                    PODS.path(), params={"watch": "1", "timeoutSeconds": "1"}, read_timeout=9
                ) as s:
                    assert all([line async for line in s])
        head = gate.seen[0].lower()
        assert head.startswith(f"connect {remote.layout.ip}:{API_PORT} ")
        assert "proxy-authorization: basic " in head
        async with Client(load(path)) as client:  # the proxy is gone
            with pytest.raises(Unreachable, match=r"the proxy 127\.0\.0\.1:") as caught:
                await client.request("GET", "/version", retry=False)
            assert "pass-word" not in "".join(traceback.format_exception(caught.value)) + repr(caught.value.__cause__)

    run(scenario())


@pytest.mark.cluster
def test_a_proxy_that_refuses_is_told_without_its_password(remote: Cluster, tmp_path: Path) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with Client(
            load(kubeconfig(remote, tmp_path / "a", proxy_url=f"http://me:pass-word@127.0.0.1:{port}"))
        ) as client:
            with pytest.raises(Unreachable, match="the proxy refuses: 407") as caught:
                await client.request("GET", "/version", retry=False)
            error = caught.value
            shown = "".join(traceback.format_exception(error)) + repr(error.__cause__) + repr(error.__context__)
            assert "pass-word" not in shown
        server.close()

    run(scenario())


@pytest.mark.cluster
def test_path_prefix(remote: Cluster, namespace: str, tmp_path: Path) -> None:
    token = token_of(remote, namespace, None)

    async def scenario() -> None:
        async with behind_gateway(remote, token, tmp_path, lambda request: None, "/k8s/clusters/c-1") as client:
            assert await who_am_i(client) == f"system:serviceaccount:{namespace}:tester"
            assert (await client.access()).server.endswith("/k8s/clusters/c-1")

    run(scenario())


# ---------------------------------------------------------------------- objects


@pytest.mark.cluster
def test_create_get_replace_patch_delete(remote: Cluster, namespace: str) -> None:
    async def scenario() -> None:
        async with Client(load(remote.kubeconfig)) as client:
            path = CONFIG_MAPS.path(namespace, "one")
            made = await client.create(CONFIG_MAPS.path(namespace), config_map("one", a="1"))
            with pytest.raises(AlreadyExists, match='configmaps "one" already exists'):
                await client.create(CONFIG_MAPS.path(namespace), config_map("one"))
            changed = await client.replace(path, {**made, "data": {"a": "2"}}, {"fieldManager": "test"})
            with pytest.raises(Conflict, match="the object has been modified"):
                await client.replace(path, {**made, "data": {"a": "3"}})
            assert "test" in [entry["manager"] for entry in changed["metadata"]["managedFields"]]
            bodies: list[tuple[Object | list[Object], PatchKind, dict[str, str]]] = [
                ({"data": {"b": "1"}}, PatchKind.MERGE, {}),
                ([{"op": "add", "path": "/data/c", "value": "1"}], PatchKind.JSON, {}),
                ({"data": {"a": None}}, PatchKind.STRATEGIC, {}),
                (config_map("one", d="1"), PatchKind.APPLY, {"fieldManager": "test-apply"}),
            ]
            for body, kind, params in bodies:
                await client.patch(path, body, kind, params)
            assert (await client.get(path))["data"] == {"b": "1", "c": "1", "d": "1"}
            with pytest.raises(Conflict, match="UID in the precondition") as other:
                await client.delete(path, uid=NO_UID)
            assert other.value.is_another_object()
            with pytest.raises(Conflict, match="UID in precondition") as other:
                await client.replace(path, config_map("one") | {"metadata": {"name": "one", "uid": NO_UID}})
            assert other.value.is_another_object()
            with pytest.raises(Conflict, match="ResourceVersion in the precondition") as older:
                await client.delete(path, resource_version=made["metadata"]["resourceVersion"])
            assert not older.value.is_another_object()
            await client.delete(path, uid=made["metadata"]["uid"], propagation="Background")
            with pytest.raises(NotFound, match='configmaps "one" not found') as caught:
                await client.delete(path)
            assert caught.value.request == f"DELETE {path}"
            await client.delete(path, missing_ok=True)

    run(scenario())


@pytest.mark.cluster
def test_strategic_patch_of_a_list_by_its_key_and_delete_with_grace(remote: Cluster, namespace: str) -> None:
    """By type for conditions; and a pod that no kubelet has seen is gone at once with grace 0."""

    async def scenario() -> None:
        async with Client(load(remote.kubeconfig)) as client:
            spec = {"nodeName": "nowhere", "containers": [{"name": "c", "image": "none"}]}
            pod = await client.create(PODS.path(namespace), {"metadata": {"name": "p"}, "spec": spec})
            uid = pod["metadata"]["uid"]
            status = {"conditions": [{"type": "Ready", "status": "True"}]}
            patch: Object = {"metadata": {"uid": uid}, "status": status}
            path = PODS.path(namespace, "p", "status")
            patched = await client.patch(path, patch, PatchKind.STRATEGIC)
            assert len(patched["status"]["conditions"]) > 0
            wrong: Object = {"metadata": {"uid": NO_UID}, "status": status}
            with pytest.raises(Invalid, match=r"metadata\.uid: Invalid value") as caught:  # 422, not 409 as for others
                await client.patch(path, wrong, PatchKind.STRATEGIC)
            assert caught.value.is_another_object()
            await client.delete(PODS.path(namespace, "p"), uid=uid, grace=0)
            with pytest.raises(NotFound):
                await client.get(PODS.path(namespace, "p"))

    run(scenario())


@pytest.mark.cluster
def test_the_servers_own_words(remote: Cluster, namespace: str, tmp_path: Path) -> None:
    token = token_of(remote, namespace, None)

    async def scenario() -> None:
        async with Client(load(remote.kubeconfig)) as client:
            with pytest.raises(Invalid, match=r"spec\.containers: Required value") as caught:
                await client.create(PODS.path(namespace), {"metadata": {"name": "p"}})
            assert caught.value.details is not None
            assert caught.value.details["causes"][0]["field"] == "spec.containers"
            with pytest.raises(ApiError, match="400 BadRequest"):
                await client.request("POST", PODS.path(namespace), body=b"{")
            with pytest.raises(NotFound, match="404 page not found"):
                await client.get("/apis/nonsense.example/v1/things")
            with pytest.raises(Unreachable, match="is this really a Kubernetes API server"):
                await client.get("/healthz")
            assert await client.request("GET", "/healthz") == b"ok"
        async with Client(load(kubeconfig(remote, tmp_path / "a", {"token": token}))) as client:
            with pytest.raises(
                Forbidden, match=f'"system:serviceaccount:{namespace}:tester" cannot list'
            ) as caught_too:
                await client.get(NODES.path())
            assert str(caught_too.value).startswith("GET /api/v1/nodes: 403 Forbidden: nodes is forbidden")

    run(scenario())


@pytest.mark.cluster
def test_fenced_writes_are_not_sent(remote: Cluster, namespace: str) -> None:
    class LostError(Exception):
        pass

    def lost() -> None:
        raise LostError

    async def scenario() -> None:
        async with Client(load(remote.kubeconfig)) as client:
            fenced = client.fenced(lost)
            with pytest.raises(LostError):
                await fenced.create(CONFIG_MAPS.path(namespace), config_map("one"))
            assert await fenced.get(NAMESPACES.path(name=namespace))
            await client.create(CONFIG_MAPS.path(namespace), config_map("one"))
            assert client.limiter.in_flight == 0

    run(scenario())


@pytest.mark.cluster
def test_connections_are_kept_and_bounded(remote: Cluster, namespace: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        gate = Gate(remote)
        async with gate.running():
            path = kubeconfig(remote, tmp_path / "a", server=f"https://127.0.0.1:{gate.port}")
            async with Client(load(path)) as client:
                for _ in range(20):
                    await client.get(NAMESPACES.path(name=namespace))
                assert gate.connections == 1
                await asyncio.gather(*(client.get(NAMESPACES.path(name=namespace)) for _ in range(300)))
                assert gate.connections <= 64
            await _until(lambda: gate.connections == 0)

    run(scenario())


async def _until(condition: Callable[[], bool], timeout: float = 10.0) -> None:
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110 - what is waited for knows no events
            await asyncio.sleep(0.01)


# ---------------------------------------------------------------------- streams


async def _exhaust(client: Client, path: str, *, read_timeout: float, each: Callable[[], None] = lambda: None) -> None:
    async with client.stream(path, params={"watch": "1"}, read_timeout=read_timeout) as lines:
        async for _ in lines:
            each()


@pytest.mark.cluster
def test_watch_gives_whole_lines_of_any_length(remote: Cluster, namespace: str) -> None:
    big = "x" * 900_000

    async def scenario() -> None:
        async with Client(load(remote.kubeconfig)) as client:
            params = {"watch": "1", "fieldSelector": "metadata.name!=kube-root-ca.crt"}
            async with client.stream(CONFIG_MAPS.path(namespace), params=params, read_timeout=20) as lines:
                for index in range(3):
                    await client.create(CONFIG_MAPS.path(namespace), config_map(f"big-{index}", a=big, b=str(index)))
                    event = json.loads(await anext(lines))
                    assert event["type"] == "ADDED"
                    assert event["object"]["data"] == {"a": big, "b": str(index)}
            params["timeoutSeconds"] = "1"
            async with client.stream(CONFIG_MAPS.path(namespace), params=params, read_timeout=20) as lines:
                events = [json.loads(line) async for line in lines]
            assert len(events) == 3, "the server ends the stream, and that is no error"

    run(scenario())


@pytest.mark.cluster
def test_a_line_without_end_is_given_up(remote: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LINE", 100_000)

    async def scenario() -> None:
        async with Client(load(remote.kubeconfig)) as client:
            await client.create(CONFIG_MAPS.path(namespace), config_map("big", a="x" * 900_000))
            with pytest.raises(Unreachable, match="a line of more than 100000 bytes"):
                await _exhaust(client, CONFIG_MAPS.path(namespace), read_timeout=20)

    run(scenario())


@pytest.mark.cluster
def test_an_answer_without_end_is_given_up(remote: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ANSWER", 1000)

    async def scenario() -> None:
        async with Client(load(remote.kubeconfig)) as client:
            await client.request("GET", "/healthz")
            with pytest.raises(Unreachable, match="more than 1000 bytes"):
                await client.create(CONFIG_MAPS.path(namespace), config_map("big", a="x" * 5000))

    run(scenario())


@pytest.mark.cluster
def test_stream_refused(remote: Cluster, namespace: str) -> None:
    async def scenario() -> None:
        async with Client(load(remote.kubeconfig)) as client:
            with pytest.raises(NotFound):
                async with client.stream("/api/v1/nonsense", params={"watch": "1"}, read_timeout=5):
                    pass

    run(scenario())


@pytest.mark.cluster
def test_a_silent_stream_is_noticed_and_its_connection_closed(remote: Cluster, namespace: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        gate = Gate(remote)
        async with gate.running():
            path = kubeconfig(remote, tmp_path / "a", server=f"https://127.0.0.1:{gate.port}")
            async with Client(load(path), name="remote") as client:
                started = time.monotonic()
                with pytest.raises(Unreachable, match="the remote API server was silent for 1 s"):
                    await _exhaust(client, SERVICE_ACCOUNTS.path(namespace), read_timeout=1, each=gate.open.clear)
                assert time.monotonic() - started >= 1
                gate.open.set()
                await _until(lambda: gate.connections == 0)

    run(scenario())


@pytest.mark.cluster
def test_a_silent_server_is_noticed_before_the_first_answer(remote: Cluster, tmp_path: Path) -> None:
    async def scenario() -> None:
        gate = Gate(remote)
        async with gate.running():
            path = kubeconfig(remote, tmp_path / "a", server=f"https://127.0.0.1:{gate.port}")
            async with Client(load(path)) as client:
                await client.server_version()
                gate.open.clear()
                with pytest.raises(Unreachable, match="no answer within 1 s") as silent:
                    await client.request("POST", PODS.path("default"), body=b"{}", timeout=1)
                assert silent.value.may_be_done()
                # that connection was given up, and another one is not made any more
                with pytest.raises(Unreachable, match="no connection was made in time") as unmade:
                    await client.request("POST", PODS.path("default"), body=b"{}", timeout=1)
                assert not unmade.value.may_be_done()
                assert client.limiter.in_flight == 0
                gate.open.set()
                assert await client.server_version()

    run(scenario())


def test_what_never_had_a_connection_was_not_sent() -> None:
    """Refused, and silent from the beginning: a server that listens and never says a word of TLS."""

    async def attempt(port: int) -> Unreachable:
        async with Client(Connection(f"https://127.0.0.1:{port}", "nowhere")) as client:
            with pytest.raises(Unreachable, match="is not reachable") as caught:
                await client.request("POST", PODS.path("default"), body=b"{}", timeout=0.5)
            return caught.value

    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
            assert not (await attempt(port)).may_be_done()
        assert not (await attempt(port)).may_be_done()

    run(scenario())


@pytest.mark.cluster
def test_cancelling_a_stream_closes_its_connection_at_once(remote: Cluster, namespace: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        gate = Gate(remote)
        async with gate.running():
            path = kubeconfig(remote, tmp_path / "a", server=f"https://127.0.0.1:{gate.port}")
            async with Client(load(path)) as client:
                reading = asyncio.Event()

                async def watch() -> None:
                    params = {"watch": "1", "resourceVersion": "0"}
                    async with client.stream(SERVICE_ACCOUNTS.path(namespace), params=params, read_timeout=60) as lines:
                        async for _ in lines:
                            reading.set()

                task = asyncio.create_task(watch())
                await reading.wait()
                assert gate.connections == 1
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await _until(lambda: gate.connections == 0, 2)

    run(scenario())


# ---------------------------------------------------------------------- the server's brake


@pytest.mark.cluster
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize("code", [429, 503])
def test_a_busy_server_is_asked_again(remote: Cluster, namespace: str, tmp_path: Path, method: str, code: int) -> None:
    token = token_of(remote, namespace)
    asked: list[float] = []

    def busy_twice(request: web.BaseRequest) -> web.StreamResponse | None:
        asked.append(time.monotonic())
        return refusal(code, "Busy", "0" if len(asked) < 2 else "1") if len(asked) < 3 else None

    async def scenario() -> None:
        async with behind_gateway(remote, token, tmp_path, busy_twice) as client:
            if method == "POST":
                await client.create(CONFIG_MAPS.path(namespace), config_map("one"))
            else:
                await client.request(method, NAMESPACES.path(name=namespace))
            assert len(asked) == 3
            assert 1.0 <= asked[2] - asked[1] < 2.5, "Retry-After is honoured"
            assert client.limiter.limit < 16 if code == 429 else client.limiter.limit >= 16

    run(scenario())


@pytest.mark.cluster
def test_what_may_have_been_done_is_not_done_again(remote: Cluster, namespace: str, tmp_path: Path) -> None:
    token = token_of(remote, namespace)
    asked: list[str] = []
    answers = [
        (refusal(500, "InternalError", "1"), ServerError),
        (refusal(503, "ServiceUnavailable"), ServerError),
        (refusal(504, "Timeout", "1"), ServerError),
        (refusal(429, "TooManyRequests", "10", causes=[{"reason": "DisruptionBudget"}]), TooManyRequests),
        (refusal(429, "TooManyRequests", "3600"), TooManyRequests),
        (web.Response(status=302, headers={"Location": "https://elsewhere.example/"}), ApiError),
        (web.Response(status=502, text="<html>bad gateway</html>"), ServerError),
    ]

    async def scenario() -> None:
        for answer, expected in answers:
            asked.clear()

            def inject(request: web.BaseRequest, answer: web.Response = answer) -> web.StreamResponse:
                asked.append(request.method)
                return answer

            async with behind_gateway(remote, token, tmp_path, inject) as client:
                with pytest.raises(expected):
                    await client.create(CONFIG_MAPS.path(namespace), config_map("one"))
            assert asked == ["POST"], f"{answer.status} was asked {len(asked)} times"

    run(scenario())


@pytest.mark.cluster
def test_patience_is_bounded(remote: Cluster, namespace: str, tmp_path: Path) -> None:
    token = token_of(remote, namespace)
    asked: list[str] = []

    def always_busy(request: web.BaseRequest) -> web.StreamResponse:
        asked.append(request.method)
        return refusal(429, "TooManyRequests", "0")

    async def scenario() -> None:
        async with behind_gateway(remote, token, tmp_path, always_busy) as client:
            with pytest.raises(TooManyRequests, match="injected TooManyRequests"):
                await client.get(PODS.path())
            assert len(asked) == module.ATTEMPTS
            with pytest.raises(TooManyRequests):
                await client.request("GET", PODS.path(), retry=False)
            assert len(asked) == module.ATTEMPTS + 1

    run(scenario())


@pytest.mark.cluster
def test_a_write_whose_connection_breaks_is_not_sent_again(remote: Cluster, namespace: str, tmp_path: Path) -> None:
    token = token_of(remote, namespace)
    asked: list[str] = []

    def break_off(request: web.BaseRequest) -> web.StreamResponse | None:
        asked.append(request.method)
        if len(asked) < 2:
            assert request.transport is not None
            request.transport.abort()
        return None

    async def scenario() -> None:
        async with behind_gateway(remote, token, tmp_path, break_off) as client:
            with pytest.raises(Unreachable):
                await client.create(CONFIG_MAPS.path(namespace), config_map("one"))
            assert asked == ["POST"]
            asked.clear()
            assert await client.get(NAMESPACES.path(name=namespace)), "what only reads is"
            assert asked == ["GET", "GET"]

    run(scenario())


@pytest.mark.cluster
def test_pace_follows_the_server(remote: Cluster, namespace: str, tmp_path: Path) -> None:
    """A server that takes four at once gets them all done."""
    token = token_of(remote, namespace)
    refused = 0

    async def scenario() -> None:
        def brake(request: web.BaseRequest) -> web.StreamResponse | None:
            nonlocal refused
            if client.limiter.in_flight > 4:
                refused += 1
                return refusal(429, "TooManyRequests", "0")
            return None

        async with gateway(remote, brake) as url:
            path = kubeconfig(remote, tmp_path / "a", {"token": token}, server=url)
            async with Client(load(path)) as client:
                reads = (client.get(NAMESPACES.path(name=namespace)) for _ in range(200))
                results = await asyncio.gather(*reads, return_exceptions=True)
                failed = [result for result in results if isinstance(result, BaseException)]
                assert not failed, f"{len(failed)} gave up, such as {failed[0]!r}"
                assert client.limiter.limit < 8
                assert 0 < refused < 200

    run(scenario())


@pytest.mark.cluster
def test_urgent_requests_do_not_wait_for_their_turn(remote: Cluster, namespace: str) -> None:
    async def scenario() -> None:
        async with Client(load(remote.kubeconfig)) as client:
            client.limiter.limit = 1
            await client.limiter.acquire()
            with pytest.raises(Unreachable, match="no answer"):
                await client.request("GET", "/version", timeout=0.3)
            assert await client.get("/version", urgent=True)
            client.limiter.release()
            assert await client.get("/version")

    run(scenario())


@pytest.mark.cluster
def test_errors_and_clients_show_no_secret(remote: Cluster, namespace: str, tmp_path: Path) -> None:
    token = token_of(remote, namespace, None)
    path = kubeconfig(remote, tmp_path / "a", {"token": token})

    async def scenario() -> None:
        async with Client(load(path)) as client:
            errors: list[KubeError] = []
            for attempt in (
                client.get(NODES.path()),
                client.create(CONFIG_MAPS.path(namespace), config_map("a", key="the-secret-value")),
                client.get(NODES.path(), timeout=0.0),
            ):
                with pytest.raises(KubeError) as caught:
                    await attempt
                errors.append(caught.value)
            faults.expire(remote, path)
            async with Client(load(path)) as expired:
                with pytest.raises(Unauthorized) as refused:
                    await expired.get(NODES.path())
                errors.append(refused.value)
            shown = "".join("".join(traceback.format_exception(error)) for error in errors) + repr(client)
            assert token[:40] not in shown
            assert token[-20:] not in shown
            assert "the-secret-value" not in shown

    run(scenario())


@pytest.mark.cluster
def test_a_plugin_that_fails_is_told(remote: Cluster, tmp_path: Path) -> None:
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin", "args": None}}

    async def scenario() -> None:
        async with Client(load(kubeconfig(remote, tmp_path / "a", user))) as client:
            with pytest.raises(ConfigError, match=r"'no-such-plugin' of context .* cannot be run"):
                await client.server_version()

    run(scenario())
