"""Where the node is said to be."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from certs.address import NodeAddress, node_address, refused, source_address
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
    address = found(None, {})
    assert address.warning is not None
    assert "--node-address" in address.warning


def test_a_loopback_address_is_warned_of() -> None:
    assert "address not allowed" in (found("127.0.0.1", {}).warning or "")


def test_a_server_that_cannot_be_resolved() -> None:
    with pytest.raises(CertificateError, match="give it with --node-address"):
        found(None, {}, "https://no-such-host.invalid:6443")


@pytest.mark.parametrize(
    ("address", "expected"),
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
def test_what_api_servers_refuse(address: str, expected: bool) -> None:
    assert refused(address) is expected


def test_source_address() -> None:
    assert source_address("https://127.0.0.1:6443") == "127.0.0.1"
    assert source_address("https://localhost/prefix") in ("127.0.0.1", "::1")
