"""When certificates are renewed, what happens when that fails, and how loud it gets."""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from app.settings import RunSettings
from app.settings import ServingCertificate as Source
from certs.csr import Denied, SigningRequests
from certs.errors import CertificateError
from certs.files import PairFiles
from certs.pair import Pair, self_signed
from certs.serving import Renewed, SelfSigned, Timing, Urgency, serving_certificate, urgency
from devcluster import pki
from tests.certs.waiting import running, until

DAY = 24 * 3600.0
QUICK = Timing(retry=(0.01, 0.05), denied=0.05, look=0.01)


class Clock:
    """The real one, put forward by hand."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


class Scripted:
    """Issues certificates of a day, unless it is told to fail or to wait for a person."""

    def __init__(self, clock: Clock) -> None:
        self.waiting: str | None = None
        self.failure: Exception | None = None
        self.approved = asyncio.Event()
        self.approved.set()
        self.asked: list[tuple[str, ...]] = []
        self._clock = clock

    async def issue(self, addresses: Sequence[str]) -> Pair:
        self.asked.append(tuple(addresses))
        if self.failure is not None:
            raise self.failure
        if not self.approved.is_set():
            self.waiting = "waits for approval: kubectl certificate approve x"
            try:
                await self.approved.wait()
            finally:
                self.waiting = None
        made = self_signed("far", addresses, datetime.timedelta(days=1))
        return Pair(
            made.certificate,
            made.key,
            made.not_before + self._clock.ahead,
            made.not_after + self._clock.ahead,
            made.names,
        )


class Case:
    """A certificate that is kept, and what came of it."""

    def __init__(self, addresses: Sequence[str] = ("10.0.0.1",), timing: Timing = QUICK) -> None:
        self.clock = Clock()
        self.issuer = Scripted(self.clock)
        self.used: list[Pair] = []
        self.certificate = Renewed(self.issuer, addresses, timing=timing, clock=self.clock)

    def run(self) -> Coroutine[Any, Any, None]:
        return self.certificate.run(self.used.append)


def test_renewed_in_the_last_third_of_its_life() -> None:
    async def test() -> None:
        case = Case()
        async with running(case.run()):
            await asyncio.wait_for(case.certificate.ready.wait(), 60)
            assert case.certificate.check() is None
            case.clock.ahead = 0.69 * DAY
            await asyncio.sleep(0.2)
            assert len(case.used) == 1
            case.clock.ahead = 0.91 * DAY
            await until(lambda: len(case.used) == 2, "renewed")
            assert case.used[0].key != case.used[1].key
            await asyncio.sleep(0.2)
            assert len(case.used) == 2

    asyncio.run(test())


def test_a_clock_that_is_ahead_does_not_ask_for_one_after_the_other(caplog: pytest.LogCaptureFixture) -> None:
    """The cluster's clock is right, so that what it signs has ended here before it is served."""

    async def test() -> None:
        case = Case()
        case.issuer = Scripted(Clock())
        case.certificate = Renewed(case.issuer, ["10.0.0.1"], timing=QUICK, clock=case.clock)
        case.clock.ahead = 2 * DAY
        async with running(case.run()):
            await until(lambda: case.used, "issued")
            await asyncio.sleep(0.2)
            assert len(case.issuer.asked) == 1
            case.certificate.set_addresses(["10.0.0.2"])
            await until(lambda: len(case.used) == 2, "another address does not wait")

    with caplog.at_level(logging.WARNING, "certs"):
        asyncio.run(test())
    assert "do the clocks of this machine and of the local cluster differ?" in caplog.text


def test_renewed_at_once_when_the_addresses_change() -> None:
    async def test() -> None:
        case = Case(timing=Timing())
        async with running(case.run()):
            await asyncio.wait_for(case.certificate.ready.wait(), 60)
            case.certificate.set_addresses(["10.0.0.1", "10.0.0.1"])
            await asyncio.sleep(0.1)
            assert len(case.used) == 1
            case.certificate.set_addresses(["10.0.0.2", "far.example"])
            await until(lambda: len(case.used) == 2, "renewed")
            assert case.used[1].names == {"10.0.0.2", "far.example"}

    asyncio.run(test())


def test_other_addresses_while_it_waits_are_asked_for_anew() -> None:
    async def test() -> None:
        case = Case()
        case.issuer.approved.clear()
        async with running(case.run()):
            await until(lambda: case.issuer.asked, "asked")
            await until(lambda: "kubectl certificate approve x" in (case.certificate.check() or ""), "told what to do")
            case.certificate.set_addresses(["10.0.0.2"])
            await until(lambda: len(case.issuer.asked) == 2, "asked again")
            case.issuer.approved.set()
            await until(lambda: case.used, "issued")
            assert [pair.names for pair in case.used] == [{"10.0.0.2"}]

    asyncio.run(test())


def test_nothing_is_asked_for_without_an_address() -> None:
    async def test() -> None:
        case = Case(addresses=())
        async with running(case.run()):
            await until(lambda: case.certificate.check() == "the node has no address yet", "told")
            assert case.issuer.asked == []
            case.certificate.set_addresses(["10.0.0.2"])
            await until(lambda: case.used, "issued")

    asyncio.run(test())


@pytest.mark.parametrize("failure", [CertificateError("no luck"), Denied("request x was denied")])
def test_failure_keeps_the_old_one_and_tries_again(failure: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        case = Case()
        async with running(case.run()):
            await until(lambda: case.used, "issued")
            case.issuer.failure = failure
            case.clock.ahead = 0.92 * DAY
            await until(lambda: len(case.issuer.asked) >= 4, "tried several times")
            assert len(case.used) == 1
            assert case.certificate.check() is None
            case.clock.ahead = 1.01 * DAY
            assert str(failure) in (case.certificate.check() or "")
            case.issuer.failure = None
            await until(lambda: len(case.used) == 2, "renewed")
            assert case.certificate.check() is None

    with caplog.at_level(logging.WARNING, "certs"):
        asyncio.run(test())
    assert f"no new serving certificate: {failure}; the one from before stays in use" in caplog.text


def test_it_gets_louder_near_the_end(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        case = Case(timing=Timing(share=(0.5, 0.5), look=0.01))
        async with running(case.run()):
            await until(lambda: case.used, "issued")
            case.issuer.approved.clear()
            case.clock.ahead = 0.6 * DAY
            await until(lambda: case.issuer.waiting, "a new one waits for approval")
            for share in (0.92, 0.98, 1.02):
                said = len(caplog.records)
                case.clock.ahead = share * DAY
                await until(lambda: len(caplog.records) > said, "it is said")  # noqa: B023 - until returns first

    with caplog.at_level(logging.WARNING, "certs"):
        asyncio.run(test())
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.ERROR, logging.CRITICAL]
    assert all("kubectl certificate approve x" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("now", "degree"),
    [
        (0, Urgency.FINE),
        (899, Urgency.FINE),
        (900, Urgency.SOON),
        (970, Urgency.NOW),
        (999, Urgency.NOW),
        (1000, Urgency.ENDED),
        (5000, Urgency.ENDED),
    ],
)
def test_urgency(now: float, degree: Urgency) -> None:
    assert urgency(0, 1000, now) is degree


def test_self_signed_comes_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        used: list[Pair] = []
        async with running(Renewed(SelfSigned("far"), ["10.0.0.1"]).run(used.append)):
            await until(lambda: used, "issued")

    with caplog.at_level(logging.WARNING, "certs"):
        asyncio.run(test())
    assert "self-signed" in caplog.text


def write(folder: Path, pair: pki.Pair) -> tuple[Path, Path]:
    pair.write(folder, "tls")
    return folder / "tls.crt", folder / "tls.key"


def test_files_are_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = pki.authority("ca")
    first, second = (pki.server(authority, name, ["10.0.0.1"]) for name in "ab")
    files = write(tmp_path, first)

    async def test() -> None:
        used: list[Pair] = []
        clock = Clock()
        certificate = PairFiles(*files, ["10.0.0.1"], look=0.02, clock=clock)
        async with running(certificate.run(used.append)):
            await asyncio.wait_for(certificate.ready.wait(), 60)
            files[0].write_bytes(second.certificate)  # half of a change
            await until(lambda: "the key is not that of the certificate" in caplog.text, "warned")
            assert len(used) == 1
            assert certificate.check() is None
            files[1].write_bytes(second.key)
            await until(lambda: len(used) == 2, "the new pair is used")
            files[0].unlink()
            await until(lambda: "tls.crt cannot be read: No such file" in caplog.text, "warned")
            files[0].write_bytes(first.certificate)
            files[1].write_bytes(first.key)
            await until(lambda: len(used) == 3, "the pair from before is used")
            certificate.set_addresses(["10.0.0.9"])
            clock.ahead = 400 * DAY
            assert "has ended; put a new one there" in (certificate.check() or "")

    with caplog.at_level(logging.WARNING, "certs"):
        asyncio.run(test())
    assert "is not for 10.0.0.9" in caplog.text


def test_files_that_are_unusable_from_the_start(tmp_path: Path) -> None:
    authority = pki.authority("ca")
    files = write(tmp_path, pki.server(authority, "a", ["x"]))
    files[1].write_bytes(pki.server(authority, "b", ["x"]).key)
    with pytest.raises(CertificateError, match=r"tls.crt and .*tls.key: the key is not that of the certificate"):
        asyncio.run(PairFiles(*files).run(lambda pair: None))
    with pytest.raises(CertificateError, match="cannot be read: No such file"):
        asyncio.run(PairFiles(tmp_path / "none", files[1]).run(lambda pair: None))


def test_the_settings_choose(tmp_path: Path) -> None:
    client: Any = None
    made = serving_certificate(RunSettings(), client, ["10.0.0.1"])
    assert isinstance(made, Renewed)
    assert isinstance(made._issuer, SigningRequests)
    made = serving_certificate(RunSettings(serving_certificate=Source.SELF_SIGNED), client, ["10.0.0.1"])
    assert isinstance(made, Renewed)
    assert isinstance(made._issuer, SelfSigned)
    settings = RunSettings(serving_certificate=Source.FILES, tls_cert_file=tmp_path / "a", tls_key_file=tmp_path / "b")
    assert isinstance(serving_certificate(settings, client, []), PairFiles)
