"""What makes the control plane as strict as a production one, held to by name: none of it may be lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from devcluster import controlplane, pki
from devcluster.controlplane import API_SERVER, CONTROL_PLANE, CONTROLLER_MANAGER, ETCD, SCHEDULER
from devcluster.layout import ClusterLayout
from devcluster.process import Command

WRITES = {"create", "update", "patch", "delete", "deletecollection"}


@pytest.fixture
def commands(layout: ClusterLayout) -> dict[str, Command]:
    return controlplane.commands(layout, {name: Path("/bin") / name for name in CONTROL_PLANE}, dual_stack=False)


@pytest.fixture
def policy(commands: dict[str, Command]) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(flags(commands[API_SERVER])["audit-policy-file"]).read_text())
    return content


def flags(command: Command) -> dict[str, str]:
    """A flag without a value is ``true``."""
    pairs = [argument.removeprefix("--").partition("=") for argument in command.argv[1:]]
    return {name: value if equals else "true" for name, equals, value in pairs}


def test_all_run_in_the_cluster_in_order(commands: dict[str, Command], layout: ClusterLayout) -> None:
    assert list(commands) == list(CONTROL_PLANE)
    for name, command in commands.items():
        assert (command.argv[0], command.netns) == (f"/bin/{name}", str(layout.netns_path))
        names = [argument.partition("=")[0] for argument in command.argv[1:]]
        assert len(set(names)) == len(names), f"{name} has a flag twice, of which one is ignored"


@pytest.mark.parametrize(
    ("component", "flag", "value"),
    [
        (API_SERVER, "anonymous-auth", "false"),
        (API_SERVER, "authorization-mode", "Node,RBAC"),
        (API_SERVER, "enable-admission-plugins", "NodeRestriction"),
        (API_SERVER, "requestheader-allowed-names", "front-proxy-client"),
        (API_SERVER, "profiling", "false"),
        (ETCD, "client-cert-auth", "true"),
        (ETCD, "peer-client-cert-auth", "true"),
        (CONTROLLER_MANAGER, "use-service-account-credentials", "true"),
        (CONTROLLER_MANAGER, "bind-address", "127.0.0.1"),
        (SCHEDULER, "bind-address", "127.0.0.1"),
    ],
)
def test_strict_settings(commands: dict[str, Command], component: str, flag: str, value: str) -> None:
    assert flags(commands[component]).get(flag) == value


@pytest.mark.parametrize(
    ("component", "flag", "file"),
    [
        (API_SERVER, "client-ca-file", "ca.crt"),
        (API_SERVER, "tls-cert-file", "apiserver.crt"),
        (API_SERVER, "tls-private-key-file", "apiserver.key"),
        (API_SERVER, "kubelet-certificate-authority", "ca.crt"),
        (API_SERVER, "kubelet-client-certificate", "apiserver-kubelet.crt"),
        (API_SERVER, "kubelet-client-key", "apiserver-kubelet.key"),
        (API_SERVER, "etcd-cafile", "etcd-ca.crt"),
        (API_SERVER, "etcd-certfile", "apiserver-etcd.crt"),
        (API_SERVER, "etcd-keyfile", "apiserver-etcd.key"),
        (API_SERVER, "requestheader-client-ca-file", "front-proxy-ca.crt"),
        (API_SERVER, "proxy-client-cert-file", "front-proxy-client.crt"),
        (API_SERVER, "proxy-client-key-file", "front-proxy-client.key"),
        (API_SERVER, "service-account-signing-key-file", "sa.key"),
        (API_SERVER, "service-account-key-file", "sa.key"),
        (ETCD, "cert-file", "etcd.crt"),
        (ETCD, "trusted-ca-file", "etcd-ca.crt"),
        (ETCD, "peer-trusted-ca-file", "etcd-ca.crt"),
        (CONTROLLER_MANAGER, "cluster-signing-cert-file", "ca.crt"),
        (CONTROLLER_MANAGER, "cluster-signing-key-file", "ca.key"),
        (CONTROLLER_MANAGER, "root-ca-file", "ca.crt"),
        (CONTROLLER_MANAGER, "service-account-private-key-file", "sa.key"),
    ],
)
def test_keys_and_authorities(
    commands: dict[str, Command], layout: ClusterLayout, made: ClusterLayout, component: str, flag: str, file: str
) -> None:
    assert flags(commands[component]).get(flag) == str(layout.pki / file)
    assert (made.pki / file).exists(), "nobody makes this file"


def test_nothing_loosens_it(commands: dict[str, Command]) -> None:
    told = " ".join(argument for command in commands.values() for argument in command.argv)
    for never in ("insecure", "AlwaysAllow", "disable-admission-plugins", "token-auth-file", "auto-tls", "http://"):
        assert never not in told, never


def test_etcd_speaks_tls_on_loopback_only(commands: dict[str, Command]) -> None:
    urls = {name: value for name, value in flags(commands[ETCD]).items() if name.endswith("-urls")}
    assert set(urls) == {
        "listen-client-urls",
        "advertise-client-urls",
        "listen-peer-urls",
        "initial-advertise-peer-urls",
    }
    for name, value in urls.items():
        assert value.startswith("https://127.0.0.1:"), name
    assert flags(commands[API_SERVER])["etcd-servers"] == urls["listen-client-urls"]


def test_ranges_agree(commands: dict[str, Command], layout: ClusterLayout) -> None:
    api_server, manager = flags(commands[API_SERVER]), flags(commands[CONTROLLER_MANAGER])
    assert api_server["service-cluster-ip-range"] == manager["service-cluster-ip-range"] == str(layout.services)
    assert (manager["allocate-node-cidrs"], manager["cluster-cidr"]) == ("true", str(layout.pods))
    assert f"https://{api_server['bind-address']}:{api_server['secure-port']}" == layout.server


@pytest.mark.parametrize("component", [CONTROLLER_MANAGER, SCHEDULER])
def test_own_identity_and_delegated_authentication(
    commands: dict[str, Command], layout: ClusterLayout, component: str
) -> None:
    told = flags(commands[component])
    own = str(layout.kubeconfig(component))
    for flag in ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"):
        assert told[flag] == own


def test_audit_log_is_on_and_rotated(commands: dict[str, Command], layout: ClusterLayout) -> None:
    told = flags(commands[API_SERVER])
    assert told["audit-log-path"] == str(layout.audit_log)
    assert (told["audit-log-maxsize"], told["audit-log-maxbackup"]) == ("300", "1")


def test_audit_keeps_every_write(policy: dict[str, Any]) -> None:
    for rule in policy["rules"]:
        if rule["level"] == "None":
            health = all(url.endswith("z*") for url in rule.get("nonResourceURLs", ["resources"]))
            assert health or WRITES.isdisjoint(rule.get("verbs", WRITES)), rule
    assert policy["rules"][-1] == {"level": "Metadata"}, "the last rule keeps whatever no other leaves out"
    assert policy["omitStages"] == ["RequestReceived"]


def test_audit_leaves_out_only_what_our_own_parts_read(policy: dict[str, Any]) -> None:
    quiet = {user for rule in policy["rules"] if rule["level"] == "None" for user in rule.get("users", [])}
    parts = {user for name, (user, _) in pki.CLIENTS.items() if name != "admin"}
    assert quiet == {*parts, "system:apiserver"}
    groups = {group for rule in policy["rules"] for group in rule.get("userGroups", [])}
    assert groups == {"system:nodes", "system:serviceaccounts:kube-system"}
