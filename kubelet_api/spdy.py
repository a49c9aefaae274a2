"""SPDY/3.1 as Kubernetes uses it, for the side that is asked: bytes in, events out, no I/O.

The client opens streams, both sides send data on them and end them. There is no flow control: nobody sends
WINDOW_UPDATE, and who waits for one waits for ever. Frames are big-endian:

    control: 0x8003 type(16) flags(8) length(24) ...        data: 0 stream(31) flags(8) length(24) ...

SYN_STREAM and PING are answered here; data is given on as it comes, never gathered into whole frames.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

MAX_CONTROL = 64 << 10
"""Bytes of a control frame; those of Kubernetes have some dozens."""
MAX_HEADERS = 64 << 10
"""Bytes of a header block when it is unpacked."""
MAX_STREAMS = 64
"""Streams open at a time; a command has at most five."""
MAX_DATA = (1 << 24) - 1

_VERSION = 0x8003
_FIN = 0x01
_CANCEL, _PROTOCOL_ERROR, _REFUSED = 5, 1, 3

_WORDS = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow "
    "authorization cache-control connection content-base content-encoding content-language content-length "
    "content-location content-md5 content-range content-type date etag expect expires from host if-match "
    "if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
    "proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
    "user-agent vary via warning www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie "
    "keep-alive origin"
)
_TAIL = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden"
    "404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,"
    "publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)
DICTIONARY = (
    b"".join(struct.pack(">I", len(word)) + word.replace("_", " ").encode() for word in _WORDS.split()) + _TAIL.encode()
)
"""What both ends know of header blocks before the first one: a constant of the protocol (draft-mbelshe-httpbis-spdy-00,
2.6.10.1)."""


class SpdyError(Exception):
    """The client does not speak SPDY/3.1; the connection cannot be used any more."""


class _Type(IntEnum):
    SYN_STREAM = 1
    SYN_REPLY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PING = 6
    GOAWAY = 7
    HEADERS = 8
    WINDOW_UPDATE = 9


@dataclass(frozen=True, slots=True)
class Opened:
    """The client opened a stream."""

    stream: int
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes on a stream."""

    stream: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """The client sends nothing more on a stream."""

    stream: int


@dataclass(frozen=True, slots=True)
class Reset:
    """The client gave a stream up, both ways."""

    stream: int


@dataclass(frozen=True, slots=True)
class Pinged:
    """The client wanted a sign of life, and got it."""


@dataclass(frozen=True, slots=True)
class GoneAway:
    """The client opens no more streams."""


Event = Opened | Data | Ended | Reset | Pinged | GoneAway


class Server:
    """One connection, from the side of who is asked."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._data: tuple[int, int, bool] | None = None  # stream, bytes that are missing, and whether it ends then
        self._to_send: list[bytes] = []
        self._unpack = zlib.decompressobj(zlib.MAX_WBITS, zdict=DICTIONARY)
        self._pack = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, 8, zlib.Z_DEFAULT_STRATEGY, DICTIONARY)
        self._last_stream = 0
        self._receiving: set[int] = set()
        self._sending: set[int] = set()

    # ------------------------------------------------------------------ in

    def receive(self, data: bytes) -> list[Event]:
        """Take what has come."""
        self._received += data
        events: list[Event] = []
        while self._next(events):
            pass
        return events

    def _next(self, events: list[Event]) -> bool:
        """Take one frame, or what there is of one; whether there may be more."""
        if self._data is not None:
            return self._take_data(events)
        if len(self._received) < 8:
            return False
        first, rest = struct.unpack_from(">II", self._received)
        flags, length = rest >> 24, rest & 0xFFFFFF
        if not first & 0x80000000:
            del self._received[:8]
            self._data = (first, length, bool(flags & _FIN))
            return self._take_data(events)
        if first >> 16 != _VERSION:
            raise SpdyError(f"not a frame of SPDY/3: {first:#010x}")
        if length > MAX_CONTROL:
            raise SpdyError(f"a control frame of {length} bytes")
        if len(self._received) < 8 + length:
            return False
        content = bytes(self._received[8 : 8 + length])
        del self._received[: 8 + length]
        try:
            self._control(first & 0xFFFF, flags, content, events)
        except (struct.error, zlib.error, UnicodeDecodeError) as error:
            raise SpdyError(f"a control frame that cannot be read: {error}") from None
        return True

    def _take_data(self, events: list[Event]) -> bool:
        assert self._data is not None
        stream, missing, fin = self._data
        content = bytes(self._received[:missing])
        del self._received[: len(content)]
        missing -= len(content)
        known = stream in self._receiving
        if content and known:  # what comes after a reset is of no interest
            events.append(Data(stream, content))
        if missing:
            self._data = (stream, missing, fin)
            return False
        self._data = None
        if fin and known:
            self._receiving.discard(stream)
            events.append(Ended(stream))
        return True

    def _control(self, kind: int, flags: int, content: bytes, events: list[Event]) -> None:
        match kind:
            case _Type.SYN_STREAM:
                self._opened(flags, content, events)
            case _Type.RST_STREAM:
                (stream, _) = struct.unpack(">II", content)
                if stream in self._receiving or stream in self._sending:
                    self._receiving.discard(stream)
                    self._sending.discard(stream)
                    events.append(Reset(stream))
            case _Type.PING:
                (number,) = struct.unpack(">I", content)
                if number & 1:  # the client's numbers are odd; an even one would be an answer to one of ours
                    self._frame(_Type.PING, content)
                    events.append(Pinged())
            case _Type.GOAWAY:
                events.append(GoneAway())
            case _Type.SYN_REPLY | _Type.HEADERS:
                self._headers(content[4:])  # the packer's state goes on
            case _Type.SETTINGS | _Type.WINDOW_UPDATE:
                pass
            case _:
                raise SpdyError(f"a control frame of the unknown type {kind}")

    def _opened(self, flags: int, content: bytes, events: list[Event]) -> None:
        stream, _, _, _ = struct.unpack_from(">IIBB", content)
        headers = self._headers(content[10:])
        if not stream & 1 or stream <= self._last_stream or stream > 0x7FFFFFFF:
            self._frame(_Type.RST_STREAM, struct.pack(">II", stream & 0x7FFFFFFF, _PROTOCOL_ERROR))
            return
        self._last_stream = stream
        if len(self._receiving | self._sending) >= MAX_STREAMS:
            self._frame(_Type.RST_STREAM, struct.pack(">II", stream, _REFUSED))
            return
        self._receiving.add(stream)
        self._sending.add(stream)
        self._frame(_Type.SYN_REPLY, struct.pack(">I", stream) + self._no_headers())
        events.append(Opened(stream, headers))
        if flags & _FIN:
            self._receiving.discard(stream)
            events.append(Ended(stream))

    def _headers(self, packed: bytes) -> dict[str, str]:
        block = self._unpack.decompress(packed, MAX_HEADERS)
        if self._unpack.unconsumed_tail:
            raise SpdyError("a header block that is too long")
        (count,) = struct.unpack_from(">I", block)
        at = 4
        headers: dict[str, str] = {}
        for _ in range(min(count, MAX_HEADERS)):
            name, at = _text(block, at)
            value, at = _text(block, at)
            headers[name.lower()] = value
        return headers

    # ------------------------------------------------------------------ out

    def send(self, stream: int, content: bytes, *, fin: bool = False) -> None:
        """Data on a stream, unless the client has given it up."""
        if stream not in self._sending:
            return
        for start in range(0, len(content), MAX_DATA):
            piece = content[start : start + MAX_DATA]
            self._to_send.append(struct.pack(">II", stream, len(piece)))
            self._to_send.append(piece)
        if fin:
            self._to_send.append(struct.pack(">II", stream, _FIN << 24))
            self._sending.discard(stream)

    def reset(self, stream: int) -> None:
        """Give a stream up."""
        self._receiving.discard(stream)
        self._sending.discard(stream)
        self._frame(_Type.RST_STREAM, struct.pack(">II", stream, _CANCEL))

    def go_away(self) -> None:
        """Say that the connection is over."""
        self._frame(_Type.GOAWAY, struct.pack(">II", self._last_stream, 0))

    def data_to_send(self) -> bytes:
        """What must be sent now."""
        data = b"".join(self._to_send)
        self._to_send.clear()
        return data

    def _frame(self, kind: _Type, content: bytes) -> None:
        self._to_send.append(struct.pack(">HHI", _VERSION, kind, len(content)) + content)

    def _no_headers(self) -> bytes:
        return self._pack.compress(struct.pack(">I", 0)) + self._pack.flush(zlib.Z_SYNC_FLUSH)


def _text(block: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">I", block, at)
    end = at + 4 + length
    if end > len(block):
        raise SpdyError("a header block that ends too early")
    return block[at + 4 : end].decode("utf-8"), end
