"""Credentials as they are now: headers and a TLS context, renewed when files change, when they expire, on a 401.

The TLS context is a new one at each renewal: a loaded certificate cannot be taken back, and connections are pooled by
context, so that a new one also means new connections. Private keys never touch a disk on their way into it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import datetime
import functools
import logging
import os
import re
import ssl
import time
from dataclasses import dataclass, field

import msgspec

from app.kube.config import Connection, ExecPlugin
from app.kube.errors import ConfigError
from app.kube.tls import UnusableCertificate, load_certificate

log = logging.getLogger(__name__)

FILE_CHECK = 1.0
"""Seconds between two looks at the files."""

EXPIRY_MARGIN = 30.0
"""Seconds before expiry at which a plugin is asked again; less for credentials that are shorter-lived."""

PLUGIN_PAUSE = 5.0
"""Seconds between two runs of a plugin, however often its credentials are refused."""

PLUGIN_TIMEOUT = 60.0

_MAX_PLUGIN_OUTPUT = 1 << 20
_SECRETS = re.compile(r"[A-Za-z0-9+/=_.~-]{32,}")


@dataclass(frozen=True, slots=True)
class Access:
    """All that a request needs to know of the server and of who we are."""

    server: str
    """URL with the path prefix, without a slash at its end."""
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    tls: ssl.SSLContext | None = field(repr=False)
    """None for a server without TLS."""
    server_hostname: str | None = None
    """The name that the server's certificate must have, where it is not the URL's host."""
    proxy: str | None = field(default=None, repr=False)
    expires: float | None = None
    """When the credentials end, in seconds of the epoch, where that is known."""


class Credentials:
    """The credentials of one connection, kept fresh."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._tls = _tls_context(connection, connection.user.certificate)  # a bad certificate is said at the start
        self._access: Access | None = None
        self._renew_at = float("inf")
        self._plugin_ran = float("-inf")
        self._looked = time.monotonic()
        self._renewing = asyncio.Lock()

    @property
    def source(self) -> str:
        """Where they come from, for people."""
        return self._connection.source

    def expiries(self) -> dict[str, float]:
        """When what is in use ends, where that is known: the ``certificate`` of the client, and the ``token``.

        What a plugin gives counts as a token. Other threads may ask.
        """
        access, certificate = self._access, self._connection.user.certificate
        found = {
            "certificate": expiry_of_certificate(certificate) if certificate else None,
            "token": access.expires if access is not None else None,
        }
        return {kind: moment for kind, moment in found.items() if moment is not None}

    async def current(self) -> Access:
        """What to use now."""
        access = self._access
        now = time.monotonic()
        if access is not None and now - self._looked < FILE_CHECK and time.time() < self._renew_at:
            return access
        async with self._renewing:
            if time.monotonic() - self._looked >= FILE_CHECK:
                self._looked = time.monotonic()
                if self._connection.changed():
                    self._reread()
            if self._access is None:
                self._access = await self._make()
            elif time.time() >= self._renew_at:
                await self._renew_early(self._access)
            return self._access

    async def refused(self, access: Access) -> bool:
        """Renew what the server refused; whether there is something else to try now."""
        async with self._renewing:
            if self._access is not None and self._access is not access:
                return True  # somebody else's request was refused before
            plugin = self._connection.user.plugin
            if plugin is not None and time.monotonic() - self._plugin_ran < PLUGIN_PAUSE:
                return False
            self._reread()
            made = await self._make()
            if plugin is None and made.headers == access.headers and made.tls is access.tls:
                return False
            self._access = made
            return True

    def why_refused(self, access: Access) -> str:
        """What a person should know when the server does not accept who we are."""
        ended = ""
        if access.expires is not None and access.expires <= time.time():
            when = datetime.datetime.fromtimestamp(access.expires, datetime.UTC)
            ended = f" (expired {when:%Y-%m-%d %H:%M:%S} UTC)"
        return f"the server refuses the credentials from {self.source}{ended}; renew them there"

    def _reread(self) -> None:
        """Take what the files say now; keep what there is if they cannot be used, as in the middle of a change."""
        try:
            connection = self._connection.reload()
            same = connection == self._connection
            tls = self._tls if same else _tls_context(connection, connection.user.certificate)
        except ConfigError as error:
            log.warning("credentials not renewed, going on with those from before: %s", error)
            return
        if not same:
            log.info("credentials read again from %s", connection.source)
            self._access = None
        self._connection, self._tls = connection, tls

    async def _renew_early(self, access: Access) -> None:
        """Ask the plugin again before the credentials end; until they do, its failure is no reason to stop."""
        try:
            self._access = await self._make()
        except ConfigError as error:
            if access.expires is None or access.expires <= time.time():
                raise
            log.warning("credentials not renewed, going on with those from before: %s", error)
            self._renew_at = min(access.expires, time.time() + PLUGIN_PAUSE)

    async def _make(self) -> Access:
        user = self._connection.user
        headers = list(user.impersonation)
        tls, token, expires = self._tls, user.token, None
        if user.plugin is not None:
            self._plugin_ran = time.monotonic()
            issued = await run_plugin(user.plugin, self._connection.source)
            token, expires = issued.token, issued.expires
            if issued.certificate:
                tls = _tls_context(self._connection, issued.certificate)
        if token:
            headers.append(("Authorization", f"Bearer {token}"))
            expires = expires or expiry_of_token(token)
        elif user.basic:
            pair = base64.b64encode(":".join(user.basic).encode()).decode()
            headers.append(("Authorization", f"Basic {pair}"))
        self._renew_at = _renewal(expires) if user.plugin and expires else float("inf")
        connection = self._connection
        return Access(
            server=connection.server,
            headers=tuple(headers),
            tls=tls,
            server_hostname=connection.tls_server_name,
            proxy=connection.proxy,
            expires=expires,
        )


def _renewal(expires: float) -> float:
    """When to renew what ends then: a little earlier, but never so often that a plugin runs for every request."""
    now = time.time()
    left = expires - now
    if left <= 0:  # the plugin has nothing better
        return now + PLUGIN_PAUSE
    return max(expires - min(EXPIRY_MARGIN, left / 5), now + 1.0)


def expiry_of_token(token: str) -> float | None:
    """When a JWT ends, in seconds of the epoch; None if it does not say, or is no JWT. Nothing is verified."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError):
        return None
    end = claims.get("exp") if isinstance(claims, dict) else None
    return float(end) if isinstance(end, int | float) else None


@functools.lru_cache(maxsize=8)
def expiry_of_certificate(pem: bytes) -> float | None:
    """When the first certificate ends, in seconds of the epoch; None if there is none that can be read."""
    from cryptography import x509  # not needed where credentials are tokens

    try:
        return x509.load_pem_x509_certificates(pem)[0].not_valid_after_utc.timestamp()
    except ValueError:
        return None


# ---------------------------------------------------------------------- TLS


def _tls_context(connection: Connection, certificate: bytes | None) -> ssl.SSLContext | None:
    if connection.server.startswith("http://"):
        return None
    # With no authority of its own the cluster's certificate is one that this machine trusts.
    context = ssl.create_default_context() if connection.authority is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])  # all that is spoken here; an upgrade cannot be done in HTTP/2
    # As Go's client has it: an intermediate authority may be the trusted one, and the certificates of many clusters
    # lack extensions that Python 3.13 began to insist on.
    context.verify_flags = (context.verify_flags & ~ssl.VERIFY_X509_STRICT) | ssl.VERIFY_X509_PARTIAL_CHAIN
    if connection.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif connection.authority is not None:
        try:
            context.load_verify_locations(cadata=connection.authority.decode("ascii", errors="ignore"))
        except ssl.SSLError as error:
            raise ConfigError(
                f"the certificate-authority of {connection.source} cannot be used: {error.reason or 'not certificates'}"
            ) from None
    if certificate is not None:
        try:
            load_certificate(context, certificate)
        except UnusableCertificate as error:
            raise ConfigError(f"the client certificate of {connection.source} cannot be used: {error}") from None
    return context


# ---------------------------------------------------------------------- exec plugins


@dataclass(frozen=True, slots=True)
class Issued:
    """What a plugin gave."""

    token: str | None = field(default=None, repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    expires: float | None = None


class _Status(msgspec.Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime.datetime | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str
    status: _Status | None = None


async def run_plugin(plugin: ExecPlugin, source: str) -> Issued:
    """Run a credential plugin; a ConfigError says what it said on its standard error, but never what it printed."""
    name = f"the exec plugin {plugin.command!r} of {source}"
    spec: dict[str, object] = {"interactive": False}
    if plugin.cluster_info is not None:
        spec["cluster"] = plugin.cluster_info
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    env = {**os.environ, **dict(plugin.env), "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *plugin.args,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_MAX_PLUGIN_OUTPUT,
        )
    except OSError as error:
        hint = f"; {plugin.install_hint.strip()}" if plugin.install_hint else "; is it installed and on the PATH?"
        raise ConfigError(f"{name} cannot be run: {error.strerror}{hint}") from None
    try:
        async with asyncio.timeout(PLUGIN_TIMEOUT):
            printed, complaint = await process.communicate()
    except TimeoutError:
        raise ConfigError(f"{name} did not end within {PLUGIN_TIMEOUT:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        raise ConfigError(f"{name} failed with exit code {process.returncode}{_last_words(complaint)}")
    return _issued(printed, plugin, name)


def _issued(printed: bytes, plugin: ExecPlugin, name: str) -> Issued:
    try:
        credential = msgspec.json.decode(printed, type=_ExecCredential)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ConfigError(f"{name} did not print an ExecCredential") from None
    if credential.api_version != plugin.api_version:
        raise ConfigError(f"{name} speaks {credential.api_version}, the kubeconfig says {plugin.api_version}")
    status = credential.status or _Status()
    if not status.token and not (status.client_certificate_data and status.client_key_data):
        raise ConfigError(f"{name} printed neither a token nor a client certificate with its key")
    if not status.token.isprintable() or not status.token.isascii():
        raise ConfigError(f"{name} printed a token with characters that no token has")
    certificate = None
    if status.client_certificate_data and status.client_key_data:
        certificate = f"{status.client_certificate_data}\n{status.client_key_data}".encode()
    when = status.expiration_timestamp
    if when is not None and when.tzinfo is None:
        when = when.replace(tzinfo=datetime.UTC)
    return Issued(status.token or None, certificate, when.timestamp() if when else None)


def _last_words(complaint: bytes) -> str:
    """The end of what a plugin wrote to its standard error, without anything that looks like a secret."""
    lines = [line.strip() for line in complaint.decode(errors="replace").splitlines() if line.strip()]
    return f": {_SECRETS.sub('…', lines[-1])[:300]}" if lines else ""
