"""What people set reaches the parts it is meant for; what cannot work is refused with the flag that said it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app import options
from app.facts import Facts
from app.settings import RunSettings, SettingsError

FACTS = Facts("v1.36.3", "v1.36.3", "home", "far", "10.0.0.1")
AFFINITY = """
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      - matchExpressions: [{key: disk, operator: In, values: [ssd]}]
"""


def settings(**given: Any) -> RunSettings:
    return RunSettings(remote_kubeconfig=Path("remote"), **given).check()


def test_what_every_remote_pod_gets(tmp_path: Path) -> None:
    file = tmp_path / "affinity.yaml"
    file.write_text(AFFINITY)
    chosen = settings(
        remote_affinity=file,
        remote_labels=("team=blue", "example.com/tier="),
        remote_runtime_class="gvisor",
        remote_priority_class="low",
        remote_node_selector=("zone=a",),
        remote_tolerations=("gpu", "spot=yes:NoSchedule"),
    )
    forged = options.forge_options(options.check(chosen), FACTS)
    assert forged.affinity.keys() == {"nodeAffinity"}
    assert forged.labels == {"team": "blue", "example.com/tier": ""}
    assert (forged.runtime_class, forged.priority_class) == ("gvisor", "low")
    assert forged.node_selector == {"zone": "a"}
    assert forged.tolerations == [
        {"key": "gpu", "operator": "Exists"},
        {"key": "spot", "operator": "Equal", "value": "yes", "effect": "NoSchedule"},
    ]
    assert options.placement(chosen).node_affinity == forged.affinity["nodeAffinity"], "only such nodes count"


def test_addresses() -> None:
    chosen = options.check(settings(pod_cidr_map=("10.1.0.0/16=10.201.0.0/16",)))
    assert options.ip_map(chosen).translate("10.1.2.3") == "10.201.2.3"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"namespaces": ("A",)}, "--namespace: 'A'"),
        ({"pod_cidr_map": ("10.1.0.0/16=10.2.0.0/24",)}, "--pod-cidr-map: .* same family and size"),
        ({"remote_labels": ("farlet.dev/origin=me",)}, "--remote-label: farlet.dev/origin: .* set by Farlet"),
        ({"remote_labels": ("a b=c",)}, "--remote-label: 'a b' is not a label key"),
        ({"remote_labels": ("a=b c",)}, "--remote-label: a: 'b c' is not a label value"),
        ({"remote_node_selector": ("a=b c",)}, "--remote-node-selector: a: 'b c'"),
        ({"remote_tolerations": ("a:Never",)}, "--remote-toleration: 'a:Never': the effect"),
        ({"remote_runtime_class": "Big"}, "--remote-runtime-class: 'Big'"),
        ({"remote_priority_class": ""}, "--remote-priority-class: ''"),
        ({"remote_affinity": Path("none.yaml")}, "--remote-affinity none.yaml: No such file"),
    ],
)
def test_refused(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        options.check(settings(**given))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [("a: [", "is not YAML"), ("", "the affinity: nodeAffinity and"), ("nodeAffinity: x", "nodeAffinity: required")],
)
def test_a_wrong_affinity_names_its_file(tmp_path: Path, content: str, complaint: str) -> None:
    file = tmp_path / "affinity.yaml"
    file.write_text(content)
    with pytest.raises(SettingsError, match=complaint) as caught:
        options.check(settings(remote_affinity=file))
    assert str(file) in str(caught.value)


def test_the_program_says_so_in_one_line_and_ends_with_2() -> None:
    arguments = ["run", "--remote-kubeconfig", "none", "--pod-cidr-map", "here=there"]
    result = subprocess.run([sys.executable, "-m", "app", *arguments], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("farlet run: --pod-cidr-map: 'here=there'")
    assert result.stderr.count("\n") == 1


def test_what_is_reflected() -> None:
    chosen = options.check(settings(reflect=("secrets=none",), not_reflected_labels=("team/*",)))
    rules = options.reflection_rules(chosen)
    assert not rules.wanted("secrets", {})
    assert rules.wanted("configmaps", {})
    assert rules.labels({"team/a": "", "b": "", "argocd.argoproj.io/instance": ""}) == {"b": ""}


@pytest.mark.parametrize(
    ("reflect", "missing", "name"),
    [
        ((), frozenset(), "kube-root-ca.crt-home"),
        (("configmaps=none",), frozenset({"secrets"}), "kube-root-ca.crt-home"),
        (("configmaps=off",), frozenset(), None),
        ((), frozenset({"configmaps"}), None),
    ],
)
def test_pods_use_the_local_root_ca_where_it_is_reflected(
    reflect: tuple[str, ...], missing: frozenset[str], name: str | None
) -> None:
    forged = options.forge_options(settings(reflect=reflect), replace(FACTS, not_reflected=missing))
    assert forged.root_ca == name


@pytest.mark.parametrize(
    ("given", "flag"),
    [({"reflect": ("pods=all",)}, "--reflect"), ({"local_cidr_map": ("10.0.0.0/8",)}, "--local-cidr-map")],
)
def test_what_cannot_be_reflected_is_refused(given: dict[str, Any], flag: str) -> None:
    with pytest.raises(SettingsError, match=flag):
        options.check(settings(**given))
