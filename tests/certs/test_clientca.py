"""The client CA from a file. From the cluster: tests/cluster/test_certificates.py."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from app.settings import RunSettings
from certs.clientca import CaFile, ClusterCa, client_ca
from certs.errors import CertificateError
from certs.tls import ServerTls
from devcluster import pki
from tests.certs.talk import Talker, serving
from tests.certs.test_tls import REFUSED
from tests.certs.waiting import running, until


def test_the_file_is_read_again_and_the_old_ca_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    old, new = pki.authority("the old CA"), pki.authority("the new CA")
    path = tmp_path / "ca.crt"
    path.write_bytes(old.certificate)

    async def test() -> None:
        tls = ServerTls()
        server = pki.server(old, "server", ["127.0.0.1"])
        tls.set_certificate(server.certificate, server.key)
        taken: list[bytes] = []

        def use(pem: bytes) -> None:
            tls.set_client_ca(pem)
            taken.append(pem)

        authority = CaFile(path, look=0.02)
        assert authority.check() is not None
        async with running(authority.run(use)), serving(tls) as port:
            await asyncio.wait_for(authority.ready.wait(), 60)
            assert authority.check() is None
            assert (await Talker(pki.client(old, "old")).talk(port)).client == "old"
            path.write_bytes(b"nonsense")
            await until(lambda: "what was read before stays in use" in caplog.text, "warned")
            assert (await Talker(pki.client(old, "old")).talk(port)).client == "old"
            path.write_bytes(new.certificate)
            await until(lambda: len(taken) == 2, "the new CA is taken")
            assert (await Talker(pki.client(new, "new")).talk(port)).client == "new"
            with pytest.raises(REFUSED):
                await Talker(pki.client(old, "old")).talk(port)

    with caplog.at_level(logging.WARNING, "certs"):
        asyncio.run(test())


def test_a_file_that_is_unusable_from_the_start(tmp_path: Path) -> None:
    path = tmp_path / "ca.crt"
    with pytest.raises(CertificateError, match=r"ca\.crt cannot be read: No such file"):
        asyncio.run(CaFile(path).run(ServerTls().set_client_ca))
    path.write_text("nonsense")
    with pytest.raises(CertificateError, match=r"ca\.crt: the client CA cannot be used"):
        asyncio.run(CaFile(path).run(ServerTls().set_client_ca))


def test_the_settings_choose(tmp_path: Path) -> None:
    client: Any = None
    assert isinstance(client_ca(RunSettings(client_ca_file=tmp_path / "ca.crt"), client), CaFile)
    assert isinstance(client_ca(RunSettings(), client), ClusterCa)
