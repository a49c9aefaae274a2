"""The remote ``metrics.k8s.io``, read: a list of PodMetrics as samples. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Struct

from app import quantity
from kubelet_api.usage.snapshot import PodKey, Sample


class _Usage(Struct, gc=False):
    cpu: str = ""
    memory: str = ""


class _Container(Struct, gc=False):
    name: str
    usage: _Usage


class _Metadata(Struct, gc=False):
    name: str = ""
    namespace: str = ""


class PodMetrics(Struct, gc=False):
    """One item of the list."""

    metadata: _Metadata
    timestamp: str
    containers: tuple[_Container, ...] = ()


class _List(Struct):
    items: tuple[PodMetrics, ...] | None = None


_DECODER: Final = msgspec.json.Decoder(_List)
_UNITS: Final = {"n": 1e-9, "u": 1e-6, "m": 1e-3}
_KIBI: Final = {"Ki": 10, "Mi": 20, "Gi": 30}


def decode(answer: bytes) -> tuple[PodMetrics, ...]:
    """The items of an answer; ``msgspec.DecodeError`` if it is no such list."""
    return _DECODER.decode(answer).items or ()


class Listed(Mapping[PodKey, Mapping[str, Sample]]):
    """What items say, pod by pod, read when a pod is asked for: ten thousand samples at once are never needed.

    A figure that cannot be read is as one that is not there.
    """

    def __init__(self, *answers: Iterable[PodMetrics]) -> None:
        self._items = {(item.metadata.namespace, item.metadata.name): item for items in answers for item in items}

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[PodKey]:
        return iter(self._items)

    def __getitem__(self, key: PodKey) -> Mapping[str, Sample]:
        item = self._items[key]
        found: dict[str, Sample] = {}
        try:
            time = _seconds(item.timestamp)
            for container in item.containers:
                usage = container.usage
                if usage.cpu and usage.memory:
                    found[container.name] = Sample(time, _bytes(usage.memory), _cores(usage.cpu))
        except ValueError:
            return {}
        return found


@lru_cache(maxsize=1024)
def _seconds(timestamp: str) -> float:
    when = datetime.datetime.fromisoformat(timestamp)
    if when.tzinfo is None:
        raise ValueError(timestamp)
    return when.timestamp()


def _cores(text: str) -> float:
    """Nearly always billionths; without the cache of quantities, as hardly two of ten thousand are the same."""
    unit = _UNITS.get(text[-1:])
    number = text[:-1]
    if unit is not None and number.isdecimal() and len(number) < 20:
        return int(number) * unit
    return quantity.nano(text) / quantity.NANO


def _bytes(text: str) -> int:
    power = _KIBI.get(text[-2:])
    number = text[:-2]
    if power is not None and number.isdecimal() and len(number) < 20:
        return int(number) << power
    return quantity.whole(text)
