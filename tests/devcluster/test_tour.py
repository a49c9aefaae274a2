"""What the tour shows is what it runs: every line after a ``$`` can be pasted."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from devcluster import tour
from devcluster.errors import DevclusterError
from devcluster.tour import NAMESPACE, NODE, STEPS, Side, Stage

# Not Kubernetes is imitated here, only the program whose calls and output are shown.
FAKE_KUBECTL = """\
#!/bin/sh
{ printf '%s\\037' "$@"; echo; } >>"$0.calls"
echo "kubectl says: $*"
echo "cache: $KUBECACHEDIR" >&2
case "$*" in *"${KUBECTL_FAILS_ON:-nothing at all}"*) echo "kubectl complains" >&2; exit 1;; esac
"""


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text(FAKE_KUBECTL)
    kubectl.chmod(0o755)
    sides = [Side(name, tmp_path / f"{name}.kubeconfig") for name in ("local", "remote")]
    return Stage(sides[0], sides[1], kubectl, "registry.example/busybox:1", tmp_path / "cache")


def calls(stage: Stage) -> list[list[str]]:
    """The arguments of each call, and forget them; that the local cluster's id is looked up is not shown."""
    record = stage.kubectl.with_name("kubectl.calls")
    lines = record.read_text().splitlines()
    record.unlink()
    return [line.split("\037")[:-1] for line in lines if "kube-system" not in line]


def test_shows_steps_commands_and_their_output(stage: Stage, capfd: pytest.CaptureFixture[str]) -> None:
    tour.tour(stage)
    lines = capfd.readouterr().out.splitlines()
    assert lines[:2] == [f"LOCAL={stage.local.kubeconfig}", f"REMOTE={stage.remote.kubeconfig}"]
    titles = [f"{number}. {step.title}" for number, step in enumerate(STEPS, 1)]
    assert [line for line in lines if line in titles] == titles
    first = lines.index(titles[0])
    assert lines[first + 1] == "$ kubectl --kubeconfig $LOCAL get nodes -o wide"
    assert lines[first + 2] == f"kubectl says: --kubeconfig={stage.local.kubeconfig} get nodes -o wide"


def test_what_is_shown_is_what_is_run(stage: Stage, capfd: pytest.CaptureFixture[str]) -> None:
    tour.tour(stage)
    lines = capfd.readouterr().out.splitlines()
    run = [call for call in calls(stage) if "delete" not in call]  # making room is not shown
    script = [*lines[:2], *(line.removeprefix("$ ") for line in lines if line.startswith("$ "))]
    path = f"{stage.kubectl.parent}:{os.environ['PATH']}"
    subprocess.run(["sh", "-eu"], input="\n".join(script), text=True, env={**os.environ, "PATH": path}, check=True)
    pasted = [[f"--kubeconfig={call[1]}", *call[2:]] for call in calls(stage)]
    assert pasted == run
    assert len(run) >= 2 * len(STEPS)


def test_both_clusters_get_the_same(stage: Stage) -> None:
    tour.tour(stage)
    made = calls(stage)
    per_side = [
        [
            # what Farlet makes of the tour's namespace is only there remotely
            " ".join(word.replace(side.name, "SIDE") for word in call[1:] if not word.startswith(f"{NAMESPACE}-"))
            for call in made
            if call[0] == f"--kubeconfig={side.kubeconfig}"
        ]
        for side in stage.sides()
    ]
    assert per_side[0] == per_side[1]
    assert sum(map(len, per_side)) == len(made)


def test_image_is_the_one_that_was_given(stage: Stage) -> None:
    tour.tour(stage)
    assert [call for call in calls(stage) if "run" in call and f"--image={stage.image}" not in call] == []


def test_stops_at_the_first_failure(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECTL_FAILS_ON", "create namespace")
    with pytest.raises(DevclusterError) as caught:
        tour.tour(stage)
    assert str(caught.value) == (
        f"the tour ends here: kubectl create namespace {NAMESPACE} failed on the local cluster"
    )
    assert "kubectl complains" in capfd.readouterr().err, "kubectl's own message is not shown"
    assert calls(stage)[-1][1:] == ["create", "namespace", NAMESPACE]


def test_a_command_that_does_not_end(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.kubectl.write_text("#!/bin/sh\nexec sleep 1000\n")
    monkeypatch.setattr(tour, "_COMMAND_TIMEOUT", 0.05)
    with pytest.raises(DevclusterError, match=r"get nodes -o wide did not end within .* on the local cluster"):
        tour.tour(stage)


def test_cleaning_removes_the_node_and_the_namespace_from_both(stage: Stage) -> None:
    tour.clean(stage)
    node, *namespaces = [(call[0], call[1:4]) for call in calls(stage)]
    assert node == (f"--kubeconfig={stage.local.kubeconfig}", ["delete", "node", NODE])
    assert namespaces == [
        (f"--kubeconfig={side.kubeconfig}", ["delete", "namespace", NAMESPACE]) for side in stage.sides()
    ]


def test_kubectl_keeps_its_cache_out_of_the_home(stage: Stage, capfd: pytest.CaptureFixture[str]) -> None:
    tour.clean(stage)
    assert capfd.readouterr().err == f"cache: {stage.cache}\n" * 3


def test_blanks_in_the_path_of_kubectl(stage: Stage, tmp_path: Path) -> None:
    moved = tmp_path / "a folder"
    stage.kubectl.parent.rename(moved)
    stage = replace(stage, kubectl=moved / "kubectl")
    tour.clean(stage)
    assert len(calls(stage)) == 3
