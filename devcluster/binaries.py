"""The programs that a cluster is made of, each from the first place that has it.

A folder that the user names, then the cache, then a build from the Go module (Kubernetes' server binaries are in no
package registry). A build takes minutes, so it must be safe to kill it, to start it twice and to change a recipe
under it: binaries enter the cache by rename under a key of their recipe, one process builds a module at a time, and
what Go had compiled is still there the next time.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

from devcluster import golang, progress
from devcluster.errors import DevclusterError
from devcluster.gomodules.recipes import RECIPES, Recipe

GIVEN: Final = ("FARLET_DEVCLUSTER_BIN", "KUBEBUILDER_ASSETS")
"""Environment variables that name a folder of ready binaries; the second is the convention of envtest."""

_TAIL: Final = 20
_GIB: Final = 1 << 30


class BinaryError(DevclusterError):
    """A binary cannot be had."""


def cache_folder() -> Path:
    """What is built once per user: binaries, Go's caches, build logs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "farlet"


def ensure(names: Iterable[str], *, recipes: Sequence[Recipe] = RECIPES) -> dict[str, Path]:
    """The path of every named binary, in that order; builds those that are neither given nor cached."""
    asked = list(dict.fromkeys(names))
    recipe_of = {name: recipe for recipe in recipes for name in recipe.programs}
    if unknown := [name for name in asked if name not in recipe_of]:
        raise BinaryError(f"no recipe for {', '.join(unknown)}; there is one for {', '.join(sorted(recipe_of))}")
    missing: dict[str, list[str]] = {}
    for name in asked:
        if not locate(name, recipe_of[name]):
            missing.setdefault(recipe_of[name].name, []).append(name)
    for programs in missing.values():
        _build(recipe_of[programs[0]], programs)
    return {name: given(name) or cached(name, recipe_of[name]) for name in asked}


def locate(name: str, recipe: Recipe) -> Path | None:
    """The binary, if it can be had without a build."""
    if path := given(name):
        return path
    path = cached(name, recipe)
    return path if _is_program(path) else None


def given(name: str) -> Path | None:
    """The binary in a folder that the user names, if it is there."""
    folders = (os.environ.get(variable) for variable in GIVEN)
    paths = (Path(folder).resolve() / name for folder in folders if folder)
    return next((path for path in paths if _is_program(path)), None)


def cached(name: str, recipe: Recipe) -> Path:
    """Where the binary is in the cache once it is built."""
    return cache_folder() / "bin" / recipe.key / name


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _build(recipe: Recipe, names: Sequence[str]) -> None:
    title = f"building {recipe.name} v{recipe.version}"
    with progress.step(title, unit="packages", announce=True) as step, _only_builder(recipe, step) as lock:
        # Another process may have built them while this one waited.
        names = [name for name in names if not _is_program(cached(name, recipe))]
        if not names:
            return
        folder = cache_folder() / "bin" / recipe.key
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(".building-*"):  # of a build that was killed: this process has the lock
            shutil.rmtree(leftover)
        with tempfile.TemporaryDirectory(prefix=".building-", dir=folder) as aside:
            _GoBuild(recipe, names, step, lock).run(Path(aside))
            for name in names:
                (Path(aside) / name).rename(folder / name)


@contextmanager
def _only_builder(recipe: Recipe, step: progress.Step) -> Iterator[int]:
    """Hold the module's lock; yields its descriptor.

    It ends with the last process that has the descriptor, however that ends: where this one is killed, the compilers
    that it had started may write for a while yet.
    """
    path = cache_folder() / "locks" / recipe.name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            step.say("another process builds it already, waiting for that one")
            step.update(note="waiting for another process that builds it")
            fcntl.flock(lock, fcntl.LOCK_EX)
            step.update(note="")
        yield lock.fileno()


class Compilation:
    """How far a `go build -v` is, from the lines that it writes.

    It names each package as its compilation starts and says nothing of those in its cache, nor of linking: that is
    what is left when all packages are named.
    """

    def __init__(self, stale: Iterable[str], packages: int) -> None:
        self._left = set(stale)
        self.total = len(self._left)
        self.share = self.total / packages if packages else 1.0
        """How much of the whole has to be compiled: 1.0 with an empty cache."""

    @property
    def done(self) -> int:
        return self.total - len(self._left)

    @property
    def linking(self) -> bool:
        return not self._left

    def read(self, line: str) -> None:
        self._left.discard(line.strip())


class _GoBuild:
    """One build of one module: download, look what has to be compiled, compile and link."""

    def __init__(self, recipe: Recipe, names: Sequence[str], step: progress.Step, lock: int) -> None:
        self._recipe = recipe
        self._names = names
        self._lock = lock
        self._packages = [recipe.programs[name] for name in names]
        self._step = step
        self._log_path = cache_folder() / "logs" / f"{recipe.key}.log"
        go_mod = (recipe.source / "go.mod").read_text()
        self._go = golang.find(golang.required_version(go_mod), cache_folder())

    def run(self, target: Path) -> None:
        """Leave the binaries in `target`."""
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        if not Path(self._go.environment["GOCACHE"]).exists():
            self._check_disk(self._recipe.disk_gib)
        with self._log_path.open("w", buffering=1, encoding="utf-8") as log:
            compilation = self._list(log)
            self._check_disk(self._recipe.disk_gib * compilation.share)
            self._compile(log, compilation, target)

    def _list(self, log: TextIO) -> Compilation:
        """Download the sources, and ask which packages Go has not compiled yet."""
        downloads = 0

        def read(line: str) -> None:
            nonlocal downloads
            if line.startswith("go: downloading "):
                downloads += 1
                self._step.update(note=f"downloading sources, {downloads} modules so far")

        self._step.update(note="looking for what has to be compiled")
        # Of a program, stale means that it has to be linked; its own package is compiled in no time.
        template = '{{and .Stale (ne .Name "main")}} {{.ImportPath}}'
        out = self._run(log, ["list", "-deps", "-f", template, *self._recipe.flags, *self._packages], read)
        packages = [line.split(" ", 1) for line in out]
        return Compilation((path for stale, path in packages if stale == "true"), len(packages))

    def _compile(self, log: TextIO, compilation: Compilation, target: Path) -> None:
        def read(line: str) -> None:
            compilation.read(line)
            self._step.update(compilation.done, note="linking" if compilation.linking else "")

        self._step.update(0, compilation.total, "linking" if compilation.linking else "")
        # Into a folder, go names each program by the last word of its package; a single one is named by us.
        output = f"{target}/" if len(self._names) > 1 else str(target / self._names[0])
        self._run(log, ["build", "-v", "-o", output, *self._recipe.flags, *self._packages], read)

    def _run(self, log: TextIO, arguments: Sequence[str], read: Callable[[str], None]) -> list[str]:
        """Run go, hand every line that it writes to stderr to `read`, and return the lines of stdout."""
        print("$ go", *arguments, file=log, flush=True)
        with tempfile.TemporaryFile("w+", encoding="utf-8") as stdout:
            with subprocess.Popen(
                [self._go.executable, *arguments],
                cwd=self._recipe.source,
                env=dict(self._go.environment),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                # A pipe also for the case that this process is killed: go then ends at its next line.
                stderr=subprocess.PIPE,
                text=True,
                # A group of its own: its compilers and linkers end with it.
                process_group=0,
                pass_fds=(self._lock,),
            ) as process:
                assert process.stderr
                try:
                    for line in process.stderr:
                        log.write(line)
                        read(line)
                    process.wait()
                except BaseException:
                    os.killpg(process.pid, signal.SIGKILL)
                    raise
            if process.returncode:
                log.flush()
                raise BinaryError(self._failure(process.returncode))
            stdout.seek(0)
            return stdout.read().splitlines()

    def _failure(self, status: int) -> str:
        lines = self._log_path.read_text(encoding="utf-8").splitlines()
        # The names of the packages that did compile say nothing about the one that did not.
        telling = [line for line in lines if " " in line.strip() or line.startswith("\t")]
        tail = "\n".join(f"  {line}" for line in telling[-_TAIL:])
        return (
            f"building {self._recipe.name} v{self._recipe.version} failed (go ended with status {status}):\n{tail}\n"
            f"The whole output is in {self._log_path}. Ready binaries can be given in a folder that "
            f"{GIVEN[0]} names; a build goes on where it ended."
        )

    def _check_disk(self, needed_gib: float) -> None:
        free_gib = shutil.disk_usage(cache_folder()).free / _GIB
        if free_gib < needed_gib:
            raise BinaryError(
                f"building {self._recipe.name} v{self._recipe.version} needs about {needed_gib:.1f} GiB in "
                f"{cache_folder()}, and only {free_gib:.1f} GiB are free there. Free some space, set XDG_CACHE_HOME "
                f"to a folder on a larger disk, or name a folder with ready binaries in {GIVEN[0]}."
            )
