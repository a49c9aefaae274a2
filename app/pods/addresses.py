"""Addresses of remote pods as the local cluster sees them.

Where the networks of two clusters are joined through a translation, a pod has another address on each side. The map
swaps the network and keeps the host's part; an address outside every mapped network is told as it is.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class IpMap:
    """Networks of the remote cluster and those that stand for them in the local one."""

    rules: tuple[tuple[Network, Network], ...] = ()

    @classmethod
    def parse(cls, texts: Iterable[str]) -> IpMap:
        """From ``FROM=TO`` pairs of networks, such as ``10.1.0.0/16=10.201.0.0/16``; ValueError says what is wrong."""
        rules = [_rule(text) for text in texts]
        rules.sort(key=lambda rule: rule[0].prefixlen, reverse=True)  # the narrowest network decides
        return cls(tuple(rules))

    def inverse(self) -> IpMap:
        """The way back."""
        rules = [(target, source) for source, target in self.rules]
        return IpMap(tuple(sorted(rules, key=lambda rule: rule[0].prefixlen, reverse=True)))

    def translate(self, ip: str) -> str:
        """The local address for a remote one."""
        try:
            address = ipaddress.ip_address(ip)
        except ValueError:
            return ip
        for source, target in self.rules:
            if address in source:
                host = int(address) - int(source.network_address)
                return str(target[host])
        return ip


def _rule(text: str) -> tuple[Network, Network]:
    source, equals, target = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r}: expected FROM=TO, two networks such as 10.1.0.0/16=10.201.0.0/16")
    try:
        networks = ipaddress.ip_network(source.strip()), ipaddress.ip_network(target.strip())
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from error
    if networks[0].version != networks[1].version or networks[0].prefixlen != networks[1].prefixlen:
        raise ValueError(f"{text!r}: both networks must be of the same family and size")
    return networks
