"""The JSON of /stats/summary: what is known, under local names."""

from __future__ import annotations

import json
from typing import Any

from kubelet_api.usage.counters import Counters
from kubelet_api.usage.snapshot import Snapshot
from kubelet_api.usage.summary import summary
from tests.kubelet_api.usage.pods import START, UID, placed, rate


def read(found: Snapshot, **options: Any) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(b"".join(summary(found, node="far", started=START, **options)))
    return content


def one() -> Snapshot:
    counters = Counters()
    pod = counters.pod(placed(), {"main": rate(20, 0.25)})
    assert pod is not None
    return Snapshot([pod], counters.node([pod], START + 21), complete=True)


def test_what_is_known() -> None:
    found = read(one())
    assert found["node"]["nodeName"] == "far"
    assert found["node"]["memory"] == {"time": "2023-11-14T22:13:41Z", "workingSetBytes": 1 << 20}
    (pod,) = found["pods"]
    assert pod["podRef"] == {"name": "web", "namespace": "shop", "uid": UID}
    cpu = {"time": "2023-11-14T22:13:40Z", "usageNanoCores": 250_000_000, "usageCoreNanoSeconds": 5_000_000_000}
    memory = {"time": "2023-11-14T22:13:40Z", "workingSetBytes": 1 << 20}
    assert pod["containers"] == [{"name": "main", "startTime": "2023-11-14T22:13:20Z", "cpu": cpu, "memory": memory}]
    assert pod["cpu"] == cpu


def test_nothing_known_is_empty_lists_and_no_figures() -> None:
    assert read(Snapshot()) == {"node": {"nodeName": "far", "startTime": "2023-11-14T22:13:20Z"}, "pods": []}
    (pod,) = read(Snapshot(), unknown=[placed()])["pods"]
    assert pod["containers"] == []
    assert set(pod) == {"podRef", "startTime", "containers"}


def test_what_a_kubelet_adds_is_under_local_names() -> None:
    details = {
        UID: {
            "podRef": {"name": "web-x7-abcde", "namespace": "shop-far", "uid": "remote"},
            "network": {"name": "eth0", "rxBytes": 5},
            "volume": [{"name": "data", "usedBytes": 3, "pvcRef": {"name": "data", "namespace": "shop-far"}}],
            "containers": [
                {"name": "main", "rootfs": {"usedBytes": 7}, "memory": {"rssBytes": 9, "workingSetBytes": 1}},
                {"name": "other"},
            ],
        }
    }
    (pod,) = read(one(), details=details)["pods"]
    assert pod["podRef"]["name"] == "web"
    assert pod["network"]["rxBytes"] == 5
    assert pod["volume"][0]["pvcRef"] == {"name": "data", "namespace": "shop"}
    (container,) = pod["containers"]
    assert container["rootfs"] == {"usedBytes": 7}
    assert container["memory"]["rssBytes"] == 9
    assert container["memory"]["workingSetBytes"] == 1 << 20
    assert "shop-far" not in json.dumps(pod)


def test_many_pods_are_one_list() -> None:
    unknown = [placed(f"web-{number}", uid=str(number)) for number in range(1000)]
    assert len(read(Snapshot(), unknown=unknown)["pods"]) == 1000
