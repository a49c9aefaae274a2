from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_api.http1 import MAX_HEAD, Body, Head, NotHttp, request, split_head

CHUNKED = Head(200, "OK", ((b"transfer-encoding", b"chunked"),))


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = [*sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


CONTENT = st.binary(min_size=1, max_size=200) | st.sampled_from(
    [b"a line\n", b"\r\n", b"x\r\n", b"1\r\nx\r\n0\r\n", b"\r"]
)


@given(
    st.lists(st.tuples(CONTENT, st.sampled_from([b"%x", b"%x", b"%X;name=value", b"0%x", b"%x "])), max_size=8),
    st.lists(st.integers(0, 2000), max_size=20),
)
def test_a_chunked_body_is_the_same_however_it_is_cut(chunks: list[tuple[bytes, bytes]], places: list[int]) -> None:
    pieces = [piece for piece, _ in chunks]
    wire = b"".join(size % len(piece) + b"\r\n" + piece + b"\r\n" for piece, size in chunks)
    wire += b"0\r\nTrailer: x\r\n\r\n"
    body = Body(CHUNKED)
    assert b"".join(body.feed(part) for part in cut(wire, places)) == b"".join(pieces)
    assert body.ended
    body.end()


@given(st.binary(max_size=300), st.lists(st.integers(0, 2000), max_size=5))
def test_any_bytes_are_a_chunked_body_or_not_http(wire: bytes, places: list[int]) -> None:
    body = Body(CHUNKED)
    with contextlib.suppress(NotHttp):
        assert sum(len(body.feed(part)) for part in cut(wire, places)) <= len(wire)


@pytest.mark.parametrize("before", [b"", b"1\r\n\n\r\n", b"1\r\n\n\r\n" * 2])
@pytest.mark.parametrize(
    "wire", [b"g\r\n", b"-1\r\n", b"\r\n", b"2\r\nabc\r\n", b"1_0\r\n", b"1" * 5000, b"ffffffffffffffff\r\n"]
)
def test_a_chunk_that_lies_is_refused(wire: bytes, before: bytes) -> None:
    with pytest.raises(NotHttp):
        Body(CHUNKED).feed(before + wire + b"x" * 16 + b"\r\n")


def test_a_log_with_the_line_ends_of_http_in_it() -> None:
    lines = [b"plain\n" * 3, b"of Windows\r\n", b"x" * 5000, b"\r\n", b"5\r\nplain\r\n", b"last\n"] * 20
    wire = b"".join(b"%x\r\n%b\r\n" % (len(line), line) for line in lines)
    body = Body(CHUNKED)
    assert body.feed(wire) == b"".join(lines)
    assert not body.ended
    assert body.feed(b"1\r\nx\r\n0\r\n\r\n") == b"x"
    assert body.ended


def test_a_body_with_a_length_ends_with_it() -> None:
    body = Body(Head(200, "OK", ((b"content-length", b"3"),)))
    assert body.feed(b"ab") == b"ab"
    with pytest.raises(NotHttp, match="in the middle"):
        body.end()
    assert body.feed(b"cd") == b"c"
    assert body.ended


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    body = Body(Head(200, "OK", ()))
    assert body.feed(b"ab") == b"ab"
    assert not body.ended
    body.end()
    assert body.ended


@pytest.mark.parametrize(
    "headers",
    [
        ((b"content-length", b"3"), (b"content-length", b"4")),
        ((b"content-length", b"-3"),),
        ((b"content-length", b"x"),),
        ((b"transfer-encoding", b"gzip, chunked"),),
    ],
)
def test_a_framing_that_can_be_read_in_two_ways_is_refused(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    with pytest.raises(NotHttp):
        Body(Head(200, "OK", headers))


def test_a_head_is_found_with_what_follows() -> None:
    wire = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\nA: 1\r\na:2 \r\n\r\n\x80\x03"
    for end in range(wire.index(b"\r\n\r\n") + 4):
        assert split_head(wire[:end]) is None
    found = split_head(wire)
    assert found is not None
    head, rest = found
    assert (head.status, head.phrase, rest) == (101, "Switching Protocols", b"\x80\x03")
    assert head.tokens(b"upgrade") == [b"spdy/3.1"]
    assert head.all(b"a") == [b"1", b"2"]
    assert head.first(b"b") is None


@pytest.mark.parametrize(
    "wire",
    [
        b"SSH-2.0-OpenSSH",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 20\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: b\nc: d\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a" * MAX_HEAD + b": b",
    ],
)
def test_what_is_no_head_is_said_so(wire: bytes) -> None:
    with pytest.raises(NotHttp):
        split_head(wire)


@given(st.binary(max_size=400))
def test_any_bytes_are_a_head_or_not_http(wire: bytes) -> None:
    with contextlib.suppress(NotHttp):
        split_head(b"HTTP/1.1 200 OK\r\n" + wire)


@pytest.mark.parametrize(
    ("method", "target", "headers"),
    [
        ("GET", "/a b", []),
        ("GET", "/a\r\nHost: other", []),
        ("GET /x", "/", []),
        ("GET", "/", [(b"A", b"b\r\nAuthorization: c")]),
        ("GET", "/", [(b"A: b\r\nC", b"d")]),
    ],
)
def test_one_request_never_becomes_another(method: str, target: str, headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(ValueError):
        request(method, target, headers)
