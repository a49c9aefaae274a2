"""HTTP/1.1 as a client of the remote API server speaks it: bytes in, bytes out, no I/O.

Only what a call needs: one request per connection, the head of its answer, and a body by any of the three framings.
Written by hand because log output comes in very many small chunks, and because what follows a 101 is not HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

MAX_HEAD = 64 << 10
"""Bytes of an answer's head."""

_MAX_LINE = 4096
"""Bytes of a chunk's first line, and of all trailers."""

_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: ([^\r\n]*))?")
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HEX = re.compile(rb"[0-9A-Fa-f]{1,15}")
_CHUNK = re.compile(rb"(?!0)([0-9A-Fa-f]{1,15})\r\n")
_SMALL = 512
"""Bytes of a chunk after which others are likely to follow in what has come."""
_FORBIDDEN = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


class NotHttp(Exception):
    """What came is not HTTP/1.1, or ended in the middle."""


@dataclass(frozen=True, slots=True)
class Head:
    """The head of an answer."""

    status: int
    phrase: str
    headers: tuple[tuple[bytes, bytes], ...]
    """Names in lower case."""

    def all(self, name: bytes) -> list[bytes]:
        """Every value of a header."""
        return [value for key, value in self.headers if key == name]

    def first(self, name: bytes) -> bytes | None:
        """The first value of a header."""
        return next((value for key, value in self.headers if key == name), None)

    def tokens(self, name: bytes) -> list[bytes]:
        """The members of a header that is a list, in lower case."""
        return [part.strip().lower() for value in self.all(name) for part in value.split(b",") if part.strip()]


def request(method: str, target: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A request without a body; refuses what would become another request at the other end."""
    lines = [f"{method} {target} HTTP/1.1".encode("ascii")]
    if any(byte <= 0x20 for byte in target.encode("ascii")) or not method.isalpha():
        raise ValueError("method or target of a request with a space or a line break in it")
    for name, value in headers:
        check_header(name, value)
        lines.append(name + b": " + value)
    return b"\r\n".join(lines) + b"\r\n\r\n"


def check_header(name: bytes, value: bytes) -> None:
    """Raise ValueError for a header that is more than one."""
    if not _TOKEN.fullmatch(name) or _FORBIDDEN.search(value):
        raise ValueError(f"the header {name!r} has characters that a header cannot have")


def split_head(received: bytes) -> tuple[Head, bytes] | None:
    """The head and what follows it; None while it is not complete."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        if len(received) > MAX_HEAD:
            raise NotHttp(f"its answer has a head of more than {MAX_HEAD} bytes")
        if received[:5] != b"HTTP/"[: len(received)]:
            raise NotHttp("its answer is not HTTP/1.1")
        return None
    return _head(received[:end]), received[end + 4 :]


def _head(content: bytes) -> Head:
    first, *lines = content.split(b"\r\n")
    matched = _STATUS_LINE.fullmatch(first)
    if matched is None:
        raise NotHttp("its answer is not HTTP/1.1")
    headers = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(name) or _FORBIDDEN.search(value):
            raise NotHttp("its answer has a header that cannot be read")
        headers.append((name.lower(), value.strip(b" \t")))
    return Head(int(matched[1]), (matched[2] or b"").decode("latin-1"), tuple(headers))


class Body:
    """Takes a body apart, however it is framed: :meth:`feed` gives the content in what has come."""

    def __init__(self, head: Head) -> None:
        self.ended = False
        """Whether all of it was there."""
        self._chunked: _Chunks | None = None
        self._left: int | None = None
        coding = head.tokens(b"transfer-encoding")
        if head.status in (204, 304):
            self.ended = True
        elif coding == [b"chunked"]:
            self._chunked = _Chunks()
        elif coding:
            raise NotHttp("its answer has a transfer coding that is not known here")
        elif lengths := set(head.all(b"content-length")):
            (length, *others) = lengths
            if others or not length.isdigit() or len(length) > 18:
                raise NotHttp("its answer has a length that cannot be read")
            self._left = int(length)
            self.ended = self._left == 0

    def feed(self, data: bytes) -> bytes:
        if self.ended:
            return b""
        if self._chunked is not None:
            content = self._chunked.feed(data)
            self.ended = self._chunked.ended
            return content
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
            self.ended = self._left == 0
        return data

    def end(self) -> None:
        """No more bytes will come; NotHttp if there should be more."""
        if not self.ended and (self._chunked is not None or self._left is not None):
            raise NotHttp("it ended its answer in the middle")
        self.ended = True


class _Chunks:
    """The chunked transfer coding (RFC 9112, 7.1); extensions and trailers are passed over."""

    def __init__(self) -> None:
        self.ended = False
        self._line = b""  # the start of a line that is not complete
        self._left = 0  # of the chunk's content, and of the line end after it
        self._trailers = 0
        self._last = False

    def feed(self, data: bytes) -> bytes:
        content: list[bytes] = []
        at = 0
        plain = True  # as far as is known
        if self._line:
            data, self._line = self._line + data, b""
        while at < len(data) and not self.ended:
            if not self._left and not self._last and (begun := _CHUNK.match(data, at)) is not None:
                start = begun.end()
                end = start + int(begun[1], 16)
                if data[end : end + 2] == b"\r\n":  # it is there as a whole, as most are
                    content.append(data[start:end])
                    at = end + 2
                    if plain and end - start <= _SMALL:
                        found, at = _lines(data, at)
                        content += found
                        plain = False  # what is left is no whole chunk, or one for which we have to look closer
                    continue
            if self._left > 2:
                piece = data[at : at + self._left - 2]
                content.append(piece)
                at += len(piece)
                self._left -= len(piece)
            elif self._left:
                if data[at] != (0x0D if self._left == 2 else 0x0A):
                    raise NotHttp("a chunk of its answer is longer than it says")
                at += 1
                self._left -= 1
            else:
                end = data.find(b"\r\n", at)
                if end < 0:
                    self._line = data[at:]
                    if len(self._line) > _MAX_LINE:
                        raise NotHttp("a chunk of its answer has no beginning")
                    break
                self._take_line(data[at:end])
                at = end + 2
        return content[0] if len(content) == 1 else b"".join(content)

    def _take_line(self, line: bytes) -> None:
        if self._last:
            self._trailers += len(line)
            if self._trailers > _MAX_LINE:
                raise NotHttp("its answer has too many trailers")
            self.ended = not line
            return
        size = line.partition(b";")[0].strip(b" \t")
        if not _HEX.fullmatch(size):
            raise NotHttp("a chunk of its answer has a length that cannot be read")
        count = int(size, 16)
        self._last = count == 0
        self._left = count + 2 if count else 0


class _Sizes(dict[bytes, int]):
    """Sizes of chunks by how they are written; -1, which no content has, for what is none and for the last one's."""

    _MOST = 4096

    def __missing__(self, written: bytes) -> int:
        if not _HEX.fullmatch(written) or not (size := int(written, 16)):
            return -1
        if len(self) < self._MOST:
            self[written] = size
        return size


_SIZES = _Sizes()


def _lines(data: bytes, at: int) -> tuple[list[bytes], int]:
    """The chunks that are there as a whole from *at* on, and where they end; none if one has a line end within it.

    A log comes as a chunk for each line, thousands at once. Taken apart at all line ends by one call, every other
    part is a content, which is true if, and only if, each is as long as the part before it says.
    """
    parts = data[at:].split(b"\r\n")
    count = len(parts) - 1 & ~1
    contents = parts[1:count:2]
    if list(map(len, contents)) != list(map(_SIZES.__getitem__, parts[:count:2])):
        return [], at
    return contents, len(data) - len(b"\r\n".join(parts[count:]))
