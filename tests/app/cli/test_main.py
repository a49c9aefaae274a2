"""The command line as a whole: help, wrong arguments, exit codes, and that it starts quickly."""

import json
import subprocess
import sys

import pytest

# What makes a start slow. Time itself is not asserted on: a busy machine would fail the test.
HEAVY = (
    "aiohttp",
    "asyncio",
    "cryptography",
    "fastapi",
    "kubernetes",
    "pydantic",
    "rich",
    "uvicorn",
    "websockets",
)


def farlet(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program as a user does, in a process of its own."""
    return subprocess.run([sys.executable, "-m", "app", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_help_lists_the_commands(arguments: tuple[str, ...]) -> None:
    result = farlet(*arguments)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("Usage: farlet ")
    assert "version" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "says", "points_to"),
    [
        (("nonsense",), "nonsense", "farlet --help"),
        (("--nonsense",), "--nonsense", "farlet --help"),
        (("version", "--nonsense"), "--nonsense", "farlet version --help"),
        (("version", "--output"), "--output", "farlet --help"),
        (("version", "--output", "xml"), "xml", "farlet version --help"),
        (("version", "nonsense"), "nonsense", "farlet version --help"),
    ],
)
def test_wrong_arguments_give_one_line(arguments: tuple[str, ...], says: str, points_to: str) -> None:
    result = farlet(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("farlet")
    assert says in result.stderr
    assert f"See '{points_to}'." in result.stderr


@pytest.mark.parametrize("arguments", [("version",), ("version", "--output", "json"), ("--help",), ("nonsense",)])
def test_starts_without_heavy_modules(arguments: tuple[str, ...]) -> None:
    program = f"""
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted(set(sys.modules) & {set(HEAVY)!r})), file=sys.stderr))
from app.cli import main
sys.argv = ["farlet", *{list(arguments)!r}]
main()
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    loaded = json.loads(result.stderr.splitlines()[-1])
    assert loaded == [], f"import {loaded} where they are used, not at the top of a module of app.cli"


def test_closed_pipe_is_no_traceback() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "app", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
