"""The settings of ``farlet run``: flags win over the environment, the environment over the YAML file.

Each setting is declared once, in :class:`RunSettings`, with what a person is told about it; the flags are made from
that. All of it is put together and checked once, at start, so that a wrong value is one clear line before anything is
touched, and nothing further in has to ask where a value came from.
"""

from __future__ import annotations

import re
import shlex
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NamedTuple, TypeAlias, cast
from urllib.parse import urlsplit

from app.names import LOCK_PREFIX, TAINT_KEY

ENVIRONMENT_PREFIX = "FARLET_"
_MAX_NODE_NAME = 63
_NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


class SettingsError(ValueError):
    """A setting that cannot be used; the message names it, its source and what it should be."""


class OnUnreachable(StrEnum):
    """What becomes of the node while the remote cluster cannot be reached."""

    NOT_READY = "not-ready"
    KEEP = "keep"


class OnShutdown(StrEnum):
    """What the node says after an orderly end."""

    KEEP = "keep"
    NOT_READY = "not-ready"


class Rounding(StrEnum):
    """What becomes of a fraction of a thing that comes whole: of 90 % of 1 GPU."""

    DOWN = "down"
    UP = "up"
    NEAREST = "nearest"


class EventMode(StrEnum):
    """Which events of the remote cluster are told on the local pods."""

    WARNINGS = "warnings"
    ALL = "all"
    NONE = "none"


class LogFormat(StrEnum):
    """How log lines are written."""

    TEXT = "text"
    JSON = "json"


class Role(StrEnum):
    """Which parts of Farlet run in this process."""

    ALL = "all"
    WORKER = "worker"
    API = "api"


class ServingCertificate(StrEnum):
    """Where the certificate of the kubelet API comes from."""

    CSR = "csr"
    FILES = "files"
    SELF_SIGNED = "self-signed"


class MetricsSource(StrEnum):
    """Where it is read what pods use."""

    AUTO = "auto"
    METRICS_API = "metrics-api"
    KUBELETS = "kubelets"
    NONE = "none"


TaintEffect: TypeAlias = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class Taint(NamedTuple):
    """What keeps other pods off the node; its value is the remote cluster's id."""

    key: str
    effect: TaintEffect


def setting(default: Any, text: str, *, metavar: str | None = None, flag: str | None = None) -> Any:
    """A setting, with its help text; a repeatable one is a tuple, and its flag is in the singular."""
    return field(default=default, metadata={"help": text, "metavar": metavar, "flag": flag})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Everything that ``farlet run`` can be told."""

    # the two clusters
    kubeconfig: Path | None = setting(
        None, "The local cluster. [default: in-cluster, or the usual kubeconfig]", metavar="FILE"
    )
    context: str | None = setting(None, "Its context.", metavar="NAME")
    remote_kubeconfig: Path | None = setting(None, "The remote cluster, which runs the pods.", metavar="FILE")
    remote_context: str | None = setting(None, "Its context.", metavar="NAME")
    cluster_id: str | None = setting(None, "The local cluster's id.", metavar="ID")

    # the node
    node_name: str = setting("farlet", "The virtual node.", metavar="NAME")
    node_address: str | None = setting(
        None, "Where the node can be reached. [default: the pod's, or this machine's]", metavar="IP"
    )
    node_labels: tuple[str, ...] = setting((), "On the node.", metavar="KEY=VALUE", flag="node-label")
    node_taint: str = setting(
        f"{TAINT_KEY}:NoSchedule", "What keeps other pods off the node.", metavar="KEY:EFFECT|none"
    )
    share: int | None = setting(
        None, "Share of what the remote has left that the node offers. [default: 90, of a quota 100]", metavar="PERCENT"
    )
    rounding: Rounding = setting(Rounding.DOWN, "What 90 % of 1 GPU is.")
    capacity: str | None = setting(None, "Fixed size. [default: from the remote nodes]", metavar="CPU=N,...")
    capacity_quota: str | None = setting(
        None, "Sized by the ResourceQuotas of a remote namespace, or one of them.", metavar="NAMESPACE[/NAME]"
    )
    capacity_command: str | None = setting(
        None, "Sized by what this command prints, JSON or name=quantity lines.", metavar="COMMAND"
    )
    capacity_url: str | None = setting(None, "Sized by what is found there, in the same form.", metavar="URL")
    capacity_interval: float = setting(30.0, "How often the command or URL is asked.", metavar="SECONDS")
    capacity_settle: float = setting(30.0, "How long growth must last before the node grows.", metavar="SECONDS")
    on_unreachable: OnUnreachable | None = setting(
        None, "While the remote is gone. [default: keep where local nodes have a cloud's providerID, else not-ready]"
    )
    on_shutdown: OnShutdown = setting(OnShutdown.KEEP, "What the node says after an orderly end.")
    probe_interval: float = setting(10.0, "How often the remote is asked whether it is there.", metavar="SECONDS")
    probe_timeout: float = setting(5.0, "How long it may take to say so.", metavar="SECONDS")
    probe_failures: int = setting(3, "How many times in a row it may not.", metavar="N")

    # the pods
    namespaces: tuple[str, ...] = setting(
        (), "Offload this one. [default: by label]", metavar="LOCAL[=REMOTE]", flag="namespace"
    )
    unmap_grace: float = setting(
        60.0,
        "How long a namespace must have been without label or NamespaceOffloading before its pods are evicted.",
        metavar="SECONDS",
    )
    allow_host: bool = setting(False, "Offload pods that want the host: hostNetwork, hostPath, privileged.")
    remote_node_selector: tuple[str, ...] = setting((), "Only such remote nodes.", metavar="KEY=VALUE")
    remote_tolerations: tuple[str, ...] = setting(
        (), "For remote taints.", metavar="KEY[=VALUE][:EFFECT]", flag="remote-toleration"
    )
    remote_affinity: Path | None = setting(None, "YAML of an affinity that every remote pod gets.", metavar="FILE")
    remote_labels: tuple[str, ...] = setting((), "On every remote pod.", metavar="KEY=VALUE", flag="remote-label")
    remote_runtime_class: str | None = setting(None, "Of every remote pod.", metavar="NAME")
    remote_priority_class: str | None = setting(None, "Of every remote pod.", metavar="NAME")
    pod_cidr_map: tuple[str, ...] = setting((), "Pod addresses that are others locally.", metavar="FROM=TO")
    events: EventMode = setting(EventMode.WARNINGS, "Events of the remote that are told on local pods.")

    # what they need
    reflect: tuple[str, ...] = setting(
        (),
        "What of configmaps, secrets, services and endpointslices is copied to the remote: all but what says no, none "
        "but what says yes, or off. [default: all of each]",
        metavar="KIND=all|none|off",
    )
    not_reflected_labels: tuple[str, ...] = setting(
        (), "Not carried to copies; * is anything.", metavar="KEY", flag="not-reflected-label"
    )
    not_reflected_annotations: tuple[str, ...] = setting(
        (), "The same for annotations.", metavar="KEY", flag="not-reflected-annotation"
    )
    local_cidr_map: tuple[str, ...] = setting(
        (), "Local endpoint addresses that are others in the remote.", metavar="FROM=TO"
    )

    # the kubelet API
    role: Role = setting(Role.ALL, "Which parts run in this process.")
    kubelet_address: str = setting("0.0.0.0:10250", "Where the kubelet API listens.", metavar="HOST:PORT")
    serving_certificate: ServingCertificate = setting(ServingCertificate.CSR, "Where its certificate comes from.")
    tls_cert_file: Path | None = setting(None, "Its certificate, with --serving-certificate files.", metavar="FILE")
    tls_key_file: Path | None = setting(None, "Its key.", metavar="FILE")
    client_ca_file: Path | None = setting(
        None, "Who signs its clients' certificates. [default: the local cluster's client CA]", metavar="FILE"
    )
    max_streams: int = setting(1000, "exec, attach, port-forward and followed logs at once.", metavar="N")
    max_streams_per_user: int = setting(
        900, "The same for each user; all of kubectl's come as one, the API server.", metavar="N"
    )
    stream_idle: float = setting(4 * 3600.0, "A stream without a byte ends after this.", metavar="SECONDS")
    stream_stall: float = setting(
        90.0, "A stream ends when one of its ends acknowledges nothing for so long.", metavar="SECONDS"
    )
    stream_grace: float = setting(30.0, "Time that running streams get at shutdown.", metavar="SECONDS")

    metrics_source: MetricsSource = setting(
        MetricsSource.METRICS_API, "Where it is read what pods use; auto: the first that the rights allow."
    )
    metrics_interval: float = setting(10.0, "How often it is read at most, however many ask.", metavar="SECONDS")

    # running
    workers: int = setting(16, "Pods that are worked on at once.", metavar="N")
    watch_silence: float = setting(
        95.0, "A watch without a word is replaced after this; the API servers say one every minute.", metavar="SECONDS"
    )
    health_address: str = setting("127.0.0.1:10248", "/livez and /readyz.", metavar="HOST:PORT")
    health_metrics: bool = setting(False, "Also /metrics there: for whoever asks, without TLS.")
    log_format: LogFormat = setting(LogFormat.TEXT, "How log lines are written.")

    @property
    def sized(self) -> bool:
        """Whether it was said where the node's size comes from; if not, from the remote nodes."""
        return any(getattr(self, name) for name in _SIZE_SOURCES)

    def check(self) -> RunSettings:
        """Refuse what cannot work; returns itself."""
        if self.remote_kubeconfig is None:
            raise SettingsError("which remote cluster? Give --remote-kubeconfig FILE (or FARLET_REMOTE_KUBECONFIG)")
        if not _NODE_NAME.fullmatch(self.node_name) or len(self.node_name) > _MAX_NODE_NAME:
            raise SettingsError(f"node name {self.node_name!r}: 1 to 63 lower-case letters, digits, '-' and '.'")
        if self.node_name.startswith(LOCK_PREFIX):
            raise SettingsError(f"node name {self.node_name!r}: names with {LOCK_PREFIX!r} are those of the locks")
        self.taint()
        self._check_sizes()
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise SettingsError(f"{name.replace('_', ' ')} {getattr(self, name)}: more than 0")
        for pair in (*self.node_labels, *self.remote_node_selector, *self.remote_labels):
            if "=" not in pair:
                raise SettingsError(f"{pair!r} is not KEY=VALUE")
        for name in ("kubelet_address", "health_address"):
            _check_address(name, getattr(self, name))
        if self.role is Role.WORKER and self.kubelet_address.endswith(":0"):
            raise SettingsError(
                f"kubelet address {self.kubelet_address!r} with --role worker: the port at which the API role listens"
            )
        files = (self.tls_cert_file, self.tls_key_file)
        if self.serving_certificate is ServingCertificate.FILES and None in files:
            raise SettingsError("--serving-certificate files: give --tls-cert-file and --tls-key-file")
        if self.serving_certificate is not ServingCertificate.FILES and any(files):
            raise SettingsError("--tls-cert-file and --tls-key-file go with --serving-certificate files")
        return self

    def taint(self) -> Taint | None:
        """The taint of the node; None: it has none."""
        if self.node_taint == "none":
            return None
        key, _, effect = self.node_taint.rpartition(":")
        if not _TAINT_KEY.fullmatch(key) or effect not in typing.get_args(TaintEffect):
            effects = ", ".join(typing.get_args(TaintEffect))
            raise SettingsError(
                f"node taint {self.node_taint!r}: KEY:EFFECT is needed, such as {TAINT_KEY}:NoSchedule "
                f"(effects: {effects}), or none"
            )
        return Taint(key, cast(TaintEffect, effect))

    def _check_sizes(self) -> None:
        sources = [name for name in _SIZE_SOURCES if getattr(self, name) is not None]
        if len(sources) > 1:
            raise SettingsError(f"{' and '.join(map(_flag, sources))}: one of them sizes the node, not several")
        if self.share is not None:
            if not 0 < self.share <= 100:
                raise SettingsError(f"share {self.share}: a percentage from 1 to 100")
            if sources and sources != ["capacity_quota"]:
                raise SettingsError(f"--share is for what is measured: leave it out with {_flag(sources[0])}")
        if self.unmap_grace < 0:
            raise SettingsError(f"unmap grace {self.unmap_grace}: 0 or more")
        if self.capacity_settle < 0:
            raise SettingsError(f"capacity settle {self.capacity_settle}: 0 or more")
        if self.capacity_quota is not None and not _QUOTA.fullmatch(self.capacity_quota):
            raise SettingsError(f"capacity quota {self.capacity_quota!r}: NAMESPACE or NAMESPACE/NAME is needed")
        if self.capacity_command is not None:
            _check_command(self.capacity_command)
        if self.capacity_url is not None:
            _check_url(self.capacity_url)


_TAINT_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_QUOTA = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(/[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?")
_SIZE_SOURCES = ("capacity", "capacity_quota", "capacity_command", "capacity_url")
_POSITIVE = (
    "capacity_interval",
    "probe_interval",
    "probe_timeout",
    "probe_failures",
    "max_streams",
    "max_streams_per_user",
    "stream_idle",
    "metrics_interval",
    "stream_stall",
    "workers",
    "watch_silence",
)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check_command(command: str) -> None:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise SettingsError(f"capacity command {command!r}: {error}") from error
    if not words or not words[0]:
        raise SettingsError("capacity command: it is empty")


def _check_url(url: str) -> None:
    """The URL itself is not shown: it may hold a password."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise SettingsError("capacity url: http://HOST/PATH or https://HOST/PATH is needed")


def _check_address(name: str, value: str) -> None:
    host, _, port = value.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise SettingsError(f"{name.replace('_', ' ')} {value!r}: HOST:PORT is needed, such as 127.0.0.1:10250")


@dataclass(frozen=True, slots=True)
class _Source:
    name: str
    values: Mapping[str, Any] = field(default_factory=dict)


def load(flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None) -> RunSettings:
    """Put the settings together; a flag that is None or an empty tuple was not given."""
    given = {name: value for name, value in flags.items() if value is not None and value != ()}
    types = setting_types()
    variables = {
        name: environment[ENVIRONMENT_PREFIX + name.upper()]
        for name in types
        if ENVIRONMENT_PREFIX + name.upper() in environment
    }
    merged: dict[str, Any] = {}
    for source in (
        _Source(str(file), _read(file) if file else {}),
        _Source("environment", variables),
        _Source("flag", given),
    ):
        for name, value in source.values.items():
            if name not in types:
                raise SettingsError(
                    f"{source.name}: there is no setting {name!r}; there are: {', '.join(sorted(types))}"
                )
            merged[name] = _convert(name, types[name], value, source.name)
    return RunSettings(**merged).check()


def setting_types() -> dict[str, Any]:
    """Every setting and its type, None left out of it: ``str | None`` is ``str``."""
    return {name: _not_none(hint) for name, hint in typing.get_type_hints(RunSettings).items()}


def declarations() -> tuple[Field[Any], ...]:
    """Every setting as it is declared, in the order in which people are told of them."""
    return fields(RunSettings)


def default_of(declared: Field[Any]) -> Any:
    """What a setting is when nobody says."""
    return None if declared.default is MISSING else declared.default


def _not_none(hint: Any) -> Any:
    choices = [choice for choice in typing.get_args(hint) if choice is not NoneType]
    return choices[0] if typing.get_origin(hint) is not tuple and len(choices) == 1 else hint


def _read(file: Path) -> dict[str, Any]:
    import yaml  # only here: a command line that lags is not used

    try:
        content = yaml.safe_load(file.read_text())
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{file} is not YAML: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"{file}: a mapping of settings is needed, such as `node-name: farlet`")
    return {str(name).replace("-", "_"): value for name, value in content.items()}


def _convert(name: str, kind: Any, value: Any, source: str) -> Any:
    """The value in the setting's type, from whatever the source could say."""
    try:
        if typing.get_origin(kind) is tuple:
            return (
                tuple(part for part in value.split(",") if part) if isinstance(value, str) else tuple(map(str, value))
            )
        if value is None:
            raise ValueError(name)
        if kind is Path:
            return Path(value).expanduser()
        if kind is bool:
            return _boolean(value)
        if kind in (int, float) and isinstance(value, bool):
            raise ValueError(value)
        return kind(value)
    except (TypeError, ValueError) as error:
        choices = f" (one of {', '.join(kind)})" if isinstance(kind, type) and issubclass(kind, StrEnum) else ""
        raise SettingsError(f"{source}: {name.replace('_', '-')} {value!r} is not valid{choices}") from error


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text not in ("true", "false", "1", "0", "yes", "no"):
        raise ValueError(value)
    return text in ("true", "1", "yes")
