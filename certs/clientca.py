"""Who signs the certificates of the kubelet API's clients: the client CA of the local cluster, or that of a file.

The API server publishes its own client CA in the ConfigMap ``kube-system/extension-apiserver-authentication``, for
servers such as this one, and what is taken away there is no longer believed here. The other CA in it, that of request
headers, vouches for proxies that speak for anybody: it is never used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from app.kube.client import Client
from app.kube.errors import Forbidden, KubeError, NotFound
from app.kube.informer import DEFAULT_TIMING, Informer, Timing
from app.kube.objects import Envelope, Key
from app.kube.resources import CONFIG_MAPS
from app.settings import RunSettings
from certs.errors import CertificateError
from certs.files import LOOK, follow

log = logging.getLogger(__name__)

NAMESPACE: Final = "kube-system"
NAME: Final = "extension-apiserver-authentication"
ENTRY: Final = "client-ca-file"

_WAY_OUT: Final = "or give the CA with --client-ca-file"

Use = Callable[[bytes], None]
"""Told of the CA certificates (PEM), whenever they change; raises CertificateError if they cannot be used."""


class ClientCa(Protocol):
    """A client CA and whatever follows its changes."""

    ready: asyncio.Event
    """Set once there is one."""

    async def run(self, use: Use) -> None:
        """Give *use* the CA, and again each time it changes; never returns."""

    def check(self) -> str | None:
        """Why clients cannot be told by their certificates, for ``/readyz``; None if they can."""


def client_ca(settings: RunSettings, client: Client) -> ClientCa:
    """The one that the settings ask for; *client* is the local cluster's."""
    return CaFile(settings.client_ca_file) if settings.client_ca_file else ClusterCa(client)


class CaFile:
    """A client CA in a file, read again when it changes."""

    def __init__(self, path: Path, *, look: float = LOOK) -> None:
        self.ready = asyncio.Event()
        self._path = path
        self._look = look

    def check(self) -> str | None:
        return None if self.ready.is_set() else f"{self._path} is not read yet"

    async def run(self, use: Use) -> None:
        """Raises only if the file is unusable from the start."""

        def take(contents: tuple[bytes, ...]) -> None:
            try:
                use(contents[0])
            except CertificateError as error:
                raise CertificateError(f"{self._path}: {error}") from None
            self.ready.set()

        await follow([self._path], take, look=self._look)


class ClusterCa:
    """The client CA that the local API server publishes, watched."""

    def __init__(self, client: Client, *, timing: Timing = DEFAULT_TIMING) -> None:
        self.ready = asyncio.Event()
        self._client = client
        self._informer = Informer(
            client,
            CONFIG_MAPS,
            namespace=NAMESPACE,
            field_selector=f"metadata.name={NAME}",
            on_change=self._on_change,
            timing=timing,
        )
        self._use: Use | None = None
        self._taken: str | None = None
        self._problem: str | None = None

    def check(self) -> str | None:
        return None if self.ready.is_set() else self._problem or f"ConfigMap {NAMESPACE}/{NAME} is not read yet"

    async def run(self, use: Use) -> None:
        """Goes on trying while the ConfigMap cannot be read; why it cannot is logged and in :meth:`check`."""
        self._use = use
        async with asyncio.TaskGroup() as group:
            group.create_task(self._informer.run())
            group.create_task(self._explain())

    async def _explain(self) -> None:
        """Say what to do if the ConfigMap is not there or not for us: a watch that fails says only that it does."""
        path = CONFIG_MAPS.path(NAMESPACE, NAME)
        try:
            await self._client.get(path)
        except Forbidden:
            self._complain(
                f"no right to read ConfigMap {NAMESPACE}/{NAME}: bind the Role {NAME}-reader of {NAMESPACE} "
                f"(manifests/local-rbac.yaml does), {_WAY_OUT}"
            )
        except NotFound:
            self._complain(f"there is no ConfigMap {NAMESPACE}/{NAME}: {_WAY_OUT.removeprefix('or ')}")
        except KubeError as error:
            self._complain(f"ConfigMap {NAMESPACE}/{NAME} cannot be read: {error}")

    def _on_change(self, key: Key, old: Envelope | None, new: Envelope | None) -> None:
        if new is None:
            log.warning("ConfigMap %s is gone; the client CA from before stays in use", key)
            return
        pem = (new.object().get("data") or {}).get(ENTRY)
        if not pem:
            self._complain(
                f"ConfigMap {key} has no {ENTRY}: this API server accepts no client certificates itself; "
                f"{_WAY_OUT.removeprefix('or ')}"
            )
            return
        if pem == self._taken or self._use is None:
            return
        try:
            self._use(str(pem).encode())
        except CertificateError as error:
            self._complain(f"ConfigMap {key}: {error}; {_WAY_OUT.removeprefix('or ')}")
            return
        log.info("client CA %s from ConfigMap %s", "read again" if self._taken else "read", key)
        self._taken = pem
        self._problem = None
        self.ready.set()

    def _complain(self, problem: str) -> None:
        if self.ready.is_set():
            log.warning("%s; the client CA from before stays in use", problem)
            return
        self._problem = problem
        log.error("clients of the kubelet API cannot be told by their certificates: %s", problem)
