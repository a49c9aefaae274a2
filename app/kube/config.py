"""How an API server is reached and who we are there: kubeconfigs, and the ServiceAccount of our own pod.

Read here rather than by ``kubernetes.aio.config``: that one writes private keys to temporary files, logs and swallows
the errors of credential plugins, gives the last file's ``current-context`` where kubectl takes the first's, reads
``tokenFile`` once, and costs 20 MB. The rules are kubectl's.

A :class:`Connection` is a snapshot of the files it was read from. It knows whether they have changed since and how to
read them again; :mod:`app.kube.credentials` decides when.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
import yaml

from app.kube.errors import ConfigError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its own credentials."""

_PROXY_SCHEMES = ("http", "https")


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """A program that prints credentials (client.authentication.k8s.io)."""

    api_version: str
    command: str
    args: tuple[str, ...] = field(default=(), repr=False)
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    install_hint: str = ""
    cluster_info: Mapping[str, Any] | None = field(default=None, repr=False)
    """What the plugin is told about the cluster, if it asked for it (``provideClusterInfo``)."""


@dataclass(frozen=True, slots=True)
class User:
    """Who we are; at most one of the ways is used, in this order."""

    token: str | None = field(default=None, repr=False)
    basic: tuple[str, str] | None = field(default=None, repr=False)
    plugin: ExecPlugin | None = None
    certificate: bytes | None = field(default=None, repr=False)
    """The client's certificate chain and key, PEM; may come with any of the others."""
    impersonation: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Headers that ask to act as somebody else."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """A file as it was when it was read."""

    path: Path
    seen: tuple[int, int, int] | None

    @classmethod
    def of(cls, path: Path) -> Stamp:
        try:
            found = path.stat()  # follows links: a mounted Secret is changed by swapping one
        except OSError:
            return cls(path, None)
        return cls(path, (found.st_mtime_ns, found.st_size, found.st_ino))

    def changed(self) -> bool:
        """Whether the file is another by now; one that is away for the moment is not."""
        now = Stamp.of(self.path)
        return now.seen is not None and now.seen != self.seen


@dataclass(frozen=True, slots=True)
class Connection:
    """Where an API server is and how to talk to it, as its files said when they were read."""

    server: str
    """URL, possibly with a path prefix, without a slash at its end."""
    source: str
    """Where this was read, for people."""
    user: User = User()
    authority: bytes | None = field(default=None, repr=False)
    """CA certificates, PEM; None for those that this machine trusts."""
    insecure: bool = False
    tls_server_name: str | None = None
    proxy: str | None = field(default=None, repr=False)
    namespace: str = "default"
    """The namespace that the context, or the pod, is in."""
    stamps: tuple[Stamp, ...] = field(default=(), repr=False)
    again: Callable[[], Connection] | None = field(default=None, repr=False, compare=False)
    """Reads the same files again; None for a connection that was not read from files."""

    def changed(self) -> bool:
        """Whether one of the files that this was read from has changed."""
        return any(stamp.changed() for stamp in self.stamps)

    def reload(self) -> Connection:
        """The connection as its files say now."""
        return self.again() if self.again else self


# ---------------------------------------------------------------------- where to look


def load(kubeconfig: Path | None, context: str | None = None) -> Connection:
    """The connection that a kubeconfig describes.

    Without a file: those in ``$KUBECONFIG``, else the ServiceAccount of the pod that this runs in, else
    ``~/.kube/config``.
    """
    if kubeconfig is not None:
        return _from_files([kubeconfig.expanduser()], context)
    if listed := [Path(part).expanduser() for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]:
        return _from_files(listed, context)
    if os.environ.get("KUBERNETES_SERVICE_HOST") and (SERVICE_ACCOUNT / "token").exists():
        return in_cluster()
    default = Path.home() / ".kube" / "config"
    if default.exists():
        return _from_files([default], context)
    raise ConfigError(
        "no kubeconfig: none was given, $KUBECONFIG is not set, this is not a pod with a ServiceAccount, "
        f"and {default} does not exist; give one"
    )


def in_cluster(folder: Path = SERVICE_ACCOUNT) -> Connection:
    """The connection that every pod with a ServiceAccount has to its own cluster."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigError("not in a pod: $KUBERNETES_SERVICE_HOST is not set; give a kubeconfig")
    reader = _Reader(f"the pod's ServiceAccount in {folder}")
    token = reader.text(folder / "token", "token")
    authority = reader.content(folder / "ca.crt", "CA certificate")
    namespace = folder / "namespace"
    return Connection(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        source=reader.source,
        user=User(token=token),
        authority=authority,
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
        stamps=tuple(reader.stamps),
        again=lambda: in_cluster(folder),
    )


# ---------------------------------------------------------------------- the file


class _Exec(msgspec.Struct, rename="camel"):
    command: str
    api_version: str
    args: list[str] | None = None
    env: list[dict[str, str]] | None = None
    install_hint: str | None = None
    provide_cluster_info: bool = False
    interactive_mode: str = "IfAvailable"


class _AuthInfo(msgspec.Struct, rename="kebab"):
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    username: str = ""
    password: str = ""
    exec: _Exec | None = None
    auth_provider: dict[str, Any] | None = None
    act_as: str = msgspec.field(default="", name="as")
    act_as_uid: str = msgspec.field(default="", name="as-uid")
    act_as_groups: list[str] | None = msgspec.field(default=None, name="as-groups")
    act_as_user_extra: dict[str, list[str]] | None = msgspec.field(default=None, name="as-user-extra")


class _Cluster(msgspec.Struct, rename="kebab"):
    server: str
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    extensions: list[dict[str, Any]] | None = None


class _Context(msgspec.Struct):
    cluster: str
    user: str = ""
    namespace: str = ""


class _NamedCluster(msgspec.Struct):
    name: str
    cluster: _Cluster


class _NamedUser(msgspec.Struct):
    name: str
    user: _AuthInfo | None = None


class _NamedContext(msgspec.Struct):
    name: str
    context: _Context


class _File(msgspec.Struct, rename="kebab"):
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None
    current_context: str | None = None


_Named = TypeVar("_Named", _NamedCluster, _NamedUser, _NamedContext)


class _Reader:
    """Reads the files that a connection is made of, and remembers which and when."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.stamps: list[Stamp] = []

    def content(self, path: Path, what: str) -> bytes:
        # before reading: a change in between is then noticed later, not missed
        self.stamps.append(Stamp.of(path))
        name = f"{path}, the {what}" if str(path) in self.source else f"{path}, the {what} of {self.source}"
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"cannot read {name}: {error.strerror}") from error
        if not content.strip():
            raise ConfigError(f"{name}, is empty")
        return content

    def text(self, path: Path, what: str) -> str:
        return _text(self.content(path, what), what, f"{path} of {self.source}")

    def file_or_data(self, file: str, data: str, folder: Path, what: str) -> bytes | None:
        """PEM from a file or from base64 beside it, which wins, as for kubectl."""
        if data:
            try:
                content = base64.b64decode(data, validate=True)
            except binascii.Error:
                raise ConfigError(f"{what} in {self.source} is not base64") from None
            where = self.source
        elif file:
            content, where = self.content(folder / file, what), f"{folder / file}"
        else:
            return None
        if b"-----BEGIN " not in content:
            raise ConfigError(f"{what} in {where} is not PEM (it has no '-----BEGIN')")
        return content


def _from_files(paths: list[Path], context: str | None) -> Connection:
    reader = _Reader(", ".join(map(str, paths)))
    several = len(paths) > 1
    files = [
        (path.resolve().parent, _parse(reader.content(path, "kubeconfig"), path))
        for path in paths
        if path.exists() or not several  # kubectl leaves out what is missing of a list
    ]
    if not files:
        raise ConfigError(f"none of the kubeconfigs in $KUBECONFIG exists: {reader.source}")
    wanted = context or next((file.current_context for _, file in files if file.current_context), None)
    known = [entry.name for _, file in files for entry in file.contexts or ()]
    if not wanted:
        raise ConfigError(f"{reader.source} has no current-context; choose a context, there are: {_listed(known)}")
    _, chosen = _named(((folder, file.contexts) for folder, file in files), wanted, "context", reader.source)
    reader.source = f"context {wanted!r} of {reader.source}"
    at = ((folder, file.clusters) for folder, file in files)
    cluster_folder, cluster = _named(at, chosen.context.cluster, "cluster", reader.source)
    user = User()
    if chosen.context.user:
        by = ((folder, file.users) for folder, file in files)
        user_folder, named = _named(by, chosen.context.user, "user", reader.source)
        user = _user(named.user or _AuthInfo(), user_folder, cluster.cluster, reader)
    return _connection(cluster.cluster, cluster_folder, user, chosen.context.namespace, reader, paths, context)


def _parse(content: bytes, path: Path) -> _File:
    try:
        tree = yaml.safe_load(content)
    except yaml.MarkedYAMLError as error:  # its own text quotes the file, and with it perhaps a key
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{path}{line}: not YAML: {error.problem}; give a kubeconfig") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise ConfigError(f"{path} is not YAML; give a kubeconfig") from None
    if not isinstance(tree, dict) or not tree.get("clusters"):
        raise ConfigError(f"{path} is not a kubeconfig: it names no clusters (try `kubectl config view` with it)")
    try:
        return msgspec.convert(tree, _File)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path} is not a valid kubeconfig: {error}") from None


def _named(lists: Iterable[tuple[Path, list[_Named] | None]], name: str, what: str, source: str) -> tuple[Path, _Named]:
    """The entry of that name and the folder of its file; the first, if several files have one."""
    names = []
    for folder, entries in lists:
        for entry in entries or ():
            if entry.name == name:
                return folder, entry
            names.append(entry.name)
    raise ConfigError(f"{source} has no {what} {name!r}; there are: {_listed(names)}")


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _connection(
    cluster: _Cluster, folder: Path, user: User, namespace: str, reader: _Reader, paths: list[Path], context: str | None
) -> Connection:
    server = cluster.server.rstrip("/")
    address = urlsplit(server)
    if address.scheme not in ("https", "http") or not address.hostname:
        raise ConfigError(f"the server in {reader.source} is not an https URL: {address.scheme}://{address.netloc}")
    if address.scheme == "http" and (user.token or user.basic or user.plugin):
        raise ConfigError(f"the server in {reader.source} is http, which would show the credentials to everybody")
    if address.username or address.query or address.fragment:
        raise ConfigError(f"the server in {reader.source} must be scheme, host and path only")
    authority = reader.file_or_data(
        cluster.certificate_authority, cluster.certificate_authority_data, folder, "certificate-authority"
    )
    proxy = cluster.proxy_url or proxy_from_environment(server, os.environ)
    if proxy and urlsplit(proxy).scheme not in _PROXY_SCHEMES:
        raise ConfigError(
            f"the proxy of {reader.source} is not supported (its scheme is {urlsplit(proxy).scheme!r}); "
            "use an http:// or https:// proxy"
        )
    return Connection(
        server=server,
        source=reader.source,
        user=user,
        authority=authority,
        insecure=cluster.insecure_skip_tls_verify,
        tls_server_name=cluster.tls_server_name or None,
        proxy=proxy or None,
        namespace=namespace or "default",
        stamps=tuple(reader.stamps),
        again=lambda: _from_files(paths, context),
    )


# ---------------------------------------------------------------------- users


def _user(info: _AuthInfo, folder: Path, cluster: _Cluster, reader: _Reader) -> User:
    if info.auth_provider is not None:
        name = info.auth_provider.get("name", "")
        raise ConfigError(
            f"{reader.source} uses auth-provider {name!r}, which is not supported; use an exec plugin "
            "(such as `kubectl oidc-login`) or a ServiceAccount token"
        )
    token: str | None = info.token.strip() or None
    if info.token_file:  # wins over token, as for kubectl
        token = reader.text(folder / info.token_file, "token")
    basic = (info.username, info.password) if info.username and not token else None
    plugin = _plugin(info.exec, folder, cluster, reader) if info.exec and not token and not basic else None
    return User(
        token=token and _header_value(token, "token", reader.source),
        basic=basic,
        plugin=plugin,
        certificate=_certificate(info, folder, reader),
        impersonation=tuple(_impersonation(info)),
    )


def _certificate(info: _AuthInfo, folder: Path, reader: _Reader) -> bytes | None:
    certificate = reader.file_or_data(
        info.client_certificate, info.client_certificate_data, folder, "client-certificate"
    )
    key = reader.file_or_data(info.client_key, info.client_key_data, folder, "client-key")
    if (certificate is None) != (key is None):
        there, missing = ("certificate", "key") if key is None else ("key", "certificate")
        raise ConfigError(f"the user in {reader.source} has a client-{there} but no client-{missing}")
    return certificate + b"\n" + key if certificate and key else None


def _plugin(given: _Exec, folder: Path, cluster: _Cluster, reader: _Reader) -> ExecPlugin:
    if given.interactive_mode == "Always":
        raise ConfigError(
            f"the exec plugin {given.command!r} of {reader.source} wants a person at a terminal "
            "(interactiveMode: Always); use credentials that need none"
        )
    try:
        env = tuple((item["name"], item["value"]) for item in given.env or ())
    except KeyError:
        raise ConfigError(f"the env of the exec plugin in {reader.source} needs a name and a value each") from None
    command = given.command
    if "/" in command and not Path(command).is_absolute():
        command = str(folder / command)
    return ExecPlugin(
        api_version=given.api_version,
        command=command,
        args=tuple(given.args or ()),
        env=env,
        install_hint=given.install_hint or "",
        cluster_info=_cluster_info(cluster, folder, reader) if given.provide_cluster_info else None,
    )


def _cluster_info(cluster: _Cluster, folder: Path, reader: _Reader) -> dict[str, Any]:
    """``spec.cluster`` of an ExecCredential."""
    authority = reader.file_or_data(
        cluster.certificate_authority, cluster.certificate_authority_data, folder, "certificate-authority"
    )
    info: dict[str, Any] = {"server": cluster.server}
    if authority:
        info["certificate-authority-data"] = base64.b64encode(authority).decode()
    if cluster.tls_server_name:
        info["tls-server-name"] = cluster.tls_server_name
    if cluster.insecure_skip_tls_verify:
        info["insecure-skip-tls-verify"] = True
    if cluster.proxy_url:
        info["proxy-url"] = cluster.proxy_url
    for extension in cluster.extensions or ():
        if extension.get("name") == "client.authentication.k8s.io/exec":
            info["config"] = extension.get("extension")
    return info


def _impersonation(info: _AuthInfo) -> Iterable[tuple[str, str]]:
    if info.act_as:
        yield "Impersonate-User", info.act_as
    if info.act_as_uid:
        yield "Impersonate-Uid", info.act_as_uid
    for group in info.act_as_groups or ():
        yield "Impersonate-Group", group
    for key, values in (info.act_as_user_extra or {}).items():
        for value in values:
            yield f"Impersonate-Extra-{key}", value


def _text(content: bytes, what: str, where: str) -> str:
    try:
        return _header_value(content.decode("ascii").strip(), what, where)
    except UnicodeDecodeError:
        raise ConfigError(f"the {what} in {where} is not text") from None


def _header_value(value: str, what: str, where: str) -> str:
    """A value that goes into a header: a line break in it would be a second header."""
    if not value.isprintable() or not value.isascii():
        raise ConfigError(f"the {what} in {where} holds characters that no {what} has")
    return value


# ---------------------------------------------------------------------- the machine's proxy


def proxy_from_environment(server: str, environ: Mapping[str, str]) -> str | None:
    """The proxy that ``$HTTPS_PROXY`` and ``$NO_PROXY`` ask for, by the rules of Go's client, which kubectl has.

    aiohttp's own ``trust_env`` knows no networks in ``NO_PROXY`` and would take passwords from ``~/.netrc``.
    """
    address = urlsplit(server)
    name = f"{address.scheme}_proxy"
    proxy = environ.get(name.upper()) or environ.get(name)
    host = (address.hostname or "").rstrip(".")
    if not proxy or host == "localhost" or (_ip(host) and _ip(host).is_loopback):  # type: ignore[union-attr]
        return None
    port = address.port or (443 if address.scheme == "https" else 80)
    excluded = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    if any(_matches(rule.strip().lower(), host, port) for rule in excluded.split(",")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _matches(rule: str, host: str, port: int) -> bool:
    if not rule:
        return False
    if rule == "*":
        return True
    ip = _ip(host)
    if "/" in rule:
        try:
            return ip is not None and ip in ipaddress.ip_network(rule, strict=False)
        except ValueError:
            return False
    if _ip(rule) is not None:
        return ip == _ip(rule)
    name, colon, wanted = rule.rpartition(":")
    if colon and wanted.isdecimal():
        if int(wanted) != port:
            return False
        rule = name.strip("[]")
    if ip is not None:
        return ip == _ip(rule)
    if rule.startswith(("*.", ".")):
        return host.endswith(rule.lstrip("*"))
    return host == rule or host.endswith(f".{rule}")


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
