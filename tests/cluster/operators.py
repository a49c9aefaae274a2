"""``farlet operator`` as a user runs it beside a cluster, for tests: a process with the rights of ``manifests/``.

Other tests label their namespaces too, so the webhooks of a test see only namespaces with a label of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import yaml

from devcluster.cluster import Cluster
from tests.cluster.farlet import DIES_WITH_US, MANIFESTS, install_rights
from tests.eventually import eventually

SCOPE = "test.farlet.dev/operator"


class Operator:
    """One ``farlet operator``."""

    def __init__(self, local: Cluster, name: str, log: Path, *options: str) -> None:
        self.local, self.log = local, log
        with socket.create_server(("0.0.0.0", 0)) as listener:
            self.port: int = listener.getsockname()[1]
        self._arguments = [
            *("--kubeconfig", str(local.service_account_kubeconfig("farlet", "farlet-operator"))),
            *("--webhook-name", name, "--webhook-address", f"0.0.0.0:{self.port}"),
            *("--health-address", "127.0.0.1:0", *options),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, url_port: int | None = None) -> None:
        """:param url_port: where the API server finds it, if that is not its own port."""
        url = f"https://{self.local.layout.gateway}:{url_port or self.port}"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*DIES_WITH_US, sys.executable, "-m", "app", "operator", *self._arguments, "--webhook-url", url],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def serves(self) -> bool:
        """Whether it has had a certificate since it was first started."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the operator ended: {self.log.read_text()[-3000:]}")
        return "serves with a certificate" in self.log.read_text()

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            assert self._process.wait(30) == 0, self.log.read_text()[-3000:]
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the operator did not end: {self.log.read_text()[-3000:]}") from None
        assert "Traceback" not in self.log.read_text()


@contextlib.contextmanager
def registered(local: Cluster, remote: Cluster, scope: str) -> Iterator[str]:
    """The rights of an operator, and its webhooks for namespaces with the label SCOPE of that value; their name."""
    install_rights(local, remote)
    name = f"farlet-{scope}"
    rights = (MANIFESTS / "operator" / "rbac.yaml").read_text()
    rights = rights.replace("resourceNames: [farlet]", f"resourceNames: [{name}]")
    rights = rights.replace("[farlet-webhook-tls]", f"[farlet-webhook-tls-{name}]")
    local.kubectl("apply", "-f", "-", stdin=rights)
    webhooks = list(yaml.safe_load_all((MANIFESTS / "operator" / "webhooks.yaml").read_text()))
    for document in webhooks:
        document["metadata"]["name"] = name
        for webhook in document["webhooks"]:
            selects = webhook.setdefault("namespaceSelector", {})
            selects["matchLabels"] = {SCOPE: scope}
    local.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(webhooks))
    try:
        yield name
    finally:
        kinds = "mutatingwebhookconfiguration,validatingwebhookconfiguration"
        local.kubectl("delete", kinds, name, "--ignore-not-found")
        local.kubectl("-n", "farlet", "delete", "secret", f"farlet-webhook-tls-{name}", "--ignore-not-found")


@contextlib.contextmanager
def serving(operators: list[Operator], url_port: int | None = None) -> Iterator[None]:
    """While the block lasts, these run; at its beginning all of them answer."""
    try:
        for operator in operators:
            operator.start(url_port)
        eventually(lambda: all(operator.serves() for operator in operators), "they serve")
        yield
    finally:
        for operator in operators:
            operator.stop()
            print(operator.log.read_text()[-4000:])  # noqa: T201 - in the report of a test that fails


@contextlib.contextmanager
def operating(local: Cluster, remote: Cluster, folder: Path) -> Iterator[tuple[Operator, dict[str, str]]]:
    """One operator, and the label of the namespaces that it sees."""
    scope = f"scope-{uuid.uuid4().hex[:8]}"
    with registered(local, remote, scope) as name:
        operator = Operator(local, name, folder / "operator.log")
        with serving([operator]):
            yield operator, {SCOPE: scope}
