"""How the API server finds the webhook and knows that it is ours: certificate, authority, and where to call.

The leader makes and renews them; every replica serves with what the Secret holds, as soon as it changes. An authority
is published before anything is served that it signed.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import logging
from collections.abc import Sequence
from typing import Any, Final

from cryptography import x509

from app.kube.client import Client, PatchKind
from app.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from app.kube.informers import Cache
from app.kube.objects import Envelope, Key, Object
from app.kube.resources import (
    MUTATING_WEBHOOK_CONFIGURATIONS,
    SECRETS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Resource,
)
from app.names import FIELD_MANAGER_OPERATOR, LABEL_ENABLED
from app.namespaces.mapping import RESERVED
from app.operator.webhook import OFFLOADINGS_PATH, PODS_PATH
from certs.authority import Holding, is_usable, renewed, split
from certs.errors import CertificateError
from certs.tls import ServerTls

log = logging.getLogger(__name__)

_LOOK: Final = 30.0
_SETTLE: Final = 3.0
"""Seconds in which API servers hear of a new authority."""
_RETRY: Final = 2.0
_FIELDS: Final = ("ca.crt", "ca.key", "ca-before.crt", "tls.crt", "tls.key")


def configurations(name: str, own_namespace: str) -> list[tuple[Resource, Object]]:
    """Both configurations as ``manifests/operator/webhooks.yaml`` has them, without where to call."""
    metadata = {"name": name, "labels": {"app.kubernetes.io/name": "farlet"}}
    common: Object = {"admissionReviewVersions": ["v1"], "matchPolicy": "Equivalent"}
    not_reserved = {
        "key": "kubernetes.io/metadata.name",
        "operator": "NotIn",
        "values": [*sorted(RESERVED), own_namespace],
    }
    enabled = {"key": LABEL_ENABLED, "operator": "In", "values": ["true"]}
    pods: Object = {
        **common,
        "name": "pods.farlet.dev",
        "failurePolicy": "Fail",
        "reinvocationPolicy": "IfNeeded",
        "sideEffects": "None",
        "timeoutSeconds": 5,
        "namespaceSelector": {"matchExpressions": [enabled, not_reserved]},
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pods"],
                "scope": "Namespaced",
            }
        ],
    }
    offloadings: Object = {
        **common,
        "name": "namespaceoffloadings.farlet.dev",
        "failurePolicy": "Ignore",
        "sideEffects": "NoneOnDryRun",
        "timeoutSeconds": 10,
        "rules": [
            {
                "apiGroups": ["farlet.dev"],
                "apiVersions": ["v1alpha1"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["namespaceoffloadings"],
                "scope": "Namespaced",
            }
        ],
    }
    return [
        (kind, {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "webhooks": [webhook]})
        for kind, webhook in (
            (MUTATING_WEBHOOK_CONFIGURATIONS, pods),
            (VALIDATING_WEBHOOK_CONFIGURATIONS, offloadings),
        )
    ]


_PATHS: Final = {"pods.farlet.dev": PODS_PATH, "namespaceoffloadings.farlet.dev": OFFLOADINGS_PATH}


class Registration:
    """One webhook, in one Secret and two configurations."""

    def __init__(
        self,
        local: Client,
        *,
        secrets: Cache,
        namespace: str,
        secret: str,
        name: str,
        service: str,
        url: str | None,
        addresses: Sequence[str],
        life: datetime.timedelta,
    ) -> None:
        """*url*: where to call instead of the Service, for an operator outside of the cluster."""
        self._local = local
        self._secrets = secrets
        self._namespace, self._secret = namespace, secret
        self._name = name
        self._service = service
        self._url = url.rstrip("/") if url else None
        self._addresses = list(addresses)
        self._life = life
        self._wake = asyncio.Event()
        self._serving = b""
        self.ready = asyncio.Event()

    def check(self) -> str | None:
        """For ``/readyz``."""
        return None if self.ready.is_set() else "there is no certificate yet"

    # ------------------------------------------------------------------ every replica

    def on_secret(self, _key: Key, _old: Envelope | None, _new: Envelope | None) -> None:
        self._wake.set()

    async def follow(self, tls: ServerTls) -> None:
        """Serve with what the Secret holds, until cancelled."""
        while True:
            envelope = self._secrets.get(Key(self._namespace, self._secret))
            holding = _holding(envelope.object()) if envelope is not None else None
            if holding is not None and holding.certificate != self._serving:
                try:
                    tls.set_certificate(holding.certificate, holding.key)
                except CertificateError as error:
                    log.error("the certificate of the webhook cannot be used: %s", error)
                else:
                    self._serving = holding.certificate
                    self.ready.set()
                    log.info("the webhook serves with a certificate of serial %x", _serial(holding))
            self._wake.clear()
            await self._wake.wait()

    # ------------------------------------------------------------------ the leader

    async def keep(self, leading: Client) -> None:
        """Renew in time, and have both configurations trust it; until cancelled. *leading* is fenced."""
        while True:
            try:
                pause = await self._keep(leading)
            except (KubeError, CertificateError) as error:
                log.warning("the webhook's registration was not brought up to date: %s", error)
                pause = _RETRY
            await asyncio.sleep(pause)

    async def _keep(self, leading: Client) -> float:
        path = SECRETS.path(self._namespace, self._secret)
        try:
            secret: Object | None = await self._local.get(path)
        except NotFound:
            secret = None
        holding = _holding(secret) if secret is not None else None
        trusted = await self._trusted() if holding is None or not is_usable(holding) else b""
        now = datetime.datetime.now(datetime.UTC)
        new = renewed(holding, self._addresses, self._life, now, trusted)
        if new is not None:
            if holding is None or new.authority != holding.authority:
                await self._publish(leading, new.bundle)
                await asyncio.sleep(_SETTLE)
            await self._store(leading, path, secret, new)
            holding = new
        assert holding is not None
        await self._publish(leading, holding.bundle)
        return min(_LOOK, self._life.total_seconds() / 20)

    async def _store(self, leading: Client, path: str, secret: Object | None, holding: Holding) -> None:
        data = {name: base64.b64encode(value).decode() for name, value in zip(_FIELDS, _values(holding), strict=True)}
        try:
            if secret is None:
                body: Object = {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "type": "Opaque",
                    "metadata": {"name": self._secret, "namespace": self._namespace},
                    "data": data,
                }
                await leading.create(SECRETS.path(self._namespace), body)
            else:
                await leading.replace(path, {**secret, "data": data})
        except (Conflict, AlreadyExists) as error:
            raise CertificateError(f"the Secret {self._secret} was changed meanwhile") from error
        log.info("stored a new certificate of the webhook in Secret %s/%s", self._namespace, self._secret)

    async def _trusted(self) -> bytes:
        """The authorities that are in the configurations now."""
        found = b""
        for kind, _ in configurations(self._name, self._namespace):
            try:
                content = await self._local.get(kind.path(name=self._name))
            except NotFound:
                continue
            for webhook in content.get("webhooks") or []:
                bundle = (webhook.get("clientConfig") or {}).get("caBundle") or ""
                found += base64.b64decode(bundle) + b"\n"
        return found

    async def _publish(self, leading: Client, bundle: bytes) -> None:
        """Have both configurations trust these authorities, and lead here; made if they are missing."""
        encoded = base64.b64encode(bundle).decode()
        for kind, wanted in configurations(self._name, self._namespace):
            path = kind.path(name=self._name)
            try:
                content = await self._local.get(path)
            except NotFound:
                for webhook in wanted["webhooks"]:
                    webhook["clientConfig"] = self._client_config(webhook["name"], {}, encoded)
                await leading.create(kind.path(), wanted, {"fieldManager": FIELD_MANAGER_OPERATOR})
                log.info("made %s %s", kind.kind, self._name)
                continue
            steps: list[Object] = []
            for index, webhook in enumerate(content.get("webhooks") or []):
                if webhook["name"] not in _PATHS:
                    continue
                have = webhook.get("clientConfig") or {}
                config = self._client_config(webhook["name"], have, encoded)
                if config != have:
                    steps.append({"op": "test", "path": f"/webhooks/{index}/name", "value": webhook["name"]})
                    steps.append({"op": "replace", "path": f"/webhooks/{index}/clientConfig", "value": config})
            if steps:
                await leading.patch(path, steps, PatchKind.JSON, {"fieldManager": FIELD_MANAGER_OPERATOR})

    def _client_config(self, webhook: str, have: dict[str, Any], bundle: str) -> Object:
        if self._url is not None:
            return {"url": f"{self._url}{_PATHS[webhook]}", "caBundle": bundle}
        service = {"name": self._service, "namespace": self._namespace, "path": _PATHS[webhook], "port": 443}
        return {"service": have.get("service") or service, "caBundle": bundle}


def _values(holding: Holding) -> tuple[bytes, ...]:
    before = b"".join(pem.rstrip() + b"\n" for pem in holding.before)
    return (holding.authority, holding.authority_key, before, holding.certificate, holding.key)


def _holding(secret: Object) -> Holding | None:
    """What a Secret holds; None if that is not all of it."""
    data = secret.get("data") or {}
    try:
        authority, authority_key, before, certificate, key = (
            base64.b64decode(data.get(name) or "") for name in _FIELDS
        )
    except ValueError:
        return None
    if not (authority and authority_key and certificate and key):
        return None
    return Holding(authority, authority_key, tuple(split(before)), certificate, key)


def _serial(holding: Holding) -> int:
    return x509.load_pem_x509_certificate(holding.certificate).serial_number
