"""What is built from which Go module, and with which flags.

Every module has a folder here with a `go.mod` that requires it and a `go.sum` that pins every byte of it; the
programs are named by `tool` directives, or by a `main.go` of our own. A recipe and those two files decide what a
binary is, so together they are its key in the cache.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from devcluster import versions

FOLDER: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the binaries of one Go module are built."""

    name: str
    """The folder in `gomodules`, and the name that people see."""

    version: str

    requires: str | None
    """The Go module that holds the programs; None where the only code is ours."""

    programs: Mapping[str, str]
    """Binary -> Go package."""

    tags: tuple[str, ...] = ()
    """Go build tags, such as those that leave out what no cluster here has."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """Go variables set by the linker: without them a program says that it is version 0.0.0."""

    aligned: bool = True
    """Dependencies are held at the versions that Kubernetes uses, so that each is compiled only once for all."""

    unaligned: frozenset[str] = frozenset()
    """Go modules for which that does not work: the program needs another version than Kubernetes has."""

    disk_gib: float = 1.0
    """Free space that a build with an empty Go cache needs, sources included."""

    folder: Path | None = None
    """Where `go.mod` is, when not in the folder of its name beside this file."""

    @property
    def source(self) -> Path:
        return self.folder or FOLDER / self.name

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of `go build` (all but where the result goes).

        Not `-trimpath`: with it Go compiles a replaced module once more for every version that it stands in for,
        and without it the modules after Kubernetes take seconds instead of minutes.
        """
        linker = ["-s", "-w", *(f"-X={name}={value}" for name, value in self.variables.items())]
        tags = [f"-tags={','.join(self.tags)}"] if self.tags else []
        return ("-mod=readonly", "-buildvcs=false", *tags, f"-ldflags={' '.join(linker)}")

    @property
    def key(self) -> str:
        """Name of this build in the cache: the version for people, the hash for a recipe that changed."""
        digest = hashlib.sha256("\0".join(self.flags).encode())
        for file in sorted(p for p in self.source.iterdir() if p.name in ("go.mod", "go.sum") or p.suffix == ".go"):
            digest.update(f"\0{file.name}\0".encode() + file.read_bytes())
        return f"{self.name}-{self.version}-{digest.hexdigest()[:10]}"


def _kubernetes_variables(version: str) -> dict[str, str]:
    major, minor, _ = version.split(".")
    values = {
        "gitVersion": f"v{version}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "gitCommit": "",
    }
    # client-go has its own copy: it is what the programs send as their User-Agent.
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return {f"{package}.{name}": value for package in packages for name, value in values.items()}


KUBERNETES: Final = Recipe(
    name="kubernetes",
    version=versions.KUBERNETES,
    requires="k8s.io/kubernetes",
    programs={
        name: f"k8s.io/kubernetes/cmd/{name}"
        for name in (
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kubelet",
            "kube-proxy",
            "kubectl",
        )
    },
    variables=_kubernetes_variables(versions.KUBERNETES),
    aligned=False,
    disk_gib=6.0,
)

PROMETHEUS: Final = Recipe(
    name="prometheus",
    # The module of Prometheus 3.12.0 is v0.312.0: Go has its own idea of what 3 in a version means.
    version=versions.PROMETHEUS_MODULE,
    requires="github.com/prometheus/prometheus",
    programs={name: f"github.com/prometheus/prometheus/cmd/{name}" for name in ("prometheus", "promtool")},
    # Every other service discovery is a cloud's whole client; without its assets there is no web interface.
    tags=("remove_all_sd", "enable_kubernetes_sd"),
    variables={"github.com/prometheus/common/version.Version": versions.PROMETHEUS},
    # Its tracing needs a vocabulary that came after the version that Kubernetes has.
    # golang.org/x/tools is only required, no package of it is built.
    unaligned=frozenset({"golang.org/x/tools"}).union(
        f"go.opentelemetry.io/{module}"
        for module in (
            "contrib/instrumentation/net/http/otelhttp",
            "otel",
            "otel/exporters/otlp/otlptrace",
            "otel/exporters/otlp/otlptrace/otlptracegrpc",
            "otel/metric",
            "otel/sdk",
            "otel/trace",
            "proto/otlp",
        )
    ),
    disk_gib=2.0,
)

RECIPES: Final = (
    KUBERNETES,
    Recipe(
        name="etcd",
        version=versions.ETCD,
        requires="go.etcd.io/etcd/server/v3",
        programs={"etcd": "go.etcd.io/etcd/server/v3"},
    ),
    Recipe(
        name="coredns",
        version=versions.COREDNS,
        requires="github.com/coredns/coredns",
        programs={"coredns": "."},
    ),
    Recipe(
        name="metrics-server",
        version=versions.METRICS_SERVER,
        requires="sigs.k8s.io/metrics-server",
        programs={"metrics-server": "sigs.k8s.io/metrics-server/cmd/metrics-server"},
        variables={"k8s.io/client-go/pkg/version.gitVersion": f"v{versions.METRICS_SERVER}"},
        disk_gib=2.0,
    ),
    Recipe(
        name="kwok",
        version=versions.KWOK,
        requires="sigs.k8s.io/kwok",
        programs={"kwok": "sigs.k8s.io/kwok/cmd/kwok"},
        variables={"sigs.k8s.io/kwok/pkg/consts.Version": versions.KWOK},
        disk_gib=2.0,
    ),
    Recipe(
        name="local-path-provisioner",
        version=versions.LOCAL_PATH_PROVISIONER,
        requires="github.com/rancher/local-path-provisioner",
        programs={"local-path-provisioner": "github.com/rancher/local-path-provisioner"},
        variables={"main.VERSION": f"v{versions.LOCAL_PATH_PROVISIONER}"},
    ),
    PROMETHEUS,
    Recipe(
        name="pause",
        version=versions.PAUSE,
        requires=None,
        programs={"pause": "."},
        aligned=False,
        disk_gib=0.2,
    ),
)
