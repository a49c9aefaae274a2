"""The command line: one module per command.

A CLI that lags is not used, so this package and its modules import nothing heavy at the top: what a
command needs (fastapi, kubernetes, cryptography, rich...) it imports when it runs. A test holds us to it.
For the same reason help and errors are plain text: typer would import rich to draw them.
"""

import sys
from typing import NoReturn

import typer

from app.cli import operator, remove, run, version

cli = typer.Typer(
    name="farlet",
    help="Farlet shows a whole remote Kubernetes cluster as one node of the local cluster.",
    epilog="'farlet COMMAND --help' says more about one command.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
cli.command("run")(run.run)
cli.command("operator")(operator.operator)
cli.command("remove")(remove.remove)
cli.command("version")(version.version)


@cli.callback(invoke_without_command=True)
def _help_when_alone(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> NoReturn:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong arguments, 130 interrupted."""
    try:
        code = cli(prog_name="farlet", standalone_mode=False)
    except typer.TyperException as error:
        typer.echo(_one_line(error), err=True)
        code = error.exit_code
    except typer.Abort:
        typer.echo("farlet: aborted", err=True)
        code = 1
    sys.exit(code)


def _one_line(error: typer.TyperException) -> str:
    """What was wrong with the arguments and where to read on, in one line that a log or a script can take."""
    context: typer.Context | None = getattr(error, "ctx", None)
    command = context.command_path if context else "farlet"
    message = " ".join(error.format_message().split()).rstrip(".")
    return f"{command}: {message}. See '{command} --help'."
