"""``python -m devcluster``: the commands, one module for each group of them.

Nothing heavy is imported before a command runs, and whatever a person can mend is one line, never a traceback.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

from devcluster.cli import clusters, faults, images, tour
from devcluster.cli.options import help_when_alone
from devcluster.errors import DevclusterError

_INTERRUPTED = 130

cli = typer.Typer(
    name="devcluster",
    help="Real Kubernetes clusters on this machine: for the demo, the tests and the benchmarks of Farlet.",
    epilog="'python -m devcluster COMMAND --help' says more about one command.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
    callback=help_when_alone,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
cli.command("prepare")(clusters.prepare)
cli.command("up")(clusters.up)
cli.command("down")(clusters.down)
cli.command("status")(clusters.status)
cli.command("nodes")(clusters.nodes)
cli.command("kubectl", context_settings=clusters.PASS_THROUGH)(clusters.kubectl)
cli.command("kubeconfig")(clusters.kubeconfig)
cli.command("logs")(clusters.logs)
cli.add_typer(images.cli, name="image")
cli.add_typer(faults.cli, name="fault")
cli.command("demo")(tour.demo)
cli.command("demo-down")(tour.demo_down)


def main() -> NoReturn:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong arguments, 130 interrupted."""
    try:
        code = cli(prog_name="devcluster", standalone_mode=False)
    except typer.TyperException as error:
        context: typer.Context | None = getattr(error, "ctx", None)
        command = context.command_path if context else "devcluster"
        message = " ".join(error.format_message().split()).rstrip(".")
        typer.echo(f"{command}: {message}. See 'python -m {command} --help'.", err=True)
        code = error.exit_code
    except DevclusterError as error:
        typer.echo(f"devcluster: {error}", err=True)
        code = 1
    if code == _INTERRUPTED:  # typer turns Ctrl-C into this
        typer.echo("devcluster: interrupted; `python -m devcluster down` removes what was started", err=True)
    sys.exit(code)
