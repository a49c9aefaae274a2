"""Forged twins are what real API servers accept, and their containers see what they would see locally.

A pod runs for real in the local cluster; its twin is forged from what that API server made of it and runs in the
remote one. Then both are asked the same questions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from app import names
from app.kube.objects import Object
from app.names import ANNOTATION_EPHEMERAL
from app.pods.changes import Patch, Target, live_changes
from app.pods.forge import ForgeOptions, forge_twin
from app.pods.policy import refusal
from devcluster import versions
from devcluster.addons import BUSYBOX_IMAGE
from devcluster.cluster import Cluster
from tests.cluster.pods import SLEEP
from tests.eventually import eventually

pytestmark = pytest.mark.cluster

NOWHERE = "nobody"
"""A scheduler that does not exist: the pod is admitted and completed, and stays Pending."""
SAME_IMAGE = f"docker.io/{BUSYBOX_IMAGE}"
"""The same image under another name, so that a change of image is a change of nothing else."""


@dataclass(frozen=True, slots=True)
class Border:
    """Two clusters and the namespaces that belong together."""

    local: Cluster
    remote: Cluster
    namespace: str
    far: str
    options: ForgeOptions

    def create(self, pod: Object) -> Object:
        """Create a pod locally; returns it as the API server made it."""
        return self.local.api.post(f"/api/v1/namespaces/{self.namespace}/pods", pod)

    def read(self, name: str) -> Object:
        return self.local.api.get(f"/api/v1/namespaces/{self.namespace}/pods/{name}")

    def offload(self, pod: Object) -> Object:
        """Create the twin of a local pod; returns it as the API server made it."""
        assert refusal(pod, self.options) is None
        twin = forge_twin(pod, self.far, self.options)
        return self.remote.api.post(_collection(twin["kind"], self.far), twin)

    def twin(self, twin: Object) -> Object:
        return self.remote.api.get(f"{_collection(twin['kind'], self.far)}/{twin['metadata']['name']}")

    def pods(self, pod: Object) -> list[Object]:
        uid = pod["metadata"]["uid"]
        return self.remote.api.items(f"/api/v1/namespaces/{self.far}/pods?labelSelector={names.LABEL_POD_UID}%3D{uid}")

    def remote_pod(self, pod: Object, until: Callable[[Object], bool], what: str) -> Object:
        found = eventually(
            lambda: [item for item in self.pods(pod) if not item["metadata"].get("deletionTimestamp")],
            f"remote pod {what}",
            until=lambda items: len(items) == 1 and until(items[0]),
        )
        return found[0]

    def running(self, pod: Object) -> Object:
        return self.remote_pod(pod, _is_ready, "to be Ready")

    def carry(self, pod: Object, twin: Object) -> list[Target]:
        """Send what live_changes says, and see that it then has nothing more to say; returns where it was sent."""
        changes = live_changes(pod, self.pods(pod)[0], self.twin(twin), self.options)
        assert changes.warnings == ()
        for patch in changes.patches:
            send(self.remote, patch)
        again = live_changes(pod, self.pods(pod)[0], self.twin(twin), self.options)
        assert not again, again
        return [patch.target for patch in changes.patches]


@pytest.fixture
def border(local: Cluster, remote: Cluster, namespace: str) -> Iterator[Border]:
    far = f"{namespace}-far"
    remote.kubectl("create", "namespace", far)
    options = ForgeOptions(
        origin="here",
        node=local.layout.node_name,
        remote_minor=int(versions.KUBERNETES.split(".")[1]),
        own_runtime_class=namespace,
    )
    yield Border(local, remote, namespace, far, options)
    remote.kubectl("delete", "namespace", far, "--wait=false", check=False)


def send(cluster: Cluster, patch: Patch) -> None:
    path = patch.resource.path(patch.namespace, patch.name, patch.subresource)
    connection = cluster.api.connection(timeout=10)
    try:
        headers = {"Content-Type": "application/strategic-merge-patch+json"}
        connection.request("PATCH", path, json.dumps(patch.body), headers)
        response = connection.getresponse()
        content = response.read().decode()
    finally:
        connection.close()
    assert response.status == 200, f"{patch.target}: {content}"


def ask(cluster: Cluster, pod: Object, script: str, container: str = "main") -> str:
    metadata = pod["metadata"]
    command = ["exec", metadata["name"], "-c", container, "--", "sh", "-c", script]
    return cluster.kubectl("-n", metadata["namespace"], *command).stdout


def simple_pod(name: str, script: str = SLEEP, **spec: Any) -> Object:
    container: Object = {"name": "main", "image": BUSYBOX_IMAGE, "command": ["sh", "-c", script]}
    container.update(spec.pop("container", {}))
    metadata = {"name": name, **spec.pop("metadata", {})}
    defaults = {"containers": [container], "terminationGracePeriodSeconds": 1, "schedulerName": NOWHERE}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**defaults, **spec}}


def _collection(kind: str, namespace: str) -> str:
    group = {"ReplicaSet": "apps/v1", "Job": "batch/v1"}[kind]
    return f"/apis/{group}/namespaces/{namespace}/{kind.lower()}s"


def _is_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _is_running(pod: Object) -> bool:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return bool(statuses) and all("running" in status["state"] for status in statuses)


def _restarts(pod: Object) -> int:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return sum(status["restartCount"] for status in statuses)


def _field(name: str, path: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _file(path: str, field: str) -> Object:
    return {"path": path, "fieldRef": {"fieldPath": field}}


def _resource(name: str, resource: str) -> Object:
    return {"name": name, "valueFrom": {"resourceFieldRef": {"resource": resource}}}


QUESTIONS = """
hostname
env | grep ^MY_ | sort
for file in /etc/podinfo/* /etc/projected/*; do echo "== $file"; grep -v ^kubernetes.io/config $file; done
id; umask; pwd; nproc
grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status
cat /proc/1/comm
ls /var/run/secrets/kubernetes.io 2>&1 | wc -l
grep -E 'db.internal' /etc/hosts
grep -E 'ndots|example.org' /etc/resolv.conf | sed 's/search .* //'
cat /work/init
ls -ld /work | cut -c1-10
stat -c '%u %g %a' /work
touch /etc/x 2>&1
cd /sys/fs/cgroup
cat cpu/cpu.cfs_quota_us memory/memory.limit_in_bytes cpu.max memory.max 2>/dev/null; true
"""

CPU_QUOTA = "cut -d' ' -f1 /sys/fs/cgroup/cpu.max 2>/dev/null || cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us"
"""Microseconds of a tenth of a second, in either generation of control groups."""

RICH_ENV = [
    _field("MY_NAME", "metadata.name"),
    _field("MY_NAMESPACE", "metadata.namespace"),
    _field("MY_UID", "metadata.uid"),
    _field("MY_NODE", "spec.nodeName"),
    _field("MY_ACCOUNT", "spec.serviceAccountName"),
    _field("MY_APP", "metadata.labels['app']"),
    _field("MY_MISSING_LABEL", "metadata.labels['missing']"),
    _field("MY_NOTE", "metadata.annotations['example.org/note']"),
    _field("MY_LAST", "metadata.annotations['kubectl.kubernetes.io/last-applied-configuration']"),
    _resource("MY_CPU", "limits.cpu"),
    {"name": "MY_ADDRESS", "value": "$(MY_NAME).$(MY_NAMESPACE).$(UNKNOWN).$$(MY_NAME)"},
]


def rich_pod(name: str) -> Object:
    """A pod with everything that a person writes into one, short of what needs the host."""
    main = {
        "name": "main",
        "image": BUSYBOX_IMAGE,
        "command": ["sh", "-c", "echo the end > /tmp/last-words; trap 'exit 0' TERM; sleep 1000000 & wait"],
        "workingDir": "/work",
        "env": RICH_ENV,
        "ports": [{"name": "web", "containerPort": 8080}],
        "terminationMessagePath": "/tmp/last-words",
        "terminationMessagePolicy": "File",
        "resources": {"requests": {"cpu": "20m"}, "limits": {"cpu": "1", "ephemeral-storage": "64Mi"}},
        "startupProbe": {"exec": {"command": ["test", "-f", "/tmp/last-words"]}, "periodSeconds": 1},
        "readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1},
        "livenessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 5},
        "lifecycle": {
            "postStart": {"exec": {"command": ["touch", "/tmp/started"]}},
            "preStop": {"exec": {"command": ["sh", "-c", "echo stopped > /tmp/last-words"]}},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [
            {"name": "work", "mountPath": "/work"},
            {"name": "podinfo", "mountPath": "/etc/podinfo"},
            {"name": "projected", "mountPath": "/etc/projected"},
            {"name": "work", "mountPath": "/named", "subPathExpr": "$(MY_NAME)"},
        ],
    }
    helper = {"image": BUSYBOX_IMAGE, "volumeMounts": [{"name": "work", "mountPath": "/work"}]}
    init = [
        {**helper, "name": "first", "command": ["sh", "-c", "hostname > /work/init; id -u >> /work/init"]},
        {**helper, "name": "sidecar", "command": ["sh", "-c", SLEEP], "restartPolicy": "Always"},
    ]
    podinfo = [
        _file("name", "metadata.name"),
        _file("namespace", "metadata.namespace"),
        _file("uid", "metadata.uid"),
        _file("labels", "metadata.labels"),
        _file("annotations", "metadata.annotations"),
        _file("app", "metadata.labels['app']"),
        _file("note", "metadata.annotations['example.org/note']"),
        {"path": "memory", "resourceFieldRef": {"containerName": "main", "resource": "requests.cpu", "divisor": "1m"}},
    ]
    projected = [
        {"downwardAPI": {"items": [_file("name", "metadata.name"), _file("labels", "metadata.labels")]}},
        {"configMap": {"name": "settings", "optional": True}},
    ]
    together = {"labelSelector": {"matchLabels": {"app": "rich"}}, "matchLabelKeys": ["release"]}
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway", **together}
    term = {"topologyKey": "kubernetes.io/hostname", "mismatchLabelKeys": ["tenant"], **together}
    weighted = {"weight": 1, "podAffinityTerm": term}
    note = 'two lines\nwith "quotes", a tab\t, $(MY_NAME), $$, é, \u200b and \\'
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {"app": "rich", "release": "7", "tenant": "a", "pod-template-hash": "abc123"},
            "annotations": {
                "example.org/note": note,
                "kubectl.kubernetes.io/last-applied-configuration": '{"a":"$(MY_NAME)"}\n',
            },
        },
        "spec": {
            "initContainers": init,
            "containers": [main],
            "volumes": [
                {"name": "work", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
                {"name": "podinfo", "downwardAPI": {"items": podinfo, "defaultMode": 0o444}},
                {"name": "projected", "projected": {"sources": projected}},
            ],
            "subdomain": "inner",
            "hostAliases": [{"ip": "192.0.2.7", "hostnames": ["db.internal"]}],
            "dnsConfig": {"searches": ["example.org"], "options": [{"name": "ndots", "value": "3"}]},
            "shareProcessNamespace": True,
            "terminationGracePeriodSeconds": 7,
            "enableServiceLinks": False,
            "resources": {"requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"cpu": "2", "memory": "96Mi"}},
            "securityContext": {"runAsUser": 1000, "runAsGroup": 2000, "fsGroup": 3000, "supplementalGroups": [4000]},
            "readinessGates": [{"conditionType": "example.org/balanced"}],
            "priorityClassName": "system-node-critical",
            "topologySpreadConstraints": [spread],
            "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [weighted]}},
        },
    }


@pytest.fixture
def runtime_class(border: Border) -> Iterator[str]:
    """A RuntimeClass as ours is: it leads to nodes by a selector and a toleration."""
    name = border.namespace
    body = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": name},
        "handler": "runc",
        "overhead": {"podFixed": {"cpu": "1m"}},
        "scheduling": {
            "nodeSelector": {"kubernetes.io/hostname": border.options.node},
            "tolerations": [{"key": names.TAINT_KEY, "operator": "Exists"}],
        },
    }
    border.local.api.post("/apis/node.k8s.io/v1/runtimeclasses", body)
    yield name
    border.local.api.delete(f"/apis/node.k8s.io/v1/runtimeclasses/{name}")


def test_containers_see_what_they_would_see_locally(border: Border, runtime_class: str) -> None:
    pod = rich_pod("rich-0")
    # as the local scheduler would bind it to a virtual node; here its node is real, so that there is a "locally"
    pod["spec"]["runtimeClassName"] = runtime_class
    border.create(pod)
    eventually(lambda: _is_running(border.read("rich-0")), "the pod to run locally")
    here = border.read("rich-0")
    assert here["spec"]["nodeName"] == border.options.node
    assert any(volume["name"].startswith("kube-api-access-") for volume in here["spec"]["volumes"])

    border.offload(here)
    there = border.running(here)  # Ready, though the local pod waits for its readiness gate

    answers = ask(border.remote, there, QUESTIONS)
    expected = ask(border.local, here, QUESTIONS.replace("ls /var/run/secrets/kubernetes.io", "ls /nothing"))
    assert answers == expected
    assert "MY_NAME=rich-0" in answers, "the questions were answered"
    assert 'app="rich"' in answers
    for cluster, asked in ((border.local, here), (border.remote, there)):
        assert ask(cluster, asked, "ls /named /tmp/started", "main") == "/tmp/started\n\n/named:\n"
    assert ask(border.remote, there, "ls -d /var/run/secrets || true", "sidecar") == ""

    assert there["spec"]["serviceAccountName"] == "default"
    assert there["spec"]["terminationGracePeriodSeconds"] == 7
    assert "priorityClassName" not in there["spec"]
    assert "runtimeClassName" not in there["spec"]
    assert [v["name"] for v in there["spec"]["volumes"]] == ["work", "podinfo", "projected"]
    fqdn = ask(border.remote, there, "hostname -f").strip()
    assert fqdn.startswith(f"rich-0.inner.{border.far}.svc"), "the domain is the remote namespace's"

    # what changes locally is seen in the files of the running containers
    border.local.kubectl("-n", border.namespace, "annotate", "pod", "rich-0", "--overwrite", "example.org/note=new")
    border.local.kubectl("-n", border.namespace, "label", "pod", "rich-0", "tier=web", "tenant-")
    twin = border.twin(forge_twin(here, border.far, border.options))
    assert border.carry(border.read("rich-0"), twin) == [Target.POD, Target.TWIN]
    questions = "cat /etc/podinfo/labels /etc/podinfo/note /etc/podinfo/annotations"
    wanted = 'app="rich"\npod-template-hash="abc123"\nrelease="7"\ntier="web"new'
    eventually(
        lambda: ask(border.remote, there, questions),
        "the new values in the files",
        timeout=120,
        until=lambda seen: seen.startswith(wanted) and 'example.org/note="new"' in seen,
    )


@pytest.mark.parametrize(
    "name",
    ["web-0", "a.dotted.name", "x" * 62 + "-" + "y" * 30, "1.2" + ".abcdefgh" * 20],
    ids=["plain", "dots", "long", "long with dots"],
)
def test_hostnames(border: Border, name: str) -> None:
    pod = simple_pod(name)
    del pod["spec"]["schedulerName"]
    border.create(pod)
    eventually(lambda: _is_running(border.read(name)), "the pod to run locally")
    here = border.read(name)
    border.offload(here)
    there = border.running(here)
    assert ask(border.remote, there, "hostname") == ask(border.local, here, "hostname")


def test_an_older_remote_has_no_dots_in_hostnames(border: Border) -> None:
    older = replace(border, options=replace(border.options, remote_minor=34))
    here = older.create(simple_pod("a.dotted.name"))
    older.offload(here)
    assert ask(border.remote, older.running(here), "hostname") == "a-dotted-name\n"


def test_a_token_that_a_pod_asks_for_itself_is_not_the_remote_clusters(border: Border) -> None:
    token = {
        "name": "vault",
        "projected": {"sources": [{"serviceAccountToken": {"audience": "vault", "path": "token"}}]},
    }
    mount = {"volumeMounts": [{"name": "vault", "mountPath": "/vault"}]}
    here = border.create(simple_pod("asks", volumes=[token], container=mount))
    border.offload(here)
    assert ask(border.remote, border.running(here), "ls /vault") == ""


def test_options_place_the_remote_pod(border: Border) -> None:
    hostname = border.remote.layout.node_name
    required = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [hostname]}]}
    node_affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [required]}}
    options = replace(
        border.options,
        node_selector={"kubernetes.io/hostname": hostname},
        affinity={"nodeAffinity": node_affinity},
        tolerations=[{"key": "team", "operator": "Exists"}],
        priority_class="system-node-critical",
        labels={"team": "red"},
    )
    local_only = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "farlet.dev/virtual-node", "operator": "Exists"}]}]
            }
        }
    }
    chosen = border.create(simple_pod("chosen", nodeSelector={"only": "here"}, affinity=local_only))
    placed = replace(border, options=options)
    placed.offload(chosen)
    there = placed.running(chosen)
    assert there["spec"]["priority"] > 0
    assert there["metadata"]["labels"]["team"] == "red"
    assert {"key": "team", "operator": "Exists"} in there["spec"]["tolerations"]


# ---------------------------------------------------------------------- pods that end


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (3, "Failed")])
def test_a_pod_that_never_restarts_runs_once(border: Border, code: int, phase: str) -> None:
    here = border.create(simple_pod("once", f"echo bye > /dev/termination-log; exit {code}", restartPolicy="Never"))
    twin = border.offload(here)
    there = border.remote_pod(here, lambda pod: pod["status"]["phase"] == phase, f"to be {phase}")
    assert there["status"]["containerStatuses"][0]["state"]["terminated"]["message"] == "bye\n"
    condition = {"Succeeded": "Complete", "Failed": "Failed"}[phase]
    eventually(
        lambda: [c["type"] for c in border.twin(twin)["status"].get("conditions", []) if c["status"] == "True"],
        "the Job to have ended",
        until=lambda types: condition in types,
    )
    assert len(border.pods(here)) == 1


def test_an_evicted_pod_runs_again(border: Border) -> None:
    """What the remote cluster takes away is no failure of the pod, though it never restarts."""
    here = border.create(simple_pod("evicted", restartPolicy="Never"))
    border.offload(here)
    first = border.running(here)["metadata"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": first["name"]}}
    border.remote.api.post(f"/api/v1/namespaces/{border.far}/pods/{first['name']}/eviction", eviction)
    second = eventually(
        lambda: [pod for pod in border.pods(here) if _is_ready(pod) and pod["metadata"]["uid"] != first["uid"]],
        "another pod",
    )
    assert len(second) == 1


def test_a_deadline_ends_a_pod_that_never_restarts(border: Border) -> None:
    here = border.create(simple_pod("late", restartPolicy="Never", activeDeadlineSeconds=3600))
    twin = border.offload(here)
    border.running(here)
    border.local.kubectl("-n", border.namespace, "patch", "pod", "late", "-p", '{"spec":{"activeDeadlineSeconds":1}}')
    assert border.carry(border.read("late"), twin) == [Target.POD]
    there = border.remote_pod(here, lambda pod: pod["status"]["phase"] == "Failed", "to fail")
    assert there["status"]["reason"] == "DeadlineExceeded"


def test_a_pod_that_restarts_on_failure_restarts_in_place(border: Border) -> None:
    script = "test -f /work/again && exec sleep 1000000; touch /work/again; exit 1"
    mount = {"volumeMounts": [{"name": "work", "mountPath": "/work"}]}
    work = [{"name": "work", "emptyDir": {}}]
    pod = simple_pod("retry", script, restartPolicy="OnFailure", volumes=work, container=mount)
    pod["spec"]["activeDeadlineSeconds"] = 3600
    here = border.create(pod)
    twin = border.offload(here)
    assert twin["spec"]["activeDeadlineSeconds"] == 3600
    there = border.remote_pod(here, lambda pod: _restarts(pod) == 1 and _is_ready(pod), "to run again")
    assert "activeDeadlineSeconds" not in there["spec"]

    border.local.kubectl("-n", border.namespace, "patch", "pod", "retry", "-p", '{"spec":{"activeDeadlineSeconds":1}}')
    assert border.carry(border.read("retry"), twin) == [Target.TWIN]
    failed = eventually(
        lambda: [c for c in border.twin(twin)["status"].get("conditions", []) if c["type"] == "Failed"],
        "the Job to have failed",
    )
    assert failed[0]["reason"] == "DeadlineExceeded"


def test_a_pod_of_a_local_job(border: Border) -> None:
    """Its labels name a Job that is not there, which a generated selector would refuse."""
    print_index = {"name": "main", "image": BUSYBOX_IMAGE, "command": ["sh", "-c", "echo index $JOB_COMPLETION_INDEX"]}
    template = {"spec": {"containers": [print_index], "restartPolicy": "Never", "schedulerName": NOWHERE}}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "work"},
        "spec": {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "template": template},
    }
    border.local.api.post(_collection("Job", border.namespace), job)
    found = eventually(
        lambda: border.local.api.items(f"/api/v1/namespaces/{border.namespace}/pods"),
        "the Job's pods",
        until=lambda pods: len(pods) == 2,
    )
    for here in found:
        index = here["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]
        border.offload(here)
        there = border.remote_pod(here, lambda pod: pod["status"]["phase"] == "Succeeded", "to succeed")
        logs = border.remote.kubectl("-n", border.far, "logs", there["metadata"]["name"]).stdout
        assert logs == f"index {index}\n"
        assert there["metadata"]["labels"]["job-name"] == "work"
        assert there["metadata"]["labels"]["batch.kubernetes.io/job-name"] == "work"
        assert len(there["metadata"]["ownerReferences"]) == 1


# ---------------------------------------------------------------------- changes after creation


def test_changes_reach_the_running_pod_and_its_replacement(border: Border) -> None:
    limits = {"requests": {"cpu": "20m", "memory": "16Mi"}, "limits": {"cpu": "200m", "memory": "64Mi"}}
    pod = simple_pod("live", container={"resources": limits}, metadata={"labels": {"app": "live", "old": "label"}})
    del pod["spec"]["schedulerName"]  # a resize is only for pods that run
    border.create(pod)
    eventually(lambda: _is_ready(border.read("live")), "the pod to run locally")
    here = border.read("live")
    twin = border.offload(here)
    first = border.running(here)
    assert border.carry(here, twin) == [], "a fresh twin is up to date"

    kubectl = border.local.kubectl
    image = {"spec": {"containers": [{"name": "main", "image": SAME_IMAGE}]}}
    kubectl("-n", border.namespace, "patch", "pod", "live", "-p", json.dumps(image))
    tolerations = [*here["spec"]["tolerations"], {"key": "late", "operator": "Exists"}]
    kubectl("-n", border.namespace, "patch", "pod", "live", "-p", json.dumps({"spec": {"tolerations": tolerations}}))
    kubectl("-n", border.namespace, "label", "pod", "live", "new=label", "old-")
    assert border.carry(border.read("live"), twin) == [Target.POD, Target.TWIN] * 2

    # where cgroups are of version 1, a resize that meets a container as it restarts leaves it failing to start
    def renewed(pod: Object) -> bool:
        return _is_ready(pod) and _restarts(pod) == 1

    eventually(lambda: renewed(border.read("live")), "the local pod to run with its new image")
    border.remote_pod(here, renewed, "to run with its new image")
    resources = {"requests": {"cpu": "30m"}, "limits": {"cpu": "300m"}}
    resize = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
    kubectl("-n", border.namespace, "patch", "pod", "live", "--subresource=resize", "-p", json.dumps(resize))
    assert border.carry(border.read("live"), twin) == [Target.RESIZE, Target.POD, Target.TWIN]

    debug = ["debug", "live", "--image", BUSYBOX_IMAGE, "-c", "debugger", "--target", "main", "--profile=general"]
    kubectl("-n", border.namespace, *debug, "--attach=false", "--", "sh", "-c", "hostname; exec sleep 1000000")
    assert border.carry(border.read("live"), twin) == [Target.EPHEMERAL_CONTAINERS, Target.TWIN]
    assert border.twin(twin)["metadata"]["annotations"][ANNOTATION_EPHEMERAL] == "debugger"

    eventually(
        lambda: border.remote.kubectl("-n", border.far, "logs", first["metadata"]["name"], "-c", "debugger").stdout,
        "the debug container's words",
        until=lambda words: words == "live\n",
    )
    there = border.remote_pod(here, lambda pod: _restarts(pod) == 1 and _is_ready(pod), "to restart with the new image")
    assert there["metadata"]["uid"] == first["metadata"]["uid"]
    eventually(
        lambda: ask(border.remote, there, CPU_QUOTA),
        "the new limit in the container's cgroup",
        until=lambda quota: quota == "30000\n",
    )

    border.remote.api.delete(f"/api/v1/namespaces/{border.far}/pods/{first['metadata']['name']}")
    eventually(lambda: len(border.pods(here)) == 1, "the first pod to be gone")
    second = border.running(here)
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert border.carry(border.read("live"), twin) == [], "a replacement is like the pod before it"
    assert second["spec"]["containers"][0]["image"] == SAME_IMAGE
    assert second["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "300m"
    assert {"key": "late", "operator": "Exists"} in second["spec"]["tolerations"]
    assert second["metadata"]["labels"]["new"] == "label"
    assert "old" not in second["metadata"]["labels"]
    assert "ephemeralContainers" not in second["spec"]


def test_a_late_label_of_a_job_comes_and_goes(border: Border) -> None:
    """A Job's template cannot be changed, so that nothing but the pod itself knows of it."""
    here = border.create(simple_pod("job", restartPolicy="Never", metadata={"labels": {"app": "job"}}))
    twin = border.offload(here)
    border.running(here)
    border.local.kubectl("-n", border.namespace, "label", "pod", "job", "--overwrite", "late=yes", "app=other")
    assert border.carry(border.read("job"), twin) == [Target.POD]
    assert border.pods(here)[0]["metadata"]["labels"].items() >= {"late": "yes", "app": "other"}.items()
    border.local.kubectl("-n", border.namespace, "label", "pod", "job", "late-", "app-")
    assert border.carry(border.read("job"), twin) == [Target.POD]
    assert not {"late", "app"} & border.pods(here)[0]["metadata"]["labels"].keys()


def test_a_patch_is_for_one_pod_only(border: Border) -> None:
    here = border.create(simple_pod("other"))
    twin = border.offload(here)
    there = border.running(here)
    changed = {**here, "metadata": {**here["metadata"], "labels": {"new": "label"}}}
    stranger = {**there, "metadata": {**there["metadata"], "uid": "11111111-2222-3333-4444-555555555555"}}
    changes = live_changes(changed, stranger, twin, border.options)
    with pytest.raises(AssertionError, match=r"metadata\.uid: Invalid value.*field is immutable"):
        send(border.remote, changes.patches[0])


# ---------------------------------------------------------------------- two hops


def test_a_twin_of_a_twin_reads_the_first_names(border: Border) -> None:
    """The remote pod of one virtual node may be the local pod of the next one."""
    files = [_file("name", "metadata.name"), _file("labels", "metadata.labels")]
    pod = simple_pod(
        "first",
        volumes=[{"name": "info", "downwardAPI": {"items": files}}],
        container={
            "env": [_field("MY_NAME", "metadata.name"), _field("MY_NAMESPACE", "metadata.namespace")],
            "volumeMounts": [{"name": "info", "mountPath": "/info"}],
        },
    )
    pod["metadata"]["labels"] = {"app": "chain"}
    here = border.create(pod)
    border.offload(here)
    middle = border.running(here)
    second = replace(border, options=replace(border.options, origin="middle", node="second"))
    second.offload(middle)
    last = second.running(middle)
    assert last["metadata"]["labels"][names.LABEL_ORIGIN] == "middle"
    answers = ask(border.remote, last, "hostname; echo $MY_NAME $MY_NAMESPACE; cat /info/name; echo; cat /info/labels")
    assert answers == f'first\nfirst {border.namespace}\nfirst\napp="chain"'
