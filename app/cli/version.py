"""`farlet version`: what to put into a bug report."""

import platform
from enum import StrEnum
from typing import Annotated

import typer

from app import __version__


class Output(StrEnum):
    """How the version is printed: for a person or for a program."""

    TEXT = "text"
    JSON = "json"


def version(
    output: Annotated[Output, typer.Option("--output", "-o", help="For a person or for a program.")] = Output.TEXT,
) -> None:
    """Print the versions of Farlet and of the Python that runs it."""
    if output is Output.JSON:
        import json

        typer.echo(json.dumps({"farlet": __version__, "python": platform.python_version()}))
    else:
        typer.echo(f"farlet {__version__} (Python {platform.python_version()})")
