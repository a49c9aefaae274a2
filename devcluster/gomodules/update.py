"""Rewrite every `go.mod` and `go.sum` from `devcluster/versions.py`: `python -m devcluster.gomodules.update`.

Kubernetes requires its own libraries at v0.0.0, from a folder of its repository, so its module needs a
replacement for each. Every other module is held at the dependencies that Kubernetes has, so that each library is
compiled once for all: what it has older is raised by a requirement, what it has newer is replaced.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from devcluster import binaries, golang
from devcluster.gomodules import recipes
from devcluster.gomodules.recipes import Recipe


def main() -> None:
    cache = binaries.cache_folder()
    toolchain = golang.find((1, 24, 0), cache)  # the first with tool directives
    kubernetes = _update_kubernetes(toolchain)
    for recipe in recipes.RECIPES:
        if recipe is not recipes.KUBERNETES:
            _update(toolchain, recipe, kubernetes)


def _update_kubernetes(toolchain: golang.Toolchain) -> dict[str, str]:
    """Write the module of Kubernetes itself; returns the version of everything that it is built from."""
    recipe = recipes.KUBERNETES
    published = _go_json(toolchain, Path("/"), "mod", "download", "-json", f"{recipe.requires}@v{recipe.version}")
    go_mod = _go_json(toolchain, Path("/"), "mod", "edit", "-json", published["GoMod"])
    staging = [entry["Path"] for entry in go_mod["Require"] if entry["Version"] == "v0.0.0"]
    libraries = "v0." + recipe.version.partition(".")[2]
    # Required as well as replaced, so that the binaries say which libraries they were built from, not v0.0.0.
    v0 = {f"{path} v0.0.0": f"{path} {libraries}" for path in staging}
    _write(toolchain, recipe, go=go_mod["Go"], requires=dict.fromkeys(staging, libraries), replaces=v0)
    return _build_list(toolchain, recipe)


def _update(toolchain: golang.Toolchain, recipe: Recipe, kubernetes: Mapping[str, str]) -> None:
    go = golang.required_version((recipes.KUBERNETES.source / "go.mod").read_text())
    oldest = ".".join(str(number) for number in go)
    if not recipe.aligned:
        _write(toolchain, recipe, go=oldest)
        return
    wanted = {path: version for path, version in kubernetes.items() if path not in recipe.unaligned}
    _write(toolchain, recipe, go=oldest, requires=wanted)
    selected = _build_list(toolchain, recipe)
    newer = {path: f"{path} {wanted[path]}" for path in selected if wanted.get(path, selected[path]) != selected[path]}
    if newer:
        _write(toolchain, recipe, go=oldest, requires=wanted, replaces=newer)


def _write(
    toolchain: golang.Toolchain,
    recipe: Recipe,
    *,
    go: str,
    requires: Mapping[str, str] = MappingProxyType({}),
    replaces: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write the module; `go mod tidy` drops those of `requires` that the programs do not need."""
    print(f"{recipe.name} {recipe.version}: resolving dependencies", flush=True)
    packages = [package for package in recipe.programs.values() if package != "."]
    required = {**requires, **({recipe.requires: f"v{recipe.version}"} if recipe.requires else {})}
    text = [
        "// Written by `python -m devcluster.gomodules.update`.",
        f"module farlet.dev/devcluster/{recipe.name}\n",
        f"go {go}\n",
        _block("tool", sorted(packages)),
        _block("require", (f"{path} {version}" for path, version in sorted(required.items()))),
        _block("replace", (f"{old} => {new}" for old, new in sorted(replaces.items()))),
    ]
    (recipe.source / "go.mod").write_text("\n".join(part for part in text if part))
    (recipe.source / "go.sum").unlink(missing_ok=True)
    _go(toolchain, recipe.source, "mod", "tidy")


def _block(keyword: str, lines: Iterable[str]) -> str:
    body = "".join(f"\t{line}\n" for line in lines)
    return f"{keyword} (\n{body})\n" if body else ""


def _build_list(toolchain: golang.Toolchain, recipe: Recipe) -> dict[str, str]:
    """Module -> version, of the modules that hold a package of the programs."""
    version = "{{with .Replace}}{{.Version}}{{else}}{{.Version}}{{end}}"
    template = "{{with .Module}}{{if not .Main}}{{.Path}} " + version + "{{end}}{{end}}"
    tags = f"-tags={','.join(recipe.tags)}"
    out = _go(toolchain, recipe.source, "list", "-deps", tags, "-f", template, *recipe.programs.values())
    return {path: version for path, _, version in (line.partition(" ") for line in out.splitlines() if line)}


def _go_json(toolchain: golang.Toolchain, folder: Path, *arguments: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(_go(toolchain, folder, *arguments))
    return answer


def _go(toolchain: golang.Toolchain, folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [toolchain.executable, *arguments],
        cwd=folder,
        env=dict(toolchain.environment),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"go {' '.join(arguments)} failed in {folder}:\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
