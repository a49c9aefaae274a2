from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_api.call import CallError
from kubelet_api.query import attach_query, exec_query, log_query, port_forward_query, run_query

Pairs = list[tuple[str, str]]

UNDECODABLE = (400, '{"message": "Unable to decode query."}')
INVALID = (422, '{"message": "Invalid request."}')


@pytest.mark.parametrize(
    ("given", "mapped"),
    [
        ([], []),
        (
            [("follow", "true"), ("previous", "1"), ("timestamps", "")],
            ["follow=true", "previous=true", "timestamps=true"],
        ),
        ([("follow", "false"), ("previous", "0"), ("timestamps", "False")], []),
        ([("tailLines", "0")], ["tailLines=0"]),
        ([("tailLines", "+5")], ["tailLines=5"]),
        ([("tail", "7"), ("tailLines", "3")], ["tailLines=7"]),
        ([("tail", "all"), ("tailLines", "3")], []),
        ([("tail", ""), ("tailLines", "3")], ["tailLines=3"]),
        ([("sinceSeconds", "60"), ("limitBytes", "10")], ["sinceSeconds=60", "limitBytes=10"]),
        ([("sinceTime", "2026-01-02T03:04:05Z")], ["sinceTime=2026-01-02T03:04:05Z"]),
        ([("sinceTime", "2026-01-02T03:04:05.5+02:00")], ["sinceTime=2026-01-02T03:04:05.5+02:00"]),
        ([("sinceTime", "")], []),
        ([("stream", "All"), ("tailLines", "1")], ["tailLines=1"]),
        ([("stream", "Stderr")], ["stream=Stderr"]),
        ([("container", "other"), ("unknown", "x"), ("insecureSkipTLSVerifyBackend", "true")], []),
        ([("tailLines", "1"), ("tailLines", "x")], ["tailLines=1"]),
    ],
)
def test_log_options(given: Pairs, mapped: list[str]) -> None:
    assert [f"{name}={value}" for name, value in log_query(tuple(given), "c")] == ["container=c", *mapped]


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ([("tailLines", "x")], UNDECODABLE),
        ([("tailLines", "")], UNDECODABLE),
        ([("tailLines", "1_0")], UNDECODABLE),
        ([("tailLines", "9223372036854775808")], UNDECODABLE),
        ([("tail", "some")], UNDECODABLE),
        ([("sinceTime", "yesterday")], UNDECODABLE),
        ([("sinceTime", "2026-01-02 03:04:05Z")], UNDECODABLE),
        ([("tailLines", "-1")], INVALID),
        ([("limitBytes", "0")], INVALID),
        ([("sinceSeconds", "0")], INVALID),
        ([("sinceSeconds", "5"), ("sinceTime", "2026-01-02T03:04:05Z")], INVALID),
        ([("stream", "Both")], INVALID),
        ([("stream", "Stdout"), ("tailLines", "1")], INVALID),
    ],
)
def test_log_options_that_a_kubelet_refuses(given: Pairs, refused: tuple[int, str]) -> None:
    with pytest.raises(CallError) as error:
        log_query(tuple(given), "c")
    assert (error.value.status, error.value.message) == refused


@given(st.lists(st.tuples(st.sampled_from(["tail", "tailLines", "sinceTime", "stream", "follow", "x"]), st.text())))
def test_any_log_options_are_mapped_or_refused(given: Pairs) -> None:
    try:
        mapped = log_query(tuple(given), "c")
    except CallError:
        return
    assert all(value.isascii() for _, value in mapped)


def test_exec() -> None:
    given = (("command", "sh"), ("input", "1"), ("output", "1"), ("command", "-c"), ("error", "1"), ("command", ""))
    assert exec_query(given, "c") == (
        ("container", "c"),
        ("stdin", "true"),
        ("stdout", "true"),
        ("stderr", "true"),
        ("command", "sh"),
        ("command", "-c"),
        ("command", ""),
    )


def test_a_terminal_has_no_standard_error() -> None:
    given = (("output", "1"), ("error", "1"), ("tty", "1"))
    assert attach_query(given, "c") == (("container", "c"), ("stdout", "true"), ("tty", "true"))


@pytest.mark.parametrize("given", [(), (("tty", "1"), ("error", "1")), (("input", "true"),), (("stdin", "true"),)])
def test_a_command_without_streams_is_refused(given: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(CallError, match="you must specify at least 1 of stdin, stdout, stderr") as error:
        exec_query(given, "c")
    assert error.value.status == 400


def test_run_cuts_its_command_at_each_space() -> None:
    mapped = run_query((("cmd", "ls  -l"),), "c")
    assert [value for name, value in mapped if name == "command"] == ["ls", "", "-l"]


@pytest.mark.parametrize(
    ("given", "websocket", "tunnelled", "mapped"),
    [
        ([], False, False, []),
        ([("port", "x")], False, False, []),
        ([], True, True, []),
        ([("port", "80,81"), ("port", "0443")], True, False, ["80", "81", "443"]),
    ],
)
def test_ports(given: Pairs, websocket: bool, tunnelled: bool, mapped: list[str]) -> None:
    query = port_forward_query(tuple(given), websocket=websocket, tunnelled=tunnelled)
    assert query == tuple(("ports", port) for port in mapped)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([], 'query parameter "port" is required'),
        ([("port", "")], 'query parameter "port" cannot be empty'),
        ([("port", "80,x")], 'unable to parse "80,x" as a port'),
        ([("port", "65536")], 'unable to parse "65536" as a port'),
        ([("port", "0")], 'port "0" must be > 0'),
    ],
)
def test_ports_that_a_kubelet_refuses(given: Pairs, text: str) -> None:
    with pytest.raises(CallError) as error:
        port_forward_query(tuple(given), websocket=True, tunnelled=False)
    assert (error.value.status, error.value.message) == (400, text)
