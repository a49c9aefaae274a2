"""``farlet run``: the virtual node of one remote cluster, until it is told to stop."""

import inspect
import os
import sys
import typing
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from app import settings

ConfigOption = Annotated[Path | None, typer.Option(metavar="FILE", help="YAML with the same settings.")]


def run(config: ConfigOption = None, **flags: Any) -> None:
    """Show a remote cluster as a node, and run its pods there.

    Every setting can also be given by the environment (FARLET_NODE_NAME) or a YAML file (node-name); flags win.
    """
    from app.facts import StartError
    from app.kube.errors import KubeError
    from app.options import check
    from app.service import main

    try:
        chosen = check(settings.load(flags, os.environ, config))
    except settings.SettingsError as error:
        typer.echo(f"farlet run: {error}", err=True)
        raise typer.Exit(2) from error
    try:
        main(chosen)
    except (KubeError, StartError) as error:
        typer.echo(f"farlet run: {error}", err=True)
        sys.exit(1)


def _parameters() -> list[inspect.Parameter]:
    """A flag for each setting, as typer wants them."""
    types = settings.setting_types()
    parameters = []
    for declared in settings.declarations():
        kind, default = types[declared.name], settings.default_of(declared)
        text, repeatable = declared.metadata["help"], typing.get_origin(kind) is tuple
        metavar = declared.metadata["metavar"]
        if kind is bool:
            hint: Any = bool | None
        elif repeatable:
            hint, text = list[str] | None, f"{text.rstrip('.')} (repeatable)."
        else:
            hint = str | None
            if issubclass(kind, StrEnum):
                metavar = "|".join(kind)
            if default is not None:
                text = f"{text} [default: {default}]"
        flag = "--" + (declared.metadata["flag"] or declared.name.replace("_", "-"))
        annotation = Annotated[hint, typer.Option(flag, metavar=metavar, help=text)]
        parameters.append(
            inspect.Parameter(declared.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        )
    return parameters


_FLAGS = _parameters()
_CONFIG = inspect.signature(run).parameters["config"]
run.__signature__ = inspect.Signature([_CONFIG, *_FLAGS])  # type: ignore[attr-defined]  # typer reads it
run.__annotations__ = {item.name: item.annotation for item in (_CONFIG, *_FLAGS)}
