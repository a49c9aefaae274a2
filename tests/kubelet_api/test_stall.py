"""When a connection is given up, from what the system says of it."""

from __future__ import annotations

import socket
import struct

import pytest

from kubelet_api.stall import Owed, Stall, owed, parse, tune
from tests.eventually import eventually

FINE = Owed(retransmits=0, probes=0, segments=0, since=3600)


@pytest.mark.parametrize(
    ("looks", "given_up"),
    [
        pytest.param([(0, FINE), (100, FINE)], False, id="idle for an hour"),
        pytest.param([(0, Owed(1, 0, 1, 3600)), (1, FINE)], False, id="one packet lost after an idle hour"),
        pytest.param([(0, Owed(1, 0, 1, 1)), (11, Owed(5, 0, 1, 12))], True, id="nothing acknowledged"),
        pytest.param([(0, Owed(1, 0, 1, 1)), (9, Owed(5, 0, 1, 10))], False, id="not yet"),
        pytest.param([(0, Owed(1, 0, 9, 1)), (11, Owed(1, 0, 9, 2))], False, id="a bad line, but some comes through"),
        pytest.param([(0, Owed(0, 1, 0, 1)), (11, Owed(0, 1, 0, 12))], False, id="a peer that does not read"),
        pytest.param([(0, Owed(0, 2, 0, 1)), (11, Owed(0, 4, 0, 12))], True, id="one that did not read, and is gone"),
        pytest.param([(0, Owed(1, 0, 1, 1)), (5, FINE), (11, Owed(1, 0, 1, 1))], False, id="two short silences"),
        pytest.param([(0, Owed(1, 0, 1, 1)), (11, None)], False, id="nothing is known"),
        pytest.param([(0, Owed(3, 0, 0, 1)), (11, Owed(3, 0, 0, 12))], False, id="nothing is under way"),
    ],
)
def test_when_to_give_up(looks: list[tuple[float, Owed | None]], given_up: bool) -> None:
    stall = Stall(10)
    assert [stall.look(found, now) for now, found in looks][-1] is given_up


@pytest.mark.parametrize(
    ("looks", "given_up"),
    [
        pytest.param([(0, True), (9, True)], False, id="not yet"),
        pytest.param([(0, True), (5, True), (11, True)], True, id="gone, and nobody takes what it sent"),
        pytest.param([(0, True), (5, False), (11, True)], False, id="some of it was taken"),
    ],
)
@pytest.mark.parametrize("found", [FINE, None])
def test_who_has_left_is_given_up(looks: list[tuple[float, bool]], given_up: bool, found: Owed | None) -> None:
    stall = Stall(10)
    assert [stall.look(found, now, left=left) for now, left in looks][-1] is given_up


def test_what_the_system_says() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as wire:
        accepted, _ = listener.accept()
        with accepted:
            told = owed(wire)
            assert told is not None
            assert told[:3] == (0, 0, 0)
            assert told.since < 60
            assert not told.is_left
            accepted.sendall(b"unread")
            accepted.shutdown(socket.SHUT_WR)
            eventually(lambda: owed(wire), "it has ended", until=lambda told: told is not None and told.is_left)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        eventually(lambda: owed(wire), "it was reset", until=lambda told: told is not None and told.state == 7)
        assert (told := owed(wire)) is not None
        assert told.is_left
        wire.close()
        assert owed(wire) is None


@pytest.mark.parametrize(("limit", "pause", "count"), [(90, 15, 12), (2, 1, 4), (0.5, 1, 1), (14400, 30, 127)])
def test_questions_come_well_within_the_limit(limit: float, pause: int, count: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as wire:
        tune(wire, limit)
        options = (socket.TCP_NODELAY, socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        assert [wire.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [1, pause, pause, count]
        assert wire.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


def test_a_system_that_says_little() -> None:
    assert parse(b"") is None
