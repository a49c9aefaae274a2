from __future__ import annotations

import json

import pytest

from kubelet_api.call import Kind
from kubelet_api.http1 import Head
from kubelet_api.refusal import in_local_words, of_answer, refuses_spdy
from kubelet_api.twins import Twin
from tests.kubelet_api.front import make_call

TEXT = ((b"content-type", b"text/plain; charset=utf-8"),)
HTML = ((b"content-type", b"text/html"),)


def call(kind: Kind = Kind.EXEC) -> object:
    return make_call(kind, "ns", "web", twin=Twin("remote-ns", "web-x7x2k", "uid"))


def status(message: str, **more: object) -> bytes:
    return json.dumps({"kind": "Status", "status": "Failure", "message": message, **more}).encode()


WAITING = 'container "main" in pod "%s" is waiting to start: ContainerCreating'
GONE = status('pods "web-x7x2k" not found', details={"kind": "pods", "name": "web-x7x2k"})


@pytest.mark.parametrize(
    ("kind", "code", "headers", "body", "told"),
    [
        (Kind.LOGS, 400, (), status(WAITING % "web-x7x2k"), (400, WAITING % "web")),
        (Kind.LOGS, 404, (), GONE, (400, 'pod "web" does not exist')),
        (Kind.EXEC, 404, (), GONE, (404, "pod does not exist")),
        (Kind.EXEC, 500, TEXT, b'container not found ("main")\n', (500, 'container not found ("main")')),
        (Kind.EXEC, 500, HTML, b"<html>secret</html>", (500, "the remote API server answered 500 phrase")),
        (Kind.EXEC, 403, (), status("no"), (403, "the remote cluster refuses: no")),
        (Kind.LOGS, 503, (), status("later"), (500, "later")),
        (Kind.EXEC, 401, (), status("Unauthorized"), (502, "the remote API server refuses Farlet's credentials")),
        (Kind.EXEC, 302, (), b"", (502, "the remote API server gave an unexpected answer: 302 phrase")),
    ],
)
def test_what_the_client_is_told(
    kind: Kind, code: int, headers: tuple[tuple[bytes, bytes], ...], body: bytes, told: tuple[int, str]
) -> None:
    error = of_answer(call(kind), Head(code, "phrase", headers), body)  # type: ignore[arg-type]
    assert (error.status, error.message) == told


def test_retry_after_is_kept() -> None:
    error = of_answer(call(), Head(429, "", ((b"retry-after", b"7"),)), b"slow down")  # type: ignore[arg-type]
    assert (error.status, error.message, error.headers) == (429, "slow down", (("Retry-After", "7"),))


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ('pod "web-x7x2k" not', 'pod "web" not'),
        ("web-x7x2k.", "web."),
        ("web-x7x2k_remote", "web_remote"),
        ("my-web-x7x2k web-x7x2k-2 web-x7x2kk web-x7x2k.other", "my-web-x7x2k web-x7x2k-2 web-x7x2kk web-x7x2k.other"),
    ],
)
def test_texts_are_about_the_local_pod(text: str, local: str) -> None:
    assert in_local_words(call(), text) == local  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "headers", "body", "refuses"),
    [
        (200, (), b"", True),
        (101, (), b"", True),
        (302, (), b"", True),
        (400, (), status("Upgrade request required"), True),
        (400, HTML, b"<html>", True),
        (403, (), b"", True),
        (403, TEXT, b"no upgrades here", True),
        (426, TEXT, b"Upgrade Required", True),
        (502, HTML, b"<html>", True),
        (400, (), status("container nope is not valid for pod web"), False),
        (403, (), status("forbidden"), False),
        (403, ((b"x-accepted-stream-protocol-versions", b"v4.channel.k8s.io"),), b"", False),
        (500, TEXT, b'container not found ("main")', False),
        (404, TEXT, b"pod does not exist", False),
        (429, (), b"", False),
    ],
)
def test_who_refuses(code: int, headers: tuple[tuple[bytes, bytes], ...], body: bytes, refuses: bool) -> None:
    assert refuses_spdy(Head(code, "", headers), body) is refuses
