"""What offloaded pods need is in the remote cluster too, as it is in the local one, and nobody else's is touched."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app import names
from app.namespaces.mapping import remote_name
from devcluster.cluster import Cluster
from devcluster.fleet import Fleet
from tests.cluster import audit
from tests.cluster.farlet import Farlet, pod_manifest, running
from tests.cluster.objects import apply, get, wait_ready
from tests.cluster.pods import run_pod, shell
from tests.eventually import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("labels")]

Object = dict[str, Any]
KINDS = ("configmaps", "secrets", "services", "endpointslices")


class Reflected:
    """A Farlet between a local namespace and the remote one of the same name."""

    def __init__(self, farlet: Farlet, namespace: str) -> None:
        self.farlet, self.namespace = farlet, namespace
        self.local, self.remote = farlet.local, farlet.remote

    def apply(self, *objects: Object) -> None:
        apply(self.local, self.namespace, *map(json.dumps, objects))

    def remote_object(self, kind: str, name: str) -> Object | None:
        text = self.remote.kubectl("-n", self.namespace, "get", kind, name, "--ignore-not-found", "-o", "json").stdout
        found: Object | None = json.loads(text) if text else None
        return found

    def until(
        self, kind: str, name: str, what: str, check: Callable[[Object], bool] = bool, timeout: float = 90
    ) -> Object:
        """Wait for a remote object that is so."""

        def probe() -> Object | None:
            found = self.remote_object(kind, name)
            return found if found is not None and check(found) else None

        found = eventually(probe, f"remote {kind} {name} {what}", timeout=timeout)
        assert found is not None
        return found

    def until_gone(self, kind: str, name: str) -> None:
        eventually(lambda: self.remote_object(kind, name) is None, f"remote {kind} {name} is gone", timeout=90)

    def writes(self, since: int, *, tried: bool = False) -> list[str]:
        """What Farlet wrote to reflected kinds of the remote namespace, by the audit log; or tried to write."""
        audited = [each for each in self._audited(since) if not each[0].startswith(("get ", "list ", "watch "))]
        return [what for what, code in audited if tried or code < 300]

    def requests(self, name: str, since: int) -> list[str]:
        """What Farlet asked for of an object in the remote namespace, whatever the answer."""
        return [what for what, _ in self._audited(since) if what.endswith(f" {name}")]

    def _audited(self, since: int) -> Iterator[tuple[str, int]]:
        for event, item in audit.about(self.remote, since, self.namespace):
            if item.get("resource") in KINDS:
                code = (event.get("responseStatus") or {}).get("code", 200)
                yield f"{event['verb']} {item['resource']} {item.get('name')}", code

    def events(self, kind: str, name: str) -> list[Object]:
        """Our events of a local object."""
        about = f"involvedObject.kind={kind},involvedObject.name={name}"
        items: list[Object] = get(self.local, self.namespace, "events", "--field-selector", about)["items"]
        return items


@pytest.fixture(scope="module")
def reflected(fleet: Fleet, module_namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reflected]:
    node, folder = f"virtual-{uuid.uuid4().hex[:8]}", tmp_path_factory.mktemp("reflection")
    local, remote = fleet.cluster("local"), fleet.cluster("remote")
    options = ["--namespace", f"{module_namespace}={module_namespace}", "--not-reflected-label", "secret.example/*"]
    with running(local, remote, node, folder, *options) as farlet:
        yield Reflected(farlet, module_namespace)


def made(kind: str, name: str, annotations: dict[str, str] | None = None, **content: Any) -> Object:
    metadata: Object = {"name": name, "labels": {"app": name}, "annotations": annotations or {}}
    version = "discovery.k8s.io/v1" if kind == "EndpointSlice" else "v1"
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}


def data(found: Object) -> Object:
    return found.get("data") or {}


def test_a_config_map_is_made_changed_and_deleted(reflected: Reflected) -> None:
    binary = base64.b64encode(bytes(range(256))).decode()
    config = made("ConfigMap", "plain", {"note": "kept"}, data={"a": "1", "b": "2"}, binaryData={"raw": binary})
    config["metadata"]["labels"]["secret.example/team"] = "x"
    mark = audit.mark(reflected.remote)
    reflected.apply(config)
    copy = reflected.until("configmap", "plain", "is there")
    assert copy["data"] == config["data"]
    assert copy["binaryData"] == config["binaryData"]
    labels, annotations = copy["metadata"]["labels"], copy["metadata"]["annotations"]
    assert labels["app"] == "plain"
    assert labels[names.LABEL_NODE] == reflected.farlet.node
    assert "secret.example/team" not in labels
    assert annotations["note"] == "kept"
    assert annotations[names.ANNOTATION_LOCAL_NAME] == "plain"
    assert "kubectl.kubernetes.io/last-applied-configuration" not in annotations
    managers = get(reflected.remote, reflected.namespace, "configmap", "plain", "--show-managed-fields")["metadata"]
    assert {entry["manager"] for entry in managers["managedFields"]} == {names.FIELD_MANAGER_REFLECTION}

    # somebody's label stays, a key and a label that are gone locally go
    reflected.remote.kubectl("-n", reflected.namespace, "label", "configmap", "plain", "theirs=kept")
    changed = made("ConfigMap", "plain", data={"a": "3"})
    del changed["metadata"]["labels"]["app"]
    reflected.apply(changed)
    copy = reflected.until("configmap", "plain", "has changed", lambda found: data(found) == {"a": "3"})
    assert "binaryData" not in copy
    assert copy["metadata"]["labels"]["theirs"] == "kept"
    assert "app" not in copy["metadata"]["labels"]
    assert "note" not in copy["metadata"]["annotations"]

    reflected.local.kubectl("-n", reflected.namespace, "delete", "configmap", "plain")
    reflected.until_gone("configmap", "plain")
    assert [write for write in reflected.writes(mark) if "plain" in write] == [
        "create configmaps plain",
        "update configmaps plain",
        "delete configmaps plain",
    ]


def test_what_somebody_does_to_a_copy_is_undone(reflected: Reflected) -> None:
    reflected.apply(made("ConfigMap", "drift", data={"a": "1"}), made("Secret", "drift", stringData={"a": "1"}))
    first = reflected.until("configmap", "drift", "is there")
    reflected.until("secret", "drift", "is there")
    patch = ["patch", "-p", json.dumps({"data": {"a": "x", "b": "y"}}), "--type=merge"]
    reflected.remote.kubectl("-n", reflected.namespace, *patch, "configmap", "drift")
    reflected.until("configmap", "drift", "is repaired", lambda found: data(found) == {"a": "1"})
    reflected.remote.kubectl("-n", reflected.namespace, "label", "secret", "drift", "app=other", "--overwrite")
    reflected.until("secret", "drift", "is repaired", lambda found: found["metadata"]["labels"]["app"] == "drift")
    reflected.apply(made("Service", "drift", spec={"ports": [{"port": 80}]}))
    reflected.until("service", "drift", "is there")
    selector = ["patch", "-p", json.dumps({"spec": {"selector": {"app": "theirs"}}}), "--type=merge"]
    reflected.remote.kubectl("-n", reflected.namespace, *selector, "service", "drift")
    reflected.until("service", "drift", "is repaired", lambda found: "selector" not in found["spec"])
    reflected.remote.kubectl("-n", reflected.namespace, "delete", "configmap", "drift")
    again = reflected.until("configmap", "drift", "is back", lambda f: f["metadata"]["uid"] != first["metadata"]["uid"])
    assert data(again) == {"a": "1"}


def test_what_is_not_ours_is_left_alone_and_said_once(reflected: Reflected) -> None:
    """Until it is gone."""
    theirs = [made("ConfigMap", name, data={"whose": "theirs"}) for name in ("taken", "freed")]
    apply(reflected.remote, reflected.namespace, *map(json.dumps, theirs))
    before = reflected.remote_object("configmap", "taken")
    mark = audit.mark(reflected.remote)
    reflected.apply(*(made("ConfigMap", name, data={"whose": "ours"}) for name in ("taken", "freed")))
    told = eventually(lambda: reflected.events("ConfigMap", "taken"), "it is said")
    eventually(lambda: reflected.events("ConfigMap", "freed"), "it is said")
    reflected.remote.kubectl("-n", reflected.namespace, "delete", "configmap", "freed")
    reflected.until("configmap", "freed", "is ours", lambda found: data(found) == {"whose": "ours"})

    # by the time of the second look nothing more is said, nor tried
    looks = ["create configmaps taken", "get configmaps taken", "get configmaps taken"]
    eventually(lambda: reflected.requests("taken", mark)[:3], "it is looked at again", until=looks.__eq__)
    assert reflected.remote_object("configmap", "taken") == before
    (event,) = reflected.events("ConfigMap", "taken")
    assert (event["reason"], event["type"], event["count"]) == (names.REFLECTION_CONFLICT, "Warning", 1), told
    assert f"{reflected.namespace}/taken" in event["message"]
    assert "create configmaps taken" not in reflected.requests("taken", mark)[1:]


def test_objects_decide_for_themselves(reflected: Reflected) -> None:
    no = {names.ANNOTATION_REFLECT: "false"}
    reflected.apply(
        made("ConfigMap", "stays", no, data={"a": "1"}),
        made("Secret", "stays", no, stringData={"a": "1"}),
        made("ConfigMap", "after", data={"a": "1"}),
        made("Secret", "after", stringData={"a": "1"}),
    )
    reflected.until("configmap", "after", "is there")
    reflected.until("secret", "after", "is there")
    assert reflected.remote_object("configmap", "stays") is None
    assert reflected.remote_object("secret", "stays") is None
    annotate = ["annotate", "--overwrite", "configmap"]
    reflected.local.kubectl("-n", reflected.namespace, *annotate, "stays", f"{names.ANNOTATION_REFLECT}-")
    reflected.until("configmap", "stays", "is there")
    reflected.local.kubectl("-n", reflected.namespace, *annotate, "after", f"{names.ANNOTATION_REFLECT}=false")
    reflected.until_gone("configmap", "after")


def test_secrets_of_every_type_but_tokens(reflected: Reflected) -> None:
    docker = json.dumps({"auths": {"registry.example": {"auth": base64.b64encode(b"u:p").decode()}}})
    token = made(
        "Secret",
        "token",
        {"kubernetes.io/service-account.name": "default", names.ANNOTATION_REFLECT: "true"},
        type="kubernetes.io/service-account-token",
    )
    types = {
        "opaque": made("Secret", "opaque", stringData={"a": "1"}),
        "pull": made("Secret", "pull", type="kubernetes.io/dockerconfigjson", stringData={".dockerconfigjson": docker}),
        "basic": made("Secret", "basic", type="kubernetes.io/basic-auth", stringData={"username": "u"}),
        "own": made("Secret", "own", type="example.com/own", stringData={"x": "y"}),
    }
    reflected.apply(token, *types.values())
    for name in types:
        local = get(reflected.local, reflected.namespace, "secret", name)
        copy = reflected.until("secret", name, "is there")
        assert (copy["type"], copy["data"]) == (local["type"], local["data"])
    assert reflected.remote_object("secret", "token") is None

    # a type cannot be changed: such a Secret is another one under the same name, on both sides
    reflected.local.kubectl("-n", reflected.namespace, "delete", "secret", "own")
    reflected.apply(made("Secret", "own", type="example.com/other", stringData={"x": "y"}))
    reflected.until("secret", "own", "has the other type", lambda found: found["type"] == "example.com/other")


def test_immutable_ones_are_made_anew(reflected: Reflected) -> None:
    reflected.apply(
        made("ConfigMap", "fixed", data={"a": "1"}, immutable=True),
        made("Secret", "fixed", stringData={"a": "1"}, immutable=True),
    )
    for kind in ("configmap", "secret"):
        first = reflected.until(kind, "fixed", "is there")
        assert first["immutable"] is True
        reflected.local.kubectl("-n", reflected.namespace, "delete", kind, "fixed")
    reflected.apply(made("ConfigMap", "fixed", data={"a": "2"}), made("Secret", "fixed", stringData={"a": "2"}))
    for kind in ("configmap", "secret"):
        copy = reflected.until(kind, "fixed", "is the new one", lambda f: data(f)["a"] in ("2", "Mg=="))
        assert not copy.get("immutable")


SERVICES: dict[str, Object] = {
    "cluster-ip": {"selector": {"app": "x"}, "sessionAffinity": "ClientIP"},
    "headless": {"clusterIP": "None", "selector": {"app": "x"}, "publishNotReadyAddresses": True},
    "node-port": {"type": "NodePort", "selector": {"app": "x"}},
    "balanced": {"type": "LoadBalancer", "selector": {"app": "x"}, "externalTrafficPolicy": "Local"},
    "other-name": {"type": "ExternalName", "externalName": "db.example.com"},
    "dual": {"selector": {"app": "x"}, "ipFamilyPolicy": "PreferDualStack"},
    "outside": {"selector": {"app": "x"}, "externalIPs": ["192.0.2.9"]},
}


def test_services_of_every_type(reflected: Reflected) -> None:
    ports = [{"name": "web", "port": 80, "targetPort": "http"}, {"name": "dns", "port": 53, "protocol": "UDP"}]
    for name, spec in SERVICES.items():
        with_ports = {} if spec.get("type") == "ExternalName" else {"ports": ports}
        reflected.apply(made("Service", name, spec={**spec, **with_ports}))
    for name, spec in SERVICES.items():
        copy = reflected.until("service", name, "is there")["spec"]
        local = get(reflected.local, reflected.namespace, "service", name)["spec"]
        for field, value in spec.items():
            assert copy.get(field) == (None if field == "externalIPs" else value), (name, field)
        if "clusterIP" in local and local["clusterIP"] != "None":
            assert copy["clusterIP"] != local["clusterIP"], "each cluster has its own"
        for mine, theirs in zip(local.get("ports") or [], copy.get("ports") or [], strict=True):
            assert {**mine, "nodePort": 0} == {**theirs, "nodePort": 0}, name


KEPT_PORT = 30077
"""Of those that an API server gives to nobody who does not ask for them."""


def test_node_ports_are_kept_when_asked(reflected: Reflected) -> None:
    ports = [{"name": "web", "port": 80, "nodePort": KEPT_PORT}]
    keep = {names.ANNOTATION_KEEP_NODE_PORTS: "true"}
    reflected.apply(made("Service", "kept", keep, spec={"type": "NodePort", "ports": ports}))
    copy = reflected.until("service", "kept", "is there")
    assert copy["spec"]["ports"][0]["nodePort"] == KEPT_PORT


def test_a_service_changes_and_keeps_what_the_remote_gave_it(reflected: Reflected) -> None:
    spec = {"type": "NodePort", "selector": {"app": "x"}, "ports": [{"name": "web", "port": 80}]}
    reflected.apply(made("Service", "moving", spec=spec))
    first = reflected.until("service", "moving", "is there")["spec"]
    ports = [{"name": "web", "port": 8080}, {"name": "more", "port": 81}]
    reflected.apply(made("Service", "moving", spec={**spec, "ports": ports, "selector": {"app": "y"}}))
    second = reflected.until("service", "moving", "changed", lambda found: len(found["spec"]["ports"]) == 2)["spec"]
    assert second["clusterIP"] == first["clusterIP"]
    assert second["ports"][0]["nodePort"] == first["ports"][0]["nodePort"]
    assert second["selector"] == {"app": "y"}
    # what was left out locally is left out there
    reflected.apply(made("Service", "moving", spec={**spec, "type": "ClusterIP", "trafficDistribution": "PreferClose"}))
    third = reflected.until("service", "moving", "is a ClusterIP", lambda f: f["spec"]["type"] == "ClusterIP")["spec"]
    assert third["trafficDistribution"] == "PreferClose"
    assert "nodePort" not in third["ports"][0]
    reflected.apply(made("Service", "moving", spec={**spec, "type": "ClusterIP"}))
    reflected.until("service", "moving", "has lost it", lambda found: "trafficDistribution" not in found["spec"])
    # to headless there is no way but a new one
    reflected.local.kubectl("-n", reflected.namespace, "delete", "service", "moving")
    reflected.apply(made("Service", "moving", spec={"clusterIP": "None", "ports": [{"port": 80}]}))
    reflected.until("service", "moving", "is headless", lambda found: found["spec"].get("clusterIP") == "None")


def test_slices_made_by_hand_follow_their_service(reflected: Reflected) -> None:
    def slice_of(service: str) -> Object:
        found = made(
            "EndpointSlice",
            f"{service}-hand",
            addressType="IPv4",
            ports=[{"name": "db", "port": 5432, "protocol": "TCP"}],
            endpoints=[
                {"addresses": ["10.9.9.9"], "conditions": {"ready": True}, "zone": "here", "nodeName": "local-node"},
                {"addresses": ["10.9.9.10"], "conditions": {"ready": False, "serving": True, "terminating": True}},
            ],
        )
        found["metadata"]["labels"]["kubernetes.io/service-name"] = service
        return found

    no = {names.ANNOTATION_REFLECT: "false"}
    db = {"ports": [{"name": "db", "port": 5432}]}
    reflected.apply(made("Service", "db", spec=db), slice_of("db"))
    reflected.apply(made("Service", "private", no, spec=db), slice_of("private"))
    origin = reflected.until("service", "db", "is there")["metadata"]["labels"][names.LABEL_ORIGIN]
    copy = reflected.until("endpointslice", f"db-hand-{origin}", "is there")
    assert copy["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] == names.SLICES_MANAGED_BY
    assert copy["metadata"]["labels"]["kubernetes.io/service-name"] == "db"
    assert [endpoint["addresses"] for endpoint in copy["endpoints"]] == [["10.9.9.9"], ["10.9.9.10"]]
    assert copy["endpoints"][0]["zone"] == "here"
    assert copy["endpoints"][1]["conditions"] == {"ready": False, "serving": True, "terminating": True}
    assert "nodeName" not in copy["endpoints"][0]
    assert reflected.remote_object("endpointslice", f"private-hand-{origin}") is None
    reflected.local.kubectl("-n", reflected.namespace, "annotate", "service", "db", f"{names.ANNOTATION_REFLECT}=false")
    reflected.until_gone("endpointslice", f"db-hand-{origin}")
    reflected.until_gone("service", "db")


def test_traffic_through_a_service_and_dns_both_ways(reflected: Reflected) -> None:
    """One Service with a pod in each cluster: clients in both clusters reach both, each endpoint known once."""
    local, remote, namespace, node = reflected.local, reflected.remote, reflected.namespace, reflected.farlet.node
    serve = "mkdir /www; echo {} >/www/page; exec httpd -f -p 8080 -h /www"
    for name, where in (("near", {}), ("away", {"nodeName": node})):
        container = {"name": "main", "image": "farlet/busybox:1", "command": ["sh", "-c", serve.format(name)]}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": "both"}},
            "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **where},
        }
        apply(local, namespace, json.dumps(pod))
    reflected.apply(
        made("Service", "both", spec={"selector": {"app": "both"}, "ports": [{"port": 80, "targetPort": 8080}]}),
        made("Service", "each", spec={"clusterIP": "None", "selector": {"app": "both"}, "ports": [{"port": 8080}]}),
    )
    run_pod(local, namespace, "client")
    apply(local, namespace, pod_manifest("far-client", node))
    wait_ready(local, namespace, "pod/near", "pod/away", "pod/far-client")

    addresses = {get(local, namespace, "pod", name)["status"]["podIP"] for name in ("near", "away")}

    def endpoints(cluster: Cluster) -> list[str]:
        slices = get(cluster, namespace, "endpointslices", "-l", "kubernetes.io/service-name=both")["items"]
        return sorted(a for each in slices for endpoint in each["endpoints"] for a in endpoint["addresses"])

    for cluster in (local, remote):
        eventually(lambda c=cluster: endpoints(c), "both endpoints, each once", until=sorted(addresses).__eq__)  # type: ignore[misc]

    def answers(client: str) -> set[str]:
        script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do wget -qO- http://both/page; done"
        return set(shell(local, namespace, client, script).split())

    for client in ("client", "far-client"):  # the second runs in the remote cluster
        eventually(lambda c=client: answers(c), f"{client} reaches both", until={"near", "away"}.__eq__)  # type: ignore[misc]
        eventually(
            lambda c=client: shell(local, namespace, c, f"nslookup each.{namespace}.svc.cluster.local || true"),  # type: ignore[misc]
            f"{client} finds both",  # which has slices of its own, and DNS remembers answers for a while
            until=lambda found: all(address in found for address in addresses),
        )

    # an endpoint that goes here goes there
    local.kubectl("-n", namespace, "delete", "pod", "near")
    eventually(lambda: len(endpoints(remote)), "one is left", until=lambda count: count == 1)


def test_a_pod_waits_for_its_config_map_and_sees_it_change(reflected: Reflected) -> None:
    """And has the local cluster's root CA where it asks for it."""
    local, namespace = reflected.local, reflected.namespace
    volumes = [
        {"name": "late", "configMap": {"name": "late"}},
        {"name": "ca", "projected": {"sources": [{"configMap": {"name": names.ROOT_CA}}]}},
    ]
    mounts = [{"name": "late", "mountPath": "/late"}, {"name": "ca", "mountPath": "/ca"}]
    key = {"configMapKeyRef": {"name": "later", "key": "word"}}
    container = {
        "name": "main",
        "image": "farlet/busybox:1",
        "command": ["sleep", "1000000"],
        "volumeMounts": mounts,
        "env": [{"name": "WORD", "valueFrom": key}],
    }
    apply(local, namespace, pod_manifest("early", reflected.farlet.node, containers=[container], volumes=volumes))

    def said() -> str:
        return "\n".join(event["message"] for event in reflected.events("Pod", "early"))

    eventually(said, "it is said what is missing", until=lambda text: 'configmap "late" not found' in text)
    reflected.apply(made("ConfigMap", "late", data={"word": "one"}))

    def waiting() -> str:
        statuses = get(local, namespace, "pod", "early")["status"].get("containerStatuses") or [{}]
        return str((statuses[0].get("state") or {}).get("waiting") or {})

    # the kubelet tries a mount again after a while, and a container after another
    eventually(waiting, "then the next is", until=lambda text: 'configmap "later" not found' in text, timeout=150)
    assert "CreateContainerConfigError" in waiting()
    reflected.apply(made("ConfigMap", "later", data={"word": "two"}))
    local.kubectl("-n", namespace, "wait", "--for=condition=Ready", "pod/early", "--timeout=90s", timeout=100)
    assert shell(local, namespace, "early", "cat /late/word; echo -n $WORD") == "onetwo"
    authority = data(get(local, namespace, "configmap", names.ROOT_CA))["ca.crt"]
    assert shell(local, namespace, "early", "cat /ca/ca.crt") == authority
    reflected.apply(made("ConfigMap", "late", data={"word": "other"}))
    eventually(
        lambda: shell(local, namespace, "early", "cat /late/word"),
        "the change is in the volume",
        until=lambda text: text == "other",
        timeout=120,
    )


def test_two_virtual_nodes_do_not_fight(reflected: Reflected, virtual_node: str, tmp_path: Path) -> None:
    """Of one local cluster, into one remote namespace: the first keeps its copies, and each object has one copy."""
    space = reflected.namespace
    reflected.apply(made("ConfigMap", "first", data={"a": "1"}))
    reflected.until("configmap", "first", "is there")
    with running(
        reflected.local, reflected.remote, virtual_node, tmp_path, "--namespace", f"{space}={space}"
    ) as second:
        mark = audit.mark(reflected.remote)
        reflected.apply(made("ConfigMap", "first", data={"a": "2"}), made("ConfigMap", "shared", data={"a": "1"}))
        reflected.until("configmap", "first", "has changed", lambda found: data(found) == {"a": "2"})
        owner = reflected.until("configmap", "shared", "is there")["metadata"]["labels"][names.LABEL_NODE]
        assert owner in (reflected.farlet.node, second.node)
        reflected.apply(made("ConfigMap", "shared", data={"a": "2"}))
        copy = reflected.until("configmap", "shared", "has changed", lambda found: data(found) == {"a": "2"})
        assert copy["metadata"]["labels"][names.LABEL_NODE] == owner
        assert [write for write in reflected.writes(mark) if "first" in write] == ["update configmaps first"]
        shared = [write for write in reflected.writes(mark) if "shared" in write]
        assert shared == ["create configmaps shared", "update configmaps shared"]
        assert reflected.events("ConfigMap", "shared") == []
        assert reflected.events("ConfigMap", "first") == []


def test_what_does_not_fit_is_said(reflected: Reflected) -> None:
    """Its annotations are as large as they may be, and the copy has a few more."""
    big = made("ConfigMap", "big", {"pad": "x" * (256 * 1024 - 50)}, data={"a": "1"})
    reflected.local.kubectl("-n", reflected.namespace, "create", "-f", "-", stdin=json.dumps(big))
    (event,) = eventually(lambda: reflected.events("ConfigMap", "big"), "it is said")
    assert event["reason"] == names.REFLECTION_FAILED
    assert "bytes of annotations" in event["message"]
    assert reflected.remote_object("configmap", "big") is None


def test_a_restart_writes_nothing_and_what_happened_meanwhile_is_made_up_for(reflected: Reflected) -> None:
    """After kill -9, and after an end in order."""
    reflected.apply(*(made("ConfigMap", f"many-{n}", data={"n": str(n)}) for n in range(20)))
    for n in range(20):  # several are written at once, and in any order
        reflected.until("configmap", f"many-{n}", "is there")
    mark = audit.mark(reflected.remote)
    reflected.farlet.kill()
    reflected.farlet.start()
    reflected.apply(made("ConfigMap", "marker", data={}))
    reflected.until("configmap", "marker", "is there", timeout=90)  # the lock of the dead one is waited for
    assert reflected.writes(mark) == ["create configmaps marker"]

    reflected.farlet.stop()  # in order, so that nobody waits for its lock
    reflected.local.kubectl("-n", reflected.namespace, "delete", "configmap", "many-0")
    reflected.apply(made("ConfigMap", "many-1", data={"n": "changed"}), made("ConfigMap", "new", data={}))
    mark = audit.mark(reflected.remote)
    reflected.farlet.start()
    reflected.until("configmap", "new", "is there")
    reflected.until("configmap", "many-1", "has changed", lambda found: data(found) == {"n": "changed"})
    reflected.until_gone("configmap", "many-0")
    assert sorted(reflected.writes(mark)) == [
        "create configmaps new",
        "delete configmaps many-0",
        "update configmaps many-1",
    ]


def test_a_namespace_that_is_no_longer_offloaded_is_cleaned(
    local: Cluster, remote: Cluster, virtual_node: str, tmp_path: Path
) -> None:
    """By its label; only ours go, and not before the last pod has gone."""
    space = f"{virtual_node}-x"
    local.kubectl("create", "namespace", space)
    local.kubectl("label", "namespace", space, f"{names.LABEL_ENABLED}=true")
    far = ""
    try:
        with running(local, remote, virtual_node, tmp_path) as farlet:
            apply(local, space, json.dumps(made("ConfigMap", "config", data={"a": "1"})))
            origin = farlet.log.read_text().partition("(id ")[2].partition(")")[0]
            far = remote_name(space, origin)

            def copies() -> list[str]:
                selector = f"{names.LABEL_ORIGIN}={origin}"
                names_of = [
                    item["metadata"]["name"] for item in get(remote, far, "configmaps", "-l", selector)["items"]
                ]
                return sorted(names_of)

            both = ["config", names.root_ca_copy(origin)]
            eventually(copies, "made with the namespace, before any pod", until=both.__eq__)
            # somebody else's claim holds the namespace itself back, and with it what else is theirs
            claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
            theirs = made("PersistentVolumeClaim", "theirs", spec=claim), made("ConfigMap", "theirs", data={"a": "1"})
            apply(remote, far, *map(json.dumps, theirs))
            eventually(lambda: get(local, space, "serviceaccount", "default"), "the ServiceAccount")
            apply(local, space, pod_manifest("box", farlet.node))
            wait_ready(local, space, "pod/box")
            local.kubectl("label", "namespace", space, f"{names.LABEL_ENABLED}-")
            apply(local, space, json.dumps(made("ConfigMap", "config", data={"a": "2"})))
            eventually(
                lambda: get(remote, far, "configmap", "config")["data"],
                "what a running pod uses is kept like the local one",
                until=lambda found: found == {"a": "2"},
            )
            local.kubectl("-n", space, "delete", "pod", "box")
            eventually(lambda: copies() == [], "all copies are gone")
            assert get(remote, far, "configmap", "theirs")["data"] == {"a": "1"}
            # and it comes again
            local.kubectl("label", "namespace", space, f"{names.LABEL_ENABLED}=true")
            eventually(copies, "made anew", until=both.__eq__)
            farlet.stop()
            local.kubectl("label", "namespace", space, f"{names.LABEL_ENABLED}-")
            farlet.start()
            eventually(lambda: copies() == [], "leftovers of a namespace that ended meanwhile are gone")
    finally:
        for cluster, name in ((local, space), (remote, far)):
            if name:
                cluster.kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=false")
