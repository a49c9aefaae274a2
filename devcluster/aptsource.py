"""Where this machine gets Debian packages from, read from apt's own configuration.

A base image is bootstrapped from the same place that the machine installs from: that is a source which is
reachable and trusted here, be it the public mirror, a company's own, or one behind a proxy. apt has two
formats for it, the one-line `sources.list` and the newer `.sources` (deb822); both are read, as
sources.list(5) describes them.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from devcluster.errors import DevclusterError

APT_FOLDER: Final = Path("/etc/apt")
FETCHABLE: Final = ("http", "https", "file")
"""What debootstrap can read; apt also knows mirror lists and other indirections."""


class NoAptSource(DevclusterError):
    """apt has no source from which the release could be bootstrapped."""


@dataclass(frozen=True, slots=True)
class Source:
    """One archive of binary packages."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: Path | None = None
    """The keyring that the archive is checked against, where the source names one in a file."""


@dataclass(frozen=True, slots=True)
class Transport:
    """How apt reaches its archives: proxies, by scheme or by `scheme::host`, and whom it trusts."""

    proxies: Mapping[str, str] = field(default_factory=dict)
    ca_file: str | None = None

    def proxy(self, uri: str) -> str | None:
        """Return the proxy for an archive, None for a direct connection."""
        parts = urlsplit(uri)
        for name in (f"{parts.scheme}::{parts.hostname}", parts.scheme):
            if name in self.proxies:
                return None if self.proxies[name] in ("", "DIRECT") else self.proxies[name]
        return None


def parse_list(text: str) -> list[Source]:
    """Read the one-line format: `deb [option=value ...] uri suite component...`."""
    sources: list[Source] = []
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[([^]]*)\]\s*)?([^\s\[]\S*)\s+(\S+)([^#]*)", line)
        if not match:
            continue
        bracket, uri, suite, components = match.groups(default="")
        options = dict(option.partition("=")[::2] for option in bracket.split())
        keyring = _keyring(options.get("signed-by", ""))
        sources.append(Source(uri, (suite,), tuple(components.split()), keyring))
    return sources


def parse_deb822(text: str) -> list[Source]:
    """Read the stanza format; one stanza may hold several archives and several suites."""
    sources: list[Source] = []
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for stanza in re.split(r"\n\s*\n", "\n".join(lines)):
        fields = {
            name.lower(): " ".join(value.split())
            for name, value in re.findall(r"^([A-Za-z-]+):(.*(?:\n[ \t].*)*)", stanza, re.MULTILINE)
        }
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in (
            "no",
            "false",
        ):
            continue
        suites = tuple(fields.get("suites", "").split())
        components = tuple(fields.get("components", "").split())
        keyring = _keyring(fields.get("signed-by", ""))
        sources += [Source(uri, suites, components, keyring) for uri in fields.get("uris", "").split()]
    return sources


def parse_transport(dump: str) -> Transport:
    """Read what `apt-config dump` prints: lines of `Name::Of::Setting "value";`."""
    settings = dict(re.findall(r'^Acquire::(\S+) "(.*)";$', dump, re.MULTILINE))
    proxies = {
        f"{scheme.lower()}{host}": value
        for name, value in settings.items()
        for scheme, host in re.findall(r"^(https?)::Proxy((?:::[^:]+)?)$", name, re.IGNORECASE)
    }
    return Transport(proxies, settings.get("https::CAInfo") or settings.get("https::CaInfo"))


def choose(suite: str, sources: Iterable[Source]) -> Source:
    """Return the archive to bootstrap a release from.

    One that is configured for the release itself is best. Otherwise one for another release is taken: a
    Debian archive holds all of them. Archives of updates only (`bookworm-security`) and of third parties lack
    a base system.
    """
    usable = [source for source in sources if urlsplit(source.uri).scheme in FETCHABLE and "main" in source.components]
    for source in usable:
        if suite in source.suites:
            return source
    for source in usable:
        if urlsplit(source.uri).path.rstrip("/").endswith("/debian") and any("-" not in name for name in source.suites):
            return source
    raise NoAptSource(
        f"apt has no source for Debian {suite!r}, from which the base image is made: add one "
        "(sources.list(5)), for example as a file in /etc/apt/sources.list.d, and run `apt-get update`"
    )


def read_sources(folder: Path = APT_FOLDER) -> list[Source]:
    """Read all sources of the machine, in the order that apt reads them."""
    parts = sorted((folder / "sources.list.d").glob("*"))
    sources: list[Source] = []
    for path in [folder / "sources.list", *parts]:
        if path.suffix == ".list" and path.is_file():
            sources += parse_list(path.read_text())
        elif path.suffix == ".sources" and path.is_file():
            sources += parse_deb822(path.read_text())
    return sources


def read_transport() -> Transport:
    """Ask apt for its proxies and authorities."""
    dump = subprocess.run(["apt-config", "dump"], check=True, capture_output=True, text=True)
    return parse_transport(dump.stdout)


def _keyring(value: str) -> Path | None:
    """Return the keyring if gpgv can read it: not a key in the text, a fingerprint, or an armoured file."""
    return Path(value) if value.startswith("/") and "," not in value and not value.endswith(".asc") else None
