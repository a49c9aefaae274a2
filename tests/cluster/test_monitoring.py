"""A real Prometheus scrapes a real Farlet with the rights of ``manifests/monitoring``; promtool checks the rest."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import string
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from app import __version__
from devcluster import binaries
from devcluster.cluster import Cluster
from devcluster.fleet import Fleet
from tests.cluster.farlet import MANIFESTS, Farlet, pod_manifest, running
from tests.cluster.objects import apply, wait_ready
from tests.eventually import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("monitoring")]

PATHS = ("/metrics", "/metrics/resource", "/metrics/cadvisor", "/metrics/probes")
ACCOUNT = "prometheus-k8s"
TROUBLE = ("Requests that failed", "Refused")
"""Panels of the dashboard that may be empty: nothing of the kind has happened."""


class Prometheus:
    """One that runs, asked over its API."""

    def __init__(self, address: str) -> None:
        self._address = address

    def get(self, path: str, **query: str) -> Any:
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refused:
            raise AssertionError(f"{query}: {refused.read().decode()}") from None

    def value(self, query: str) -> float | None:
        """The one value of a query; None if it has none."""
        found = self.get("query", query=query)["result"]
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None


@dataclass(frozen=True)
class Scraped:
    farlet: Farlet
    namespace: str
    api: str
    """Where the replica with --role api listens."""
    prometheus: Prometheus


@pytest.fixture(scope="module")
def scraped(fleet: Fleet, module_namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """A Farlet with one pod, a second one with the API alone, and a Prometheus that finds the first as a node."""
    folder, namespace = tmp_path_factory.mktemp("monitoring"), module_namespace
    local, remote = fleet.cluster("local"), fleet.cluster("remote")
    options = ["--namespace", f"{namespace}={namespace}"]
    node = f"virtual-{uuid.uuid4().hex[:8]}"
    with running(local, remote, node, folder, *options) as farlet:
        apply(local, namespace, pod_manifest("box", node))
        wait_ready(local, namespace, "pod/box")
        port = _free_port()
        alone = [*options, "--role", "api", "--health-address", "127.0.0.1:0", "--kubelet-address", f"0.0.0.0:{port}"]
        replica = Farlet(local, remote, node, folder / "api.log", alone)
        try:
            replica.start()
            api = f"{_address(local, node)}:{port}"
            with _prometheus(_configuration(local, namespace, node, api, folder), folder) as prometheus:
                yield Scraped(farlet, namespace, api, prometheus)
        finally:
            replica.stop()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("", 0))
        return int(taken.getsockname()[1])


def _address(local: Cluster, node: str) -> str:
    path = "jsonpath={.status.addresses[?(@.type=='InternalIP')].address}"
    return local.kubectl("get", "node", node, "-o", path).stdout


def _configuration(local: Cluster, namespace: str, node: str, api: str, folder: Path) -> Path:
    """Scrapes with the token of a ServiceAccount that has the rights of the manifests, and those to find nodes."""
    kubeconfig = local.service_account_kubeconfig(namespace, ACCOUNT)
    rights = (
        (MANIFESTS / "monitoring" / "rbac.yaml").read_text().replace("namespace: monitoring", f"namespace: {namespace}")
    )
    local.kubectl("apply", "-f", "-", stdin=rights)
    reader = f"{namespace}-nodes"
    local.kubectl("create", "clusterrole", reader, "--verb=get,list,watch", "--resource=nodes")
    local.kubectl(
        "create", "clusterrolebinding", reader, f"--clusterrole={reader}", f"--serviceaccount={namespace}:{ACCOUNT}"
    )
    token = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"]
    credentials = {
        "scheme": "https",
        "authorization": {"credentials": token},
        "tls_config": {"ca_file": str(local.layout.pki / "ca.crt")},
    }
    nodes = {
        "role": "node",
        "kubeconfig_file": str(kubeconfig),
        "selectors": [{"role": "node", "field": f"metadata.name={node}"}],
    }
    scrapes = [
        {"job_name": path, "metrics_path": path, "kubernetes_sd_configs": [nodes], "honor_labels": path != "/metrics"}
        for path in PATHS
    ]
    scrapes.append({"job_name": "api", "metrics_path": "/metrics", "static_configs": [{"targets": [api]}]})
    labels = [
        {"target_label": "job", "replacement": "farlet"},
        {"source_labels": ["__metrics_path__"], "target_label": "metrics_path"},
        {"source_labels": ["__address__"], "target_label": "instance"},
    ]
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules()))
    config = folder / "prometheus.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": "2s", "evaluation_interval": "2s"},
                "rule_files": ["rules.yaml"],
                "scrape_configs": [{**scrape, **credentials, "relabel_configs": labels} for scrape in scrapes],
            }
        )
    )
    config.chmod(0o600)
    return config


@contextlib.contextmanager
def _prometheus(config: Path, folder: Path) -> Iterator[Prometheus]:
    program = binaries.ensure(["prometheus"])["prometheus"]
    log = folder / "prometheus.log"
    options = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}", "--web.listen-address=127.0.0.1:0"]
    with log.open("wb") as output, subprocess.Popen([program, *options], stdout=output, stderr=output) as process:
        try:
            found = eventually(
                lambda: re.search(r"Listening on.* address=(127\.0\.0\.1:\d+)", log.read_text()), "Prometheus listens"
            )
            assert found is not None
            yield Prometheus(found[1])
        finally:
            process.terminate()
            process.wait(30)
            print(log.read_text()[-3000:])  # noqa: T201 - in the report of a test that fails


def rules() -> dict[str, Any]:
    """The alerts as Prometheus itself takes them."""
    content: dict[str, Any] = yaml.safe_load((MANIFESTS / "monitoring" / "prometheusrule.yaml").read_text())["spec"]
    return content


def promtool(*arguments: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    program = binaries.ensure(["promtool"])["promtool"]
    return subprocess.run([program, *arguments], input=stdin, capture_output=True, text=True, check=False)


def test_every_path_is_scraped(scraped: Scraped) -> None:
    def targets() -> list[tuple[str, str, str]]:
        active = scraped.prometheus.get("targets", state="active")["activeTargets"]
        return sorted((t["labels"]["metrics_path"], t["health"], t["lastError"]) for t in active)

    expected = sorted([*((path, "up", "") for path in PATHS), ("/metrics", "up", "")])
    assert eventually(targets, "all targets are up", until=lambda seen: seen == expected)


@pytest.mark.parametrize(
    ("query", "least"),
    [
        ('farlet_info{{virtual_node="{node}",role="all"}}', 1),
        ("farlet_leader", 1),
        ("farlet_remote_reachable", 1),
        ("farlet_node_ready", 1),
        ('max by (kind, phase) (farlet_twins{{kind="ReplicaSet",phase="Running"}})', 1),
        ("farlet_pod_offload_seconds_count", 1),
        ("farlet_pod_ready_seconds_count", 1),
        ("farlet_pod_status_lag_seconds_count", 1),
        ('farlet_client_requests_total{{cluster="remote",verb="create",code="201",instance!="{api}"}}', 1),
        ('farlet_client_requests_total{{cluster="local",verb="patch",code="200",instance!="{api}"}}', 1),
        ('farlet_client_request_duration_seconds_count{{cluster="local",verb="watch",instance!="{api}"}}', 3),
        ('farlet_queue_runs_total{{queue="pods"}}', 1),
        ('farlet_queue_oldest_age_seconds{{queue="remote events"}} + 1', 1),
        ('farlet_events_total{{source="remote",result="dropped"}} + 1', 1),
        ('farlet_informer_synced{{cluster="remote",resource="namespaces"}}', 1),
        ('farlet_informer_watches_total{{cluster="remote",resource="pods",instance!="{api}"}}', 1),
        ('farlet_serving_certificate_expiry_timestamp_seconds{{instance!="{api}"}} - time()', 60),
        ('farlet_credentials_expiry_timestamp_seconds{{cluster="remote",kind="token",instance!="{api}"}} - time()', 60),
        ('farlet_info{{virtual_node="{node}",role="api"}}', 1),
        ('sum(farlet_client_requests_total{{instance="{api}"}})', 1),
        ('farlet_informer_synced{{instance="{api}",cluster="local",resource="pods"}}', 1),
        ('container_memory_working_set_bytes{{metrics_path="/metrics/resource",pod="box",namespace="{namespace}"}}', 1),
        ('{{__name__=~".+_scrape_error",metrics_path="/metrics/cadvisor"}} + 1', 1),
        ('process_start_time_seconds{{metrics_path="/metrics/probes"}}', 1),
    ],
)
def test_figures(scraped: Scraped, query: str, least: float) -> None:
    asked = query.format(node=scraped.farlet.node, api=scraped.api, namespace=scraped.namespace)
    eventually(lambda: scraped.prometheus.value(asked), asked, until=lambda value: value is not None and value >= least)


def test_every_panel_of_the_dashboard_shows_something(scraped: Scraped) -> None:
    """As Grafana asks: each variable with the values of those before it, then every panel with them, over a while."""
    dashboard = json.loads((MANIFESTS / "monitoring" / "dashboard.json").read_text())
    apply(scraped.farlet.local, scraped.namespace, pod_manifest("seen", scraped.farlet.node))
    wait_ready(scraped.farlet.local, scraped.namespace, "pod/seen")
    scraped.farlet.local.kubectl("-n", scraped.namespace, "exec", "seen", "--", "echo", "hello")
    values = {"__rate_interval": "5m"}
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            found = _values(scraped.prometheus, string.Template(variable["definition"]).substitute(values))
            values[variable["name"]] = f"({'|'.join(map(_escaped, found))})" if variable["multi"] else found[0]
    assert values["node"] == scraped.farlet.node

    def blank() -> list[str]:
        """The queries that show nothing; one that is not PromQL fails."""
        return [
            f"{panel['title']}: {target['expr']}"
            for panel in dashboard["panels"]
            for target in panel.get("targets", ())
            if not _shows(scraped.prometheus, string.Template(target["expr"]).substitute(values), target["instant"])
            and panel["title"] not in TROUBLE
        ]

    eventually(blank, "every panel shows something", until=lambda panels: not panels)
    scraped.farlet.local.kubectl("-n", scraped.namespace, "delete", "pod", "seen", "--wait=false")


def _values(prometheus: Prometheus, definition: str) -> list[str]:
    """What Grafana makes of ``label_values(series, label)``."""
    match = re.fullmatch(r"label_values\((.+), (\w+)\)", definition)
    assert match is not None, definition
    found: list[str] = eventually(
        lambda: prometheus.get(f"label/{match[2]}/values", **{"match[]": match[1]}), definition
    )
    return found


def _escaped(value: str) -> str:
    """A value for a regular expression in quotes."""
    return re.escape(value).replace("\\", "\\\\")


def _shows(prometheus: Prometheus, query: str, instant: bool) -> bool:
    """Whether there is a figure; "not a number" draws nothing."""
    if instant:
        series = [[found["value"]] for found in prometheus.get("query", query=query)["result"]]
    else:
        now = time.time()
        times = {"start": f"{now - 60:.0f}", "end": f"{now:.0f}", "step": "5"}
        series = [found["values"] for found in prometheus.get("query_range", query=query, **times)["result"]]
    return any(value != "NaN" for values in series for _, value in values)


def test_an_api_alone_says_nothing_of_what_it_does_not_do(scraped: Scraped) -> None:
    eventually(lambda: scraped.prometheus.value(f'farlet_info{{instance="{scraped.api}"}}'), "it is scraped")
    named = f'{{instance="{scraped.api}",__name__=~"farlet_(leader|node|remote|queue|pod)_?.*"}}'
    assert scraped.prometheus.get("query", query=named)["result"] == []


def test_the_alerts_are_loaded_and_quiet(scraped: Scraped) -> None:
    wanted = {rule["alert"] for group in rules()["groups"] for rule in group["rules"]}

    def states() -> dict[str, tuple[str, str]]:
        groups = scraped.prometheus.get("rules")["groups"]
        return {rule["name"]: (rule["health"], rule["state"]) for group in groups for rule in group["rules"]}

    seen = eventually(states, "all are evaluated", until=lambda found: all(s[0] == "ok" for s in found.values()))
    assert seen.keys() == wanted
    assert "firing" not in {state for _, state in seen.values()}, seen


@pytest.mark.parametrize("path", PATHS)
def test_promtool_reads_every_endpoint(scraped: Scraped, path: str) -> None:
    text = scraped.farlet.local.api.text(f"/api/v1/nodes/{scraped.farlet.node}/proxy{path}")
    checked = promtool("check", "metrics", stdin=text)
    complaints = checked.stdout + checked.stderr
    if path == "/metrics":
        assert (checked.returncode, complaints) == (0, "")
    else:
        # 3: it can be read, and names are not what promtool would choose; they are the kubelet's
        assert checked.returncode in (0, 3), complaints


def test_a_worker_alone_tells_on_its_health_port(
    local: Cluster, remote: Cluster, namespace: str, virtual_node: str, tmp_path: Path
) -> None:
    port = _free_port()
    options = ["--role", "worker", "--namespace", f"{namespace}={namespace}", "--kubelet-address", "0.0.0.0:10250"]
    options += ["--health-address", f"127.0.0.1:{port}", "--health-metrics"]
    with running(local, remote, virtual_node, tmp_path, *options):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        checked = promtool("check", "metrics", stdin=text)
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
        info = f'farlet_info{{role="worker",version="{__version__}",virtual_node="{virtual_node}"}} 1.0'
        assert {"farlet_leader 1.0", info} <= {*text.splitlines()}
        told = {*re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)}
        assert {"farlet_queue_depth", "farlet_pod_offload_seconds", "process_cpu_seconds_total"} <= told
        assert "farlet_sessions_open" not in told, "there is no kubelet API"


def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules()))
    (tmp_path / "alerts.yaml").write_text((Path(__file__).parent / "alerts.yaml").read_text())
    checked = promtool("check", "rules", "--lint=all", "--lint-fatal", tmp_path / "rules.yaml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = promtool("test", "rules", tmp_path / "alerts.yaml")
    assert tested.returncode == 0, tested.stdout + tested.stderr
