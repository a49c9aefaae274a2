"""What a kubelet is asked, in the words in which the API server is asked the same.

The checks, their order and their texts are the kubelet's (pkg/kubelet/server/server.go, and the conversions that it
uses), so that a wrong option is refused here as it would be on any node, before the remote cluster hears of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kubelet_api.call import CallError

Query = tuple[tuple[str, str], ...]

LOG_STREAMS = ("All", "Stdout", "Stderr")

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d([.,]\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def log_query(query: Query, container: str) -> Query:
    """The options of a log; CallError with the kubelet's status and text for those that it refuses."""
    given = _firsts(query)
    if tail := given.pop("tail", ""):
        given["tailLines"] = tail
        if tail == "all":
            del given["tailLines"]
    mapped = [("container", container)]
    mapped += [(name, "true") for name in ("follow", "previous", "timestamps") if _true(given.get(name))]
    numbers: dict[str, int] = {}
    for name in ("sinceSeconds", "tailLines", "limitBytes"):
        if name in given:
            numbers[name] = _integer(given[name])
    since = given.get("sinceTime", "")
    if since in ("", "null"):
        since = ""
    elif not _TIME.fullmatch(since):
        raise _undecodable()
    stream = given.get("stream", "")
    if (
        numbers.get("tailLines", 0) < 0
        or numbers.get("limitBytes", 1) < 1
        or numbers.get("sinceSeconds", 1) < 1
        or (since and "sinceSeconds" in numbers)
        or (stream and stream not in LOG_STREAMS)
        or (stream not in ("", "All") and "tailLines" in numbers)
    ):
        raise CallError(422, '{"message": "Invalid request."}')
    mapped += [(name, str(number)) for name, number in numbers.items()]
    if since:
        mapped.append(("sinceTime", since))
    if stream not in ("", "All"):  # an API server without that feature refuses the word even for its default
        mapped.append(("stream", stream))
    return tuple(mapped)


@dataclass(frozen=True, slots=True)
class Streams:
    """Which streams of a command are wanted."""

    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool

    @classmethod
    def of(cls, query: Query) -> Streams:
        """As the kubelet reads them: a terminal has no separate standard error."""
        given = _firsts(query)
        tty = given.get("tty") == "1"
        streams = cls(given.get("input") == "1", given.get("output") == "1", given.get("error") == "1" and not tty, tty)
        if not (streams.stdin or streams.stdout or streams.stderr):
            raise CallError(400, "you must specify at least 1 of stdin, stdout, stderr")
        return streams

    def query(self) -> Query:
        """As the API server wants them."""
        wanted = (("stdin", self.stdin), ("stdout", self.stdout), ("stderr", self.stderr), ("tty", self.tty))
        return tuple((name, "true") for name, yes in wanted if yes)


def exec_query(query: Query, container: str) -> Query:
    commands = tuple((name, value) for name, value in query if name == "command")
    return (("container", container), *Streams.of(query).query(), *commands)


def attach_query(query: Query, container: str) -> Query:
    return (("container", container), *Streams.of(query).query())


def run_query(query: Query, container: str) -> Query:
    """``/run``: its command is one string, cut at each space."""
    command = _firsts(query).get("cmd", "").split(" ")
    streams = Streams(stdin=False, stdout=True, stderr=True, tty=False)
    return (("container", container), *streams.query(), *(("command", part) for part in command))


def port_forward_query(query: Query, *, websocket: bool, tunnelled: bool) -> Query:
    """Ports are named in the query only by WebSocket clients that speak no SPDY within."""
    if not websocket or tunnelled:
        return ()
    values = [value for name, value in query if name == "port"]
    if not values:
        raise CallError(400, 'query parameter "port" is required')
    ports = []
    for value in values:
        if not value:
            raise CallError(400, 'query parameter "port" cannot be empty')
        for part in value.split(","):
            if not re.fullmatch(r"[0-9]{1,10}", part, re.ASCII) or int(part) > 65535:
                raise CallError(400, f'unable to parse "{value}" as a port')
            if int(part) < 1:
                raise CallError(400, f'port "{value}" must be > 0')
            ports.append(str(int(part)))
    return tuple(("ports", port) for port in ports)


def _firsts(query: Iterable[tuple[str, str]]) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in query:
        given.setdefault(name, value)
    return given


def _true(value: str | None) -> bool:
    """Kubernetes' conversion: only absence, "0" and "false" are false."""
    return value is not None and value != "0" and value.lower() != "false"


def _integer(value: str) -> int:
    if not _INTEGER.fullmatch(value) or not -(2**63) <= int(value) < 2**63:
        raise _undecodable()
    return int(value)


def _undecodable() -> CallError:
    return CallError(400, '{"message": "Unable to decode query."}')
