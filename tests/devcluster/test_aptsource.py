"""Both formats of apt's sources, its proxies, and the choice of an archive to bootstrap from."""

from pathlib import Path

import pytest

from devcluster import aptsource
from devcluster.aptsource import NoAptSource, Source, Transport

ONE_LINE = """\
# a comment
deb http://mirror.example/debian bookworm main contrib  # the rest of the line is a comment too
deb-src http://mirror.example/debian bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/debian.gpg] https://mirror.example/debian-security bookworm-security main
deb [signed-by=/etc/apt/keyrings/armoured.asc] http://other.example/apt stable main

#deb http://off.example/debian bookworm main
"""

STANZAS = """\
Types: deb deb-src
# where it comes from
URIs: http://mirror.example/debian http://second.example/debian
Suites: bookworm
 bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian.gpg

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main

Types: deb-src
URIs: http://sources.example/debian
Suites: bookworm
Components: main

types: deb
uris: https://other.example/apt
suites: stable
components: main
signed-by:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mQENBF
 -----END PGP PUBLIC KEY BLOCK-----
"""

KEYRING = Path("/usr/share/keyrings/debian.gpg")


def test_one_line_format() -> None:
    assert aptsource.parse_list(ONE_LINE) == [
        Source("http://mirror.example/debian", ("bookworm",), ("main", "contrib")),
        Source("https://mirror.example/debian-security", ("bookworm-security",), ("main",), KEYRING),
        Source("http://other.example/apt", ("stable",), ("main",)),
    ]


def test_stanza_format() -> None:
    suites = ("bookworm", "bookworm-updates")
    assert aptsource.parse_deb822(STANZAS) == [
        Source("http://mirror.example/debian", suites, ("main",), KEYRING),
        Source("http://second.example/debian", suites, ("main",), KEYRING),
        Source("https://other.example/apt", ("stable",), ("main",)),
    ]


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "deb\n", "deb [arch=amd64]\n", "deb http://x\n"])
def test_nothing_or_half_a_source(text: str) -> None:
    assert aptsource.parse_list(text) == []
    assert aptsource.parse_deb822(text) == []


def test_files_are_read_by_their_suffix(tmp_path: Path) -> None:
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (tmp_path / "sources.list").write_text("deb http://a.example/debian bookworm main\n")
    (parts / "b.list").write_text("deb http://b.example/debian bookworm main\n")
    (parts / "c.sources").write_text("Types: deb\nURIs: http://c.example/debian\nSuites: x\nComponents: main\n")
    (parts / "d.list.disabled").write_text("deb http://d.example/debian bookworm main\n")
    uris = [source.uri for source in aptsource.read_sources(tmp_path)]
    assert uris == ["http://a.example/debian", "http://b.example/debian", "http://c.example/debian"]


def test_machine_without_sources(tmp_path: Path) -> None:
    assert aptsource.read_sources(tmp_path) == []


EXACT = Source("http://mirror.example/any", ("bookworm",), ("main",))
NEWER = Source("http://mirror.example/debian/", ("trixie", "trixie-updates"), ("main",))
SECURITY = Source("http://mirror.example/debian-security", ("bookworm-security",), ("main",))
UPDATES = Source("http://mirror.example/debian", ("bookworm-updates",), ("main",))
THIRD_PARTY = Source("http://other.example/apt", ("stable",), ("main",))
INDIRECT = Source("mirror+file:/etc/apt/mirrors.list", ("bookworm",), ("main",))
EXTRAS = Source("http://mirror.example/debian", ("bookworm",), ("contrib",))


@pytest.mark.parametrize(
    ("sources", "chosen"),
    [
        ([SECURITY, THIRD_PARTY, NEWER, EXACT], EXACT),
        ([SECURITY, THIRD_PARTY, UPDATES, NEWER], NEWER),
        ([INDIRECT, EXTRAS, EXACT], EXACT),
    ],
    ids=["the release itself", "another release of the same archive", "one that can be fetched and is complete"],
)
def test_choice(sources: list[Source], chosen: Source) -> None:
    assert aptsource.choose("bookworm", sources) is chosen


@pytest.mark.parametrize("sources", [[], [SECURITY, THIRD_PARTY], [UPDATES], [INDIRECT], [EXTRAS]])
def test_no_choice(sources: list[Source]) -> None:
    with pytest.raises(NoAptSource, match="no source for Debian 'bookworm'"):
        aptsource.choose("bookworm", sources)


DUMP = """\
APT "";
Acquire::http::Proxy "http://proxy.example:3128";
Acquire::http::Proxy::direct.example "DIRECT";
Acquire::https::Proxy::special.example "http://special-proxy.example:3128";
Acquire::https::CAInfo "/etc/ssl/company.pem";
Acquire::http::Proxy-Auto-Detect "/usr/bin/detect";
"""


@pytest.mark.parametrize(
    ("uri", "proxy"),
    [
        ("http://mirror.example/debian", "http://proxy.example:3128"),
        ("http://direct.example/debian", None),
        ("https://mirror.example/debian", None),
        ("https://special.example/debian", "http://special-proxy.example:3128"),
    ],
)
def test_proxy_of_an_archive(uri: str, proxy: str | None) -> None:
    transport = aptsource.parse_transport(DUMP)
    assert transport.proxy(uri) == proxy
    assert transport.ca_file == "/etc/ssl/company.pem"


def test_no_settings_no_proxy() -> None:
    assert aptsource.parse_transport('Acquire "";\n') == Transport()
