"""The kubelet is as strict as a production one, and nothing of containerd or the kubelet touches the machine."""

from __future__ import annotations

import json
import shlex
import subprocess
import tomllib
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from devcluster import host, images
from devcluster.layout import ClusterLayout, FleetLayout
from devcluster.process import Command

BINARIES = {name: Path("/bin") / name for name in (host.KUBELET, host.KUBE_PROXY)}


def flags(command: Command) -> dict[str, str]:
    pairs = [argument.removeprefix("--").partition("=") for argument in command.argv[1:]]
    return {name: value for name, _, value in pairs}


@pytest.fixture
def kubelet(layout: ClusterLayout) -> Command:
    return host.kubelet_command(layout, BINARIES)


@pytest.fixture
def configuration(kubelet: Command) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(flags(kubelet)["config"]).read_text())
    return content


@pytest.fixture
def containerd(layout: ClusterLayout) -> Command:
    return host.containerd_command(
        layout, containerd=Path("/usr/bin/containerd"), runc=Path("/usr/sbin/runc"), cni_plugins=Path("/usr/lib/cni")
    )


@pytest.fixture
def containerd_settings(containerd: Command) -> dict[str, Any]:
    return tomllib.loads(Path(containerd.argv[-1]).read_text())


def test_kubelet_lets_nobody_in_unverified(configuration: dict[str, Any], layout: ClusterLayout) -> None:
    assert configuration["authentication"] == {
        "x509": {"clientCAFile": str(layout.pki / "ca.crt")},
        "webhook": {"enabled": True},
        "anonymous": {"enabled": False},
    }
    assert configuration["authorization"] == {"mode": "Webhook"}
    assert configuration.get("readOnlyPort", 0) == 0


def test_kubelet_asks_for_its_serving_certificate(configuration: dict[str, Any], layout: ClusterLayout) -> None:
    assert configuration["serverTLSBootstrap"] is True
    assert "tlsCertFile" not in configuration
    seen_by_it = Path("/var/lib/kubelet/pki/kubelet-server-current.pem")
    assert host.serving_certificate(layout).relative_to(layout.folder / "host" / "kubelet") == seen_by_it.relative_to(
        "/var/lib/kubelet"
    )


def test_kubelet_is_this_node(kubelet: Command, layout: ClusterLayout, configuration: dict[str, Any]) -> None:
    assert (kubelet.netns, kubelet.mount_holder) == (str(layout.netns_path), True)
    assert flags(kubelet) == {
        "config": str(layout.folder / "host" / "kubelet.json"),
        "kubeconfig": str(layout.kubeconfig("kubelet")),
        "hostname-override": layout.node_name,
        "node-ip": str(layout.ip),
    }
    assert configuration["clusterDNS"] == [str(layout.dns_service_ip)]
    assert configuration["address"] == str(layout.ip)


def test_kubelet_leaves_the_machine_alone(configuration: dict[str, Any], layout: ClusterLayout) -> None:
    assert configuration["cgroupRoot"] == f"/{layout.cgroup}"
    assert configuration["enforceNodeAllocatable"] == []
    assert configuration["protectKernelDefaults"] is False
    assert not any(value.endswith("%") for value in configuration["evictionHard"].values()), "of whose disk?"
    for setting in ("resolvConf", "volumePluginDir"):
        assert Path(configuration[setting]).is_relative_to(layout.folder), setting
    assert configuration["containerRuntimeEndpoint"] == f"unix://{host.CONTAINERD_SOCKET}"


def test_containerd_keeps_everything_to_itself(
    containerd: Command, containerd_settings: dict[str, Any], layout: ClusterLayout
) -> None:
    assert (containerd.netns, containerd.mount_holder) == (str(layout.netns_path), True)
    own = layout.folder / "host"
    assert containerd_settings["root"] == str(own / "containerd")
    assert containerd_settings["state"] == "/run/containerd"  # of its own mount namespace
    assert containerd_settings["grpc"]["address"] == host.CONTAINERD_SOCKET
    cri = containerd_settings["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["cni"] == {"bin_dir": "/usr/lib/cni", "conf_dir": str(own / "cni-conf")}
    runtime = cri["containerd"]["runtimes"][cri["containerd"]["default_runtime_name"]]
    assert runtime["options"]["BinaryName"] == "/usr/sbin/runc"
    assert cri["netns_mounts_under_state_dir"] is True


def test_no_image_comes_from_a_registry(containerd_settings: dict[str, Any]) -> None:
    cri = containerd_settings["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["sandbox_image"] == images.PAUSE
    assert "registry" not in cri


def test_pods_get_the_first_range_of_the_cluster(containerd: Command, layout: ClusterLayout) -> None:
    network = json.loads((layout.folder / "host" / "cni-conf" / "10-devcluster.conflist").read_text())
    bridge, portmap = network["plugins"]
    ((pods,),) = bridge["ipam"]["ranges"]
    assert IPv4Network(pods["subnet"]) == next(layout.pods.subnets(new_prefix=24))
    assert bridge["ipMasq"] is False, "pods reach other clusters with their own address"
    assert portmap["capabilities"] == {"portMappings": True}


def test_kube_proxy(layout: ClusterLayout) -> None:
    command = host.proxy_command(layout, BINARIES)
    told = flags(command)
    assert command.netns == str(layout.netns_path)
    assert (told["proxy-mode"], told["cluster-cidr"]) == ("iptables", str(layout.pods))
    assert told["kubeconfig"] == str(layout.kubeconfig("kube-proxy"))
    assert told["conntrack-max-per-core"] == "0"
    for flag in ("healthz-bind-address", "metrics-bind-address"):
        assert told[flag].startswith("127.0.0.1:"), flag


@pytest.fixture(params=["plain", "with blanks and 'quotes'"])
def anywhere(request: pytest.FixtureRequest, layout: ClusterLayout, tmp_path: Path) -> ClusterLayout:
    """A checkout in a folder of any name."""
    return replace(layout, fleet=FleetLayout("dev", tmp_path / request.param / "dev"))


def test_host_script_is_one_that_a_shell_takes(anywhere: ClusterLayout) -> None:
    command = host.host_command(anywhere)
    script = command.argv[-1]
    checked = subprocess.run(["sh", "-nec", script], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    words = [shlex.split(line, comments=True) for line in script.splitlines()]
    assert words[0] == ["mount", "--make-rprivate", "/"], "a mount before this one would be seen by the machine"
    assert ["mount", "--bind", str(anywhere.folder), "/run/self"] in words
    assert ["mount", "--bind", "/run/self", str(anywhere.folder)] in words
    assert words[-2:] == [["touch", str(host.host_ready(anywhere))], ["exec", "sleep", "infinity"]]


def test_host_has_a_mount_namespace_of_its_own(layout: ClusterLayout) -> None:
    layout.run.mkdir(parents=True)
    ready = host.host_ready(layout)
    ready.touch()
    command = host.host_command(layout)
    assert list(command.argv[:4]) == ["unshare", "--mount", "--propagation", "private"]
    assert (command.netns, command.mount_holder) == (str(layout.netns_path), False)
    assert not ready.exists(), "the mounts of the last start are taken for those of this one"
    for name in ("kubelet", "cni", "log", "containerd"):
        assert (layout.folder / "host" / name).is_dir()
