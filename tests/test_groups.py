"""Tests of one xdist group share a worker: they lean on it, and a pytest that breaks it would only make them flaky."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

GROUPED = """
import os, pytest

@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("number", range(8))
def test_in_a_group(number, record_property):
    record_property("worker", os.environ["PYTEST_XDIST_WORKER"])
"""


def test_a_group_has_one_worker(tmp_path: Path) -> None:
    (tmp_path / "test_grouped.py").write_text(GROUPED)
    options = ["-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider", "--junit-xml", "report.xml"]
    subprocess.run([sys.executable, "-m", "pytest", *options], cwd=tmp_path, check=True, capture_output=True)
    report = (tmp_path / "report.xml").read_text()
    assert report.count('name="worker"') == 8
    assert len({worker for worker in ("gw0", "gw1") if f'value="{worker}"' in report}) == 1
