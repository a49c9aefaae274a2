"""Where the node is said to be."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from certs import address
from certs.address import NodeAddress, follow, follow_address, node_address, refused, source_addresses
from certs.errors import CertificateError


@dataclass
class Leads:
    """A client that only knows where its server is."""

    server: str

    async def access(self) -> Leads:
        return self


def found(given: str | None, environment: dict[str, str], server: str = "https://127.0.0.1:6443") -> NodeAddress:
    client: Any = Leads(server)
    return asyncio.run(node_address(given, environment, client))


def test_the_given_one_first() -> None:
    assert found("10.0.0.1", {"POD_IP": "10.0.0.2"}) == NodeAddress("10.0.0.1", "--node-address")


def test_then_the_pods_own() -> None:
    assert found(None, {"POD_IP": "10.0.0.2"}) == NodeAddress("10.0.0.2", "$POD_IP")


def test_towards_a_server_on_this_machine_it_is_a_guess_with_a_warning() -> None:
    warning = found(None, {}).warning
    assert warning is not None
    assert "--node-address" in warning


def test_a_loopback_address_is_warned_of() -> None:
    assert "address not allowed" in (found("127.0.0.1", {}).warning or "")


def test_a_server_that_cannot_be_resolved() -> None:
    with pytest.raises(CertificateError, match="give it with --node-address"):
        found(None, {}, "https://no-such-host.invalid:6443")


def test_a_name_server_that_is_silent_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of asyncio's own are waited for when its loop ends."""
    stopped, waited = threading.Event(), list[bool]()

    def silent(_server: str) -> list[str]:
        waited.append(stopped.wait(60))
        return ["10.0.0.1"]

    monkeypatch.setattr(address, "source_addresses", silent)
    client: Any = Leads("https://far.example")
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(node_address(None, {}, client), 0.1))
    assert waited == []
    stopped.set()


def test_an_address_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "Thread", pytest.fail)
    assert found(None, {}, "https://[::1]:6443").address


@pytest.mark.parametrize(
    ("judged", "expected"),
    [
        ("10.0.0.1", False),
        ("2001:db8::1", False),
        ("far.example", False),
        ("127.0.0.1", True),
        ("::1", True),
        ("169.254.1.1", True),
        ("fe80::1", True),
        ("0.0.0.0", True),
        ("224.0.0.1", True),
    ],
)
def test_what_api_servers_refuse(judged: str, expected: bool) -> None:
    assert refused(judged) is expected


def test_source_addresses() -> None:
    assert source_addresses("https://127.0.0.1:6443") == ["127.0.0.1"]
    assert {*source_addresses("https://localhost/prefix")} <= {"127.0.0.1", "::1"}


# ---------------------------------------------------------------------- while Farlet runs


def told(looks: Sequence[str | None]) -> list[str]:
    """What is told of a node at 10.0.0.1 when these are found one after the other; None: the look fails."""
    answers = iter(looks)
    addresses: list[str] = []
    given: list[str] = []

    async def look(current: str) -> NodeAddress:
        given.append(current)
        try:
            answer = next(answers)
        except StopIteration:
            raise EOFError from None
        if answer is None:
            raise CertificateError("no network")
        return NodeAddress(answer, "found")

    with pytest.raises(EOFError):
        asyncio.run(follow(look, "10.0.0.1", addresses.append, pause=0))
    assert given[-1] == ["10.0.0.1", *addresses][-1], "a look is told which address would do"
    return addresses


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        (["10.0.0.1"] * 3, []),
        (["10.0.0.2", "10.0.0.2", "10.0.0.2"], ["10.0.0.2"]),
        (["10.0.0.2", "10.0.0.1", "10.0.0.2", "10.0.0.1"], []),
        (["10.0.0.2", "10.0.0.3", "10.0.0.3"], ["10.0.0.3"]),
        (["10.0.0.2", None, "10.0.0.2"], ["10.0.0.2"]),
        ([None, None, "10.0.0.1"], []),
        (["10.0.0.2", "10.0.0.2", "10.0.0.1", "10.0.0.1"], ["10.0.0.2", "10.0.0.1"]),
        (["127.0.0.1", "127.0.0.1"], []),
    ],
)
def test_another_address_is_told_when_it_was_found_twice(looks: list[str | None], expected: list[str]) -> None:
    assert told(looks) == expected


@pytest.mark.parametrize(("given", "environment"), [("10.0.0.1", {}), (None, {"POD_IP": "10.0.0.2"})])
def test_an_address_that_was_given_is_not_followed(given: str | None, environment: dict[str, str]) -> None:
    client: Any = Leads("https://127.0.0.1:6443")
    asyncio.run(asyncio.wait_for(follow_address(given, environment, client, "10.0.0.1", pytest.fail), 60))


@pytest.mark.parametrize("current", ["10.0.0.1", "10.0.0.2", "10.0.0.3"])
def test_of_several_addresses_the_present_one_stays(monkeypatch: pytest.MonkeyPatch, current: str) -> None:
    monkeypatch.setattr(address, "source_addresses", lambda _server: ["10.0.0.1", "10.0.0.2"])
    client: Any = Leads("https://far.example")
    found = asyncio.run(node_address(None, {}, client, current)).address
    assert found == (current if current != "10.0.0.3" else "10.0.0.1")
