"""The webhook's own authority: renewed in time, trusted before and after."""

from __future__ import annotations

import datetime
import ssl
from dataclasses import replace

from cryptography import x509

from certs.authority import AUTHORITY_LIVES, Holding, renewed, split

NAMES = ["farlet-webhook.farlet.svc", "192.0.2.1"]
LIFE = datetime.timedelta(days=90)
NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)


def made(now: datetime.datetime = NOW) -> Holding:
    holding = renewed(None, NAMES, LIFE, now)
    assert holding is not None
    return holding


def test_it_is_verified_by_its_authority_and_for_its_names() -> None:
    holding = made()
    leaf = x509.load_pem_x509_certificate(holding.certificate)
    leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(holding.authority))
    assert holding.pair().missing(NAMES) == []
    assert "PRIVATE" not in repr(holding)
    assert renewed(holding, NAMES, LIFE, NOW) is None
    ssl.create_default_context(cadata=holding.bundle.decode())


def test_the_certificate_is_renewed_and_the_authority_stays() -> None:
    holding = made()
    assert renewed(holding, NAMES, LIFE, NOW + LIFE * 0.6) is None
    new = renewed(holding, NAMES, LIFE, NOW + LIFE * 0.7)
    assert new is not None
    assert (new.authority, new.certificate != holding.certificate) == (holding.authority, True)
    other = renewed(holding, [*NAMES, "other"], LIFE, NOW)
    assert other is not None
    assert other.pair().missing(["other"]) == []


def test_an_old_authority_is_trusted_until_it_ends() -> None:
    holding = made()
    due = NOW + LIFE * AUTHORITY_LIVES * 0.7
    new = renewed(holding, NAMES, LIFE, due)
    assert new is not None
    assert new.authority != holding.authority
    assert split(new.bundle) == [new.authority, holding.authority]
    over = renewed(new, NAMES, LIFE, NOW + LIFE * AUTHORITY_LIVES)
    assert over is not None
    assert over.before == ()


def test_a_lost_or_broken_secret_is_made_anew_and_what_is_trusted_stays_so() -> None:
    holding = made()
    again = renewed(None, NAMES, LIFE, NOW, trusted=holding.bundle + holding.bundle)
    assert again is not None
    assert again.before == (holding.authority,)
    other = made()
    for broken in (
        replace(holding, key=other.key),
        replace(holding, authority_key=other.authority_key),
        replace(holding, certificate=b"x"),
        replace(holding, certificate=other.certificate, key=other.key),
        replace(holding, authority=b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
        replace(holding, authority=b"x", before=(b"y",)),
    ):
        mended = renewed(broken, NAMES, LIFE, NOW, trusted=holding.bundle)
        assert mended is not None
        assert holding.authority in mended.before, "what is served now is trusted until it is served no more"
        assert renewed(mended, NAMES, LIFE, NOW) is None
    kept = renewed(replace(holding, before=(b"x", other.authority)), NAMES, LIFE, NOW)
    assert kept is not None
    assert kept.before == (other.authority,)
    assert renewed(None, NAMES, LIFE, NOW, trusted=b"not PEM") is not None
