from __future__ import annotations

import contextlib
import hashlib
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_api.spdy import (
    DICTIONARY,
    MAX_STREAMS,
    Data,
    Ended,
    Event,
    GoneAway,
    Opened,
    Pinged,
    Reset,
    Server,
    SpdyError,
)
from tests.kubelet_api.test_http1 import cut


class Writer:
    """A client's frames."""

    def __init__(self) -> None:
        self._pack = zlib.compressobj(9, zlib.DEFLATED, 15, 8, 0, DICTIONARY)

    def control(self, kind: int, content: bytes, flags: int = 0) -> bytes:
        return struct.pack(">HHI", 0x8003, kind, flags << 24 | len(content)) + content

    def open(self, stream: int, flags: int = 0, **headers: str) -> bytes:
        block = struct.pack(">I", len(headers))
        for name, value in headers.items():
            block += struct.pack(">I", len(name)) + name.encode() + struct.pack(">I", len(value)) + value.encode()
        packed = self._pack.compress(block) + self._pack.flush(zlib.Z_SYNC_FLUSH)
        return self.control(1, struct.pack(">IIBB", stream, 0, 0, 0) + packed, flags)

    def data(self, stream: int, content: bytes, fin: bool = False) -> bytes:
        return struct.pack(">II", stream, fin << 24 | len(content)) + content


def test_the_dictionary_is_the_protocols() -> None:
    assert len(DICTIONARY) == 1423
    assert zlib.adler32(DICTIONARY) == 0xE3C6A7C2
    assert hashlib.sha256(DICTIONARY).hexdigest().startswith("51d27341")


def test_streams_are_answered_at_once() -> None:
    server, client = Server(), Writer()
    unpack = zlib.decompressobj(15, zdict=DICTIONARY)
    for stream in (1, 3):
        assert server.receive(client.open(stream, streamtype="error")) == [Opened(stream, {"streamtype": "error"})]
        reply = server.data_to_send()
        assert reply[:12] == struct.pack(">HHII", 0x8003, 2, len(reply) - 8, stream)
        assert unpack.decompress(reply[12:]) == bytes(4)  # no headers


def events_of(pieces: list[bytes]) -> list[Event]:
    server = Server()
    merged: list[Event] = []
    for piece in pieces:
        for event in server.receive(piece):
            last = merged[-1] if merged else None
            if isinstance(event, Data) and isinstance(last, Data) and last.stream == event.stream:
                merged[-1] = Data(event.stream, last.content + event.content)
            else:
                merged.append(event)
    return merged


@given(st.lists(st.binary(max_size=60), max_size=5), st.lists(st.integers(0, 2000), max_size=30))
def test_the_events_are_the_same_however_the_bytes_are_cut(contents: list[bytes], places: list[int]) -> None:
    client = Writer()
    wire = client.open(1, streamtype="error", port="80") + client.open(3, streamtype="stdin")
    wire += client.control(6, struct.pack(">I", 1)) + client.control(4, b"ignored") + client.control(9, b"ignored")
    wire += b"".join(client.data(3, content) for content in contents) + client.data(3, b"", fin=True)
    wire += client.data(3, b"after its end") + client.control(3, struct.pack(">II", 1, 5))
    wire += client.control(7, struct.pack(">II", 0, 0))
    given = b"".join(contents)
    assert events_of(cut(wire, places)) == [
        Opened(1, {"streamtype": "error", "port": "80"}),
        Opened(3, {"streamtype": "stdin"}),
        Pinged(),
        *([Data(3, given)] if given else []),
        Ended(3),
        Reset(1),
        GoneAway(),
    ]


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_events_or_an_error(wire: bytes, control: bool) -> None:
    with contextlib.suppress(SpdyError):
        Server().receive((b"\x80\x03\x00" if control else b"") + wire)


def test_pings_of_the_client_are_returned_and_no_others() -> None:
    server, client = Server(), Writer()
    assert server.receive(client.control(6, struct.pack(">I", 7))) == [Pinged()]
    assert server.data_to_send() == client.control(6, struct.pack(">I", 7))
    assert server.receive(client.control(6, struct.pack(">I", 8))) == []
    assert server.data_to_send() == b""


def test_nothing_is_sent_on_a_stream_that_is_over() -> None:
    server, client = Server(), Writer()
    server.receive(client.open(1) + client.open(3))
    server.data_to_send()
    server.send(1, b"abc", fin=True)
    server.send(1, b"more")
    assert server.data_to_send() == client.data(1, b"abc") + client.data(1, b"", fin=True)
    server.receive(client.control(3, struct.pack(">II", 3, 5)))
    server.send(3, b"abc", fin=True)
    assert server.data_to_send() == b""


@pytest.mark.parametrize("stream", [2, 0, 1])
def test_a_stream_with_a_wrong_number_is_reset(stream: int) -> None:
    server, client = Server(), Writer()
    server.receive(client.open(1))
    server.data_to_send()
    assert server.receive(client.open(stream)) == []
    assert server.data_to_send() == client.control(3, struct.pack(">II", stream, 1))


def test_streams_are_bounded() -> None:
    server, client = Server(), Writer()
    opened = [server.receive(client.open(number)) for number in range(1, 2 * MAX_STREAMS + 9, 2)]
    assert sum(map(len, opened)) == MAX_STREAMS


@pytest.mark.parametrize(
    "wire",
    [
        b"\x80\x02\x00\x01\x00\x00\x00\x00",
        b"\x80\x03\x00\x63\x00\x00\x00\x00",
        b"\x80\x03\x00\x01\x00\xff\xff\xff",
        b"\x80\x03\x00\x01\x00\x00\x00\x02ab",
        b"\x80\x03\x00\x06\x00\x00\x00\x02ab",
    ],
)
def test_what_is_no_spdy_is_said_so(wire: bytes) -> None:
    with pytest.raises(SpdyError):
        Server().receive(wire)


def test_a_header_block_that_grows_is_refused() -> None:
    with pytest.raises(SpdyError, match="too long"):
        Server().receive(Writer().open(1, a="x" * 1_000_000))
