"""Where binaries come from, and that no accident leaves a bad one behind.

Go is played by a small script, so that a build can be held, killed and broken at will; one test builds with the
real one.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from devcluster import binaries, golang, versions
from devcluster.binaries import BinaryError, Compilation
from devcluster.gomodules.recipes import KUBERNETES, RECIPES, Recipe

ROOT = Path(__file__).resolve().parents[2]

GO = r"""#!/bin/sh
# Called as: go version | go list ARGUMENTS... | go build -v -o OUTPUT FLAGS... PACKAGES...
here=$(dirname "$0")
echo "$@" >> "$here/calls"
case $1 in
version) echo "go version go1.99.0 linux/amd64" ;;
list)
    echo "go: downloading example.com/library v1.0.0" >&2
    printf 'true example.com/library\nfalse example.com/other\nfalse example.com/tools/one\n' ;;
build)
    output=$4
    shift 4
    case $output in */) mkdir -p "$output" ;; esac
    for package; do
        case $package in
        -*) ;;
        *)
            case $output in */) file=$output$(basename "$package") ;; *) file=$output ;; esac
            echo half > "$file"
            chmod +x "$file"
            ;;
        esac
    done
    echo example.com/library >&2
    echo $$ > "$here/pid"
    while [ -e "$here/hold" ]; do sleep 0.02; done
    if [ -e "$here/fail" ]; then
        echo "# example.com/library" >&2
        echo "library.go:7:2: undefined: nonsense" >&2
        exit 1
    fi
    case $output in */) for file in "$output"*; do echo whole > "$file"; done ;; *) echo whole > "$output" ;; esac
    ;;
esac
"""

USERS_CACHE = binaries.cache_folder()
"""Before a fixture puts another in its place."""


class FakeGo:
    """The script on the PATH, and what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "go").write_text(GO)
        (folder / "go").chmod(0o755)

    def hold(self) -> None:
        (self.folder / "hold").touch()

    def release(self) -> None:
        (self.folder / "hold").unlink()

    def fail(self) -> None:
        (self.folder / "fail").touch()

    def mend(self) -> None:
        (self.folder / "fail").unlink()

    def builds(self) -> list[str]:
        """The packages of each build."""
        calls = (self.folder / "calls").read_text().splitlines() if (self.folder / "calls").exists() else []
        return [" ".join(re.findall(r"\S*/tools/\S+", call)) for call in calls if call.startswith("build")]

    def wait_for_build(self) -> int:
        """Wait until a build is held; returns its process id."""
        pid = self.folder / "pid"
        until(lambda: pid.exists() and pid.read_text().endswith("\n"), "go build to start")
        return int(pid.read_text())


PATIENCE = 60
"""Seconds until something is taken to hang."""


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE} s for {what}"
        time.sleep(0.01)


def alive_in_group(group: int) -> list[int]:
    """Processes of the group, without those that only wait to be reaped."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of_group = stat.read_text().rpartition(") ")[2].split()[:3]
        except OSError:
            continue
        if int(of_group) == group and state != "Z":
            found.append(int(stat.parent.name))
    return found


def put_program(path: Path, *, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("given")
    path.chmod(mode)
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in binaries.GIVEN:
        monkeypatch.delenv(variable, raising=False)
    return tmp_path / "cache" / "farlet"


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGo:
    fake = FakeGo(tmp_path / "fakego")
    monkeypatch.setenv("PATH", f"{fake.folder}:{os.environ['PATH']}")
    return fake


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    folder = tmp_path / "module"
    folder.mkdir()
    (folder / "go.mod").write_text("module example.com/tools\n\ngo 1.26.0\n")
    (folder / "go.sum").write_text("")
    programs = {name: f"example.com/tools/{name}" for name in ("one", "two", "three")}
    return Recipe(name="tools", version="1.2.3", requires=None, programs=programs, disk_gib=0.001, folder=folder)


def in_another_process(recipe: Recipe, *names: str) -> "subprocess.Popen[str]":
    code = (
        "import sys; from pathlib import Path; from devcluster.binaries import ensure; "
        "from devcluster.gomodules.recipes import Recipe; "
        f"r = Recipe(name='tools', version='1.2.3', requires=None, programs={dict(recipe.programs)!r}, "
        f"disk_gib=0.001, folder=Path({str(recipe.source)!r})); "
        f"print(*ensure({list(names)!r}, recipes=[r]).values())"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_cache_folder_follows_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert binaries.cache_folder() == Path("/x/farlet")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/h")
    assert binaries.cache_folder() == Path("/h/.cache/farlet")


def test_given_folders_come_first_then_the_cache_then_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, go: FakeGo, recipe: Recipe
) -> None:
    ours = put_program(tmp_path / "ours" / "one")
    theirs = put_program(tmp_path / "theirs" / "two")
    put_program(tmp_path / "theirs" / "one")
    put_program(tmp_path / "theirs" / "three", mode=0o644)
    monkeypatch.setenv("FARLET_DEVCLUSTER_BIN", str(tmp_path / "ours"))
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "theirs"))
    three = binaries.cached("three", recipe)

    for _ in range(2):
        found = binaries.ensure(["three", "one", "two", "one"], recipes=[recipe])
        assert list(found.items()) == [("three", three), ("one", ours), ("two", theirs)]
    assert go.builds() == ["example.com/tools/three"], "built once, and only what nobody has"
    assert three.read_text() == "whole\n"

    put_program(tmp_path / "ours" / "three")
    assert binaries.ensure(["three"], recipes=[recipe]) == {"three": tmp_path / "ours" / "three"}


def test_all_programs_of_a_module_are_built_at_once_and_others_not_at_all(go: FakeGo, recipe: Recipe) -> None:
    other = replace(recipe, name="other", programs={"four": "example.com/tools/four"})
    found = binaries.ensure(["two", "one"], recipes=[other, recipe])
    assert list(found) == ["two", "one"]
    assert [path.read_text() for path in found.values()] == ["whole\n", "whole\n"]
    assert go.builds() == ["example.com/tools/two example.com/tools/one"]


def test_unknown_name_is_refused_with_the_known_ones(go: FakeGo, recipe: Recipe) -> None:
    with pytest.raises(BinaryError, match="no recipe for four; there is one for one, three, two"):
        binaries.ensure(["one", "four"], recipes=[recipe])
    assert go.builds() == []


def test_key_changes_with_all_that_decides_what_a_binary_is(recipe: Recipe) -> None:
    assert recipe.key.startswith("tools-1.2.3-")
    keys = {recipe.key, replace(recipe, variables={"main.version": "2"}).key}
    for name in ("go.mod", "go.sum", "main.go"):
        (recipe.source / name).write_text("// changed")
        keys.add(recipe.key)
    assert len(keys) == 5
    (recipe.source / "README.md").write_text("changed")
    assert recipe.key in keys


def test_changed_recipe_is_built_beside_the_old_one(go: FakeGo, recipe: Recipe) -> None:
    old = binaries.ensure(["one"], recipes=[recipe])["one"]
    (recipe.source / "go.sum").write_text("changed")
    new = binaries.ensure(["one"], recipes=[recipe])["one"]
    assert new != old
    assert old.exists()
    assert len(go.builds()) == 2


def test_binary_is_in_the_cache_only_when_it_is_whole(go: FakeGo, recipe: Recipe) -> None:
    go.hold()
    build = threading.Thread(target=binaries.ensure, args=(["one"],), kwargs={"recipes": [recipe]})
    build.start()
    go.wait_for_build()
    final = binaries.cached("one", recipe)
    assert not final.exists()
    assert [path.read_text() for path in final.parent.glob(".building-*/one")] == ["half\n"], "on the same disk"
    go.release()
    build.join()
    assert final.read_text() == "whole\n"
    assert [path.name for path in final.parent.iterdir()] == ["one"]


def test_two_processes_build_once(go: FakeGo, recipe: Recipe) -> None:
    go.hold()
    first = in_another_process(recipe, "one", "two")
    go.wait_for_build()
    second = in_another_process(recipe, "two")
    assert second.stderr
    second.stderr.readline()
    assert "another process builds it already" in second.stderr.readline()
    go.release()
    outputs = [process.communicate(timeout=PATIENCE)[0].split() for process in (first, second)]
    one, two = (str(binaries.cached(name, recipe)) for name in ("one", "two"))
    assert outputs == [[one, two], [two]]
    assert go.builds() == ["example.com/tools/one example.com/tools/two"]


def test_killed_build_is_taken_up_again_when_what_it_started_has_ended(go: FakeGo, recipe: Recipe) -> None:
    go.hold()
    victim = in_another_process(recipe, "one")
    orphan = go.wait_for_build()
    victim.kill()
    victim.wait(PATIENCE)
    final = binaries.cached("one", recipe)
    assert not final.exists()
    assert list(final.parent.glob(".building-*"))
    with in_another_process(recipe, "one") as again:
        assert again.stderr
        again.stderr.readline()
        assert "another process builds it already" in again.stderr.readline(), "go itself was not killed"
        assert alive_in_group(orphan)
        go.release()
        again.communicate(timeout=PATIENCE)
    assert final.read_text() == "whole\n"
    assert [path.name for path in final.parent.iterdir()] == ["one"]
    for pipe in (victim.stdout, victim.stderr):
        assert pipe
        pipe.close()


def test_interrupt_ends_go_and_leaves_nothing(go: FakeGo, recipe: Recipe) -> None:
    go.hold()
    victim = in_another_process(recipe, "one")
    pid = go.wait_for_build()
    assert alive_in_group(pid)
    victim.send_signal(signal.SIGINT)
    _, errors = victim.communicate(timeout=PATIENCE)
    assert victim.returncode != 0
    assert "building tools v1.2.3: interrupted after" in errors
    until(lambda: not alive_in_group(pid), "go and its children to end")
    assert list(binaries.cached("one", recipe).parent.iterdir()) == []


def test_failed_build_says_why_and_where_the_log_is(cache: Path, go: FakeGo, recipe: Recipe) -> None:
    go.fail()
    with pytest.raises(BinaryError, match=r"building tools v1\.2\.3 failed") as caught:
        binaries.ensure(["one"], recipes=[recipe])
    assert "library.go:7:2: undefined: nonsense" in str(caught.value)
    log = cache / "logs" / f"{recipe.key}.log"
    assert str(log) in str(caught.value)
    assert "example.com/library\n" in log.read_text(), "all of the output"
    assert list(binaries.cached("one", recipe).parent.iterdir()) == []
    go.mend()
    assert binaries.ensure(["one"], recipes=[recipe])["one"].exists()


def test_build_that_does_not_fit_is_refused(cache: Path, go: FakeGo, recipe: Recipe) -> None:
    with pytest.raises(BinaryError, match=r"needs about 1000000\.0 GiB in .* XDG_CACHE_HOME") as caught:
        binaries.ensure(["one"], recipes=[replace(recipe, disk_gib=1e6)])
    assert str(cache) in str(caught.value)
    assert go.builds() == []


def test_rest_of_a_build_needs_less_disk(cache: Path, go: FakeGo, recipe: Recipe) -> None:
    (cache / "go" / "build").mkdir(parents=True)
    with pytest.raises(BinaryError, match=r"needs about 333333\.3 GiB"):  # 1 of 3 packages is not compiled yet
        binaries.ensure(["one"], recipes=[replace(recipe, disk_gib=1e6)])


def test_compilation_counts_what_go_names() -> None:
    compilation = Compilation(["a.com/x", "a.com/y"], packages=8)
    assert (compilation.done, compilation.total, compilation.share, compilation.linking) == (0, 2, 0.25, False)
    for line in ("a.com/x\n", "go: something else\n", "a.com/x\n", "a.com/cached\n"):
        compilation.read(line)
    assert (compilation.done, compilation.linking) == (1, False)
    compilation.read("a.com/y\n")
    assert (compilation.done, compilation.linking) == (2, True)
    assert Compilation([], packages=8).linking


# -- the recipes ------------------------------------------------------------------------------------------------


def module_versions(recipe: Recipe) -> dict[str, str]:
    """Module -> the version that the recipe's `go.mod` leads to."""
    text = (recipe.source / "go.mod").read_text()
    required = dict(re.findall(r"^(?:require )?\s*(\S+\.\S+/\S+) (v\S+)(?: //.*)?$", text, re.MULTILINE))
    replaced = re.findall(r"^(?:replace )?\s*(\S+)( v\S+)? => (\S+) (v\S+)$", text, re.MULTILINE)
    assert all(old == new for old, _, new, _ in replaced), "only by another version of the same module"
    return required | {path: version for path, only, _, version in replaced if not only}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_go_mod_agrees_with_versions(recipe: Recipe) -> None:
    found = module_versions(recipe)
    advice = "run `python -m devcluster.gomodules.update`"
    if recipe.requires:
        assert found[recipe.requires] == f"v{recipe.version}", advice
        assert f"{recipe.requires} v{recipe.version} h1:" in (recipe.source / "go.sum").read_text(), advice
    if recipe.requires and recipe.name != KUBERNETES.name:
        kubernetes = module_versions(KUBERNETES)
        # Those that every program has packages of on Linux; a requirement for another system may differ.
        both = kubernetes.keys() & found.keys() - recipe.unaligned
        shared = {path for path in both if path.startswith(("k8s.io/", "google.golang.org/", "golang.org/x/"))}
        assert shared
        assert {path: found[path] for path in shared} == {path: kubernetes[path] for path in shared}, advice


def test_kubernetes_libraries_are_of_its_version() -> None:
    expected = "v0." + versions.KUBERNETES.partition(".")[2]
    text = (KUBERNETES.source / "go.mod").read_text()
    replaced = re.findall(r"^\s*k8s\.io/\S+ v0\.0\.0 => k8s\.io/\S+ (v\S+)$", text, re.MULTILINE)
    assert len(replaced) > 25
    assert set(replaced) == {expected}
    assert module_versions(KUBERNETES)["k8s.io/client-go"] == expected


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_go_from_pypi_can_build_everything(recipe: Recipe) -> None:
    needed = golang.required_version((recipe.source / "go.mod").read_text())
    assert needed <= golang.parse_numbers(versions.GO)


def test_kubernetes_is_told_its_version() -> None:
    flags = " ".join(KUBERNETES.flags)
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
        assert f"-X={package}.gitVersion=v{versions.KUBERNETES} " in flags


def test_every_binary_has_one_recipe() -> None:
    names = [name for recipe in RECIPES for name in recipe.programs]
    assert len(names) == len(set(names))
    several = [recipe for recipe in RECIPES if len(recipe.programs) > 1]
    for name, package in [item for recipe in several for item in recipe.programs.items()]:
        assert package.endswith(f"/{name}"), "go itself names the programs of a build of several"


# -- the real Go ------------------------------------------------------------------------------------------------


@pytest.mark.cluster  # not for want of a cluster: as those it runs after `devcluster prepare`, which brings a Go
def test_real_go_builds_pause(cache: Path) -> None:
    # With the Go and the compiled standard library that the builds have left: an empty cache would cost a minute.
    cache.mkdir(parents=True)
    for theirs in USERS_CACHE.glob("go*"):
        (cache / theirs.name).symlink_to(theirs)
    pause = binaries.ensure(["pause"])["pause"]
    assert pause.is_relative_to(cache)
    # A shell that becomes pause after it has started a child, so that the child's end is reported to pause.
    process = subprocess.Popen(["/bin/sh", "-c", f"sleep 0.1 & exec {pause}"])
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        until(lambda: Path(f"/proc/{process.pid}/exe").resolve() == pause, "pause to start")
        if children.exists():
            until(lambda: not children.read_text().split(), "pause to reap the child")
        process.terminate()
        assert process.wait(timeout=5) == 0
    finally:
        process.kill()
        process.wait()
