"""What the remote metrics API says, read."""

from __future__ import annotations

import json

import pytest

from kubelet_api.usage import metricsapi
from kubelet_api.usage.snapshot import Sample


def answer(cpu: str, memory: str, timestamp: str = "2023-11-14T22:13:40Z") -> bytes:
    item = {
        "metadata": {"name": "a", "namespace": "b", "labels": {"x": "y"}},
        "timestamp": timestamp,
        "window": "15.1s",
        "containers": [{"name": "main", "usage": {"cpu": cpu, "memory": memory}}],
    }
    return json.dumps({"kind": "PodMetricsList", "metadata": {}, "items": [item]}).encode()


@pytest.mark.parametrize(
    ("cpu", "memory", "cores", "size"),
    [
        ("250000000n", "1024Ki", 0.25, 1 << 20),
        ("250m", "1Mi", 0.25, 1 << 20),
        ("3", "5", 3.0, 5),
        ("0", "1Gi", 0.0, 1 << 30),
        ("1500u", "1e3", 0.0015, 1000),
    ],
)
def test_quantities(cpu: str, memory: str, cores: float, size: int) -> None:
    ((key, samples),) = metricsapi.Listed(metricsapi.decode(answer(cpu, memory))).items()
    assert key == ("b", "a")
    assert samples == {"main": Sample(1_700_000_020.0, size, rate=samples["main"].rate)}
    assert samples["main"].rate == pytest.approx(cores)


@pytest.mark.parametrize(("cpu", "memory", "timestamp"), [("x", "1", None), ("1", "y", None), ("1", "1", "soon")])
def test_what_cannot_be_read_is_not_there(cpu: str, memory: str, timestamp: str | None) -> None:
    content = answer(cpu, memory, timestamp or "2023-11-14T22:13:40Z")
    assert metricsapi.Listed(metricsapi.decode(content))["b", "a"] == {}


def test_an_empty_list() -> None:
    assert metricsapi.decode(b'{"items":null}') == ()
