"""What the dashboard, the alerts and the docs say of metrics, against what Farlet exports."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from app import metrics as figures
from app.caches import Caches
from app.kube.client import Client
from app.kube.config import Connection
from app.kube.events import Stats
from app.kube.informer import Informer
from app.kube.objects import Envelope
from app.kube.queue import WorkQueue
from app.kube.resources import PODS
from app.pods.latency import Latency
from kubelet_api.metrics import Metrics

ROOT = Path(__file__).resolve().parent.parent
MONITORING = ROOT / "manifests" / "monitoring"
ROW = re.compile(r"^\| `(farlet_\w+)` \| (\w+) \| ([\w, ]*?) ?\| ", re.MULTILINE)


@pytest.fixture(scope="module")
def exported() -> dict[str, str]:
    """Every metric of ours by the name that people ask for, and its type."""

    async def families() -> dict[str, str]:
        client = Client(Connection(server="https://nowhere.test", source="a test"))
        client.requests.count("GET", 200, 0.1)
        node = Envelope.of({"kind": "Node", "metadata": {"name": "n"}})
        metrics = Metrics(
            [
                figures.InfoCollector(node="n", role="all"),
                figures.TwinCollector(lambda: cast("Caches | None", None)),
                figures.ClientCollector(lambda: [client]),
                figures.InformerCollector(lambda: {"local": [Informer(client, PODS)]}),
                figures.LatencyCollector(Latency()),
                figures.WriteCollector({}),
                figures.EventCollector({"farlet": lambda: Stats(1, 0, 0)}),
                figures.QueueCollector([WorkQueue[str]()]),
                figures.StateCollector(leads=lambda: True, reachable=lambda: True, own_node=lambda: node),
                figures.CertificateCollector(lambda: (1.0, 2.0)),
            ]
        )
        text = metrics.exposition().decode()
        named = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
        assert len(named) == len(dict(named)), "each family once: two of a name are not the text format"
        return {name: kind for name, kind in named if name.startswith("farlet_")}

    return asyncio.run(families())


def asked_for(text: str) -> set[str]:
    """The metrics that a PromQL expression names."""
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"farlet_\w+", text)}


def dashboard_queries() -> Iterator[str]:
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in dashboard["templating"]["list"]:
        yield variable.get("definition", "")


def alerts() -> list[dict[str, Any]]:
    content = yaml.safe_load((MONITORING / "prometheusrule.yaml").read_text())
    return [rule for group in content["spec"]["groups"] for rule in group["rules"]]


def test_the_dashboard_asks_for_what_there_is(exported: dict[str, str]) -> None:
    asked = set().union(*map(asked_for, dashboard_queries()))
    assert asked <= exported.keys()
    assert len(asked) > 30


def test_the_dashboard_is_one() -> None:
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    assert [variable["name"] for variable in dashboard["templating"]["list"]][:2] == ["datasource", "node"]
    titles = [panel["title"] for panel in dashboard["panels"]]
    assert len(titles) == len(set(titles))


def test_alerts_ask_for_what_there_is(exported: dict[str, str]) -> None:
    for rule in alerts():
        assert asked_for(rule["expr"]) <= exported.keys(), rule["alert"]
        assert rule["annotations"].keys() == {"summary", "description", "runbook"}, rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_the_docs_have_every_metric_and_alert(exported: dict[str, str]) -> None:
    text = (ROOT / "docs" / "monitoring.md").read_text()
    assert {name: kind for name, kind, _ in ROW.findall(text)} == exported
    assert set(re.findall(r"^\| `(Farlet\w+)` \|", text, re.MULTILINE)) == {rule["alert"] for rule in alerts()}


def test_replicas_are_scraped_only_for_what_each_has_of_its_own() -> None:
    """What pods use is the same on all of them: each pod would be counted once for each replica."""
    monitor = yaml.safe_load((MONITORING / "servicemonitor.yaml").read_text())
    assert [endpoint["path"] for endpoint in monitor["spec"]["endpoints"]] == ["/metrics"]
