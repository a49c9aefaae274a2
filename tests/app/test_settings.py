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
