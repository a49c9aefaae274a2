from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_api.call import CallError
from kubelet_api.headers import (
    BEARER,
    SPDY,
    WEBSOCKET,
    for_client,
    for_remote,
    is_accepted,
    stream_versions,
    subprotocols,
    upgrade_kind,
)
from kubelet_api.http1 import Head, split_head

PASSING = {
    b"connection",
    b"upgrade",
    b"x-stream-protocol-version",
    b"sec-websocket-key",
    b"sec-websocket-version",
    b"sec-websocket-extensions",
    b"sec-websocket-protocol",
}
AUTHORITY = [
    b"authorization",
    b"cookie",
    b"impersonate-user",
    b"impersonate-group",
    b"impersonate-extra-scopes",
    b"x-remote-user",
    b"x-remote-group",
    b"x-forwarded-for",
    b"proxy-authorization",
    b"transfer-encoding",
    b"te",
    b"host",
    b"content-length",
]
names = st.sampled_from(AUTHORITY + sorted(PASSING)) | st.from_regex(rb"[a-z-]{1,20}", fullmatch=True)
values = (
    st.sampled_from([b"Upgrade", b"keep-alive, x-remote-user", BEARER + b"abc", b"a, " + BEARER + b"x"]) | st.binary()
)


@given(st.lists(st.tuples(names, values)), st.sampled_from([SPDY, WEBSOCKET]))
def test_nothing_that_could_be_authority_passes(given: list[tuple[bytes, bytes]], kind: bytes) -> None:
    try:
        passed = for_remote(given, kind)
    except CallError:
        return
    for name, value in passed:
        assert name.lower() in PASSING
        assert b"\r" not in value
        assert b"\n" not in value
        if name.lower() == b"connection":
            assert value == b"Upgrade"
        if name.lower() == b"sec-websocket-protocol":
            assert BEARER not in value.lower()


def test_the_token_is_taken_out_of_the_subprotocols() -> None:
    asked = [
        (b"sec-websocket-protocol", b"v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0"),
        (b"sec-websocket-protocol", b"v4.channel.k8s.io"),
    ]
    assert subprotocols(asked) == [b"v5.channel.k8s.io", b"v4.channel.k8s.io"]
    assert dict(for_remote(asked, WEBSOCKET))[b"sec-websocket-protocol"] == b"v5.channel.k8s.io, v4.channel.k8s.io"
    only = [(b"sec-websocket-protocol", BEARER.upper() + b"x")]
    assert b"sec-websocket-protocol" not in dict(for_remote(only, WEBSOCKET))


def test_every_stream_protocol_passes_in_its_order() -> None:
    asked = [(b"x-stream-protocol-version", version) for version in (b"v5.channel.k8s.io", b"v4.channel.k8s.io")]
    assert [pair for pair in for_remote(asked, SPDY) if pair[0] == b"x-stream-protocol-version"] == asked
    assert stream_versions([(b"x-stream-protocol-version", b"a, b"), *asked[1:]]) == [b"a", b"b", b"v4.channel.k8s.io"]


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ([(b"connection", b"Upgrade"), (b"upgrade", b"SPDY/3.1")], SPDY),
        ([(b"connection", b"keep-alive, Upgrade"), (b"upgrade", b"websocket")], WEBSOCKET),
        ([(b"upgrade", b"websocket")], None),
        ([(b"connection", b"Upgrade")], None),
        ([(b"connection", b"Upgrade"), (b"upgrade", b"h2c")], None),
    ],
)
def test_kind(given: list[tuple[bytes, bytes]], kind: bytes | None) -> None:
    assert upgrade_kind(given) == kind


def test_the_client_gets_what_it_must_know_and_no_cookie() -> None:
    head = Head(
        101,
        "whatever",
        (
            (b"set-cookie", b"route=1"),
            (b"connection", b"upgrade"),
            (b"upgrade", b"websocket"),
            (b"sec-websocket-accept", b"abc="),
            (b"sec-websocket-protocol", b"v4.channel.k8s.io"),
        ),
    )
    assert is_accepted(head, WEBSOCKET)
    assert not is_accepted(head, SPDY)
    found = split_head(for_client(head, WEBSOCKET))
    assert found is not None
    assert found[0].headers == (
        (b"connection", b"Upgrade"),
        (b"upgrade", b"websocket"),
        (b"sec-websocket-accept", b"abc="),
        (b"sec-websocket-protocol", b"v4.channel.k8s.io"),
    )
