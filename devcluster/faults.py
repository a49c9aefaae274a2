"""Faults, injected for real and undone exactly.

Links are cut by firewall rules in a chain of our own, so that restoring is removing just those; a component is
killed, paused and started again by its recorded identity; a credential is replaced by an expired one that the
cluster's own authority signed, or revoked in the API.
"""

from __future__ import annotations

import base64
import json
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import Any

from devcluster import network, pki
from devcluster.api import Object
from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.fleet import Fleet
from devcluster.layout import API_PORT, MACHINE, RELAY_PORT, ClusterLayout
from devcluster.process import Command, Component, wait_for
from devcluster.relay import Weather

RELAY = "relay"


class CutMode(StrEnum):
    """How a link is cut."""

    DROP = "drop"
    """Silently: packets vanish, connections hang until somebody's timeout."""
    REFUSE = "refuse"
    """Loudly: resets and 'port unreachable', errors at once."""


class Method(StrEnum):
    """How latency is made."""

    NETEM = "netem"
    RELAY = "relay"


# ---------------------------------------------------------------------- links


def cut(fleet: Fleet, one: str, other: str, mode: CutMode = CutMode.DROP) -> None:
    """Cut the link between two clusters, or between a cluster and this machine, in both directions."""
    restore(fleet, one, other)
    for cluster, interface in _ends(fleet, one, other):
        comment = ["-m", "comment", "--comment", _tag(one, other)]
        if mode is CutMode.REFUSE:  # the refusals themselves must get out
            _append(cluster, ["-p", "tcp", "--tcp-flags", "RST", "RST", "-o", interface, *comment, "-j", "RETURN"])
            _append(cluster, ["-p", "icmp", "-o", interface, *comment, "-j", "RETURN"])
        for direction in ("-i", "-o"):
            match = [direction, interface, *comment]
            if mode is CutMode.DROP:
                _append(cluster, [*match, "-j", "DROP"])
            else:
                _append(cluster, ["-p", "tcp", *match, "-j", "REJECT", "--reject-with", "tcp-reset"])
                _append(cluster, [*match, "-j", "REJECT"])


def restore(fleet: Fleet, one: str, other: str) -> None:
    """Undo :func:`cut` between these two."""
    tag = _tag(one, other)
    for cluster, _ in _ends(fleet, one, other):
        # deleting shifts the numbers of the rules behind: from the last to the first
        for number in reversed(_rules(cluster, tag)):
            _iptables(cluster, "-D", network.FAULT_CHAIN, str(number))


def is_cut(fleet: Fleet, one: str, other: str) -> bool:
    """Whether the link between these two is cut."""
    tag = _tag(one, other)
    return any(_rules(cluster, tag) for cluster, _ in _ends(fleet, one, other))


def _ends(fleet: Fleet, one: str, other: str) -> list[tuple[ClusterLayout, str]]:
    """Where the rules for this link go: each cluster with its interface towards the other end."""
    if one == other:
        raise DevclusterError(f"a link has two different ends; {one!r} was given twice")
    layouts = {name: fleet.cluster(name).layout for name in (one, other) if name != MACHINE}
    if len(layouts) == 1:
        return [(layout, "eth0") for layout in layouts.values()]
    first, second = layouts[one], layouts[other]
    return [(first, first.wire(second).interface), (second, second.wire(first).interface)]


def _tag(one: str, other: str) -> str:
    return "cut:" + "-".join(sorted((one, other)))


def _rules(cluster: ClusterLayout, tag: str) -> list[int]:
    listed = _iptables(cluster, "-S", network.FAULT_CHAIN).splitlines()
    appended = [line for line in listed if line.startswith("-A ")]
    return [number for number, line in enumerate(appended, 1) if f"--comment {tag}" in line.replace('"', "")]


def _append(cluster: ClusterLayout, rule: list[str]) -> None:
    _iptables(cluster, "-A", network.FAULT_CHAIN, *rule)


def _iptables(cluster: ClusterLayout, *arguments: str) -> str:
    return network.inside(cluster, ["iptables", "-w", *arguments])


# ---------------------------------------------------------------------- components


def kill(cluster: Cluster, component: str) -> None:
    """kill -9; it stays dead until :func:`start`."""
    _running(cluster, component).kill()


def pause(cluster: Cluster, component: str) -> None:
    """SIGSTOP: it keeps its sockets and answers nothing."""
    target = _running(cluster, component)
    target.signal(signal.SIGSTOP)
    wait_for(lambda: target.state() == "paused", 5)


def resume(cluster: Cluster, component: str) -> None:
    """SIGCONT."""
    target = _running(cluster, component)
    target.signal(signal.SIGCONT)
    wait_for(lambda: target.state() == "running", 5)


def stop(cluster: Cluster, component: str) -> None:
    """SIGTERM, as an administrator would; it stays stopped until :func:`start`."""
    _running(cluster, component).stop()


def start(cluster: Cluster, component: str) -> None:
    """Start it as it was started last; no harm if it runs."""
    cluster.start_component(component)


def restart(cluster: Cluster, component: str) -> None:
    """Stop and start."""
    cluster.restart_component(component)


def _running(cluster: Cluster, name: str) -> Component:
    component = cluster.component(name)
    if not component.alive():
        raise DevclusterError(f"{name} of cluster {cluster.name} is not running ({component.state()})")
    return component


def compact(cluster: Cluster) -> None:
    """Throw away the history of the cluster's etcd up to now, as the API server does every five minutes.

    The API server answers old watches from its own memory as long as it has it: stop it before and start it after to
    have them refused with 410.
    """
    network.inside(cluster.layout, [sys.executable, "-c", _COMPACT, str(cluster.layout.pki)])


_COMPACT = """
import json, pathlib, ssl, sys, urllib.request
pki = pathlib.Path(sys.argv[1])
context = ssl.create_default_context(cafile=pki / "etcd-ca.crt")
context.load_cert_chain(pki / "apiserver-etcd.crt", pki / "apiserver-etcd.key")
def ask(path, body):
    request = urllib.request.Request("https://127.0.0.1:2379/v3/kv/" + path, json.dumps(body).encode())
    with urllib.request.urlopen(request, context=context, timeout=30) as answer:
        return json.load(answer)
revision = ask("range", {"key": "AA==", "limit": 1})["header"]["revision"]
ask("compaction", {"revision": revision, "physical": True})
"""
"""In the cluster's network, where its etcd is: the last revision, and everything before it compacted."""


# ---------------------------------------------------------------------- latency and loss


def slow(cluster: Cluster, weather: Weather, method: Method | None = None) -> Path:
    """Make the way to the cluster's API server slow and lossy; returns the kubeconfig that takes that way.

    With netem every packet from and to the cluster is late, whatever kubeconfig is used; without it, only what goes
    through a relay in front of the API server.
    """
    if method is None:
        method = Method.NETEM if network.has_netem() and not weather.hang else Method.RELAY
    fast(cluster)
    if method is Method.NETEM:
        if weather.hang:
            raise DevclusterError("netem cannot hang a connection: use the relay, or cut the link")
        for interface in _interfaces(cluster.layout):
            network.inside(cluster.layout, ["tc", "qdisc", "add", "dev", interface, "root", *_netem(weather)])
        return cluster.kubeconfig
    layout = cluster.layout
    flags = [f"--delay={weather.delay}", f"--jitter={weather.jitter}", f"--loss={weather.loss}"]
    if weather.hang:
        flags.append("--hang")
    ends = [f"--listen={layout.ip}:{RELAY_PORT}", f"--target={layout.ip}:{API_PORT}"]
    root = Path(__file__).resolve().parent.parent
    command = Command(
        [sys.executable, "-m", "devcluster.relay", *ends, *flags],
        env={"PYTHONPATH": str(root)},
        netns=str(layout.netns_path),
    )
    _relay(cluster).start(command)
    listening = ["sh", "-c", f"ss -Hltn 'sport = :{RELAY_PORT}' | grep -q ."]

    def ready() -> bool:
        return _succeeds(layout, listening)

    if not wait_for(ready, 15, 0.1):
        raise DevclusterError(f"the relay of cluster {cluster.name} does not listen: {_relay(cluster).tail(5)}")
    return relay_kubeconfig(cluster, cluster.kubeconfig)


def fast(cluster: Cluster) -> None:
    """Undo :func:`slow`."""
    _relay(cluster).stop()
    for interface in _interfaces(cluster.layout):
        if "netem" in network.inside(cluster.layout, ["tc", "qdisc", "show", "dev", interface]):
            network.inside(cluster.layout, ["tc", "qdisc", "delete", "dev", interface, "root"])


def is_slow(cluster: Cluster) -> bool:
    """Whether the way to the cluster's API server is slowed down."""
    if _relay(cluster).alive():
        return True
    shown = [network.inside(cluster.layout, ["tc", "qdisc", "show", "dev", i]) for i in _interfaces(cluster.layout)]
    return any("netem" in text for text in shown)


def relay_kubeconfig(cluster: Cluster, original: Path) -> Path:
    """The same credentials with the relay's address."""
    config = json.loads(original.read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://{cluster.layout.ip}:{RELAY_PORT}"
    path = original.with_name(f"{original.stem}-relay.kubeconfig")
    pki.write_private(path, json.dumps(config, indent=1).encode())
    return path


def _relay(cluster: Cluster) -> Component:
    return cluster.companion(RELAY)


def _interfaces(layout: ClusterLayout) -> list[str]:
    links = json.loads(network.inside(layout, ["ip", "-j", "link", "show"]))
    return [link["ifname"] for link in links if link["ifname"] == "eth0" or link["ifname"].startswith("wire")]


def _netem(weather: Weather) -> list[str]:
    delay = [f"{weather.delay * 1000:g}ms"]
    if weather.jitter:
        delay.append(f"{weather.jitter * 1000:g}ms")
    return ["netem", "delay", *delay, "loss", f"{weather.loss * 100:g}%"]


def _succeeds(layout: ClusterLayout, argv: list[str]) -> bool:
    try:
        network.inside(layout, argv)
    except DevclusterError:
        return False
    return True


# ---------------------------------------------------------------------- credentials


def expire(cluster: Cluster, kubeconfig: Path) -> None:
    """Replace the credential in a kubeconfig by an expired one for the same identity.

    The file is rewritten in place, as a credential that lapses would be found by whoever uses it; what was there is
    kept beside it for :func:`renew`.
    """
    config = _read_kubeconfig(kubeconfig)
    try:
        user = config["users"][0]["user"]
    except (KeyError, IndexError, TypeError):
        raise DevclusterError(f"{kubeconfig} is not a kubeconfig: it has no user") from None
    if "token" in user:
        user["token"] = pki.expired_token((cluster.layout.pki / "sa.key").read_bytes(), user["token"])
    elif "client-certificate-data" in user:
        ca = pki.Pair.read(cluster.layout.pki, "ca")
        expired = pki.expired_copy(ca, base64.b64decode(user["client-certificate-data"]))
        user["client-certificate-data"] = base64.b64encode(expired.certificate).decode()
        user["client-key-data"] = base64.b64encode(expired.key).decode()
    else:
        raise DevclusterError(f"{kubeconfig} holds neither a token nor an embedded client certificate")
    kept = _kept(kubeconfig)
    if not kept.exists():
        pki.write_private(kept, kubeconfig.read_bytes())
    pki.write_private(kubeconfig, json.dumps(config, indent=1).encode())


def renew(kubeconfig: Path) -> None:
    """Undo :func:`expire`."""
    kept = _kept(kubeconfig)
    if not kept.exists():
        raise DevclusterError(f"{kubeconfig} was not expired by devcluster: there is nothing to put back")
    kept.replace(kubeconfig)


def revoke(cluster: Cluster, namespace: str, name: str) -> None:
    """Make every token of a ServiceAccount void by making the account anew.

    The API server remembers good tokens for ten seconds; after that they are refused. There is no undoing: ask for a
    new kubeconfig.
    """
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}"
    account = cluster.api.get(path)
    cluster.api.delete(path)
    metadata: Object = {"name": name, "namespace": namespace}
    for key in ("labels", "annotations"):
        if account["metadata"].get(key):
            metadata[key] = account["metadata"][key]
    kept: Object = {key: account[key] for key in ("secrets", "imagePullSecrets") if key in account}
    body: Object = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata, **kept}
    cluster.api.post(f"/api/v1/namespaces/{namespace}/serviceaccounts", body)


def _read_kubeconfig(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise DevclusterError(f"{path} does not exist") from None
    except ValueError:
        raise DevclusterError(f"{path} was not written by devcluster (its kubeconfigs are JSON)") from None
    if not isinstance(config, dict):
        raise DevclusterError(f"{path} is not a kubeconfig")
    return config


def _kept(kubeconfig: Path) -> Path:
    return kubeconfig.with_name(f"{kubeconfig.name}.before-expiry")


# ---------------------------------------------------------------------- all of them


def active(fleet: Fleet) -> list[str]:
    """The faults that are in force, in words."""
    found = []
    clusters = fleet.clusters()
    names = [cluster.name for cluster in clusters]
    for cluster in clusters:
        if not cluster.layout.netns_path.exists():
            continue
        for other in (*names[names.index(cluster.name) + 1 :], MACHINE):
            if is_cut(fleet, cluster.name, other):
                found.append(f"link {cluster.name} - {other} is cut")
        if is_slow(cluster):
            found.append(f"the way to {cluster.name} is slow")
        found += [
            f"{component.name} of {cluster.name} is {component.state()}"
            for component in cluster.components()
            if component.state() in ("paused", "dead")
        ]
        found += [f"{path.name.removesuffix('.before-expiry')} is expired" for path in _expired(cluster)]
    return found


def clear(fleet: Fleet) -> None:
    """Undo every fault that can be undone: links, latency, paused and dead components, expired credentials."""
    clusters = fleet.clusters()
    for cluster in clusters:
        for other in (*(c.name for c in clusters if c.name != cluster.name), MACHINE):
            restore(fleet, cluster.name, other)
        fast(cluster)
        for component in cluster.components():
            if component.state() == "paused":
                resume(cluster, component.name)
            elif component.state() in ("dead", "not started"):
                cluster.start_component(component.name)
        for kept in _expired(cluster):
            renew(kept.with_name(kept.name.removesuffix(".before-expiry")))


def _expired(cluster: Cluster) -> list[Path]:
    return sorted(cluster.kubeconfig.parent.glob("*.before-expiry"))
