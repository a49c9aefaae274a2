"""`farlet version`, for a person and for a program."""

import json
import platform

from typer.testing import CliRunner

from app import __version__
from app.cli import cli


def test_text_is_the_default() -> None:
    result = CliRunner().invoke(cli, ["version"])
    assert result.exit_code == 0
    assert result.stdout == f"farlet {__version__} (Python {platform.python_version()})\n"


def test_json() -> None:
    result = CliRunner().invoke(cli, ["version", "--output", "json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"farlet": __version__, "python": platform.python_version()}
