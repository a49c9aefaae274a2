"""From what people set to what the parts of Farlet are told.

What only those parts can judge (a network, an affinity, a label) is judged here once, before anything is touched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeVar

from app import names
from app.facts import Facts
from app.kube.informer import DEFAULT_TIMING, Timing
from app.kube.objects import Object
from app.kube.resources import CONFIG_MAPS
from app.namespaces import mapping
from app.node.object import NodeOptions, check_label
from app.node.placement import Placement
from app.pods import affinity
from app.pods.addresses import IpMap
from app.pods.forge import ForgeOptions
from app.reflection import rules
from app.reflection.rules import Policy, Rules
from app.settings import RunSettings, SettingsError

T = TypeVar("T")

_EFFECTS: Final = ("", "NoSchedule", "PreferNoSchedule", "NoExecute")
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def check(settings: RunSettings) -> RunSettings:
    """Refuse what cannot work, with the flag in the message; returns the settings."""
    _judged("--namespace", mapping.parse, settings.namespaces)
    _judged("--pod-cidr-map", IpMap.parse, settings.pod_cidr_map)
    _judged("--local-cidr-map", IpMap.parse, settings.local_cidr_map)
    _judged("--reflect", rules.parse, settings.reflect)
    _judged("--remote-label", _remote_labels, settings.remote_labels)
    _judged("--remote-node-selector", _labels, settings.remote_node_selector)
    for text in settings.remote_tolerations:
        _judged("--remote-toleration", _toleration, text)
    for flag, name in (
        ("--remote-runtime-class", settings.remote_runtime_class),
        ("--remote-priority-class", settings.remote_priority_class),
    ):
        if name is not None and (len(name) > 253 or not _NAME.fullmatch(name)):
            raise SettingsError(f"{flag}: {name!r} is not the name of an object")
    remote_affinity(settings.remote_affinity)
    return settings


def _judged(flag: str, judge: Callable[[T], object], value: T) -> None:
    try:
        judge(value)
    except ValueError as error:
        raise SettingsError(f"{flag}: {error}") from error


def _pairs(options: Iterable[str]) -> dict[str, str]:
    return dict(option.split("=", 1) for option in options)


def _labels(options: Iterable[str]) -> dict[str, str]:
    labels = _pairs(options)
    for key, value in labels.items():
        check_label(key, value)
    return labels


def _remote_labels(options: Iterable[str]) -> dict[str, str]:
    """Labels of remote pods, of which some are how Farlet finds its own."""
    labels = _labels(options)
    for key in labels:
        if key.startswith(f"{names.GROUP}/"):
            raise ValueError(f"{key}: labels of {names.GROUP} are set by Farlet and cannot be given")
    return labels


def _toleration(text: str) -> Object:
    """``KEY[=VALUE][:EFFECT]`` as a toleration."""
    rest, _, effect = text.partition(":")
    key, equals, value = rest.partition("=")
    check_label(key, value)
    if effect not in _EFFECTS:
        raise ValueError(f"{text!r}: the effect is one of {', '.join(_EFFECTS[1:])}")
    toleration: Object = (
        {"key": key, "operator": "Equal", "value": value} if equals else {"key": key, "operator": "Exists"}
    )
    return toleration | ({"effect": effect} if effect else {})


def remote_affinity(file: Path | None) -> Object:
    """The affinity that every remote pod gets, from a file of YAML or JSON."""
    if file is None:
        return {}
    import yaml  # only here: most people give none

    try:
        return affinity.checked(yaml.safe_load(file.read_text()))
    except OSError as error:
        raise SettingsError(f"--remote-affinity {file}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"--remote-affinity {file} is not YAML: {' '.join(str(error).split())}") from error
    except ValueError as error:
        raise SettingsError(f"--remote-affinity {file}: {error}") from error


def placement(settings: RunSettings) -> Placement:
    """Which remote nodes our pods can run on."""
    return Placement(
        tolerations=[_toleration(text) for text in settings.remote_tolerations],
        node_selector=_pairs(settings.remote_node_selector),
        node_affinity=remote_affinity(settings.remote_affinity).get("nodeAffinity"),
    )


def forge_options(settings: RunSettings, facts: Facts) -> ForgeOptions:
    """What is the same for all pods of the node."""
    where, taint = placement(settings), settings.taint()
    return ForgeOptions(
        origin=facts.local_id,
        node=settings.node_name,
        remote_minor=int(facts.remote_version.split(".")[1]),
        taint_key=taint.key if taint else names.TAINT_KEY,
        node_selector=where.node_selector,
        affinity=remote_affinity(settings.remote_affinity),
        tolerations=where.tolerations,
        runtime_class=settings.remote_runtime_class,
        priority_class=settings.remote_priority_class,
        labels=_pairs(settings.remote_labels),
        allow_host=settings.allow_host,
        root_ca=_root_ca(settings, facts),
    )


def _root_ca(settings: RunSettings, facts: Facts) -> str | None:
    """Under which name remote pods find the local cluster's root CA; None: they get the remote's."""
    kind = CONFIG_MAPS.plural
    reflected = reflection_rules(settings).policy(kind) is not Policy.OFF and kind not in facts.not_reflected
    return names.root_ca_copy(facts.local_id) if reflected else None


def reflection_rules(settings: RunSettings) -> Rules:
    """What is reflected."""
    return Rules(
        rules.parse(settings.reflect),
        (*rules.NOT_CARRIED_LABELS, *settings.not_reflected_labels),
        (*rules.NOT_CARRIED_ANNOTATIONS, *settings.not_reflected_annotations),
    )


def local_ip_map(settings: RunSettings) -> IpMap:
    """The addresses of local endpoints as the remote cluster sees them."""
    return IpMap.parse(settings.local_cidr_map)


def ip_map(settings: RunSettings) -> IpMap:
    """The addresses of remote pods as the local cluster sees them."""
    return IpMap.parse(settings.pod_cidr_map)


def watch_timing(settings: RunSettings) -> Timing:
    """How patient the informers are; a watch that lasted until its silence was a good one, however short that is."""
    silence = settings.watch_silence
    return Timing(silence=silence, healthy=min(DEFAULT_TIMING.healthy, silence))


def _mapping(settings: RunSettings) -> dict[str, str]:
    """Written on the node for those who may not look for its pods everywhere."""
    return {names.ANNOTATION_NAMESPACES: ",".join(sorted(settings.namespaces))} if settings.namespaces else {}


def node_options(settings: RunSettings, facts: Facts, kubelet_port: int) -> NodeOptions:
    """What is decided of the node before anything is known of the remote nodes."""
    taint = settings.taint()
    return NodeOptions(
        name=settings.node_name,
        remote_cluster_id=facts.remote_id,
        local_version=facts.local_version,
        remote_version=facts.remote_version,
        addresses=(facts.address,),
        kubelet_port=kubelet_port,
        labels=_pairs(settings.node_labels),
        annotations=_mapping(settings),
        taint_key=taint.key if taint else names.TAINT_KEY,
        taint_effect=taint.effect if taint else None,
    )
