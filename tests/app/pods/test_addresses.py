from __future__ import annotations

import pytest

from app.pods.addresses import IpMap


@pytest.mark.parametrize(
    ("ip", "translated"),
    [
        ("10.1.2.3", "10.201.2.3"),
        ("10.1.255.255", "10.201.255.255"),
        ("10.1.9.7", "172.20.9.7"),
        ("10.2.0.1", "10.2.0.1"),
        ("fd00::3", "fd77::3"),
        ("fd01::3", "fd01::3"),
        ("not an address", "not an address"),
    ],
)
def test_translate(ip: str, translated: str) -> None:
    ip_map = IpMap.parse(["10.1.0.0/16=10.201.0.0/16", "fd00::/64 = fd77::/64", "10.1.9.0/24=172.20.9.0/24"])
    assert ip_map.translate(ip) == translated


def test_no_map() -> None:
    assert IpMap().translate("10.1.2.3") == "10.1.2.3"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("10.1.0.0/16", "expected FROM=TO"),
        ("10.1.0.0/16=10.2.0.0/24", "same family and size"),
        ("10.1.0.0/16=fd00::/16", "same family and size"),
        ("10.1.0.1/16=10.2.0.0/16", "host bits"),
        ("here=there", "'here'"),
    ],
)
def test_mistakes(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        IpMap.parse([text])


def test_the_way_back() -> None:
    there = IpMap.parse(["10.1.0.0/16=10.201.0.0/16", "10.1.2.0/24=10.9.9.0/24"])
    for address in ("10.1.7.7", "10.1.2.3", "192.168.0.1", "not an address"):
        assert there.inverse().translate(there.translate(address)) == address
