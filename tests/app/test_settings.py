"""Flags win over the environment, the environment over the file; what is wrong is said once, at start."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.settings import SettingsError, load

REMOTE = {"remote_kubeconfig": Path("remote")}


def test_the_order_of_sources(tmp_path: Path) -> None:
    file = tmp_path / "farlet.yaml"
    file.write_text("node-name: from-file\nshare: 10\nnamespaces: [a, b=c]\n")
    environment = {"FARLET_NODE_NAME": "from-environment", "FARLET_SHARE": "20", "OTHER": "x"}
    settings = load({**REMOTE, "share": 30}, environment, file)
    assert (settings.node_name, settings.share, settings.namespaces) == ("from-environment", 30, ("a", "b=c"))


def test_what_is_not_given_has_its_default() -> None:
    settings = load({**REMOTE, "share": None, "namespaces": ()}, {}, None)
    assert (settings.share, settings.node_name, settings.on_unreachable) == (None, "farlet", None)


def test_lists_and_switches_from_the_environment() -> None:
    settings = load(REMOTE, {"FARLET_NAMESPACES": "a,b=c", "FARLET_ALLOW_HOST": "true"}, None)
    assert settings.namespaces == ("a", "b=c")
    assert settings.allow_host is True


@pytest.mark.parametrize(
    ("text", "taint"),
    [
        ("farlet.dev/virtual-node:NoSchedule", ("farlet.dev/virtual-node", "NoSchedule")),
        ("mine:NoExecute", ("mine", "NoExecute")),
        ("none", None),
    ],
)
def test_the_taint(text: str, taint: tuple[str, str] | None) -> None:
    assert load({**REMOTE, "node_taint": text}, {}, None).taint() == taint


def test_a_share_of_a_quota() -> None:
    assert load({**REMOTE, "capacity_quota": "team/q", "share": 50}, {}, None).share == 50


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        ({}, {}, "which remote cluster"),
        ({**REMOTE, "node_name": "No"}, {}, "node name 'No'"),
        ({**REMOTE, "node_name": "a" * 64}, {}, "1 to 63"),
        ({**REMOTE, "share": 101}, {}, "share 101"),
        (REMOTE, {"FARLET_SHARE": "much"}, "environment: share 'much' is not valid"),
        (REMOTE, {"FARLET_ON_UNREACHABLE": "panic"}, "one of not-ready, keep"),
        (REMOTE, {"FARLET_ALLOW_HOST": "perhaps"}, "allow-host 'perhaps'"),
        ({**REMOTE, "node_labels": ("a",)}, {}, "'a' is not KEY=VALUE"),
        ({**REMOTE, "rounding": "sideways"}, {}, "one of down, up, nearest"),
        ({**REMOTE, "kubelet_address": "10250"}, {}, "HOST:PORT is needed"),
        ({**REMOTE, "role": "worker", "kubelet_address": "0.0.0.0:0"}, {}, "with --role worker"),
        ({**REMOTE, "serving_certificate": "files"}, {}, "give --tls-cert-file and --tls-key-file"),
        ({**REMOTE, "node_taint": "a/b"}, {}, "node taint 'a/b': KEY:EFFECT is needed"),
        ({**REMOTE, "node_taint": "a/b:Never"}, {}, "effects: NoSchedule, PreferNoSchedule, NoExecute"),
        ({**REMOTE, "node_taint": "a b:NoSchedule"}, {}, "or none"),
        ({**REMOTE, "capacity": "cpu=1", "capacity_quota": "a"}, {}, "--capacity and --capacity-quota: one of them"),
        ({**REMOTE, "capacity": "cpu=1", "share": 50}, {}, "leave it out with --capacity"),
        ({**REMOTE, "capacity_settle": -1}, {}, "0 or more"),
        ({**REMOTE, "capacity_quota": "a/b/c"}, {}, "NAMESPACE or NAMESPACE/NAME"),
        ({**REMOTE, "capacity_command": "a 'b"}, {}, "No closing quotation"),
        ({**REMOTE, "capacity_command": " "}, {}, "it is empty"),
        ({**REMOTE, "capacity_url": "file:///etc/passwd"}, {}, "http://HOST/PATH"),
        ({**REMOTE, "capacity_url": "https://"}, {}, "http://HOST/PATH"),
        ({**REMOTE, "capacity_url": "http://[x"}, {}, "http://HOST/PATH"),
    ],
)
def test_refused(flags: dict[str, object], environment: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(flags, environment, None)


@pytest.mark.parametrize(
    ("content", "message"),
    [("nodename: x", "there is no setting 'nodename'"), ("- a", "a mapping of settings"), ("a: [", "is not YAML")],
)
def test_a_wrong_file_is_named(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "farlet.yaml"
    file.write_text(content)
    with pytest.raises(SettingsError, match=message) as caught:
        load(REMOTE, {}, file)
    assert str(file) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        load(REMOTE, {}, tmp_path / "none.yaml")
