"""From what people set to what the parts of Farlet are told. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from app.facts import Facts
from app.kube.informer import DEFAULT_TIMING, Timing
from app.kube.objects import Object
from app.node.object import NodeOptions
from app.node.placement import Placement
from app.pods.forge import ForgeOptions
from app.settings import RunSettings


def _pairs(options: Iterable[str]) -> dict[str, str]:
    return dict(option.split("=", 1) for option in options)


def _toleration(text: str) -> Object:
    """``KEY[=VALUE][:EFFECT]`` as a toleration."""
    rest, _, effect = text.partition(":")
    key, equals, value = rest.partition("=")
    toleration: Object = (
        {"key": key, "operator": "Equal", "value": value} if equals else {"key": key, "operator": "Exists"}
    )
    return toleration | ({"effect": effect} if effect else {})


def placement(settings: RunSettings) -> Placement:
    """Which remote nodes our pods can run on."""
    return Placement(
        tolerations=[_toleration(text) for text in settings.remote_tolerations],
        node_selector=_pairs(settings.remote_node_selector),
    )


def forge_options(settings: RunSettings, facts: Facts) -> ForgeOptions:
    """What is the same for all pods of the node."""
    where = placement(settings)
    return ForgeOptions(
        origin=facts.local_id,
        node=settings.node_name,
        remote_minor=int(facts.remote_version.split(".")[1]),
        node_selector=where.node_selector,
        tolerations=where.tolerations,
        runtime_class=settings.remote_runtime_class,
        priority_class=settings.remote_priority_class,
        allow_host=settings.allow_host,
    )


def watch_timing(settings: RunSettings) -> Timing:
    """How patient the informers are; a watch that lasted until its silence was a good one, however short that is."""
    silence = settings.watch_silence
    return Timing(silence=silence, healthy=min(DEFAULT_TIMING.healthy, silence))


def node_options(settings: RunSettings, facts: Facts) -> NodeOptions:
    """What is decided of the node before anything is known of the remote nodes."""
    return NodeOptions(
        name=settings.node_name,
        remote_cluster_id=facts.remote_id,
        local_version=facts.local_version,
        remote_version=facts.remote_version,
        addresses=(settings.node_address or facts.address,),
        labels=_pairs(settings.node_labels),
    )
