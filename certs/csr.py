"""A serving certificate from the cluster itself: a CertificateSigningRequest for ``kubernetes.io/kubelet-serving``.

kube-controller-manager signs it once somebody has approved it, and nobody does so by themselves. We approve our own
where our rights allow it, and wait otherwise, for as long as it takes. The request is looked at now and then rather
than watched: that takes no right but ``get``, and nothing depends on the seconds.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.kube.access import may
from app.kube.client import Client
from app.kube.errors import Conflict, KubeError, NotFound
from app.kube.objects import Object
from app.kube.resources import CERTIFICATE_SIGNING_REQUESTS as REQUESTS
from certs.errors import CertificateError
from certs.pair import Pair, new_key, pem_of, signing_request

log = logging.getLogger(__name__)

SIGNER: Final = "kubernetes.io/kubelet-serving"
_APPROVED, _DENIED, _FAILED = "Approved", "Denied", "Failed"


class Denied(CertificateError):
    """Somebody does not want us to have a certificate."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request so far."""

    certificate: bytes | None = None
    refusal: str | None = None
    approved: bool = False


class SigningRequests:
    """Gets certificates for one node; each has a key of its own, which stays in memory."""

    def __init__(
        self, client: Client, node: str, *, life: int | None = None, look: tuple[float, float] = (0.3, 15.0)
    ) -> None:
        """*life* in seconds is asked for (the signer decides; at least 600); *look* are the shortest and the longest
        pause between two looks at a request."""
        self.waiting: str | None = None
        """What somebody has to do before there is a certificate."""
        self._client = client
        self._node = node
        self._life = life
        self._look = look

    async def issue(self, addresses: Sequence[str]) -> Pair:
        """Ask, and wait until there is a certificate; raises when it was denied or the request is gone."""
        key = new_key()
        asked = request_object(self._node, signing_request(key, self._node, addresses), self._life)
        made = await self._client.create(REQUESTS.path(), asked)
        name = str(made["metadata"]["name"])
        try:
            await self._approve(name, made)
            return Pair.of(await self._certificate(name), pem_of(key))
        finally:
            self.waiting = None

    async def _approve(self, name: str, made: Object) -> None:
        """Approve it ourselves where we may."""
        try:
            if await self._may_approve():
                await self._write_approval(name, made)
                return
        except KubeError as error:
            log.warning("certificate request %s could not be approved by Farlet itself: %s", name, error)
        self.waiting = _how_to_approve(name)
        log.warning(
            "the certificate of node %s %s (Farlet may not do so itself; docs/certificates.md)",
            self._node,
            self.waiting,
        )

    async def _write_approval(self, name: str, request: Object) -> None:
        while not (request.get("status") or {}).get("conditions"):  # or somebody has decided already
            try:
                await self._client.replace(REQUESTS.path(name=name, subresource="approval"), approved(request))
                return
            except Conflict:
                request = await self._client.get(REQUESTS.path(name=name))

    async def _may_approve(self) -> bool:
        group = "certificates.k8s.io"
        domain = SIGNER.partition("/")[0]
        if not await may(self._client, "update", REQUESTS.plural, group=group, subresource="approval"):
            return False
        for name in (SIGNER, f"{domain}/*"):  # admission looks for both
            if await may(self._client, "approve", "signers", group=group, name=name):
                return True
        return False

    async def _certificate(self, name: str) -> bytes:
        pause, longest = self._look
        while True:
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            pause = min(pause * 1.5, longest)
            try:
                outcome = outcome_of(await self._client.get(REQUESTS.path(name=name)))
            except NotFound:
                raise CertificateError(f"certificate request {name} is gone without an answer") from None
            except KubeError as error:  # the request is still there when the server is back, or gives us the right
                problem = f"certificate request {name} cannot be looked at: {error}"
                if self.waiting != problem:
                    log.warning("%s", problem)
                self.waiting = problem
                continue
            if outcome.refusal is not None:
                raise Denied(f"certificate request {name} {outcome.refusal}")
            if outcome.certificate is not None:
                return outcome.certificate
            if outcome.approved:
                self.waiting = f"certificate request {name} is approved and not signed yet"
            else:
                self.waiting = _how_to_approve(name)


def _how_to_approve(name: str) -> str:
    return f"waits for approval: kubectl certificate approve {name}"


def request_object(node: str, request: bytes, life: int | None = None) -> Object:
    """The object that asks for a certificate."""
    spec: dict[str, Any] = {
        "request": base64.b64encode(request).decode(),
        "signerName": SIGNER,
        "usages": ["digital signature", "server auth"],
    }
    if life is not None:
        spec["expirationSeconds"] = life
    return {
        "apiVersion": REQUESTS.api_version,
        "kind": REQUESTS.kind,
        "metadata": {"generateName": f"farlet-{node}-"},
        "spec": spec,
    }


def approved(request: Object) -> Object:
    """The same request with our approval."""
    condition = {
        "type": _APPROVED,
        "status": "True",
        "reason": "FarletOwnNode",
        "message": "made and approved by the Farlet of this node",
    }
    status = request.get("status") or {}
    return {**request, "status": {**status, "conditions": [*status.get("conditions", ()), condition]}}


def outcome_of(request: Object) -> Outcome:
    """What a request says of itself."""
    status = request.get("status") or {}
    conditions = {condition.get("type"): condition for condition in status.get("conditions") or ()}
    for kind, words in ((_DENIED, "was denied"), (_FAILED, "cannot be signed")):
        if kind in conditions:
            reason, message = conditions[kind].get("reason", ""), conditions[kind].get("message", "")
            said = ": ".join(part for part in (reason, message) if part)
            return Outcome(refusal=f"{words}{f' ({said})' if said else ''}")
    certificate = None
    if encoded := status.get("certificate"):
        try:
            certificate = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            return Outcome(refusal="was answered with something that is no certificate")
    return Outcome(certificate=certificate, approved=_APPROVED in conditions)
