"""Copies are right again after a partition, and a right that is granted late is used; nothing is lost meanwhile."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from app import names
from devcluster import faults
from devcluster.fleet import Fleet
from devcluster.layout import MACHINE
from tests.cluster.farlet import Farlet, running
from tests.cluster.objects import apply, get
from tests.eventually import eventually

pytestmark = pytest.mark.faults

Object = dict[str, Any]


def config(name: str, value: str, kind: str = "ConfigMap") -> str:
    data = "data" if kind == "ConfigMap" else "stringData"
    return json.dumps({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, data: {"v": value}})


def copies(farlet: Farlet, namespace: str, kind: str = "configmaps") -> dict[str, str]:
    """Asked for from inside the remote cluster, whatever is cut."""
    selector = f"{names.LABEL_NODE}={farlet.node}"
    command = farlet.remote.kubectl_command("-n", namespace, "get", kind, "-l", selector, "-o", "json")
    inside = ["nsenter", f"--net={farlet.remote.layout.netns_path}", "--", *command]
    items = json.loads(subprocess.run(inside, capture_output=True, text=True, check=True, timeout=30).stdout)["items"]
    return {item["metadata"]["name"]: (item.get("data") or {}).get("v", "") for item in items}


def test_changes_during_a_partition_and_a_label_that_flickers(faulty: Fleet, virtual_node: str, tmp_path: Path) -> None:
    local, remote = faulty.cluster("local"), faulty.cluster("remote")
    space = f"{virtual_node}-x"
    local.kubectl("create", "namespace", space)
    local.kubectl("label", "namespace", space, f"{names.LABEL_ENABLED}=true")
    settings = tmp_path / "farlet.yaml"
    settings.write_text("watch-silence: 5\n")
    far = ""
    try:
        with running(local, remote, virtual_node, tmp_path, "--config", str(settings)) as farlet:
            origin = farlet.log.read_text().partition("(id ")[2].partition(")")[0]
            far, authority = f"{space}-{origin}", names.root_ca_copy(origin)
            apply(local, space, config("kept", "1"), config("changed", "1"), config("gone", "1"))
            before = {"kept": "1", "changed": "1", "gone": "1", authority: ""}
            eventually(lambda: copies(farlet, far), "they are there", until=before.__eq__)
            first = get(remote, far, "configmap", "kept")["metadata"]["uid"]

            faults.cut(faulty, "remote", MACHINE)
            local.kubectl("label", "namespace", space, f"{names.LABEL_ENABLED}-")
            apply(local, space, config("changed", "2"), config("new", "1"))
            local.kubectl("-n", space, "delete", "configmap", "gone")
            local.kubectl("label", "namespace", space, f"{names.LABEL_ENABLED}=true")
            assert copies(farlet, far) == before
            faults.restore(faulty, "remote", MACHINE)
            after = {"kept": "1", "changed": "2", "new": "1", authority: ""}
            eventually(lambda: copies(farlet, far), "they are right again", until=after.__eq__, timeout=150)
            assert get(remote, far, "configmap", "kept")["metadata"]["uid"] == first, "never made anew"
    finally:
        faults.clear(faulty)
        for cluster, name in ((local, space), (remote, far)):
            if name:
                cluster.kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=false")


def test_secrets_only_where_a_role_binding_grants_it(
    faulty: Fleet, faulty_namespace: str, virtual_node: str, tmp_path: Path
) -> None:
    """The commands of docs/rbac.md."""
    local, remote = faulty.cluster("local"), faulty.cluster("remote")
    options = ["--namespace", f"{faulty_namespace}={faulty_namespace}"]
    with running(local, remote, virtual_node, tmp_path, *options) as farlet:
        farlet.stop()
        local.kubectl("delete", "clusterrolebinding", "farlet:reflect-secrets")
        may = ["auth", "can-i", "list", "secrets", "-A", "--as=system:serviceaccount:farlet:farlet"]
        eventually(lambda: local.kubectl(*may, check=False).stdout.strip() == "no", "the API server knows")
        farlet.start()
        said = "secrets are reflected only from namespaces where a RoleBinding grants it"
        eventually(lambda: said in farlet.log.read_text(), "it is said")
        apply(local, faulty_namespace, config("secret", "1", "Secret"), config("plain", "1"))
        eventually(lambda: copies(farlet, faulty_namespace), "other kinds are", until=lambda found: "plain" in found)
        assert copies(farlet, faulty_namespace, "secrets") == {}
        grant = ["--clusterrole", "farlet:reflect-secrets", "--serviceaccount", "farlet:farlet"]
        local.kubectl("-n", faulty_namespace, "create", "rolebinding", "farlet:reflect-secrets", *grant)
        eventually(lambda: copies(farlet, faulty_namespace, "secrets"), "now they are", timeout=90)
