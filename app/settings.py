"""The settings of ``farlet run``: flags win over the environment, the environment over the YAML file.

All of it is put together and checked once, at start, so that a wrong value is one clear line before anything is
touched, and nothing further in has to ask where a value came from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import yaml

from app.names import LOCK_PREFIX

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


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Everything that ``farlet run`` can be told."""

    kubeconfig: Path | None = None
    """The local cluster; None: in-cluster, else the usual kubeconfig."""
    context: str | None = None
    remote_kubeconfig: Path | None = None
    remote_context: str | None = None
    node_name: str = "farlet"
    node_address: str | None = None
    cluster_id: str | None = None
    """The local cluster's id; None: a short hash of the UID of its kube-system namespace."""
    namespaces: tuple[str, ...] = ()
    """LOCAL or LOCAL=REMOTE; empty: every namespace with the label."""
    share: int = 90
    """Percent of the remote's free resources that the node offers."""
    capacity: str | None = None
    """Fixed, such as ``cpu=10,memory=32Gi,pods=100``; None: from the remote's nodes."""
    node_labels: tuple[str, ...] = ()
    """KEY=VALUE, besides those that every virtual node has."""
    on_unreachable: OnUnreachable = OnUnreachable.NOT_READY
    on_shutdown: OnShutdown = OnShutdown.KEEP
    probe_interval: float = 10.0
    probe_timeout: float = 5.0
    probe_failures: int = 3
    allow_host: bool = False
    """Offload pods that want the host: hostNetwork, hostPath, privileged..."""
    remote_node_selector: tuple[str, ...] = ()
    """KEY=VALUE: only such nodes of the remote run our pods, and count."""
    remote_tolerations: tuple[str, ...] = ()
    """KEY[=VALUE][:EFFECT]: taints of remote nodes that our pods tolerate."""
    remote_runtime_class: str | None = None
    remote_priority_class: str | None = None
    events: Literal["warnings", "all", "none"] = "warnings"
    """Which events of the remote cluster are told on the local pods."""
    workers: int = 16
    health_address: str = "127.0.0.1:10248"
    log_format: str = "text"

    def check(self) -> RunSettings:
        """Refuse what cannot work; returns itself."""
        if self.remote_kubeconfig is None:
            raise SettingsError("which remote cluster? Give --remote-kubeconfig FILE (or FARLET_REMOTE_KUBECONFIG)")
        if not _NODE_NAME.fullmatch(self.node_name) or len(self.node_name) > _MAX_NODE_NAME:
            raise SettingsError(f"node name {self.node_name!r}: 1 to 63 lower-case letters, digits, '-' and '.'")
        if self.node_name.startswith(LOCK_PREFIX):
            raise SettingsError(f"node name {self.node_name!r}: names with {LOCK_PREFIX!r} are those of the locks")
        if not 0 < self.share <= 100:
            raise SettingsError(f"share {self.share}: a percentage from 1 to 100")
        if self.workers < 1:
            raise SettingsError(f"workers {self.workers}: at least 1")
        if self.events not in ("warnings", "all", "none"):
            raise SettingsError(f"events {self.events!r}: warnings, all or none")
        if self.log_format not in ("text", "json"):
            raise SettingsError(f"log format {self.log_format!r}: text or json")
        for name in ("probe_interval", "probe_timeout", "probe_failures"):
            if getattr(self, name) <= 0:
                raise SettingsError(f"{name.replace('_', ' ')} {getattr(self, name)}: more than 0")
        for pair in (*self.node_labels, *self.remote_node_selector):
            if "=" not in pair:
                raise SettingsError(f"{pair!r} is not KEY=VALUE")
        return self


@dataclass(frozen=True, slots=True)
class _Source:
    name: str
    values: Mapping[str, Any] = field(default_factory=dict)


def load(flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None) -> RunSettings:
    """Put the settings together; a flag that is None or an empty tuple was not given."""
    given = {name: value for name, value in flags.items() if value is not None and value != ()}
    known = {item.name: item for item in fields(RunSettings)}
    variables = {
        name: environment[ENVIRONMENT_PREFIX + name.upper()]
        for name in known
        if ENVIRONMENT_PREFIX + name.upper() in environment
    }
    merged: dict[str, Any] = {}
    for source in (
        _Source(str(file), _read(file) if file else {}),
        _Source("environment", variables),
        _Source("flag", given),
    ):
        for name, value in source.values.items():
            if name not in known:
                raise SettingsError(
                    f"{source.name}: there is no setting {name!r}; there are: {', '.join(sorted(known))}"
                )
            merged[name] = _convert(name, value, source.name)
    return RunSettings(**merged).check()


def _read(file: Path) -> dict[str, Any]:
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


_INTEGERS = frozenset({"share", "probe_failures", "workers"})
_NUMBERS = frozenset({"probe_interval", "probe_timeout"})
_LISTS = frozenset({"namespaces", "node_labels", "remote_node_selector", "remote_tolerations"})
_PATHS = frozenset({"kubeconfig", "remote_kubeconfig"})
_CHOICES: Mapping[str, type[StrEnum]] = {"on_unreachable": OnUnreachable, "on_shutdown": OnShutdown}


def _convert(name: str, value: Any, source: str) -> Any:
    """The value in the setting's type, from whatever the source could say."""
    try:
        if name in _INTEGERS:
            return int(value)
        if name in _NUMBERS:
            return float(value)
        if name in _LISTS:
            return (
                tuple(part for part in value.split(",") if part) if isinstance(value, str) else tuple(map(str, value))
            )
        if name in _PATHS:
            return Path(value).expanduser()
        if name in _CHOICES:
            return _CHOICES[name](value)
        if name == "allow_host":
            return _boolean(value)
        return None if value is None else str(value)
    except (TypeError, ValueError) as error:
        choices = f" (one of {', '.join(_CHOICES[name])})" if name in _CHOICES else ""
        raise SettingsError(f"{source}: {name.replace('_', '-')} {value!r} is not valid{choices}") from error


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text not in ("true", "false", "1", "0", "yes", "no"):
        raise ValueError(value)
    return text in ("true", "1", "yes")
