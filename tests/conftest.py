"""Clusters for the tests: once per run, shared by all workers, taken down when the run ends.

``fleet`` is the pair that all tests share; each has a namespace of its own in it. ``faulty`` is a pair of its own for
tests that break things, which run after the others; each of pytest's workers has such a pair. Whoever cannot have
clusters (no root, no Linux) gets their tests skipped with a loud line; CI gets a failure.
"""

from __future__ import annotations

import fcntl
import os
import signal
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from devcluster import faults
from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.fleet import Fleet, check_means
from devcluster.layout import state_root
from devcluster.process import Identity
from tests.cluster.farlet import RUNNING
from tests.eventually import eventually

# How long an example takes says something about the machine, and tests never assert on time.
hypothesis.settings.register_profile(
    "farlet", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("farlet")

SHARED = "test"
FAULTY = f"faults-{os.environ.get('PYTEST_XDIST_WORKER', 'one')}"
RUN = "FARLET_TEST_RUN"
"""Which run this is; set by its first process for all of them."""
KEEP = "FARLET_KEEP_CLUSTERS"
"""Set it to leave the clusters up after a run, for a quick loop on one test."""
_WIDTH = 240
"""Characters of a line of a component's log: there are dozens of components, and the cause is to be found first."""


def means_missing() -> str:
    """Why clusters cannot run here; empty if they can."""
    try:
        check_means()
    except DevclusterError as error:
        return f"{error} (such as `sudo make test`, or in a Linux virtual machine)"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    why = means_missing()
    if why and not os.environ.get("CI"):
        for item in items:
            if item.get_closest_marker("cluster") or item.get_closest_marker("faults"):
                item.add_marker(pytest.mark.skip(reason=why))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if means_missing() and terminalreporter.stats.get("skipped"):
        line = f"NO CLUSTER TEST WAS RUN: {means_missing()}"
        terminalreporter.write_sep("!", line, red=True, bold=True)


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # in the background of a script Ctrl-C is ignored, and whatever is started inherits that
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if _is_controller(config):
        own = Path("/proc/self/stat")
        start_time = own.read_text().rsplit(")", 1)[1].split()[19] if own.exists() else "0"
        os.environ[RUN] = f"{os.getpid()} {start_time}"  # xdist's workers inherit it


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not _is_controller(session.config) or os.environ.get(KEEP):
        return
    for file in list(state_root().glob(".*.owner")):
        if file.read_text() == os.environ[RUN]:
            Fleet(file.stem.removeprefix(".")).down()
            file.unlink()


def _is_controller(config: pytest.Config) -> bool:
    """Whether this process is the one that starts the workers (or the only one)."""
    return not hasattr(config, "workerinput")


def _bring_up(name: str) -> Fleet:
    """The fleet of that name for this run: new with its first test, and the same one for every worker."""
    if why := means_missing():
        pytest.fail(f"no clusters can run here, and CI is set: {why}")
    fleet = Fleet(name)
    _owner_file(name).parent.mkdir(parents=True, exist_ok=True)
    with _owner_file(name).with_suffix(".owner-lock").open("w") as lock:  # not the fleet's own, which down() takes
        fcntl.flock(lock, fcntl.LOCK_EX)
        owner = _owner(name)
        if owner != os.environ[RUN]:
            if owner and Identity(*map(int, owner.split())).alive():
                pytest.fail(f"the clusters {name!r} are in use by another test run, pid {owner.split()[0]}")
            if fleet.exists() and not os.environ.get(KEEP):  # a run before this one was killed
                fleet.down()
            _owner_file(name).write_text(os.environ[RUN])
    fleet.up()
    return fleet


def _owner_file(name: str) -> Path:
    return state_root() / f".{name}.owner"


def _owner(name: str) -> str:
    """The run that brought a fleet up, as pid and start time; empty if there is none."""
    try:
        return _owner_file(name).read_text()
    except FileNotFoundError:
        return ""


@pytest.fixture(scope="session")
def fleet() -> Fleet:
    """Two whole clusters, ``local`` and ``remote``, that all tests share."""
    return _bring_up(SHARED)


@pytest.fixture
def local(fleet: Fleet) -> Cluster:
    return fleet.cluster("local")


@pytest.fixture
def remote(fleet: Fleet) -> Cluster:
    return fleet.cluster("remote")


@pytest.fixture(params=["local", "remote"])
def cluster(request: pytest.FixtureRequest, fleet: Fleet) -> Cluster:
    """Each of the two in turn."""
    return fleet.cluster(request.param)


@pytest.fixture
def namespace(fleet: Fleet) -> Iterator[str]:
    """A fresh namespace of the same name in every cluster, removed afterwards."""
    yield from _namespaces(fleet)


@pytest.fixture(scope="module")
def module_namespace(fleet: Fleet) -> Iterator[str]:
    """The same for all the tests of a module, where what is in it takes long to make."""
    yield from _namespaces(fleet)


@pytest.fixture
def virtual_node() -> str:
    """A name for a virtual node that no other test uses."""
    return f"virtual-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def _faulty_fleet() -> Fleet:
    return _bring_up(FAULTY)


@pytest.fixture
def faulty(_faulty_fleet: Fleet) -> Iterator[Fleet]:
    """Two clusters to break; whatever the test broke is mended afterwards."""
    yield _faulty_fleet
    faults.clear(_faulty_fleet)
    for cluster in _faulty_fleet.clusters():
        eventually(cluster.healthy, f"{cluster.name} is healthy again after the fault", timeout=120)


@pytest.fixture
def faulty_namespace(faulty: Fleet) -> Iterator[str]:
    yield from _namespaces(faulty)


def _namespaces(fleet: Fleet) -> Iterator[str]:
    name = f"t-{uuid.uuid4().hex[:8]}"
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    for cluster in fleet.clusters():
        cluster.kubectl("create", "namespace", name)
        eventually(lambda c=cluster: c.api.get(account), f"the default ServiceAccount in {name}")  # type: ignore[misc]
    yield name
    for cluster in fleet.clusters():
        cluster.kubectl("delete", "namespace", name, "--wait=false", check=False)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another place for fleets, as a second checkout on this machine would have."""
    monkeypatch.setenv("FARLET_DEVCLUSTER_STATE", str(tmp_path / "checkout"))
    return tmp_path / "checkout"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and report.when in ("setup", "call"):
        arguments = getattr(item, "funcargs", {})
        report.sections += [(f"end of the log of {farlet.node}", farlet.end_of_log()) for farlet in RUNNING]
        for name in ("fleet", "faulty"):
            if isinstance(arguments.get(name), Fleet):
                space = arguments.get("namespace") or arguments.get("faulty_namespace")
                report.sections += _evidence(arguments[name], space)
    return report


def _evidence(fleet: Fleet, namespace: str | None) -> list[tuple[str, str]]:
    """What a person would look at first: faults, pods and events of the test, the ends of the component logs."""
    sections = [("faults in force", "\n".join(faults.active(fleet)) or "none")]
    for cluster in fleet.clusters():
        if namespace:
            for what in (["get", "pods", "-o", "wide"], ["get", "events", "--sort-by=.lastTimestamp"]):
                sections.append((f"{cluster.name}: {what[1]} in {namespace}", _ask(cluster, namespace, what)))
        for component in cluster.components():
            lines = [line[:_WIDTH] for line in component.tail(3).splitlines()]
            sections.append((f"{cluster.name}: end of {component.log}", "\n".join(lines)))
    return sections


def _ask(cluster: Cluster, namespace: str, what: list[str]) -> str:
    try:
        result = cluster.kubectl("-n", namespace, "--request-timeout=5s", *what, check=False, timeout=15)
    except (OSError, DevclusterError, TimeoutError) as error:
        return f"could not be asked: {error}"
    return result.stdout + result.stderr
