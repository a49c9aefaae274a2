"""Requests as the API server sees them, against a real TLS server with the cluster's own certificates."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from devcluster import pki
from devcluster.api import Api, ApiError, collection_path, object_path
from devcluster.layout import ClusterLayout


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    user: str
    """Of the client certificate; empty without one."""


class Server(ThreadingHTTPServer):
    """Answers every path with ``{"items": []}``, but for a few that misbehave."""

    daemon_threads = False
    request_queue_size = 64

    def __init__(self, cluster: ClusterLayout) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[Request] = []
        self.release = threading.Event()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cluster.pki / "apiserver.crt", cluster.pki / "apiserver.key")
        context.load_verify_locations(cluster.pki / "ca.crt")
        context.verify_mode = ssl.CERT_OPTIONAL
        self.socket = context.wrap_socket(self.socket, server_side=True)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that gives up is part of the tests."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet
    disable_nagle_algorithm = True
    server: Server

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        assert isinstance(self.connection, ssl.SSLSocket)
        peer = self.connection.getpeercert() or {}
        names: dict[Any, Any] = dict(pair for part in peer.get("subject", ()) for pair in part)  # type: ignore[misc]
        self.server.requests.append(
            Request(
                self.command, self.path, dict(self.headers), self.rfile.read(length), str(names.get("commonName", ""))
            )
        )
        status, content = 200, b'{"items": []}'
        match self.path:
            case "/readyz":
                content = b"ok"
            case "/slow":
                self.server.release.wait(30)
            case "/drop":
                self.close_connection = True
                return
            case "/missing":
                status, content = 404, b'{"kind": "Status", "message": "pods \\"web\\" not found"}'
            case "/forbidden":
                status, content = 403, b'{"kind": "Status", "message": "pods is forbidden"}'
            case "/plain-error":
                status, content = 503, b"upstream connect error"
            case "/silent-error":
                status, content = 500, b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def server(made: ClusterLayout) -> Iterator[Server]:
    server = Server(made)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.release.set()
    server.shutdown()
    thread.join()
    server.server_close()


Connect = Callable[..., Api]


@pytest.fixture
def connect(server: Server, made: ClusterLayout, tmp_path: Path) -> Connect:
    """Makes clients of the server with a kubeconfig; the administrator's certificate unless told otherwise."""

    def api(*, user: dict[str, str] | None = None, ca: bytes = b"") -> Api:
        admin: dict[str, str] = json.loads(made.kubeconfig().read_text())["users"][0]["user"]
        authority = ca or (made.pki / "ca.crt").read_bytes()
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(pki.kubeconfig("local", server.url, authority, "admin", user or admin)))
        return Api(path)

    return api


@pytest.fixture
def api(connect: Connect) -> Api:
    return connect()


def test_client_certificate(server: Server, api: Api) -> None:
    assert api.get("/api/v1/nodes") == {"items": []}
    assert [request.user for request in server.requests] == ["admin"]


def test_token(server: Server, connect: Connect) -> None:
    connect(user={"token": "secret"}).get("/")
    (request,) = server.requests
    assert (request.user, request.headers["Authorization"]) == ("", "Bearer secret")


def test_a_server_of_another_authority_is_refused(server: Server, connect: Connect) -> None:
    other = pki.authority("kubernetes").certificate
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(ca=other).get("/")
    assert server.requests == []


def test_key_is_not_left_on_disk(connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    connect()
    assert list(folder.iterdir()) == []


def test_verbs(server: Server, api: Api) -> None:
    api.get("/a")
    api.post("/b", {"kind": "Pod"})
    api.put("/c", {"kind": "Pod"})
    api.delete("/d")
    api.delete("/e", {"kind": "DeleteOptions"})
    assert [(request.method, request.path, request.body) for request in server.requests] == [
        ("GET", "/a", b""),
        ("POST", "/b", b'{"kind": "Pod"}'),
        ("PUT", "/c", b'{"kind": "Pod"}'),
        ("DELETE", "/d", b""),
        ("DELETE", "/e", b'{"kind": "DeleteOptions"}'),
    ]
    kinds = [request.headers.get("Content-Type") for request in server.requests]
    assert kinds == [None, "application/json", "application/json", None, "application/json"]
    assert {request.headers["Accept"] for request in server.requests} == {"application/json"}


def test_items_and_text(api: Api) -> None:
    assert api.items("/api/v1/nodes") == []
    assert api.text("/readyz") == "ok"


def test_apply_is_server_side_and_in_order(server: Server, api: Api) -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "y", "namespace": "x"}}
    api.apply([namespace, account])
    options = "?fieldManager=devcluster&force=true"
    assert [(request.method, request.path, json.loads(request.body)) for request in server.requests] == [
        ("PATCH", f"/api/v1/namespaces/x{options}", namespace),
        ("PATCH", f"/api/v1/namespaces/x/serviceaccounts/y{options}", account),
    ]
    assert {request.headers["Content-Type"] for request in server.requests} == {"application/apply-patch+yaml"}


def test_exists(api: Api) -> None:
    assert api.exists("/there") is True
    assert api.exists("/missing") is False
    with pytest.raises(ApiError, match="pods is forbidden"):
        api.exists("/forbidden")


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/missing", 404, 'pods "web" not found'),
        ("/plain-error", 503, "upstream connect error"),
        ("/silent-error", 500, "GET /silent-error: HTTP 500"),
    ],
)
def test_errors_have_the_servers_words(api: Api, path: str, status: int, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        api.get(path)
    assert (caught.value.status, str(caught.value)) == (status, message)
    assert api.get("/next") == {"items": []}


def test_a_connection_that_breaks_is_an_error_and_not_tried_again(server: Server, api: Api) -> None:
    with pytest.raises(OSError):
        api.get("/drop")
    assert [request.path for request in server.requests] == ["/drop"]
    assert api.get("/after") == {"items": []}


def test_a_slow_answer_is_not_asked_for_twice(server: Server, api: Api) -> None:
    with pytest.raises(TimeoutError):
        api.text("/slow", timeout=0.05)
    assert [request.path for request in server.requests] == ["/slow"]


def test_many_threads_share_one_client(server: Server, api: Api) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(api.get, [f"/{number}" for number in range(40)]))
    assert answers == [{"items": []}] * 40
    assert sorted(request.path for request in server.requests) == sorted(f"/{number}" for number in range(40))


@pytest.mark.parametrize(
    ("api_version", "kind", "namespace", "path"),
    [
        ("v1", "Node", None, "/api/v1/nodes"),
        ("v1", "Pod", "default", "/api/v1/namespaces/default/pods"),
        ("apps/v1", "DaemonSet", "kube-system", "/apis/apps/v1/namespaces/kube-system/daemonsets"),
        ("storage.k8s.io/v1", "StorageClass", None, "/apis/storage.k8s.io/v1/storageclasses"),
        ("v1", "Namespace", None, "/api/v1/namespaces"),
    ],
)
def test_paths(api_version: str, kind: str, namespace: str | None, path: str) -> None:
    assert collection_path(api_version, kind, namespace) == path
    metadata = {"name": "x"} if namespace is None else {"name": "x", "namespace": namespace}
    assert object_path({"apiVersion": api_version, "kind": kind, "metadata": metadata}) == f"{path}/x"
