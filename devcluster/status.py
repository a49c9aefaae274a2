"""What a fleet looks like right now, as data and as a table."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from devcluster import faults
from devcluster.cluster import Cluster, node_is_ready
from devcluster.errors import DevclusterError
from devcluster.fleet import Fleet
from devcluster.process import proportional_memory

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ComponentState:
    name: str
    state: str
    pid: int | None
    memory: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    name: str
    server: str
    kubeconfig: str
    logs: str
    components: tuple[ComponentState, ...]
    memory: int
    """Bytes of all its processes, containers included."""
    nodes: int
    nodes_ready: int
    problem: str
    """Why its API could not be asked; empty if it could."""


@dataclass(frozen=True, slots=True)
class FleetState:
    fleet: str
    clusters: tuple[ClusterState, ...]
    faults: tuple[str, ...]

    @property
    def healthy(self) -> bool:
        """Whether every program runs and every API answers."""
        return bool(self.clusters) and all(
            not cluster.problem and all(part.state == "running" for part in cluster.components)
            for cluster in self.clusters
        )


def collect(fleet: Fleet) -> FleetState:
    """Look at every process and ask every API server."""
    clusters = fleet.clusters()
    found = tuple(faults.active(fleet)) if clusters else ()
    return FleetState(fleet.name, tuple(_cluster(cluster) for cluster in clusters), found)


def _cluster(cluster: Cluster) -> ClusterState:
    parts = []
    for component in cluster.components():
        identity = component.identity()
        alive = identity is not None and identity.alive()
        pid = identity.pid if identity is not None and alive else None
        parts.append(ComponentState(component.name, component.state(), pid, proportional_memory(pid) if pid else 0))
    nodes, problem = [], ""
    try:
        nodes = cluster.nodes()
    except (OSError, DevclusterError) as error:
        problem = str(error)
    return ClusterState(
        name=cluster.name,
        server=cluster.layout.server,
        kubeconfig=str(cluster.kubeconfig),
        logs=str(cluster.layout.logs),
        components=tuple(parts),
        memory=cluster.memory(),
        nodes=len(nodes),
        nodes_ready=sum(1 for node in nodes if node_is_ready(node)),
        problem=problem,
    )


def as_json(state: FleetState) -> str:
    return json.dumps({**asdict(state), "healthy": state.healthy}, indent=1)


def as_text(state: FleetState) -> str:
    """A table for a person."""
    if not state.clusters:
        return f"fleet {state.fleet} is not up: start it with `python -m devcluster up`"
    lines = []
    for cluster in state.clusters:
        api = cluster.problem or f"{cluster.nodes_ready}/{cluster.nodes} nodes Ready"
        lines.append(f"{cluster.name}  {cluster.server}  {api}  {cluster.memory // _MIB} MiB with containers")
        lines.append(f"  export KUBECONFIG={cluster.kubeconfig}")
        lines.append(f"  logs: {cluster.logs}")
        for part in cluster.components:
            pid = str(part.pid or "-")
            lines.append(f"  {part.name:26}{part.state:13}{pid:>8}{part.memory // _MIB:>6} MiB")
        lines.append("")
    total = sum(cluster.memory for cluster in state.clusters) // _MIB
    lines.append(f"all clusters: {total} MiB")
    lines += [f"fault: {fault}" for fault in state.faults]
    return "\n".join(lines)
