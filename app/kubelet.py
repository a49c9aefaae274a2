"""The kubelet API of the virtual node, put together: its certificates, its server and the calls to the remote."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterable

from prometheus_client.registry import Collector

from app import __version__, names
from app.facts import Facts, StartError
from app.health import Check
from app.kube.client import Client
from app.metrics import CertificateCollector
from app.settings import RunSettings
from app.usage import Way
from certs.address import follow_address
from certs.clientca import client_ca
from certs.errors import CertificateError
from certs.probe import probe
from certs.serving import serving_certificate
from certs.tls import ServerTls
from kubelet_api import limits
from kubelet_api.limits import Limits
from kubelet_api.remote import RemoteCalls
from kubelet_api.server import KubeletServer
from kubelet_api.twins import Twins
from kubelet_api.usage.live import Usage
from kubelet_api.usage.sources import Kubelets, MetricsApi, Nothing, Source


class Kubelet:
    """Serves the kubelet API in the event loop that it is started in."""

    def __init__(
        self,
        settings: RunSettings,
        facts: Facts,
        *,
        local: Client,
        remote: Client,
        twins: Twins,
        collectors: Iterable[Collector] = (),
    ) -> None:
        """Both clients must be of the same event loop as this."""
        host, _, port = settings.kubelet_address.rpartition(":")
        self._settings = settings
        self._address = facts.address
        self._local = local
        self._tls = ServerTls()
        self._certificate = serving_certificate(settings, local, [facts.address])
        self._client_ca = client_ca(settings, local)
        self._server = KubeletServer(
            host=host.strip("[]"),
            port=int(port),
            tls=self._tls.context,
            peer_certificate=self._tls.peer_certificate,
            node=settings.node_name,
            version=__version__,
            twins=twins,
            remote=RemoteCalls(remote, stall=settings.stream_stall),
            reviews=local,
            limits=Limits(
                connections=max(limits.DEFAULT.connections, 2 * settings.max_streams),
                streams=settings.max_streams,
                streams_per_user=settings.max_streams_per_user,
                idle=settings.stream_idle,
                stall=settings.stream_stall,
            ),
            collectors=[*collectors, CertificateCollector(self._certificate_life)],
            usage=Usage(
                twins, settings.node_name, _source(settings, facts, remote), interval=settings.metrics_interval
            ),
        )
        self.ready: dict[str, Check] = {"certificate": self._certificate.check, "client-ca": self._client_ca.check}
        """Named checks, for ``/readyz``."""

    @property
    def port(self) -> int:
        """Where it listens, once it is started."""
        return self._server.port

    async def start(self) -> None:
        """Listen."""
        try:
            await self._server.start()
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            why = "somebody else listens there, a kubelet perhaps" if taken else error.strerror or str(error)
            raise StartError(
                f"the kubelet API cannot listen on {self._settings.kubelet_address}: {why}; "
                "give another with --kubelet-address HOST:PORT"
            ) from error

    async def run(self) -> None:
        """Serve until cancelled; then streams get their time, and all ends."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(
                    self._certificate.run(lambda pair: self._tls.set_certificate(pair.certificate, pair.key))
                )
                group.create_task(self._client_ca.run(self._tls.set_client_ca))
                group.create_task(
                    follow_address(
                        self._settings.node_address, os.environ, self._local, self._address, self._set_address
                    )
                )
                group.create_task(self._server.run(grace=self._settings.stream_grace))
        except* CertificateError as errors:
            raise StartError(str(errors.exceptions[0])) from None

    def exposition(self) -> bytes:
        """What is on ``/metrics``."""
        return self._server.metrics.exposition()

    def _set_address(self, address: str) -> None:
        self._address = address
        self._certificate.set_addresses([address])

    def _certificate_life(self) -> tuple[float, float] | None:
        pair = self._certificate.pair
        return (pair.not_before, pair.not_after) if pair is not None else None

    async def try_out(self) -> str:
        """Whether ``kubectl logs`` will work, in one line; to be asked when the node is there."""
        await asyncio.gather(self._certificate.ready.wait(), self._client_ca.ready.wait())
        result = await probe(self._local, self._settings.node_name, self._address, self.port)
        return result.line


def _source(settings: RunSettings, facts: Facts, remote: Client) -> Source:
    """Where it is read what pods use."""
    match facts.usage.way if facts.usage is not None else Way.NONE:
        case Way.METRICS_API:
            ours = f"{names.LABEL_ORIGIN}={facts.local_id},{names.LABEL_NODE}={settings.node_name}"
            return MetricsApi(remote, ours, facts.remote_namespaces)
        case Way.STRAIGHT:
            return Kubelets(remote, straight=True)
        case Way.PROXY:
            return Kubelets(remote, straight=False)
        case Way.NONE:
            return Nothing()
