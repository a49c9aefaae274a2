"""Logs stay small while programs keep them open, and the latest lines are always there."""

from __future__ import annotations

import functools
import shutil
import sys
import time
from pathlib import Path

import pytest

from devcluster import logs


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "etcd.log"


def contents(log: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in log.parent.iterdir()}


def test_a_small_log_is_left_alone(log: Path) -> None:
    log.write_text("0123456789")
    assert logs.rotate(log, max_bytes=10) is False
    assert contents(log) == {"etcd.log": "0123456789"}


def test_older_ones_move_on_and_the_oldest_goes(log: Path) -> None:
    for content in ("first", "second", "third", "fourth"):
        log.write_text(content)
        assert logs.rotate(log, max_bytes=1, keep=2) is True
    assert contents(log) == {"etcd.log": "", "etcd.log.1": "fourth", "etcd.log.2": "third"}


def test_keeping_one(log: Path) -> None:
    for content in ("first", "second"):
        log.write_text(content)
        logs.rotate(log, max_bytes=1, keep=1)
    assert contents(log) == {"etcd.log": "", "etcd.log.1": "second"}


def test_a_program_goes_on_writing_at_the_start(log: Path) -> None:
    with log.open("ab", buffering=0) as program:
        program.write(b"before\n")
        logs.rotate(log, max_bytes=1)
        program.write(b"after\n")
    assert contents(log) == {"etcd.log": "after\n", "etcd.log.1": "before\n"}


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The logs of two clusters, each of them too large."""
    monkeypatch.setattr(logs, "rotate", functools.partial(logs.rotate, max_bytes=1))
    for cluster in ("local", "remote"):
        folder = tmp_path / "fleet" / cluster / "logs"
        folder.mkdir(parents=True)
        for name in ("etcd.log", "audit.log", "audit-2026-01-01.log", "notes.txt"):
            (folder / name).write_text("content")
    return tmp_path / "fleet"


def test_all_clusters_but_not_what_the_api_server_rotates(fleet: Path) -> None:
    logs.rotate_all(fleet)
    for cluster in ("local", "remote"):
        assert contents(fleet / cluster / "logs" / "x") == {
            "etcd.log": "",
            "etcd.log.1": "content",
            "audit.log": "content",
            "audit-2026-01-01.log": "content",
            "notes.txt": "content",
        }


def test_one_that_cannot_be_rotated_does_not_stop_the_others(fleet: Path) -> None:
    for cluster in ("local", "remote"):
        (fleet / cluster / "logs" / "gone.log").symlink_to(fleet / "nowhere")
    logs.rotate_all(fleet)
    assert (fleet / "local" / "logs" / "etcd.log.1").exists()
    assert (fleet / "remote" / "logs" / "etcd.log.1").exists()


def test_runs_until_the_fleet_is_gone(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = []

    def sleep(seconds: float) -> None:
        rounds.append((fleet / "local" / "logs" / "etcd.log.1").exists())
        if len(rounds) == 2:
            shutil.rmtree(fleet)

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(sys, "argv", ["devcluster.logs", str(fleet)])
    logs.main()
    assert rounds == [True, True]
