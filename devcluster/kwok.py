"""Fake nodes for load: KWOK plays their kubelet, at next to no cost, so that 10,000 pods run on one machine.

What it does is told by *stages*: which objects a stage is for, and what their status becomes. Ours are the quickest
ones that are still true to life: a node is Ready as soon as it is there; a pod runs as soon as it is bound (a Job's pod
then succeeds), and is gone as soon as it is to be deleted.

Where metrics are wanted, fake nodes tell what their pods use, the same for each: metrics-server reads it by a path for
each node. All of them share one server, so that only the first one has it where a kubelet has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from devcluster.api import Object
from devcluster.layout import ClusterLayout
from devcluster.process import Command, write_changed

KWOK = "kwok"
TAINT = {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}

_PORT = 10247
_ANNOTATION = "kwok.x-k8s.io/node"
_USED = {"cpu": {"value": "5m"}, "memory": {"value": "20Mi"}}
_SIZE = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "1Ti", "pods": "1000"}

_NODE_READY = """\
{{ $now := Now }}
conditions:
{{ range NodeConditions }}
- type: {{ .type | Quote }}
  status: {{ .status | Quote }}
  reason: {{ .reason | Quote }}
  message: {{ .message | Quote }}
  lastHeartbeatTime: {{ $now | Quote }}
  lastTransitionTime: {{ $now | Quote }}
{{ end }}
addresses:
- {type: InternalIP, address: {{ NodeIP | Quote }}}
- {type: Hostname, address: {{ .metadata.name | Quote }}}
daemonEndpoints:
  kubeletEndpoint:
    Port: {{ NodePort }}
"""

_POD_RUNNING = """\
{{ $now := Now }}
phase: Running
startTime: {{ $now | Quote }}
conditions:
- {type: PodReadyToStartContainers, status: "True", lastTransitionTime: {{ $now | Quote }}}
- {type: Initialized, status: "True", lastTransitionTime: {{ $now | Quote }}}
- {type: ContainersReady, status: "True", lastTransitionTime: {{ $now | Quote }}}
- {type: Ready, status: "True", lastTransitionTime: {{ $now | Quote }}}
initContainerStatuses:
{{ range .spec.initContainers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  restartCount: 0
  ready: true
  {{ if eq (or .restartPolicy "") "Always" }}
  started: true
  state: {running: {startedAt: {{ $now | Quote }}}}
  {{ else }}
  state: {terminated: {exitCode: 0, reason: Completed, startedAt: {{ $now | Quote }}, finishedAt: {{ $now | Quote }}}}
  {{ end }}
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  restartCount: 0
  ready: true
  started: true
  state: {running: {startedAt: {{ $now | Quote }}}}
{{ end }}
hostIP: {{ NodeIPWith .spec.nodeName | Quote }}
{{ $hostNetwork := or .spec.hostNetwork false }}
{{ with PodIPWith .spec.nodeName $hostNetwork .metadata.uid .metadata.name .metadata.namespace }}
podIP: {{ . | Quote }}
podIPs:
- {ip: {{ . | Quote }}}
{{ end }}
"""

_POD_SUCCEEDED = """\
{{ $now := Now }}
phase: Succeeded
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  restartCount: 0
  ready: false
  started: false
  state: {terminated: {exitCode: 0, reason: Completed, startedAt: {{ $now | Quote }}, finishedAt: {{ $now | Quote }}}}
{{ end }}
"""

_METRICS_PATH = "/metrics/nodes/{nodeName}/metrics/resource"
_OF_POD = {"namespace": "pod.metadata.namespace", "pod": "pod.metadata.name"}
_OF_CONTAINER = {"container": "container.name", **_OF_POD}
_FIGURES: Sequence[tuple[str, str, Mapping[str, str], str]] = (
    ("container_cpu_usage_seconds_total", "counter", _OF_CONTAINER, 'pod.CumulativeUsage("cpu", container.name)'),
    ("container_memory_working_set_bytes", "gauge", _OF_CONTAINER, 'pod.Usage("memory", container.name)'),
    ("container_start_time_seconds", "gauge", _OF_CONTAINER, "pod.metadata.creationTimestamp.UnixSecond()"),
    ("pod_cpu_usage_seconds_total", "counter", _OF_POD, 'pod.CumulativeUsage("cpu")'),
    ("pod_memory_working_set_bytes", "gauge", _OF_POD, 'pod.Usage("memory")'),
    ("node_cpu_usage_seconds_total", "counter", {}, 'node.CumulativeUsage("cpu")'),
    ("node_memory_working_set_bytes", "gauge", {}, 'node.Usage("memory")'),
)

_READY = '.status.conditions.[] | select( .type == "Ready" ) | .status'
_DELETED = ".metadata.deletionTimestamp"
_PHASE = ".status.phase"
_OWNER = ".metadata.ownerReferences.[].kind"


def command(cluster: ClusterLayout, binaries: Mapping[str, Path], *, metrics: bool = False) -> Command:
    """KWOK for our fake nodes and no other; with *metrics* they tell what pods use, for which it remembers pods."""
    stages_file = cluster.folder / "kwok-stages.json"
    # JSON documents one after another, as YAML has them
    documents = [*stages(), *(usage() if metrics else ())]
    write_changed(stages_file, "\n---\n".join(json.dumps(document) for document in documents))
    return Command(
        [
            str(binaries[KWOK]),
            f"--kubeconfig={cluster.kubeconfig(KWOK)}",
            f"--config={stages_file}",
            "--manage-all-nodes=false",
            f"--manage-nodes-with-annotation-selector={_ANNOTATION}=fake",
            "--node-lease-duration-seconds=40",
            "--v=WARN",  # it says every patch otherwise
            f"--node-ip={cluster.ip}",
            f"--node-name={KWOK}",
            f"--node-port={_PORT}",
            f"--server-address={cluster.ip}:{_PORT}",
            f"--tls-cert-file={cluster.pki / 'kwok-serving.crt'}",
            f"--tls-private-key-file={cluster.pki / 'kwok-serving.key'}",
        ],
        netns=str(cluster.netns_path),
    )


def node(index: int) -> Object:
    """A fake node: large, and tainted so that only pods that ask for it land there."""
    name = f"kwok-{index}"
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {
                _ANNOTATION: "fake",
                "node.alpha.kubernetes.io/ttl": "0",
                "metrics.k8s.io/resource-metrics-path": _METRICS_PATH.format(nodeName=name),
            },
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "type": KWOK,
            },
        },
        "spec": {"taints": [TAINT]},
        "status": {"capacity": _SIZE, "allocatable": _SIZE, "nodeInfo": {"kubeletVersion": "fake"}},
    }


def is_fake(item: Object) -> bool:
    """Whether a Node is one of ours."""
    return bool(item["metadata"].get("annotations", {}).get(_ANNOTATION) == "fake")


def stages() -> Iterator[Object]:
    """What becomes of nodes and pods."""
    yield _stage("node-ready", "Node", [(_READY, "NotIn", ["True"])], {"statusTemplate": _NODE_READY})
    pending = [(_DELETED, "DoesNotExist", []), (_PHASE, "In", ["Pending"])]
    yield _stage("pod-running", "Pod", pending, {"statusTemplate": _POD_RUNNING})
    of_a_job = [(_DELETED, "DoesNotExist", []), (_PHASE, "In", ["Running"]), (_OWNER, "In", ["Job"])]
    yield _stage("pod-succeeded", "Pod", of_a_job, {"statusTemplate": _POD_SUCCEEDED})
    yield _stage("pod-deleted", "Pod", [(_DELETED, "Exists", [])], {"delete": True})


def usage() -> Iterator[Object]:
    """What pods use, and where that is told."""
    yield _document("ClusterResourceUsage", "every-pod", {"usages": [{"usage": _USED}]})
    figures = [
        {
            "name": name,
            "kind": kind,
            "help": name,
            "dimension": name.partition("_")[0],
            "labels": [{"name": label, "value": value} for label, value in labels.items()],
            "value": value,
        }
        for name, kind, labels, value in _FIGURES
    ]
    yield _document("Metric", "each-node", {"path": _METRICS_PATH, "metrics": figures})
    # where the path names no node, KWOK takes the metric's own name for it
    yield _document("Metric", "kwok-0", {"path": "/metrics/resource", "metrics": figures})


def _document(kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def _stage(name: str, kind: str, when: Sequence[tuple[str, str, list[str]]], then: Object) -> Object:
    expressions = [
        {"key": key, "operator": operator, **({"values": values} if values else {})} for key, operator, values in when
    ]
    spec: Object = {
        "resourceRef": {"apiGroup": "v1", "kind": kind},
        "selector": {"matchExpressions": expressions},
        "next": then,
    }
    return _document("Stage", name, spec)
