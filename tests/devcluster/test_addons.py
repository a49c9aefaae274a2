"""The add-ons have the rights that they need and no more, and what leads to them fits together."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from ipaddress import ip_address
from pathlib import Path

import pytest
import yaml

from devcluster import addons, kwok, pki
from devcluster.api import Object, object_path
from devcluster.layout import ClusterLayout
from devcluster.process import Command

BINARIES = {name: Path("/bin") / name for name in (addons.COREDNS, addons.METRICS_SERVER, addons.LOCAL_PATH)}


@pytest.fixture
def objects(made: ClusterLayout) -> list[Object]:
    return addons.objects(made, metrics=True)


def of_kind(objects: list[Object], kind: str) -> dict[str, Object]:
    return {item["metadata"]["name"]: item for item in objects if item["kind"] == kind}


def flags(command: Command) -> dict[str, str]:
    pairs = [argument.removeprefix("--").partition("=") for argument in command.argv if argument.startswith("--")]
    return {name: value for name, _, value in pairs}


@pytest.fixture(params=["coredns", "metrics-server", "local-path-provisioner"])
def command(request: pytest.FixtureRequest, layout: ClusterLayout) -> Command:
    layout.folder.mkdir(parents=True)
    make = {
        "coredns": addons.coredns_command,
        "metrics-server": addons.metrics_server_command,
        "local-path-provisioner": addons.local_path_command,
    }
    return make[request.param](layout, BINARIES)


def test_objects_can_be_sent(objects: list[Object]) -> None:
    json.dumps(objects)
    paths = Counter(object_path(item) for item in objects)
    assert [path for path, count in paths.items() if count > 1] == []


def test_namespaces_come_before_what_is_in_them(objects: list[Object]) -> None:
    seen = {"kube-system", "default"}
    for item in objects:
        if item["kind"] == "Namespace":
            seen.add(item["metadata"]["name"])
        assert item["metadata"].get("namespace", "default") in seen, object_path(item)


def test_without_metrics_nothing_of_it_is_there(made: ClusterLayout, objects: list[Object]) -> None:
    without = addons.objects(made, metrics=False)
    left_out = [object_path(item) for item in objects if item not in without]
    assert left_out
    assert [path for path in left_out if "metrics" not in path] == []
    assert [object_path(item) for item in without if "metrics" in object_path(item)] == []


def test_every_identity_has_rights_and_every_right_an_identity(objects: list[Object]) -> None:
    ours = {user for user, _ in pki.CLIENTS.values() if user.startswith("devcluster:")}
    bound = {
        subject["name"]
        for binding in of_kind(objects, "ClusterRoleBinding").values()
        for subject in binding["subjects"]
    }
    assert bound == {*ours, "system:kube-proxy"}
    roles = of_kind(objects, "ClusterRole")
    for binding in of_kind(objects, "ClusterRoleBinding").values():
        role = binding["roleRef"]["name"]
        assert role in roles or role.startswith("system:"), role


def test_no_addon_has_rights_without_bounds(objects: list[Object]) -> None:
    for name, role in of_kind(objects, "ClusterRole").items():
        for rule in role["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]], name
            assert "secrets" not in rule["resources"], name
            assert {"escalate", "bind", "impersonate"}.isdisjoint(rule["verbs"]), name
            assert not any(".rbac." in group for group in rule["apiGroups"]), name


def test_who_only_reads(objects: list[Object]) -> None:
    roles = of_kind(objects, "ClusterRole")
    for name in ("devcluster:coredns", "devcluster:metrics-server"):
        verbs = {verb for rule in roles[name]["rules"] for verb in rule["verbs"]}
        assert verbs <= {"get", "list", "watch"}, name


def test_kwok_may_not_make_or_remove_nodes(objects: list[Object]) -> None:
    rules = of_kind(objects, "ClusterRole")["devcluster:kwok"]["rules"]
    verbs = {verb for rule in rules if "nodes" in rule["resources"] for verb in rule["verbs"]}
    assert verbs == {"get", "list", "watch"}


def test_services_lead_to_the_cluster_itself(made: ClusterLayout, objects: list[Object]) -> None:
    services, slices = of_kind(objects, "Service"), of_kind(objects, "EndpointSlice")
    assert set(services) == set(slices) == {"kube-dns", "metrics-server"}
    for name, service in services.items():
        spec, endpoints = service["spec"], slices[name]
        assert "selector" not in spec, "the endpoints controller would empty it"
        assert ip_address(spec["clusterIP"]) in made.services
        assert endpoints["metadata"]["labels"] == {"kubernetes.io/service-name": name}
        assert endpoints["endpoints"][0]["addresses"] == [str(made.ip)]
        assert [(port["name"], port["targetPort"], port["protocol"]) for port in spec["ports"]] == [
            (port["name"], port["port"], port["protocol"]) for port in endpoints["ports"]
        ]
    assert services["kube-dns"]["spec"]["clusterIP"] == str(made.dns_service_ip)


def test_metrics_are_verified(made: ClusterLayout, objects: list[Object]) -> None:
    (service,) = of_kind(objects, "APIService").values()
    assert base64.b64decode(service["spec"]["caBundle"]) == (made.pki / "ca.crt").read_bytes()
    assert "insecureSkipTLSVerify" not in service["spec"]


def test_one_default_storage_class_and_its_provisioner(made: ClusterLayout, objects: list[Object]) -> None:
    (storage,) = of_kind(objects, "StorageClass").values()
    assert storage["metadata"]["annotations"] == {"storageclass.kubernetes.io/is-default-class": "true"}
    told = flags(addons.local_path_command(made, BINARIES))
    assert storage["provisioner"] == told["provisioner-name"]
    settings = of_kind(objects, "ConfigMap")[told["configmap-name"]]
    assert settings["metadata"]["namespace"] == told["namespace"]
    (paths,) = json.loads(settings["data"]["config.json"])["nodePathMap"]
    assert all(Path(path).is_relative_to(made.folder) for path in paths["paths"])
    helper = yaml.safe_load(settings["data"]["helperPod.yaml"])
    assert helper["spec"]["containers"][0]["image"] == addons.BUSYBOX_IMAGE
    assert helper["spec"]["containers"][0]["imagePullPolicy"] == "IfNotPresent"
    assert told["service-account-name"] in of_kind(objects, "ServiceAccount")


def test_node_agent_tolerates_everything_and_keeps_off_fake_nodes(objects: list[Object]) -> None:
    (agent,) = of_kind(objects, "DaemonSet").values()
    spec = agent["spec"]["template"]["spec"]
    assert spec["tolerations"] == [{"operator": "Exists"}]
    affinity = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (expression,) = affinity["nodeSelectorTerms"][0]["matchExpressions"]
    assert expression["operator"] == "NotIn"
    assert kwok.node(0)["metadata"]["labels"][expression["key"]] in expression["values"]
    assert agent["spec"]["selector"]["matchLabels"].items() <= agent["spec"]["template"]["metadata"]["labels"].items()


def test_runs_in_the_cluster_with_its_own_identity(command: Command, layout: ClusterLayout) -> None:
    name = Path(command.argv[0]).name
    assert (command.argv[0], command.netns) == (f"/bin/{name}", str(layout.netns_path))
    told = " ".join(command.argv)
    if name == addons.COREDNS:
        told += (layout.folder / "Corefile").read_text()
    assert set(re.findall(r"\S+\.kubeconfig", told.replace("=", " "))) == {str(layout.kubeconfig(name))}
    assert "insecure" not in told


def test_metrics_server_verifies_kubelets(layout: ClusterLayout) -> None:
    told = flags(addons.metrics_server_command(layout, BINARIES))
    assert told["kubelet-certificate-authority"] == str(layout.pki / "ca.crt")
    assert told["tls-private-key-file"] == str(layout.pki / "metrics-server-serving.key")


def test_coredns_listens_on_the_cluster_only(layout: ClusterLayout) -> None:
    layout.folder.mkdir(parents=True)
    addons.coredns_command(layout, BINARIES)
    corefile = (layout.folder / "Corefile").read_text()
    assert f"bind {layout.ip}\n" in corefile
    assert corefile.count("{") == corefile.count("}") == 2
